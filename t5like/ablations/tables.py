"""The tables that the ablations reproduce, as data.

They are of the T5 paper (Raffel et al. 2019, arXiv 1910.10683); "bart1" is Table 1 of the BART paper (Lewis et al.
2019, arXiv 1910.13461), "bert5" and "bert6" are Tables 5 and 6 of the BERT paper (bert.py), "narang" is Table 1 of
Narang et al. 2021.

A recipe defines what is trained: an architecture, an objective, its data and how tasks are mixed. A row of a table
names a recipe and the paper's scores for it. Tables share recipes, and a shared recipe is trained once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from t5like.ablations import bert, narang
from t5like.ablations.benchmarks import OTHER
from t5like.errors import UserError, nearest

# The columns: averages over GLUE and SuperGLUE, CNN/DailyMail's ROUGE-2, SQuAD's exact match.
GROUPS = ("glue", "cnndm", "squad", "superglue")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A configuration to train, defined by the gin file of the same name in gin/ablations/recipes/."""

  architecture: str
  objective: str | None  # None: no pre-training
  variation: str = ""
  unique_tokens: int | None = None  # use only this many tokens of the corpus
  mixing: Mixing | None = None  # train on tasks and corpus together, without fine-tuning
  equal_flops: bool = False  # pre-train for as many steps as take the baseline's FLOPs
  finetuning: bool = False  # the variation only concerns fine-tuning

  @property
  def name(self) -> str:
    return "/".join(filter(None, (self.architecture, self.objective or "no_pretraining", self.variation)))

  @property
  def pretrained(self) -> str:
    """The recipe whose pre-training this one starts from: its own, unless only fine-tuning differs."""
    return dataclasses.replace(self, variation="").name if self.finetuning else self.name

  @property
  def gin_file(self) -> str:
    return f"ablations/recipes/{self.name}.gin"

  @property
  def heads(self) -> bool:
    """Whether it is fine-tuned with a head on each task, as BERT, rather than text to text."""
    return self.architecture.startswith("bert")


@dataclasses.dataclass(frozen=True)
class Mixing:
  """The mixing rates of multi-task training (section 3.5.2)."""

  strategy: str  # "equal", "proportional" or "temperature"
  maximum: int | None = None  # K: the size of a task is capped at this many examples
  temperature: float = 1.0  # T


@dataclasses.dataclass(frozen=True)
class TableRow:
  """A recipe in a table."""

  name: str
  recipe: str
  paper: dict[str, float | None]  # by group; None if the paper's score is not known


def _scores(*values: float | None) -> dict[str, float | None]:
  return dict(zip(GROUPS, values, strict=True))


# Table 1: the baseline, the standard deviation over ten runs of it, and fine-tuning from random parameters.
BASELINE = _scores(83.28, 19.24, 80.88, 71.36)
STANDARD_DEVIATION = _scores(0.235, 0.065, 0.343, 0.416)
NO_PRETRAINING = _scores(66.22, 17.60, 50.31, 53.04)

# The baseline's scores by task (Table 16), with our metric names.
BASELINE_TASKS: dict[str, dict[str, float]] = {
  "glue_cola": {"matthews_corrcoef": 53.84},
  "glue_sst2": {"accuracy": 92.68},
  "glue_mrpc": {"f1": 92.07, "accuracy": 88.92},
  "glue_stsb": {"pearson_corrcoef": 88.02, "spearman_corrcoef": 87.94},
  "glue_qqp": {"f1": 88.67, "accuracy": 91.56},
  "glue_mnli_matched": {"accuracy": 84.24},
  "glue_mnli_mismatched": {"accuracy": 84.57},
  "glue_qnli": {"accuracy": 90.48},
  "glue_rte": {"accuracy": 76.28},
  "squad": {"em": 80.88, "f1": 88.81},
}

_ENCODER_DECODER = "encoder_decoder"
_BASELINE = Recipe(_ENCODER_DECODER, "iid_replace_spans")
BASELINE_RECIPE = _BASELINE.name
_VANILLA = Recipe("vanilla", "span_corruption", equal_flops=True)
NO_PRETRAINING_RECIPE = Recipe(_ENCODER_DECODER, None).name


