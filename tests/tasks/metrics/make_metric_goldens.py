"""Writes tests/data/metrics/*.json: results of the original libraries on random inputs and edge cases.

Needs t5 0.9.4, scikit-learn, sacrebleu, rouge-score, seqeval and the file `squad_metrics.py` of
transformers 4 (the official SQuAD 2.0 script as functions); the tests need none of them:

  python tests/tasks/metrics/make_metric_goldens.py path/to/transformers/data/metrics/squad_metrics.py
"""

import importlib.util
import json
import random
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import seqeval.metrics
import sklearn.metrics
from t5.data import postprocessors as t5_postprocessors
from t5.evaluation import metrics as t5

OUT = Path(__file__).resolve().parents[2] / "data/metrics"
WORDS = "the a an big Moose hippo o'clock 3.5 Zürich — ‘quoted’ U.S. state-of-the-art naïve _x_ $5 北京 . , the".split()


def main(squad_metrics_file):
  random.seed(4)
  rng = np.random.default_rng(4)
  np.seterr(all="ignore")
  warnings.simplefilter("ignore")
  OUT.mkdir(parents=True, exist_ok=True)
  cases = [*class_cases(rng), *correlation_cases(rng), *group_cases(), *text_cases(), *qa_cases(), *ranking_cases(rng)]
  cases += [*squad2_cases(load_squad_metrics(squad_metrics_file)), *tagging_cases()]
  write("metrics.json", cases)
  write("postprocessors.json", list(postprocessor_cases()))


