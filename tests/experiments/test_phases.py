"""Phases of a run: which are left after a restart, and how their rows are packed and ordered."""

import dataclasses
import types

import numpy as np
import pytest

import t5like
from t5like import data
from t5like.data.in_place import UNIT
from t5like.experiments.phases import Phase, blank_batch, is_packed, make_batches, phases_left
from t5like.experiments.token_caches import CachedTask
from t5like.objectives import Lengths, SpecialTokens

PHASES = [Phase(Lengths(0, 8, 8), 4, steps=10), Phase(Lengths(0, 16, 8), 2, steps=5), Phase(Lengths(0, 32, 8), 1)]


@pytest.mark.parametrize(("step", "left"), [(0, 3), (9, 3), (10, 2), (14, 2), (15, 1), (99, 1)])
def test_a_phase_ends_with_its_last_step(step, left):
  assert phases_left(PHASES, step) == PHASES[-left:]


@pytest.fixture(scope="module")
def experiment():
  files = ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]
  return t5like.read_experiment(files, MODEL_DIR="x", VOCABULARY="tiny")


@pytest.mark.parametrize(("mix", "pack", "packed"), [
  ({}, None, False), ({}, True, False), ({"novels": 1, "snli": 1}, None, False), ({"novels": 1, "snli": 1}, True, True),
])  # fmt: skip
def test_rows_of_text_are_packed_only_next_to_examples(experiment, mix, pack, packed):
  changed = dataclasses.replace(experiment, mix=mix, pack=pack)
  assert is_packed(changed) == packed
  phase = Phase(Lengths(0, 8, 8), 4)
  assert ("encoder_segment_ids" in blank_batch(changed, phase)) == packed


@pytest.fixture
def cache(tmp_path):
  data.write_cache(
    tmp_path / "cache", [{"targets": "5 " * 300}] * 20, ["targets"],
    lambda texts, threads=1: [[int(n) for n in text.split()] for text in texts],
    {"name": "n", "size": 1100, "fingerprint": "f"}, {"task": "t", "split": "s", "source_files": []},
    {"postprocessor": None, "metrics": []},
  )  # fmt: skip
  return data.open_cache(tmp_path / "cache", "", pool=3 * UNIT)


def rows_of(experiment, cache, lengths):
  special, parts = SpecialTokens(1100, 0, 1, tuple(range(1099, 999, -1))), types.SimpleNamespace(held=(0,), total=1)
  phases = [Phase(each, 2, 10) for each in lengths]
  return make_batches(experiment, [CachedTask("t", cache)], phases, special, parts).phases


def test_phases_of_equal_lengths_share_rows_and_others_have_a_seed_of_their_own(experiment, cache):
  short, long = Lengths(61, 64, 32), Lengths(125, 128, 64)
  first, second, third = (phase.source for phase in rows_of(experiment, cache, [short, long, short]))
  assert first is third and first.seed == experiment.seed != second.seed


def test_pools_of_a_corpus_that_is_read_in_place_are_measured_in_bytes(experiment, cache):
  (rows,) = rows_of(experiment, cache, [Lengths(61, 64, 32)])
  assert np.dtype(cache.manifest["dtype"]).itemsize == 2
  assert (rows.source.order.block, rows.source.order.blocks) == (UNIT // 122, 3)
