"""INIT_FROM with another head, vocabulary, number of positions or layers: what is taken, and what the card says."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint
from t5like.inference.converting import config_text
from t5like.inference.parameters.adapting import adapt
from t5like.inference.parameters.bases import _check_new
from t5like.interop.layouts import flatten, stack_layers, unflatten
from t5like.models import BERT, ELECTRA, GPT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, RegressionHead, TaggingHead, WithHead, attach_head
from t5like.runs.starting_table import array_uses, starting_data, starting_text
from t5like.training.checkpoints import Restore, check_restorable, find_checkpoint, restore_state, save_parameters
from t5like.training.checkpoints.given_parameters import GivenParameters, SourceModel
from t5like.training.state import StateSpec, TrainState
from t5like.vocabularies import load_vocabulary

pytestmark = pytest.mark.usefixtures("one_device")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BATCH = {name: np.ones((2, 3), np.int32) for name in ("encoder_input_tokens", "decoder_input_tokens")}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  """Returns a function that writes a WordPiece vocabulary and loads it."""

  def write(*pieces):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *pieces]) + "\n")
    return load_vocabulary(str(path))

  return write


@pytest.fixture(scope="module")
def vocabulary(words):
  return words("a", "b", "c")


def bert(**changes) -> BERT:
  config = TransformerConfig(
    vocab_size=8, embed_dim=4, mlp_dim=6, num_heads=2, num_encoder_layers=3, norm="layer", norm_position="post",
    positions="learned", max_positions=5, use_bias=True, num_token_types=2, embedding_norm=True, scale_logits=False,
    pooler=True, mlm_head=True, nsp_head=True, scale_attention=True,
  )  # fmt: skip
  return BERT(dataclasses.replace(config, **changes))


def initial(model, seed=0):
  """Returns random parameters of a model; norms and biases, too."""
  return random_parameters(model, BATCH, seed, 1.0)


def save(folder: Path, model, params, vocabulary) -> Path:
  save_parameters(folder, params, step=0, fingerprint=model_fingerprint(model.config, vocabulary))
  return find_checkpoint(folder)


def start(source, model, vocabulary, options=None):
  """Returns the parameters that a run starts with, and the use of every array, through the real restoring code."""
  options = dataclasses.replace(options or Restore(), parameters_only=True)
  params = initial(model, seed=1)
  state = TrainState(np.int32(0), params, {}, np.uint32(0))
  whole = parallel.replicated(parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1]))
  spec = StateSpec(
    jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state), jax.tree.map(lambda _: whole, state)
  )
  fingerprint = model_fingerprint(model.config, vocabulary)
  adapted = adapt(source, model, vocabulary, spec, fingerprint, options)
  check_restorable(adapted, spec, fingerprint, options)
  uses = array_uses(adapted, spec)
  restored = restore_state(adapted, spec, fingerprint, options, lambda: state)
  return flatten(jax.device_get(restored.params)), {(use.path, use.status): use for use in uses}, flatten(params)


def statuses(uses, prefix):
  return {status for path, status in uses if path.startswith(prefix)}


def test_the_same_model_is_restored_directly(tmp_path, vocabulary):
  model, params = bert(), initial(bert())
  checkpoint = save(tmp_path, model, params, vocabulary)
  found, uses, _ = start(checkpoint, model, vocabulary)
  jax.tree.map(np.testing.assert_array_equal, unflatten(found), params)
  assert {status for _, status in uses} == {"taken"} and starting_text(list(uses.values())).startswith("taken  all")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_headless_checkpoint_starts_a_model_with_a_head_and_back(tmp_path, vocabulary, scan_layers):
  pretrained, params = bert(scan_layers=scan_layers), initial(bert(scan_layers=scan_layers))
  model = attach_head(pretrained, ClassificationHead(labels=("yes", "no")))
  found, uses, fresh = start(save(tmp_path / "a", pretrained, params, vocabulary), model, vocabulary)
  before = flatten(params)
  for path, array in found.items():
    if path.startswith("head/"):
      np.testing.assert_array_equal(array, fresh[path])
    else:
      np.testing.assert_array_equal(array, before[path.removeprefix("backbone/")])
  assert statuses(uses, "head/") == {"new"} and statuses(uses, "backbone/") == {"taken"}
  assert statuses(uses, "mlm_head/") == statuses(uses, "nsp_head/") == {"left out"}
  text = starting_text(list(uses.values())).splitlines()
  assert [line.split()[:2] for line in text] == [
    ["taken", "backbone/encoder"], ["taken", "backbone/pooler"], ["taken", "backbone/token_embedder"], ["new", "head"],
    ["left", "out"], ["left", "out"],
  ]  # fmt: skip
  data = starting_data(list(uses.values()))
  assert {"variable": "head/out/bias", "status": "new", "shape": [2]} in data and len(data) == len(uses)

  # Back: the backbone of the fine-tuned model continues pre-training, with new heads.
  tuned = initial(model, seed=2)
  found, uses, fresh = start(save(tmp_path / "b", model, tuned, vocabulary), pretrained, vocabulary)
  np.testing.assert_array_equal(found["pooler/kernel"], tuned["backbone"]["pooler"]["kernel"])
  np.testing.assert_array_equal(found["mlm_head/bias"], fresh["mlm_head/bias"])
  assert statuses(uses, "mlm_head/") == {"new"} and statuses(uses, "head/") == {"left out"}


def test_the_other_form_of_gelu_is_accepted_and_named(tmp_path, vocabulary, capsys):
  """Hugging Face's BERT computes the exact one, Google's an approximation; other activations are other models."""
  source = bert(activation="gelu_erf")
  checkpoint = save(tmp_path / "erf", source, initial(source), vocabulary)
  found, uses, _ = start(checkpoint, bert(activation="gelu"), vocabulary)
  np.testing.assert_array_equal(found["pooler/kernel"], initial(source)["pooler"]["kernel"])
  assert {status for _, status in uses} == {"taken"}
  assert 'TransformerConfig.activation="gelu_erf"' in capsys.readouterr().err
  start(checkpoint, source, vocabulary)
  assert not capsys.readouterr().err
  with pytest.raises(UserError) as error:
    start(checkpoint, bert(activation="relu"), vocabulary)
  assert error.value.lines["try"] == "--gin.TransformerConfig.activation=gelu_erf"


def test_a_causal_decoder_starts_a_prefix_lm(tmp_path, vocabulary):
  """Unless its relative position bias has other buckets then."""

  def gpt(**fields):
    sizes = dict(vocab_size=8, embed_dim=4, mlp_dim=6, num_heads=2, num_kv_heads=1, num_decoder_layers=1)
    return GPT(TransformerConfig(**sizes | fields), "llama")

  params = initial(gpt(positions="rotary"))
  source = save(tmp_path / "rotary", gpt(positions="rotary"), params, vocabulary)
  found, _, _ = start(source, gpt(positions="rotary", prefix_lm=True), vocabulary)
  jax.tree.map(np.testing.assert_array_equal, found, flatten(params))
  source = save(tmp_path / "bias", gpt(), initial(gpt()), vocabulary)
  with pytest.raises(UserError, match="prefix_lm  saved False, now True"):
    start(source, gpt(prefix_lm=True), vocabulary)


def test_a_head_is_taken_only_with_the_same_labels(tmp_path, vocabulary):
  def model(head):
    return attach_head(bert(), head)

  old = model(ClassificationHead(labels=("entailment", "neutral", "contradiction")))
  params = initial(old)
  save(tmp_path, old, params, vocabulary)
  vocabulary_file = tmp_path / "vocabulary" / "vocab.txt"
  vocabulary_file.parent.mkdir()
  vocabulary_file.write_bytes(vocabulary.path.read_bytes())
  # As a run directory: its configuration has the labels.
  text = config_text(bert(pooler=True, mlm_head=False, nsp_head=False), str(vocabulary_file), "test", tmp_path)
  labels = "('entailment', 'neutral', 'contradiction')"
  text += "\nMODEL = @WithHead()\nWithHead.backbone = @BERT()\nWithHead.head = @ClassificationHead()\n"
  (tmp_path / "config.gin").write_text(f"{text}ClassificationHead.labels = {labels}\n")
  checkpoint = find_checkpoint(tmp_path)
  for head, status in (
    (ClassificationHead(labels=("entailment", "neutral", "contradiction")), {"taken"}),
    (ClassificationHead(labels=("contradiction", "neutral", "entailment")), {"new", "left out"}),
    (ClassificationHead(labels=("yes", "no")), {"new", "left out"}),
    (RegressionHead(), {"new", "left out"}),
    (TaggingHead(labels=("entailment", "neutral", "contradiction")), {"new", "left out"}),
  ):
    found, uses, fresh = start(checkpoint, model(head), vocabulary)
    assert statuses(uses, "head/") == status, head
    expected = params["head"]["out"]["bias"] if status == {"taken"} else fresh["head/out/bias"]
    np.testing.assert_array_equal(found["head/out/bias"], expected)


def test_t5s_encoder_starts_a_tagger(tmp_path, vocabulary):
  sizes = dict(vocab_size=8, embed_dim=4, mlp_dim=6, num_heads=2, num_encoder_layers=2, num_decoder_layers=2)
  t5 = T5(TransformerConfig(**sizes, tie_embeddings=False))
  checkpoint = save(tmp_path, t5, initial(t5), vocabulary)
  found, uses, _ = start(checkpoint, WithHead(t5, TaggingHead(labels=("O", "B"))), vocabulary)
  assert not any("decoder" in path for path in found)
  assert statuses(uses, "decoder/") == statuses(uses, "logits_dense/") == {"left out"}
  assert statuses(uses, "backbone/encoder/") == {"taken"}


@pytest.mark.parametrize("positions, offset", [(3, 0), (13, 0), (13, 2)])
def test_a_position_table_is_repeated_or_cut(tmp_path, vocabulary, positions, offset):
  """RoBERTa's rows before position 0 are kept."""
  old, new = bert(position_offset=offset), bert(max_positions=positions, position_offset=offset)
  params = initial(old)
  found, uses, _ = start(save(tmp_path, old, params, vocabulary), new, vocabulary)
  before, old = np.split(params["token_embedder"]["position_embedding"], [offset])
  expected = np.concatenate([before, old, old, old[:3]]) if positions == 13 else old[:3]
  np.testing.assert_array_equal(found["token_embedder/position_embedding"], expected)
  use = uses["token_embedder/position_embedding", "resized"]
  assert use.note.startswith(f"5 -> {positions} positions") and f"5 -> {positions}" in starting_text([use])


