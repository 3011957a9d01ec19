"""GLUE as text: texts, ids and scores are exactly those of the t5 library."""

import pytest
import seqio
from golden_rows import ours, scores_of_perfect_answers, stored, t5_library

from t5like.tasks import registry

TASKS = "cola sst2 mrpc qqp stsb mnli mnli_matched mnli_mismatched qnli rte wnli ax".split()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", TASKS)
def test_every_field_equals_the_t5_library(config):
  found, expected = ours(f"glue_{config}", f"glue/{config}", "t5"), t5_library()[f"glue_{config}"]
  assert found == expected and len(found) >= 6


# Written by hand from the form `<name> k1: v1 k2: v2`; the rows are in tests/data/tasks/rows.json.
BY_HAND = {
  "cola": ("cola sentence: The lamp that I bought it is red.", "unacceptable"),
  "sst2": ("sst2 sentence: a slow , joyless ride through the suburbs ", "negative"),
  "mrpc": (
    "mrpc sentence1: The firm said profit rose 4 % to $ 12 million . "
    "sentence2: Profit at the firm climbed 4 % , to $ 12 million .",
    "equivalent",
  ),
  "qqp": (
    "qqp question1: How do I boil an egg? question2: What is the way to cook an egg in water?",
    "duplicate",
  ),
  "mnli": ("mnli hypothesis: At seven the shop is shut. premise: The shop closes at six.", "entailment"),
  "mnli_matched": ("mnli hypothesis: An animal is asleep. premise: A dog sleeps on the porch.", "entailment"),
  "mnli_mismatched": ("mnli hypothesis: An animal is asleep. premise: A dog sleeps on the porch.", "entailment"),
  "rte": (
    "rte sentence1: The river flooded two villages in May, and the mayor asked for help. "
    "sentence2: Two villages were flooded.",
    "entailment",
  ),
  "wnli": ("wnli sentence1: The cup fell on the plate and it broke. sentence2: The plate broke.", "entailment"),
  "ax": ("mnli hypothesis: Some birds do not fly. premise: Not all birds fly.", "<unk>"),
}


@pytest.mark.parametrize("config", BY_HAND)
def test_the_text_equals_a_handwritten_one(config):
  first = ours(f"glue_{config}", f"glue/{config}")[0]
  assert (first["inputs_pretokenized"], first["targets_pretokenized"]) == BY_HAND[config]


def test_stsb_targets_are_multiples_of_a_fifth():
  targets = {e["inputs_pretokenized"]: [] for e in ours("glue_stsb", "glue/stsb")}
  for example in ours("glue_stsb", "glue/stsb"):
    targets[example["inputs_pretokenized"]].append(example["targets_pretokenized"])
  # Scores 0, .1, .3, .5, .7, .9, 1.1, 1.66, 1.7, 2.5, 2.7, 3.1, 3.3, 3.9, 4.5, 4.9, 5 and a withheld -1:
  # halves are rounded to the even multiple.
  assert targets["stsb sentence1: One. sentence2: Two."] == (
    "0.0 0.0 0.4 0.4 0.8 0.8 1.2 1.6 1.6 2.4 2.8 3.2 3.2 4.0 4.4 4.8 5.0 -1.0".split()
  )


@pytest.mark.parametrize("config", TASKS)
def test_correct_answers_score_100_from_a_token_cache(config):
  found = [e for e in ours(f"glue_{config}", f"glue/{config}") if e["targets_pretokenized"] not in ("<unk>", "-1.0")]
  if config == "ax":  # its answers are withheld
    assert not found and registry.find_task("glue_ax").metric_fns == []
    return
  expected = {
    "cola": {"matthews_corrcoef": 100},
    "mrpc": {"f1": 100, "accuracy": 100},
    "qqp": {"f1": 100, "accuracy": 100},
    "stsb": {"pearson_corrcoef": 100, "spearman_corrcoef": 100},
  }.get(config, {"accuracy": 100})
  assert scores_of_perfect_answers(f"glue_{config}", found) == pytest.approx(expected)


ROWS = [
  {"sentence": "a joy ", "label": 1, "idx": 0},
  {"sentence": "a bore ", "label": 0, "idx": 1},
  {"sentence": "café", "label": 1, "idx": 2},
]


@pytest.mark.slow
def test_seqio_trains_and_evaluates_on_a_stored_data_set(tmp_path):
  lengths = {"inputs": 16, "targets": 4}
  with stored("glue_sst2", {"train": ROWS[:1], "validation": ROWS}, tmp_path) as task:
    converter = seqio.EncDecFeatureConverter(pack=False)
    dataset = seqio.get_dataset(
      "glue_sst2", lengths, dataset_split="validation", shuffle=False, feature_converter=converter
    )
    vocabulary = task.output_features["targets"].vocabulary
    # TFDS shuffles the rows it stores.
    batches = {vocabulary.decode(b["encoder_input_tokens"].tolist()): b for b in dataset.as_numpy_iterator()}
    # T5's pieces of "sst2 sentence: a joy", by the sentencepiece library.
    joy = batches["sst2 sentence: a joy"]
    assert joy["encoder_input_tokens"].tolist() == [3, 7, 7, 17, 357, 7142, 10, 3, 9, 3922, 1, 0, 0, 0, 0, 0]
    assert joy["decoder_target_tokens"].tolist() == [1465, 1, 0, 0]
    assert task.num_input_examples("train") == 1

    answers = {"sst2 sentence: a joy": "positive", "sst2 sentence: a bore": "negative", "sst2 sentence: café": "none"}
    numbered = [(place, vocabulary.encode(answers[text])) for place, text in enumerate(batches)]
    evaluator = seqio.Evaluator("glue_sst2", converter, eval_split="validation", sequence_length=lengths, logger_cls=())
    scores, _ = evaluator.evaluate(
      compute_metrics=True, predict_fn=lambda dataset: numbered, score_fn=lambda dataset: [], step=0
    )
    assert scores.result()["glue_sst2"]["accuracy"] == pytest.approx(200 / 3)


def test_splits_are_known_without_data_or_builders():
  assert list(registry.find_task("glue_mnli").splits) == [
    "train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched",
  ]  # fmt: skip
  assert list(registry.find_task("glue_ax").splits) == ["test"]
  assert registry.find_task("glue_rte").source.tfds_dataset.name == "glue/rte:2.0.0"
