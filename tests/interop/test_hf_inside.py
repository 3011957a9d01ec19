"""Attention weights and hidden states of every layer equal those of transformers."""

import functools

import jax
import numpy as np
import pytest
from infer_models import words
from inside_cases import CASES, GOLDEN, make_folder

import t5like
from t5like import parallel
from t5like.inference.inside.layers import STATES, WEIGHTS, LayerReader
from t5like.interop import huggingface
from t5like.models import T5, TransformerConfig
from t5like.parallel import MeshAxes

FIELDS = {"encoder": ("encoder_", "self"), "decoder": ("decoder_", "self"), "cross": ("", "cross")}
# The others differ in scores (T5's and DeBERTa's) or in the order of layers (ALBERT, the convolution).
DEFAULT = ("t5", "llama", "albert", "convolution")


@functools.cache
def goldens() -> dict[str, np.ndarray]:
  with np.load(GOLDEN / "inside.npz") as arrays:
    return dict(arrays)


def expected(case: str, row: int, field: str, name: str | None = None) -> np.ndarray:
  """Returns transformers' array; models of one stack have no names of stacks."""
  stack, own = FIELDS[field]
  name = name or own
  return goldens()[f"{case}/{row}/{stack if CASES[case].rows[0][1] else ''}{name}"]


@pytest.mark.parametrize(
  "case", [pytest.param(case, marks=[] if case in DEFAULT else [pytest.mark.slow]) for case in CASES]
)
def test_weights_and_states_equal_transformers(case, tmp_path, use_devices):
  with use_devices(1):
    model = t5like.load(make_folder(case, tmp_path / "model"))
  rows, form = CASES[case].rows, model.prompt_form
  texts = [words(ids[form.start is not None : len(ids) - (form.end is not None)]) for ids, _ in rows]
  before = 1 + len(model.special.before_targets) if rows[0][1] else 0
  targets = [words(ids[before:]) for _, ids in rows] if before else None
  attention, states = model.attention(texts, targets), model.hidden_states(texts, targets)
  for row, (inputs, decoder) in enumerate(rows):
    assert attention[row].tokens == states[row].tokens == words(inputs).split()
    assert attention[row].target_tokens == (words(decoder).split() if decoder else None)
    present = {name for name in FIELDS if getattr(attention[row], name) is not None}
    assert present == (set(FIELDS) if decoder else {"decoder" if model.is_decoder else "encoder"})
    for field in present:
      np.testing.assert_allclose(getattr(attention[row], field), expected(case, row, field), atol=1e-5)
      np.testing.assert_allclose(getattr(attention[row], field).sum(-1), 1.0, atol=1e-5)
      if field != "cross":
        np.testing.assert_allclose(
          getattr(states[row], field), expected(case, row, field, "states"), atol=2e-5, rtol=1e-5
        )


@pytest.mark.parametrize("case", ["albert", "convolution"])
def test_stacked_layers_show_the_same(case, tmp_path, use_devices):
  """Layers that share parameters, and a scan in parts."""
  imported = huggingface.load(make_folder(case, tmp_path / "model"), scan_layers=True)
  ids = CASES[case].rows[0][0]
  batch = {"encoder_input_tokens": np.array([ids], np.int32), "encoder_lengths": np.array([len(ids)], np.int32)}
  with use_devices(1):
    reader = LayerReader(imported.model, parallel.make_mesh(MeshAxes()), (*STATES, *WEIGHTS))
    shown = reader(imported.params, batch)["encoder"]
  np.testing.assert_allclose(shown["self"][:, 0], expected(case, 0, "encoder"), atol=1e-5)
  np.testing.assert_allclose(shown["states"][:, 0], expected(case, 0, "encoder", "states"), atol=2e-5, rtol=1e-5)


def test_a_stack_that_encoder_and_decoder_share_shows_both(use_devices):
  config = TransformerConfig(
    vocab_size=11, embed_dim=6, num_heads=2, head_dim=3, mlp_dim=5, num_encoder_layers=2, num_decoder_layers=2,
    share_encoder_decoder=True,
  )  # fmt: skip
  model, rng = T5(config), np.random.default_rng(0)
  batch = {
    f"{stack}_input_tokens": rng.integers(1, 11, (1, n)).astype(np.int32)
    for stack, n in (("encoder", 5), ("decoder", 3))
  }
  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  with use_devices(1):
    shown = LayerReader(model, parallel.make_mesh(MeshAxes()), (*STATES, *WEIGHTS))(params, batch)
  shapes = {stack: {name: x.shape for name, x in arrays.items()} for stack, arrays in shown.items()}
  assert shapes == {
    "encoder": {"states": (3, 1, 5, 6), "self": (2, 1, 2, 5, 5)},
    "decoder": {"states": (3, 1, 3, 6), "self": (2, 1, 2, 3, 3), "cross": (2, 1, 2, 3, 5)},
  }
  assert np.array_equal(np.triu(shown["decoder"]["self"][0, 0, 0], 1), np.zeros((3, 3)))  # causal
  both = {"encoder": "encode", "decoder": "hidden_states"}
  read = jax.jit(lambda p: {s: model.apply({"params": p}, batch, all_layers=True, method=m) for s, m in both.items()})
  for stack, states in read(params).items():
    np.testing.assert_allclose(shown[stack]["states"], states, atol=1e-5)