def test_both_position_tables_of_a_bart_are_resized(tmp_path, vocabulary):
  """With the rows before position 0; a head on its encoder takes nothing of the decoder."""
  config = dataclasses.replace(
    bert().config, num_encoder_layers=1, num_decoder_layers=1, positions_per_stack=True, position_offset=2,
    pooler=False, mlm_head=False, nsp_head=False, num_token_types=0, logits_bias=True,
  )  # fmt: skip
  old, new = T5(config), T5(dataclasses.replace(config, max_positions=3))
  params = initial(old)
  source = save(tmp_path, old, params, vocabulary)
  found, _, _ = start(source, new, vocabulary)
  for table in (("token_embedder",), ("token_embedder", "decoder")):
    part = params
    for name in table:
      part = part[name]
    np.testing.assert_array_equal(found["/".join([*table, "position_embedding"])], part["position_embedding"][:5])
  np.testing.assert_array_equal(found["logits_bias/bias"], params["logits_bias"]["bias"])
  _, uses, _ = start(source, attach_head(old, TaggingHead(labels=("a", "b"))), vocabulary)
  for part in ("decoder/", "token_embedder/decoder/", "logits_bias/"):
    assert statuses(uses, part) == {"left out"}


def test_a_larger_vocabulary_keeps_the_rows_of_its_pieces(tmp_path, words, vocabulary):
  """Pieces may move; new rows are close to the mean of the old ones, and the same on every host."""
  larger = words("x", "b", "a", "c", "y")
  params = initial(bert())
  save(tmp_path, bert(), params, vocabulary)
  (tmp_path / "config.gin").write_text(config_text(bert(), str(vocabulary.path), "test", tmp_path))
  model = bert(vocab_size=12)
  found, uses, _ = start(find_checkpoint(tmp_path), model, larger)
  again, *_ = start(find_checkpoint(tmp_path), model, larger)
  for path, old in (
    ("token_embedder/embedding", params["token_embedder"]["embedding"]),
    ("mlm_head/bias", params["mlm_head"]["bias"]),
  ):
    new = found[path]
    np.testing.assert_array_equal(new[:5], old[:5])
    np.testing.assert_array_equal(new[[6, 7, 8]], old[[6, 5, 7]])  # b, a, c
    np.testing.assert_allclose(new[[5, 9, 10, 11]], np.broadcast_to(old.mean(0), new[:4].shape), atol=0.05)
    assert len(np.unique(new[[5, 9, 10, 11]], axis=0)) == 4
    np.testing.assert_array_equal(new, again[path])
  assert uses["token_embedder/embedding", "resized"].note == "8 -> 12 rows, 4 of them new"