@dataclasses.dataclass(frozen=True)
class Table:
  number: int | str  # in the T5 paper; a name for tables of other papers
  title: str
  rows: tuple[TableRow, ...]
  groups: tuple[str, ...] = GROUPS  # the paper's columns: see columns.py
  baseline: str = BASELINE_RECIPE  # the recipe that others are compared with
  paper: str = "the T5 paper"
  more_groups: tuple[str, ...] = (OTHER,)  # columns that the paper does not have, shown if they were run

  @property
  def deviations(self) -> dict[str, float]:
    """The paper's standard deviation over runs; {} if it has none."""
    return STANDARD_DEVIATION if isinstance(self.number, int) else {}

  @property
  def baseline_scores(self) -> dict[str, float | None]:
    """The paper's scores of the baseline; T5's also for tables that do not repeat them."""
    return next((row.paper for row in self.rows if row.recipe == self.baseline), BASELINE)

  @property
  def recipes(self) -> list[str]:
    return list(dict.fromkeys(row.recipe for row in self.rows))


ARCHITECTURES = (_ENCODER_DECODER, "shared", "six_layers", "lm", "prefix_lm")

_MIXINGS = {
  "mixed_equal": Mixing("equal"),
  **{f"mixed_2_{power}": Mixing("proportional", 2**power) for power in (16, 18, 19, 21)},
  "mixed_temperature_2": Mixing("temperature", 2**21, 2.0),
}


# Hidden units of the adapters in Table 10, and their scores; the printed row of 2,048 repeats that of 128, so these are
# from Table 16.
ADAPTERS = {
  32: (80.52, 15.08, 79.32, 60.40),
  128: (81.51, 16.62, 79.47, 63.03),
  512: (81.54, 17.78, 79.18, 64.30),
  2048: (82.62, 18.30, 79.40, 68.61),
}


# The noise of BART, in its Table 1: F1 on SQuAD and accuracy on MNLI. The first is what BART uses.
_BART = {
  "bart": ("Text infilling + sentence shuffling", 90.8, 83.8),
  "bart_text_infilling": ("Text infilling", 90.8, 84.0),
  "bart_token_masking": ("Token masking", 90.4, 84.1),
  "bart_token_deletion": ("Token deletion", 90.4, 84.1),
  "bart_sentence_permutation": ("Sentence shuffling", 85.4, 81.5),
  "bart_document_rotation": ("Document rotation", 77.2, 75.3),
}


def _bert_recipes() -> Iterable[Recipe]:
  for name in dict.fromkeys([*bert.PRETRAINING_TASKS, *bert.SIZES]):
    yield Recipe(*name.split("/"))


def language_modeling(architecture: str) -> str:
  """Returns the paper's "LM" objective of an architecture: prefix LM for models that read a prefix (section 3.2.3)."""
  return "lm" if architecture == "lm" else "prefix_lm"


def _recipes() -> Iterable[Recipe]:
  yield _BASELINE
  yield Recipe(_ENCODER_DECODER, None)
  for architecture in ARCHITECTURES:
    yield Recipe(architecture, "iid_replace_spans")
    yield Recipe(architecture, language_modeling(architecture))
  for objective in ("bert_style", "deshuffling", "mass_style", "iid_drop_tokens"):
    yield Recipe(_ENCODER_DECODER, objective)
  for percent in (10, 25, 50):
    yield Recipe(_ENCODER_DECODER, f"iid_replace_spans_{percent}_percent")
  for objective in ("span_corruption_2", "span_corruption", "span_corruption_5", "span_corruption_10"):
    yield Recipe(_ENCODER_DECODER, objective)
  for power in (29, 27, 25, 23):
    yield dataclasses.replace(_BASELINE, variation=f"unique_2_{power}", unique_tokens=2**power)
  for variation, mixing in _MIXINGS.items():
    yield dataclasses.replace(_BASELINE, variation=variation, mixing=mixing)
  for variation in (*(f"adapters_{size}" for size in ADAPTERS), "gradual_unfreezing"):
    yield dataclasses.replace(_BASELINE, variation=variation, finetuning=True)  # another FINETUNE_TRAINABLE
  for objective in _BART:
    yield Recipe(_ENCODER_DECODER, objective)
  yield from _bert_recipes()
  for variation in ("", *narang.ROWS):
    yield dataclasses.replace(_VANILLA, variation=variation)


RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _recipes()}


def _row(name: str, recipe: str, *paper: float | None) -> TableRow:
  return TableRow(name, recipe, _scores(*paper) if paper else BASELINE)


