"""The paper's scores, transcribed a second time: both copies must agree."""

import dataclasses

import pytest

from t5like.ablations import tables
from t5like.ablations.configurables import mixing_rates
from t5like.ablations.tables import RECIPES, TABLES, find_tables, recipes_of
from t5like.errors import UserError
from t5like.objectives import CATALOGUE

PAPER = """
2 83.28 19.24 80.88 71.36  82.81 18.78 80.63 70.73  80.88 18.97 77.59 68.42  74.70 17.93 61.14 55.02  81.82 18.61 78.94 68.11
2 79.56 18.59 76.02 64.29  79.60 18.13 76.35 63.50  78.67 18.26 75.32 64.06  73.78 17.54 53.81 56.51  79.68 17.84 76.87 64.86
4 80.69 18.94 77.99 65.27  82.96 19.17 80.65 69.85  73.17 18.59 67.61 58.47
5 82.96 19.17 80.65 69.85  82.32 19.16 80.10 69.28  83.28 19.24 80.88 71.36  84.44 19.31 80.52 68.67
6 82.82 19.00 80.38 69.55  83.28 19.24 80.88 71.36  83.00 19.54 80.96 70.48  81.27 19.32 79.80 70.33
7 83.28 19.24 80.88 71.36  83.54 19.39 82.09 72.20  83.49 19.62 81.84 72.53  83.40 19.24 82.05 72.23  82.85 19.33 81.84 70.44
9 83.28 19.24 80.88 71.36  82.87 19.19 80.97 72.03  82.62 19.20 79.78 69.97  79.55 18.57 76.27 64.76  76.34 18.33 70.92 59.29
10 83.28 19.24 80.88 71.36  80.52 15.08 79.32 60.40  81.51 16.62 79.47 63.03  81.54 17.78 79.18 64.30  82.62 18.30 79.40 68.61  82.50 18.95 79.17 70.79
11 83.28 19.24 80.88 71.36  76.13 19.02 76.51 63.37  80.45 19.04 77.25 69.95  81.67 19.07 78.17 67.94
11 81.42 19.24 79.78 67.30  79.83 18.79 79.50 65.10  81.90 19.28 79.42 69.92
"""  # noqa: E501


def test_the_scores_match_the_paper():
  expected: dict[int, list[float]] = {}
  for line in PAPER.strip().splitlines():
    number, *values = line.split()
    expected.setdefault(int(number), []).extend(map(float, values))
  of_t5 = [table for table in TABLES.values() if isinstance(table.number, int)]
  ours = {t.number: [row.paper[group] for row in t.rows for group in tables.GROUPS] for t in of_t5}
  assert ours == expected


def test_the_scores_match_barts_paper():
  """Rows of Table 1 of Lewis et al. 2019: F1 on SQuAD 1.1, accuracy on MNLI."""
  found = {row.name: (row.paper["squad"], row.paper["glue"]) for row in TABLES["bart1"].rows}
  assert found == {
    "Token masking": (90.4, 84.1), "Token deletion": (90.4, 84.1), "Text infilling": (90.8, 84.0),
    "Document rotation": (77.2, 75.3), "Sentence shuffling": (85.4, 81.5),
    "Text infilling + sentence shuffling": (90.8, 83.8), "Language model": (76.7, 80.1),
  }  # fmt: skip


def test_every_row_has_a_recipe_and_the_baseline_is_one():
  for table in TABLES.values():
    for row in table.rows:
      recipe = RECIPES[row.recipe]
      assert recipe.objective in CATALOGUE
  shared = [t.number for t in TABLES.values() if tables.BASELINE_RECIPE in t.recipes]
  assert shared == [2, 5, 6, 7, 9, 10, 11]
  assert recipes_of(find_tables([5, 6])).count(tables.BASELINE_RECIPE) == 1
  assert len(recipes_of(find_tables([2, 4, 5, 6, 7]))) == 10 + 2 + 2 + 3 + 4  # rows that are not in an earlier table


def test_rows_are_selected_by_name_or_recipe():
  assert [table.number for table in find_tables([7, 2, 7])] == [2, 7]  # once, in the paper's order
  chosen = recipes_of(find_tables([7]), ["3", "encoder_decoder/span_corruption_10"])
  assert chosen == ["encoder_decoder/span_corruption", "encoder_decoder/span_corruption_10"]
  assert recipes_of(find_tables([7]), [tables.NO_PRETRAINING_RECIPE]) == [tables.NO_PRETRAINING_RECIPE]
  with pytest.raises(UserError, match="span_corruption_5"):
    recipes_of(find_tables([7]), ["encoder_decoder/span_coruption_5"])
  with pytest.raises(UserError, match="2, 4, 5, 6, 7, 9, 10, 11, bart1"):
    find_tables([3])


def test_rates_follow_the_papers_formulas():
  """Computed by hand for 4 tasks of 1, 4, 16 and 100 examples."""
  sizes = {"a": 1, "b": 4, "c": 16, "d": 100}
  assert mixing_rates(sizes, "equal") == {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}
  limited = mixing_rates(sizes, "proportional", maximum=19)
  assert limited == pytest.approx({"a": 1 / 40, "b": 4 / 40, "c": 16 / 40, "d": 19 / 40})
  softened = mixing_rates(sizes, "temperature", maximum=64, temperature=2.0)
  assert softened == pytest.approx({"a": 1 / 15, "b": 2 / 15, "c": 4 / 15, "d": 8 / 15})
  with pytest.raises(UserError, match="proportional"):
    mixing_rates(sizes, "proportionally")


def test_names_of_recipes_are_folders_and_files():
  assert len(RECIPES) == 37 + 6 + 8 + 39
  for name, recipe in RECIPES.items():
    assert recipe.gin_file == f"ablations/recipes/{name}.gin"
    assert dataclasses.replace(recipe) == recipe