def test_another_vocabulary_and_lost_pieces_are_refused(tmp_path, words, vocabulary):
  save(tmp_path, bert(), initial(bert()), vocabulary)
  (tmp_path / "config.gin").write_text(config_text(bert(), str(vocabulary.path), "test", tmp_path))
  checkpoint = find_checkpoint(tmp_path)
  for pieces in (("a", "b", "d", "e"), ("a", "b", "x")):
    with pytest.raises(UserError, match="another model or vocabulary|does not match") as error:
      start(checkpoint, bert(), words(*pieces)) if len(pieces) == 3 else start(
        checkpoint, bert(vocab_size=12), words(*pieces)
      )
    assert "vocabulary" in str(error.value)
  (tmp_path / "config.gin").unlink()  # then the old pieces are unknown
  with pytest.raises(UserError, match="another model or vocabulary|does not match"):
    start(checkpoint, bert(vocab_size=12), words("a", "b", "c", "d"))


def test_rows_beyond_the_vocabulary_may_change(tmp_path, vocabulary):
  params = initial(bert(vocab_size=16))
  checkpoint = save(tmp_path, bert(vocab_size=16), params, vocabulary)
  for rows in (8, 20):
    found, *_ = start(checkpoint, bert(vocab_size=rows), vocabulary)
    kept = min(rows, 16)
    old = params["token_embedder"]["embedding"]
    assert found["token_embedder/embedding"].shape[0] == rows
    np.testing.assert_array_equal(found["token_embedder/embedding"][:kept], old[:kept])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layers", [(), (0, 2)])
