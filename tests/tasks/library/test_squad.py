"""SQuAD as text: texts and ids are exactly those of the t5 library; 2.0 is compared with handwritten ones."""

import pytest
from golden_rows import examples, ours, raw_dataset, rows, scores_of_perfect_answers, stored, t5_library

from t5like.tasks import registry
from t5like.tasks.caching import text_pipeline


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["squad", "squad_context_free", "squad_span"])
def test_every_field_equals_the_t5_library(name):
  found, expected = ours(name, "squad/v1.1", "t5"), t5_library()[name]
  assert found == expected and len(found) >= 15


CONTEXT = "In 1912, Mr. O'Neil's \"Blue-Door\" café sold 1,234.5 cups."
PADDED = "In 1912 , Mr . O ' Neil ' s \" Blue - Door \" café sold 1 , 234 . 5 cups . "


def row(question, answers, **more):
  given = {"text": answers, "answer_start": [0] * len(answers)}
  return {"id": "x", "title": "t", "context": CONTEXT, "question": question, "answers": given, **more}


@pytest.mark.slow
def test_texts_equal_handwritten_ones():
  raw = raw_dataset("squad/v1.1", [row("What's sold?", ["1,234.5 cups", "cups."])])
  (found,) = examples(registry.find_task("squad"), raw)
  assert found["inputs_pretokenized"] == f"question: What ' s sold ? context: {PADDED}"
  assert found["targets_pretokenized"] == "1 , 234 . 5 cups"
  assert found["answers"] == ["1 , 234 . 5 cups", "cups . "] and found["id"] == "x"
  (found,) = examples(registry.find_task("squad_context_free"), raw)
  assert found["inputs_pretokenized"] == "squad trivia question: What ' s sold ? "
  (found,) = examples(registry.find_task("squad_span"), raw)
  # Punctuation becomes spaces, and each space starts a word: "In", "1912", "", "", "Mr", ...
  words = "".join(c if c.isascii() and c.isalnum() else " " for c in PADDED).split(" ")
  start = words.index("1")
  assert words[start : start + 8] == ["1", "", "", "234", "", "", "5", "cups"]
  assert found["targets_pretokenized"] == f"start: {start} end: {start + 7}"


def test_examples_without_a_span_are_dropped():
  raw = raw_dataset("squad/v1.1", [row("?", ["a teapot"]), row("?", ["café"])])
  assert len(examples(registry.find_task("squad"), raw)) == 2
  assert len(examples(registry.find_task("squad_span"), raw)) == 1


def unanswerable(question):
  plausible = {"text": ["1912"], "answer_start": [3]}
  return row(question, [], is_impossible=True, plausible_answers=plausible)


ROWS_OF_2_0 = [
  row("When?", ["1912", "In 1912"], is_impossible=False, plausible_answers={"text": [], "answer_start": []}),
  unanswerable("Who drank?"),
]


def test_squad_2_has_unanswerable_targets():
  answered, none = examples(registry.find_task("squad_v2"), raw_dataset("squad/v2.0", ROWS_OF_2_0))
  assert answered["inputs_pretokenized"] == f"question: When ? context: {PADDED}"
  assert (answered["targets_pretokenized"], answered["answers"]) == ("1912", ["1912", "In 1912"])
  assert none["inputs_pretokenized"] == f"question: Who drank ? context: {PADDED}"
  assert (none["targets_pretokenized"], none["answers"]) == ("unanswerable", [])


def test_a_question_with_withheld_answers_has_no_target():
  (found,) = examples(registry.find_task("squad"), raw_dataset("squad/v1.1", [row("Who?", [])]))
  assert found["targets_pretokenized"] == "<unk>"


def test_correct_answers_score_100_from_a_token_cache():
  real = [e for e in ours("squad", "squad/v1.1") if not e["id"].startswith("own")]
  assert len(real) == 8
  assert scores_of_perfect_answers("squad", real) == {"em": 100, "f1": 100}
  found = examples(registry.find_task("squad_v2"), raw_dataset("squad/v2.0", ROWS_OF_2_0))
  scores = scores_of_perfect_answers("squad_v2", found)
  assert {name: scores[name] for name in ("exact", "f1", "HasAns_exact", "NoAns_exact", "NoAns_total")} == {
    "exact": 100, "f1": 100, "HasAns_exact": 100, "NoAns_exact": 100, "NoAns_total": 1,
  }  # fmt: skip


def test_any_number_of_answers_reaches_seqio_and_the_token_cache(tmp_path):
  given = rows()["squad/v1.1"][:8]
  with stored("squad", {"validation": given}, tmp_path) as task:
    texts = {e["id"]: e for e in text_pipeline.text_examples(task, "validation")}
    tokens = task.get_dataset({"inputs": 512, "targets": 32}, "validation", shuffle=False)
    for example in tokens.as_numpy_iterator():
      plain = texts[example["id"].decode()]
      assert [a.decode() for a in example["answers"]] == plain["answers"]
      assert example["targets_pretokenized"].decode() == plain["targets"] == plain["answers"][0]
    assert {len(e["answers"]) for e in texts.values()} == {len(r["answers"]["text"]) for r in given}
