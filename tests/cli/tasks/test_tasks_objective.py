"""The worked example of the T5 paper's Table 3, for every objective."""

import pytest

from t5like.objectives import CATALOGUE

TEXT = "Thank you for inviting me to your party last week ."


def shown(t5like, name, *options):
  """Returns the printed lines of an objective by their first word."""
  lines = t5like("tasks", "objective", name, *options).stdout.splitlines()
  assert lines[0] == f"text      {TEXT}"
  return dict(line.split(maxsplit=1) for line in lines[3:])


def words(line):
  return line.replace(" ", "").replace("▁", " ").split()


def test_all_are_shown(t5like):
  out = t5like("tasks", "objective", "all").stdout
  assert [line.split()[0] for line in out.splitlines() if line and line[0] != " "][1:] == list(CATALOGUE)


def test_those_that_a_vocabulary_cannot_serve_say_so(t5like):
  out = t5like("tasks", "objective", "all", "--vocabulary=t5").stdout
  assert [line.split()[0] for line in out.splitlines() if line and line[0] != " "][1:] == list(CATALOGUE)
  assert "bert_mlm  masked_lm needs [CLS] and [SEP]; the vocabulary has none" in out
  result = t5like("tasks", "objective", "bert_mlm", "--vocabulary=t5", status=2)
  assert "needs [CLS]" in result.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("name", "inputs", "targets"),
  [
    # Table 3, with our noise: which tokens are corrupted is random, how they are corrupted is not.
    (
      "span_corruption",
      "Thank you for <extra_id_0> to your party last week .",
      "<extra_id_0> inviting me <extra_id_1>",
    ),
    ("prefix_lm", "Thank you for inviting me", "to your party last week ."),
    ("mass_style", "Thank you for inviting me to your <extra_id_0> last week .", TEXT),
    ("iid_drop_tokens", "Thank you for inviting me to your last week .", "party"),
    ("lm", "(nothing)", TEXT),
  ],
)
def test_the_papers_sentence(t5like, name, inputs, targets):
  lines = shown(t5like, name, "--text", TEXT)
  assert words(lines["inputs"]) == inputs.split() or lines["inputs"] == inputs
  assert words(lines["targets"]) == targets.split()


def test_deshuffling_reorders_the_same_pieces_by_seed(t5like):
  lines = [shown(t5like, "deshuffling", f"--seed={seed}") for seed in (0, 1)]
  first, second = (line["inputs"].split() for line in lines)
  assert sorted(first) == sorted(second) == sorted(lines[0]["targets"].split()) and first != second


def test_encoders_and_lengths(t5like):
  lines = shown(t5like, "bert_mlm_nsp", "--length=128")
  assert lines["inputs"].startswith("[CLS]") and " at " in lines["predict"] and lines["follows"] in ("yes", "no")
  assert "125 tokens of text, 128 inputs" in lines["lengths"]


def test_an_unknown_name_suggests_the_nearest(t5like):
  assert "nearest  span_corruption" in t5like("tasks", "objective", "span_corupton", status=2).stderr