@pytest.mark.parametrize("scanned", [(False, False), (True, True), (False, True), (True, False)])
def test_fewer_layers_of_either_layout(tmp_path, vocabulary, layers, scanned):
  old, new = (bert(scan_layers=scan) for scan in scanned)
  separate = flatten(initial(bert()))
  params = unflatten(stack_layers(separate)) if scanned[0] else unflatten(separate)
  checkpoint = save(tmp_path, old, params, vocabulary)
  fewer = new.clone(config=dataclasses.replace(new.config, num_encoder_layers=2))
  found, uses, _ = start(checkpoint, fewer, vocabulary, Restore(layers=layers))
  chosen = layers or (0, 1)
  kernels = [separate[f"encoder/layers_{i}/mlp/wi/kernel"] for i in chosen]
  if scanned[1]:
    np.testing.assert_array_equal(found["encoder/layers/mlp/wi/kernel"], np.stack(kernels))
    note = uses["encoder/layers/mlp/wi/kernel", "resized"].note
    assert note == f"layers {chosen[0]}, {chosen[1]} of 3"
  else:
    for i, kernel in enumerate(kernels):
      np.testing.assert_array_equal(found[f"encoder/layers_{i}/mlp/wi/kernel"], kernel)
  if scanned == (False, False):
    left = 1 if layers else 2
    assert uses[f"encoder/layers_{left}/mlp/wi/kernel", "left out"].note == f"layers {left} of 3"


