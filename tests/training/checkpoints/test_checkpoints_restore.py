"""Another model, vocabulary or optimizer is refused with every difference, or restored as the options allow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoint_states import ADAM, FINGERPRINT, bits, make_state, parameters, save

from t5like.errors import UserError
from t5like.training.checkpoints import Restore, check_restorable, restore_state, save_parameters
from t5like.training.checkpoints.differences import summarize
from t5like.training.checkpoints.restoring import optimizer_kind


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A checkpoint of step 7, with the state in it."""
  folder = tmp_path_factory.mktemp("run")
  state, _ = make_state(step=7)
  save(folder, state)
  return folder / "checkpoints/7", state


def with_lora(params):
  lora = {"a": jnp.full((16, 2), 0.25, jnp.float32), "b": jnp.zeros((2, 32), jnp.float32)}
  return params | {"decoder": {"lora": lora}}


def refusal(checkpoint, spec, fingerprint=FINGERPRINT, options=None):
  with pytest.raises(UserError) as error:
    check_restorable(checkpoint, spec, fingerprint, options or Restore())
  return error.value


def test_another_vocabulary_is_refused(saved):
  error = refusal(saved[0], make_state()[1], {**FINGERPRINT, "vocabulary": "xyz"})
  assert error.what == "this checkpoint belongs to another model or vocabulary"
  assert error.lines["differs"] == "vocabulary  saved 'abc', now 'xyz'"


def test_settings_that_no_array_shows_are_named_as_options(saved):
  error = refusal(saved[0], make_state()[1], {**FINGERPRINT, "embed_dim": 32})
  assert error.lines["try"] == "--gin.TransformerConfig.embed_dim=16"
  error = refusal(saved[0], make_state(parameters(layers=1))[1], {**FINGERPRINT, "embed_dim": 32})
  assert "MODEL_DIR" in error.lines["try"]


def test_another_model_is_refused_variable_by_variable(saved):
  params = parameters(layers=1) | {"head": jnp.zeros((4, 3), jnp.float32), "embedding": jnp.zeros((64, 8), jnp.float32)}
  params["scale"] = params["scale"].astype(jnp.float32)
  error = refusal(saved[0], make_state(params)[1])
  assert error.lines["missing"] == "head  float32[4,3]"
  assert error.lines["unexpected"].split() == [
    "encoder/layers_*/bias", "float32[32]", "encoder/layers_*/kernel", "float32[16,32]",
  ]  # fmt: skip
  assert error.lines["other shape"].splitlines() == [
    "embedding  saved float32[64,16], now float32[64,8]",
    "scale      saved bfloat16[16], now float32[16]",
  ]
  assert "optimizer" not in error.lines  # it follows from the model


def test_many_differences_are_grouped():
  assert summarize({f"encoder/layers_{i}/kernel": "float32[2]" for i in range(12)}) == (
    "encoder/layers_*/kernel  float32[2]  (12 variables)"
  )
  blocks = {f"{side}/block{i}/{part}/w": "float32[2]" for side in "ab" for i in range(3) for part in "xyz"}
  assert summarize(blocks).splitlines() == [f"{side}/block{i}/...  3 variables" for side in "ab" for i in range(3)]
  assert summarize({f"v{i:02}": "int32[]" for i in range(30)}).splitlines()[-1] == "and 22 more"


def test_another_optimizer_is_named_and_parameters_alone_can_be_taken(saved):
  checkpoint, state = saved
  fresh, spec = make_state(parameters(seed=8), step=0, optimizer=optax.sgd(0.1, momentum=0.9))
  error = refusal(checkpoint, spec)
  assert error.what == "this checkpoint belongs to another optimizer or selection of trained parameters"
  assert error.lines["optimizer"] == "saved ScaleByAdamState\nnow   TraceState"
  assert "INIT_FROM" in error.lines["try"]
  taken = restore_state(checkpoint, spec, FINGERPRINT, Restore(parameters_only=True), lambda: fresh)
  assert bits(taken.params) == bits(state.params)
  assert int(taken.step) == 0 and bits(taken.opt_state) == bits(fresh.opt_state)


def test_missing_variables_that_are_allowed_keep_their_initial_value(saved):
  checkpoint, state = saved
  fresh, spec = make_state(with_lora(parameters(seed=8)), step=0)
  assert "decoder/lora/a" in refusal(checkpoint, spec).lines["missing"]
  options = Restore(allow_missing="decoder/lora/.*")
  taken = restore_state(checkpoint, spec, {**FINGERPRINT, "lora_rank": 2}, options, lambda: fresh)
  assert int(taken.step) == 7
  initial = {p: b for p, b in bits(fresh).items() if "lora" in p}
  assert len(initial) == 6  # two variables, two moments of each
  assert bits(taken) == bits(state) | initial
  options = dataclasses.replace(options, parameters_only=True)
  taken = restore_state(checkpoint, spec, FINGERPRINT, options, lambda: fresh)
  assert int(taken.step) == 0 and bits(taken.opt_state) == bits(fresh.opt_state)
  assert bits(taken.params) == bits(state.params) | bits(fresh.params | state.params)


def test_differences_that_are_not_allowed_are_refused(saved):
  params = with_lora(parameters()) | {"head": jnp.zeros((4, 3), jnp.float32)}
  _, spec = make_state(params)
  error = refusal(saved[0], spec, options=Restore(allow_missing="decoder/lora/.*"))
  assert error.lines["missing"] == "head  float32[4,3]"
  error = refusal(saved[0], spec, {"vocabulary": "xyz"}, Restore(allow_missing=".*"))
  assert error.lines["differs"] == "vocabulary  saved 'abc', now 'xyz'"
  error = refusal(saved[0], spec, options=Restore(allow_missing="decoder/lorra/.*"))
  assert "matches none" in error.what and "decoder/lora/" in error.lines["nearest"]
  with pytest.raises(UserError, match="invalid regular expression"):
    Restore(allow_missing="(")


def test_extra_variables_are_ignored_only_if_allowed(saved):
  checkpoint, state = saved
  params = {k: v for k, v in parameters(seed=8).items() if k != "embedding"}
  _, spec = make_state(params)
  assert refusal(checkpoint, spec).lines["unexpected"] == "embedding  float32[64,16]"
  taken = restore_state(checkpoint, spec, FINGERPRINT, Restore(ignore_extra="embedding"))
  assert bits(taken) == {p: b for p, b in bits(state).items() if not p.endswith("embedding")}


def test_parameters_in_half_precision_are_widened_exactly(tmp_path):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), parameters())
  checkpoint = save_parameters(tmp_path, half, fingerprint={"embed_dim": 16, "vocabulary": None})
  single = jax.tree.map(lambda x: x.astype(jnp.float32), parameters(seed=4))
  fresh, spec = make_state(single, step=0, axes=dict(fsdp=8))
  taken = restore_state(checkpoint, spec, FINGERPRINT, fresh=lambda: fresh)
  expected = jax.tree.map(lambda x: np.asarray(x).astype(np.float32), half)
  assert bits(taken.params) == bits(expected) and int(taken.step) == 0
  # Narrowing would lose bits.
  save_parameters(tmp_path / "single", single, fingerprint=FINGERPRINT)
  error = refusal(tmp_path / "single/checkpoints/0", make_state(half)[1])
  assert "saved float32[64,16], now bfloat16[64,16]" in error.lines["other shape"]


def test_an_optimizer_is_identified_by_its_state():
  assert optimizer_kind(ADAM.init(parameters())) == "ScaleByAdamState"
