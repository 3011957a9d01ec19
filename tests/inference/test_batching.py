"""Batches of few shapes, and splitting of batches that do not fit into device memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings, bucket
from t5like.evaluation.answering import generate_answers, rank_answers
from t5like.inference import memory
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.generation import Generator
from t5like.inference.memory import MemoryCheckedFunction, NotEnoughMemory, answer_in_parts
from t5like.inference.ranking import CandidateScorer
from t5like.models import T5, TransformerConfig


def shapes(planner, lengths):
  return [(batch.shape.rows, batch.shape.length) for batch in planner.plan(lengths)]


def test_every_row_is_in_one_batch_that_holds_it():
  lengths = np.random.default_rng(0).integers(1, 700, 301).tolist()
  batches = BatchPlanner(32).plan(lengths)
  assert sorted(row for batch in batches for row in batch.rows) == list(range(301))
  for batch in batches:
    assert len(batch.rows) <= min(32, batch.shape.rows)
    assert max(lengths[row] for row in batch.rows) <= batch.shape.length
  assert lengths[batches[0].rows[0]] == max(lengths)  # running out of memory shows at once


def test_one_long_row_does_not_pad_the_others():
  """7,740 tokens and 21 rows of up to 70: alone, and all others in one batch."""
  lengths = [*range(50, 71), 7740]
  assert shapes(BatchPlanner(32, decode_length=64), lengths) == [(1, 8192), (24, 96)]


def test_a_shape_is_compiled_only_if_that_saves_more_than_it_costs():
  # Padding 20 short rows to 64 costs less than a compilation, padding 10,000 does not.
  assert len(set(shapes(BatchPlanner(32), [60] * 20 + [14] * 12))) == 1
  assert {length for _, length in shapes(BatchPlanner(32), [60] * 5000 + [14] * 5000)} == {64, 16}


def test_a_partial_batch_reuses_a_compiled_shape():
  planner = BatchPlanner(32)
  assert shapes(planner, [60] * 67) == [(32, 64)] * 3
  assert shapes(planner, [40] * 5) == [(32, 64)]  # in the next window too
  assert shapes(planner, [5000] * 2) == [(2, 6144)]


def test_shapes_respect_device_count_and_maximum_length():
  planner = BatchPlanner(20, batch_shards=8, max_length=100)
  assert shapes(planner, [90] * 20) == [(24, 96)]
  assert shapes(planner, [100] * 3) == [(8, 100)]
  assert planner.smallest(3, 17) == BatchShape(8, bucket(17))


def test_batches_are_split_until_they_fit_and_a_row_that_never_fits_is_reported():
  tried = []

  def answer(items):
    tried.append(len(items))
    if sum(items) > 10:
      raise NotEnoughMemory(needed=sum(items), free=10)
    return [-item for item in items]

  found = answer_in_parts([3, 3, 3, 50, 3, 3], answer)
  assert [x if isinstance(x, int) else "out of memory" for x in found] == [-3, -3, -3, "out of memory", -3, -3]
  assert tried[0] == 6 and max(tried[1:]) <= 3


def test_a_failed_allocation_splits_the_batch_too():
  def answer(items):
    if len(items) > 2:
      raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes")
    return items

  assert answer_in_parts([1, 2, 3, 4, 5], answer) == [1, 2, 3, 4, 5]
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
    answer_in_parts([1, 2], lambda items: (_ for _ in ()).throw(jax.errors.JaxRuntimeError("INTERNAL: other")))


MESH = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])


def test_a_function_that_does_not_fit_is_not_run(monkeypatch):
  ran = []

  def squares(x):
    jax.debug.callback(lambda: ran.append(1))
    return jnp.sum(jnp.sort(x[:, None] * x[None, :], axis=0), axis=0)  # an [n, n] intermediate

  function = MemoryCheckedFunction(squares, MESH)
  assert function(jnp.ones(64)).shape == (64,)
  jax.effects_barrier()
  assert len(ran) == 1
  monkeypatch.setattr(memory, "free_bytes", lambda mesh: 100 * 1024)
  with pytest.raises(NotEnoughMemory) as error:
    function(jnp.ones(512))  # a megabyte
  assert error.value.needed > 2**20 > error.value.free
  jax.effects_barrier()
  assert len(ran) == 1 and function.compilations() == 2


def test_free_memory_is_that_of_the_machine():
  """MemAvailable of /proc/meminfo, or less in a container."""
  line = next(row for row in open("/proc/meminfo") if row.startswith("MemTotal"))
  assert 0 < memory.free_bytes(MESH) <= int(line.split()[1]) * 1024


CONFIG = TransformerConfig(
  vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1
)


@pytest.fixture(scope="module")
def model():
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  model = T5(CONFIG)
  return model, jax.tree.map(lambda x: x.value, model.init(jax.random.key(0), batch)["params"], is_leaf=is_boxed)


def is_boxed(x):
  return hasattr(x, "value") and hasattr(x, "names")


def test_answers_do_not_depend_on_splitting(model, monkeypatch):
  """Memory suffices for two rows at a time, but not for the longest one, which gets no answer."""
  model, params = model
  rng = np.random.default_rng(0)
  prompts = [rng.integers(3, 64, n).tolist() for n in (5, 9, 3, 60, 7, 11)]
  candidates = [[[4, 1], [5, 6, 1]]] * 6
  settings = DecodeSettings(max_length=5)
  expected = generate_answers(Generator(model, MESH, 1), params, prompts, settings, batch_size=4)
  ranked = rank_answers(CandidateScorer(model, MESH, 0, 8), params, prompts, candidates)

  # Pretend that each token takes one byte.
  monkeypatch.setattr(memory, "_needed", lambda compiled: tokens_read(compiled))
  monkeypatch.setattr(memory, "free_bytes", lambda mesh: 36)
  found = generate_answers(Generator(model, MESH, 1), params, prompts, settings, batch_size=4)
  assert [n for n, answer in enumerate(found) if isinstance(answer, NotEnoughMemory)] == [3]
  pairs = [(answer, other) for n, (answer, other) in enumerate(zip(found, expected, strict=True)) if n != 3]
  assert all(answer.tokens == other.tokens for answer, other in pairs)
  likelihoods = [[row.log_likelihood for row in side] for side in zip(*pairs, strict=True)]
  assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-5)
  best, scores = rank_answers(CandidateScorer(model, MESH, 0, 8), params, prompts, candidates)
  assert best == [-1 if n == 3 else choice for n, choice in enumerate(ranked[0])] and scores[3] == []


def tokens_read(compiled) -> int:
  batch = compiled.args_info[0][1]
  return int(np.prod(batch["encoder_input_tokens"].shape))