def test_layouts_are_converted_without_loss(tmp_path, vocabulary):
  separate = flatten(initial(bert()))
  checkpoint = save(tmp_path / "a", bert(), unflatten(separate), vocabulary)
  stacked, uses, _ = start(checkpoint, bert(scan_layers=True), vocabulary)
  expected = stack_layers(separate)
  assert {status for _, status in uses} == {"taken"} and stacked.keys() == expected.keys()
  for path, array in expected.items():
    np.testing.assert_array_equal(stacked[path], array)


def test_what_does_not_fit_is_still_refused(tmp_path, vocabulary):
  checkpoint = save(tmp_path, bert(), initial(bert()), vocabulary)
  for model, words_ in (
    (bert(num_encoder_layers=4), ["num_encoder_layers", "saved 3, now 4"]),
    (bert(mlp_dim=8), ["mlp_dim", "saved 6, now 8"]),
    (bert(num_token_types=0), ["num_token_types", "unexpected"]),
    (bert(num_heads=1, head_dim=4), ["num_heads"]),
    (attach_head(bert(mlp_dim=8), RegressionHead()), ["mlp_dim"]),
  ):
    with pytest.raises(UserError) as error:
      start(checkpoint, model, vocabulary)
    assert all(word in str(error.value) for word in words_), str(error.value)
  for layers in ((0, 3), (0, 1, 2), (1,)):
    with pytest.raises(UserError, match="RESTORE.layers"):
      start(checkpoint, bert(num_encoder_layers=2), vocabulary, Restore(layers=layers))
  for layers in ((-1,), ("0",), (True,)):
    with pytest.raises(UserError, match="RESTORE.layers"):
      Restore(layers=layers)


def test_options_of_the_user_apply_to_the_rest(tmp_path, vocabulary):
  """A variable that no rule covers needs allow_missing or ignore_extra, also where a head is new."""
  params = flatten(initial(bert()))
  extra = params | {"adapter/kernel": np.ones((2, 2), np.float32)}
  del extra["token_embedder/token_type_embedding"]
  checkpoint = save(tmp_path, bert(), unflatten(extra), vocabulary)
  model = attach_head(bert(), RegressionHead())
  with pytest.raises(UserError, match="another model|does not match") as error:
    start(checkpoint, model, vocabulary)
  assert "adapter/kernel" in str(error.value) and "token_type_embedding" in str(error.value)
  options = Restore(allow_missing=".*/token_type_embedding", ignore_extra="adapter/.*")
  found, uses, fresh = start(checkpoint, model, vocabulary, options)
  name = "backbone/token_embedder/token_type_embedding"
  np.testing.assert_array_equal(found[name], fresh[name])
  assert (name, "new") in uses and ("adapter/kernel", "left out") in uses


def test_narrower_parameters_are_widened(tmp_path, vocabulary):
  model = bert(param_dtype="bfloat16")
  params = jax.tree.map(lambda x: x.astype(jax.numpy.bfloat16), initial(bert()))
  checkpoint = save(tmp_path, model, params, vocabulary)
  found, *_ = start(checkpoint, bert(), vocabulary)
  kernel = params["pooler"]["kernel"].astype(np.float32)
  np.testing.assert_array_equal(found["pooler/kernel"], kernel)
  with pytest.raises(UserError):
    start(save(tmp_path / "b", bert(), initial(bert()), vocabulary), model, vocabulary)