def write(name, cases):
  lines = ",\n".join(json.dumps(case, ensure_ascii=False, default=plain, separators=(",", ":")) for case in cases)
  (OUT / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
  print(f"{name}: {len(cases)} cases")


def plain(value):
  return value.tolist() if hasattr(value, "tolist") else list(value)


def case(metric, targets, predictions, expected, factory=None, **keywords):
  """Returns a test case; `factory` holds the arguments of a function that returns the metric."""
  found = {
    "metric": metric,
    "targets": targets,
    "predictions": predictions,
    "expected": {name: float(value) for name, value in expected.items()},
  }
  return found | ({"factory": factory} if factory else {}) | ({"keywords": keywords} if keywords else {})


def class_cases(rng):
  matthews = t5.sklearn_metrics_wrapper("matthews_corrcoef", metric_post_process_fn=lambda x: 100 * x)
  f1_3 = t5.mean_multiclass_f1(num_classes=3)
  for low, high, size in [(0, 2, 40), (0, 2, 7), (0, 3, 60), (-1, 2, 30), (-1, 3, 50)]:
    targets = rng.integers(max(low, 0), high, size).tolist()
    for predictions in (
      rng.integers(low, high, size).tolist(),
      [t if random.random() < 0.8 else random.randrange(low, high) for t in targets],
      [0] * size,
      [1] * size,
      [-1] * size,
      targets,
    ):
      yield case("accuracy", targets, predictions, t5.accuracy(targets, predictions))
      yield case("matthews_corrcoef", targets, predictions, matthews(targets, predictions))
      yield case("mean_multiclass_f1", targets, predictions, f1_3(targets, predictions), factory={"num_classes": 3})
      if high == 2:
        expected = t5.f1_score_with_invalid(targets, list(predictions))
        yield case("f1_score_with_invalid", targets, predictions, expected)
  for targets in ([0, 0, 0], [1, 1, 1], [0], [1]):
    for answer in (0, 1, -1):
      predictions = [answer] * len(targets)
      yield case("matthews_corrcoef", targets, predictions, matthews(targets, predictions))
      yield case("f1_score_with_invalid", targets, predictions, t5.f1_score_with_invalid(targets, list(predictions)))
  words = ["yes", "no", "maybe", ""]
  for size in (1, 5, 30):
    targets, predictions = random.choices(words, k=size), random.choices(words, k=size)
    for name in ("accuracy", "sequence_accuracy", "all_match"):
      yield case(name, targets, predictions, getattr(t5, name)(targets, predictions))
      yield case(name, targets, targets, getattr(t5, name)(targets, targets))


def correlation_cases(rng):
  for size in (2, 3, 12, 40):
    targets = np.round(np.round(rng.uniform(0, 5, size) * 5) / 5, 1)
    for predictions in (
      rng.uniform(0, 5, size).round(3),
      (targets + rng.normal(0, 0.5, size)).round(3),
      -targets,
      np.where(rng.uniform(size=size) < 0.3, -1.0, targets),
      np.round(targets),
      np.full(size, 2.6),  # undefined: ours is 0
    ):
      for name in ("pearson_corrcoef", "spearman_corrcoef"):
        expected = getattr(t5, name)(targets, predictions)
        expected = {key: 0.0 if np.isnan(value) else value for key, value in expected.items()}
        yield case(name, targets, predictions, expected)


def group_cases():
  for size in (1, 6, 30):
    targets = [{"group": random.randrange(8), "value": random.randrange(2)} for _ in range(size)]
    for low in (-1, 0):
      predictions = [{"value": t["value"] if random.random() < 0.7 else random.randrange(low, 2)} for t in targets]
      yield case(
        "multirc_f1_over_all_answers", targets, predictions, t5.multirc_f1_over_all_answers(targets, predictions)
      )
      for subgroups in (False, True):
        for inner in ("all_match", "accuracy"):
          metric = t5.mean_group_metric(getattr(t5, inner), return_subgroup_scores=subgroups)
          factory = {"metric_fn": inner, "return_subgroup_scores": subgroups}
          yield case("mean_group_metric", targets, predictions, metric(targets, predictions), factory=factory)
      expected = t5.deduplicate_metric(t5.accuracy)(targets, predictions)
      yield case("deduplicate_metric", targets, predictions, expected, factory={"metric_fn": "accuracy"})
    queries = [(random.randrange(3), random.randrange(3)) for _ in range(size)]
    targets = [{"group": q, "value": answers()} for q in queries]
    predictions = [{"value": guess(t["value"])} for t in targets]
    expected = t5.deduplicate_metric(t5.squad)(targets, predictions)
    yield case("deduplicate_metric", targets, predictions, expected, factory={"metric_fn": "squad"})


def phrase(most=6, least=0):
  return " ".join(random.choices(WORDS, k=random.randint(least, most)))


def answers():
  return [phrase(4) for _ in range(random.randint(1, 3))]


def guess(right):
  """Returns a correct, nearly correct, wrong or empty answer."""
  text = random.choice(right) if len(right) else ""
  return random.choice([text, text.upper() + "!", f"the {text} hippo", phrase(4), ""])


def text_cases():
  for size in (1, 2, 12):
    targets = [phrase(14, 3) for _ in range(size)]
    for predictions in ([guess([t]) for t in targets], targets, [""] * size, ["the"] * size):
      yield case("bleu", targets, predictions, t5.bleu(targets, predictions))
      yield case("edit_distance", targets, predictions, t5.edit_distance(targets, predictions))
      yield case("rouge", targets, predictions, seeded_rouge(targets, predictions))
    yield case("rouge", targets, predictions, seeded_rouge(targets, predictions, use_stemmer=True), use_stemmer=True)
    if size > 1:  # one list of references per sentence; the library expects the transpose
      several = [[t, phrase(14, 3)] for t in targets]
      predictions = [guess(references) for references in several]
      expected = t5.bleu([list(stream) for stream in zip(*several, strict=True)], predictions)
      yield case("bleu", several, predictions, expected)


def seeded_rouge(targets, predictions, **options):
  np.random.seed(123)
  return t5.rouge(targets, predictions, **options)


def qa_cases():
  for size in (1, 4, 40):
    targets = [answers() for _ in range(size)]
    predictions = [guess(t) for t in targets]
    for name in ("squad", "trivia_qa", "coqa_f1"):
      yield case(name, targets, predictions, getattr(t5, name)(targets, predictions))
      yield case(name, targets, [""] * size, getattr(t5, name)(targets, [""] * size))
    spans = [{"answers": t, "context": phrase(20, 5)} for t in targets]
    span_predictions = [
      random.choice(
        ["start: 1 end: 3", "start:0 end:0", "start: 9 end: 2", "start: x end: y", "", "no", "start: 1 end"]
      )
      for _ in range(size)
    ]
    yield case("span_squad", spans, span_predictions, t5.span_squad(spans, span_predictions))


def ranking_cases(rng):
  for targets_threshold in (None, 0.5):
    for size in (4, 40):
      targets = rng.integers(0, 2, size) if targets_threshold is None else rng.uniform(0, 1, size).round(3)
      targets[:2] = 0, 1
      for scores in (rng.uniform(0, 1, size).round(3), np.round(rng.uniform(0, 1, size), 1), np.zeros(size)):
        for name in ("auc", "score_auc"):
          expected = getattr(t5, name)(targets, scores, targets_threshold=targets_threshold)
          yield case(name, targets, scores, expected, targets_threshold=targets_threshold)
  for classes in (2, 3, 5):
    for size in (2, 12):
      for weighted in (False, True):
        targets, scores = [], []
        for number in range(size):
          right, weight = number % classes, random.choice([0.2, 0.5, 1.0]) if weighted else 1.0
          targets += [((number, c), c == right, weight, random.randint(1, 9)) for c in range(classes)]
          scores += rng.normal(0, 3, classes).round(1).tolist()
        order = random.sample(range(len(targets)), len(targets))
        targets, scores = [targets[i] for i in order], [scores[i] for i in order]
        for by_length in (False, True):
          for num_classes in (classes, None):
            keywords = {"num_classes": num_classes, "normalize_by_target_length": by_length}
            yield case(
              "rank_classification", targets, scores, t5.rank_classification(targets, scores, **keywords), **keywords
            )
        several = [(index, right or index[1] == 0, weight, length) for index, right, weight, length in targets]
        expected = t5.rank_classification(several, scores, num_classes=classes)
        yield case("rank_classification", several, scores, expected, num_classes=classes)


def load_squad_metrics(path):
  """Loads the file in isolation: only other functions need its imports from transformers."""
  for name in (
    "stand_in",
    "stand_in.data",
    "stand_in.data.metrics",
    "stand_in.models",
    "stand_in.models.bert",
    "stand_in.utils",
  ):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
  sys.modules["stand_in.models.bert"].BasicTokenizer = None
  sys.modules["stand_in.utils"].logging = types.SimpleNamespace(get_logger=lambda name: None)
  spec = importlib.util.spec_from_file_location("stand_in.data.metrics.squad_metrics", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def squad2_cases(official):
  for size in (1, 5, 40):
    for unanswerable in (0.0, 0.5, 1.0):
      targets = [[] if random.random() < unanswerable else [*answers(), phrase(3, 1)] for _ in range(size)]
      texts = [guess(t) for t in targets]
      questions = [types.SimpleNamespace(qas_id=i, answers=[{"text": a} for a in t]) for i, t in enumerate(targets)]
      texts_by_id = dict(enumerate(texts))
      expected = official.squad_evaluate(questions, texts_by_id)
      for name in ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"):
        expected.pop(name, None)  # based on probabilities that were not given
      yield case("squad2", targets, texts, expected)
      none = {i: round(random.random(), 2) for i in texts_by_id}
      predictions = [{"text": text, "no_answer_probability": none[i]} for i, text in texts_by_id.items()]
      for threshold in (1.0, 0.5):
        expected = official.squad_evaluate(questions, texts_by_id, dict(none), threshold)
        yield case("squad2", targets, predictions, expected, threshold=threshold)


def tagging_cases():
  kinds = ["PER", "LOC", "creative-work"]
  iob = ["O", "O", "O", *(f"{p}-{k}" for p in "BI" for k in kinds)]
  for choices in (iob, [*iob, *(f"{p}-{k}" for p in "ES" for k in kinds)], ["O", "I-PER", "I-LOC", "B-PER"]):
    for size in (1, 6, 15):
      targets = [random.choices(choices, k=random.randint(1, 12)) for _ in range(size)]
      predictions = [[tag if random.random() < 0.8 else random.choice(choices) for tag in t] for t in targets]
      for guesses in (predictions, targets, [["O"] * len(t) for t in targets]):
        expected = {"token_accuracy": seqeval.metrics.accuracy_score(targets, guesses)}
        report = seqeval.metrics.classification_report(targets, guesses, output_dict=True, zero_division=0)
        for name, row in report.items():
          suffix = {"micro avg": ""}.get(name, f"_{name}")
          if name not in ("macro avg", "weighted avg"):
            expected |= {
              f"precision{suffix}": row["precision"],
              f"recall{suffix}": row["recall"],
              f"f1{suffix}": row["f1-score"],
            }
        yield case("entity_f1", targets, guesses, {name: 100 * value for name, value in expected.items()})
  labels = [0, 1, 2]
  targets = random.choices(labels, k=20)
  predictions = random.choices(labels, k=20)
  expected = {"token_accuracy": 100 * sklearn.metrics.accuracy_score(targets, predictions)}
  yield case("token_accuracy", [targets], [predictions], expected)


def postprocessor_cases():
  def of(function, text, example=None, is_target=False, **keywords):
    arguments = {"example": as_seqio(example), "is_target": is_target} if example is not None else {}
    expected = getattr(t5_postprocessors, function)(text, **arguments, **keywords)
    return {
      "function": function, "text": text, "example": example, "is_target": is_target, "keywords": keywords,
      "expected": expected,
    }  # fmt: skip

  for text in ("1.6", " 2 ", "5.0", "", "two", "1e1", "1_0", "-3"):
    yield of("string_to_float", text)
    yield of("string_to_float", text, default=-2.0)
  for text in ("Entailment", "ÄÖ", ""):
    yield of("lower_text", text)
  for text in ("entailment", "not_entailment", "Entailment", " entailment", "", "entail"):
    yield of("string_label_to_class_id", text, label_classes=["entailment", "not_entailment"])
    yield of("string_label_to_class_id", text, label_classes=["entailment", "not_entailment"], default=7)
  for text in ("True", "False", "true", ""):
    for is_target in (False, True):
      yield of("multirc", text, {"idx/question": 12, "idx/paragraph": 3}, is_target)
      row = {"answers": ["Zürich", "the bear"], "context": "A bear in Zürich.", "idx/passage": 4, "idx/query": 9}
      for function in ("qa", "record", "span_qa"):
        yield of(function, text, row, is_target)
  referents = ["the fuzzy bunny", "Bob's hat", "Mark", "  The  Table ", "their councilmen", "his"]
  for referent in referents:
    for label in (0, 1):
      row = {"targets_pretokenized": referent, "label": label}
      yield of("wsc_simple", referent, row, True)
      for answer in (*referents, "bunny", "Bob", "a hat", "", "the", "fuzzy brown bunny", "MARK"):
        yield of("wsc_simple", answer, row)
  row = {"idx": [3, 1], "is_correct": True, "weight": 0.5, "targets": [5, 6, 1]}
  yield of("rank_classification", "-1.5", row)
  yield of("rank_classification", "", row, True)
  yield of("rank_classification", "", {**row, "is_correct": False}, True, passthrough_feature_keys=["weight"])


def as_seqio(example):
  """Returns the row as seqio's evaluation passes it."""

  def value(v):
    if isinstance(v, str):
      return v.encode()
    return (
      np.array([x.encode() if isinstance(x, str) else x for x in v], object if isinstance(v[0], str) else None)
      if isinstance(v, list)
      else np.asarray(v)[()]
    )

  return {name: value(v) for name, v in example.items()}


if __name__ == "__main__":
  main(sys.argv[1])