_DENOISING = (
  (83.28, 19.24, 80.88, 71.36),
  (82.81, 18.78, 80.63, 70.73),
  (80.88, 18.97, 77.59, 68.42),
  (74.70, 17.93, 61.14, 55.02),
  (81.82, 18.61, 78.94, 68.11),
)
# For the encoder-decoder with prefix LM, the paper has different scores here and in Table 4.
_LM = (
  (79.56, 18.59, 76.02, 64.29),
  (79.60, 18.13, 76.35, 63.50),
  (78.67, 18.26, 75.32, 64.06),
  (73.78, 17.54, 53.81, 56.51),
  (79.68, 17.84, 76.87, 64.86),
)
_ARCHITECTURE_NAMES = ("Encoder-decoder", "Enc-dec, shared", "Enc-dec, 6 layers", "Language model", "Prefix LM")
_ED = f"{_ENCODER_DECODER}/"

TABLES: dict[int | str, Table] = {
  table.number: table
  for table in (
    Table(
      2,
      "Architectures, with denoising and language modeling",
      tuple(
        _row(f"{label}, {kind}", f"{architecture}/{objective or language_modeling(architecture)}", *paper)
        for kind, objective, scores in (("denoising", "iid_replace_spans", _DENOISING), ("LM", None, _LM))
        for label, architecture, paper in zip(_ARCHITECTURE_NAMES, ARCHITECTURES, scores, strict=True)
      ),
    ),
    Table(
      4,
      "Three disparate objectives",
      (
        _row("Prefix language modeling", _ED + "prefix_lm", 80.69, 18.94, 77.99, 65.27),
        _row("BERT-style", _ED + "bert_style", 82.96, 19.17, 80.65, 69.85),
        _row("Deshuffling", _ED + "deshuffling", 73.17, 18.59, 67.61, 58.47),
      ),
    ),
    Table(
      5,
      "Variants of the BERT-style objective",
      (
        _row("BERT-style", _ED + "bert_style", 82.96, 19.17, 80.65, 69.85),
        _row("MASS-style", _ED + "mass_style", 82.32, 19.16, 80.10, 69.28),
        _row("Replace corrupted spans", BASELINE_RECIPE),
        _row("Drop corrupted tokens", _ED + "iid_drop_tokens", 84.44, 19.31, 80.52, 68.67),
      ),
    ),
    Table(
      6,
      "Corruption rates",
      (
        _row("10%", _ED + "iid_replace_spans_10_percent", 82.82, 19.00, 80.38, 69.55),
        _row("15%", BASELINE_RECIPE),
        _row("25%", _ED + "iid_replace_spans_25_percent", 83.00, 19.54, 80.96, 70.48),
        _row("50%", _ED + "iid_replace_spans_50_percent", 81.27, 19.32, 79.80, 70.33),
      ),
    ),
    Table(
      7,
      "Lengths of corrupted spans",
      (
        _row("i.i.d.", BASELINE_RECIPE),
        _row("2", _ED + "span_corruption_2", 83.54, 19.39, 82.09, 72.20),
        _row("3", _ED + "span_corruption", 83.49, 19.62, 81.84, 72.53),
        _row("5", _ED + "span_corruption_5", 83.40, 19.24, 82.05, 72.23),
        _row("10", _ED + "span_corruption_10", 82.85, 19.33, 81.84, 70.44),
      ),
    ),
    Table(
      9,
      "Repeated pre-training data",
      (
        _row("Full data set", BASELINE_RECIPE),
        _row("2^29 tokens", f"{BASELINE_RECIPE}/unique_2_29", 82.87, 19.19, 80.97, 72.03),
        _row("2^27 tokens", f"{BASELINE_RECIPE}/unique_2_27", 82.62, 19.20, 79.78, 69.97),
        _row("2^25 tokens", f"{BASELINE_RECIPE}/unique_2_25", 79.55, 18.57, 76.27, 64.76),
        _row("2^23 tokens", f"{BASELINE_RECIPE}/unique_2_23", 76.34, 18.33, 70.92, 59.29),
      ),
    ),
    Table(
      10,
      "What trains in fine-tuning",
      (
        _row("All parameters", BASELINE_RECIPE),
        *(_row(f"Adapters, d = {d:,}", f"{BASELINE_RECIPE}/adapters_{d}", *paper) for d, paper in ADAPTERS.items()),
        _row("Gradual unfreezing", f"{BASELINE_RECIPE}/gradual_unfreezing", 82.50, 18.95, 79.17, 70.79),
      ),
    ),
    Table(
      11,
      "Mixing strategies of multi-task training",
      (
        _row("Pre-training, then fine-tuning", BASELINE_RECIPE),
        _row("Equal", f"{BASELINE_RECIPE}/mixed_equal", 76.13, 19.02, 76.51, 63.37),
        _row("Proportional, K = 2^16", f"{BASELINE_RECIPE}/mixed_2_16", 80.45, 19.04, 77.25, 69.95),
        _row("Proportional, K = 2^18", f"{BASELINE_RECIPE}/mixed_2_18", 81.67, 19.07, 78.17, 67.94),
        _row("Proportional, K = 2^19", f"{BASELINE_RECIPE}/mixed_2_19", 81.42, 19.24, 79.78, 67.30),
        _row("Proportional, K = 2^21", f"{BASELINE_RECIPE}/mixed_2_21", 79.83, 18.79, 79.50, 65.10),
        _row("Temperature, T = 2", f"{BASELINE_RECIPE}/mixed_temperature_2", 81.90, 19.28, 79.42, 69.92),
      ),
    ),
    Table(
      "bart1",
      "BART's noise (its scores are SQuAD F1, and MNLI for GLUE)",
      (
        *(TableRow(name, _ED + of, {"squad": squad, "glue": mnli}) for of, (name, squad, mnli) in _BART.items()),
        TableRow("Language model", "lm/lm", {"squad": 76.7, "glue": 80.1}),
      ),
      ("glue", "squad"),
      _ED + "bart",
      "the BART paper",
    ),
    Table(
      "bert5",
      "BERT's pre-training tasks",
      tuple(
        TableRow(name, recipe, dict(zip(bert.TASK_COLUMNS, scores, strict=True)))
        for recipe, (name, scores) in bert.PRETRAINING_TASKS.items()
      ),
      bert.TASK_COLUMNS,
      bert.BASE,
      "the BERT paper",
      bert.MORE_COLUMNS,
    ),
    Table(
      "bert6",
      "BERT's sizes (rows are named by the paper's)",
      tuple(
        TableRow(
          "{} layers, {:,} wide, {} heads".format(*sizes), recipe, dict(zip(bert.SIZE_COLUMNS, scores, strict=True))
        )
        for recipe, (sizes, scores) in bert.SIZES.items()
      ),
      bert.SIZE_COLUMNS,
      bert.BASE,
      "the BERT paper",
      (*bert.MORE_COLUMNS, "squad_f1"),
    ),
    Table(
      "narang",
      "Transformer modifications, at equal FLOPs",
      (
        TableRow(narang.VANILLA[0], _VANILLA.name, {"superglue": narang.VANILLA[1]}),
        *(
          TableRow(name, f"{_VANILLA.name}/{variation}", {"superglue": score})
          for variation, (name, score, _) in narang.ROWS.items()
        ),
      ),
      ("superglue",),
      _VANILLA.name,
      "Narang et al.",
    ),
  )
}


def find_tables(numbers: Iterable[int | str]) -> list[Table]:
  """Returns tables in the order of TABLES: of a recipe that a paper scored twice, the first table's score counts."""
  wanted = list(numbers)
  for number in wanted:
    if number not in TABLES:
      raise UserError(f"unknown table {number}", known=", ".join(map(str, TABLES)))
  return [table for number, table in TABLES.items() if number in wanted]


def recipes_of(tables: Iterable[Table], rows: Iterable[str] = ()) -> list[str]:
  """Returns the recipes of tables in order, each once; `rows` (names of rows or recipes) selects a subset.

  A recipe without a row in any table, such as the one without pre-training, can be selected by name.
  """
  tables, wanted = list(tables), set(rows)
  known = {name for table in tables for row in table.rows for name in (row.name, row.recipe)}
  outside = [name for name in RECIPES if name in wanted - known]
  wanted -= set(outside)
  for name in wanted:
    if name not in known:
      raise UserError(f"no row {name!r} in these tables", nearest=nearest(name, known), known="; ".join(sorted(known)))
  chosen = [r for table in tables for r in table.rows if {r.name, r.recipe} & wanted or not (wanted or outside)]
  return list(dict.fromkeys([*(row.recipe for row in chosen), *outside]))