def test_a_damaged_checkpoint_is_refused(tmp_path, vocabulary):
  """An adapted checkpoint is verified like one that is restored as it is."""
  checkpoint = save(tmp_path, bert(), initial(bert()), vocabulary)
  largest = max((p for p in (checkpoint / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  for model in (bert(), bert(max_positions=9)):
    with pytest.raises(UserError, match="damaged"):
      start(checkpoint, model, vocabulary)


def test_parameters_in_memory_are_adapted_too(vocabulary):
  params, model = initial(bert()), attach_head(bert(max_positions=10), RegressionHead())
  arrays = flatten(params)
  given = GivenParameters(
    "memory", model_fingerprint(bert().config, vocabulary), arrays, lambda: arrays, "advice", known=SourceModel
  )
  found, uses, _ = start(given, model, vocabulary)
  assert found["backbone/token_embedder/position_embedding"].shape == (10, 4)
  np.testing.assert_array_equal(found["backbone/pooler/kernel"], params["pooler"]["kernel"])


def test_the_discriminator_of_electra_starts_a_model_with_a_head_and_a_bert_starts_an_electra(tmp_path, vocabulary):
  plain = bert(pooler=False, nsp_head=False)
  electra = ELECTRA(dataclasses.replace(plain.config, discriminator_head=True))  # as objectives/electra.gin does
  theirs, source = initial(electra), tmp_path / "electra"
  model = attach_head(plain, ClassificationHead(labels=("no", "yes")))
  found, uses, _ = start(save(source, electra, theirs, vocabulary), model, vocabulary)
  taken = {path.removeprefix("backbone/"): array for path, array in found.items() if path.startswith("backbone/")}
  assert len(taken) > 20
  for path, array in taken.items():
    np.testing.assert_array_equal(array, flatten(theirs)[path])
  assert statuses(uses, "generator/") == statuses(uses, "discriminator_head/") == {"left out"}

  ours = initial(plain)
  found, uses, _ = start(save(tmp_path / "bert", plain, ours, vocabulary), electra, vocabulary)
  np.testing.assert_array_equal(found["token_embedder/embedding"], ours["token_embedder"]["embedding"])
  assert statuses(uses, "generator/") == {"new"} and statuses(uses, "mlm_head/") == {"left out"}


def test_disentangled_embeddings_are_summed_for_a_model_without_them(tmp_path, vocabulary):
  plain = bert(pooler=False, nsp_head=False)
  electra = ELECTRA(plain.config, embedding_sharing="disentangled")
  theirs = initial(electra)
  model = attach_head(plain, ClassificationHead(labels=("no", "yes")))
  found, uses, _ = start(save(tmp_path, electra, theirs, vocabulary), model, vocabulary)
  for name in ("embedding", "position_embedding", "token_type_embedding"):
    total = theirs["token_embedder"][name] + theirs["embedding_delta"][name]
    np.testing.assert_array_equal(found[f"backbone/token_embedder/{name}"], total)
  np.testing.assert_array_equal(found["backbone/token_embedder/norm/scale"], theirs["token_embedder"]["norm"]["scale"])
  assert "sum" in uses["backbone/token_embedder/embedding", "taken"].note


def test_all_variables_that_a_base_lacks_are_listed():
  _check_new({"head/kernel": 0}, {"head/kernel"}, "LoRA")
  with pytest.raises(UserError, match="the base has no a/bias, a/kernel, which LoRA would freeze") as error:
    _check_new({"a/kernel": 0, "head/kernel": 0, "a/bias": 0}, {"head/kernel"}, "LoRA")
  assert "LoRA.also=['a/bias', 'a/kernel']" in error.value.render()
