"""FLOPs, manually and against the products in the traced model; exact state memory; formatting."""

import dataclasses

import jax
import numpy as np
import pytest
from train_steps import gpt

from t5like import parallel, planning
from t5like.data.layouts import blank
from t5like.models import ELECTRA, GPT, SpanBERT, XLNet
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.objectives import Lengths
from t5like.planning.activations import count_activations
from t5like.planning.flops import forward_flops, model_flops_by_part, traced_flops
from t5like.planning.operations import DeviceShare, layer_operations
from t5like.planning.plan_text import render_plan
from t5like.planning.run_card import large, render_run_card
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.state import state_spec


def config(**kwargs):
  sizes = dict(vocab_size=96, embed_dim=8, mlp_dim=16, num_heads=2, num_encoder_layers=2, num_decoder_layers=3)
  return TransformerConfig(**{**sizes, **kwargs})


def test_a_forward_pass_by_hand():
  # B=2, Le=5, Ld=3, d=8, a=8, f=16, V=96.
  encoder = 2 * (8 * 2 * 5 * 64 + 4 * 2 * 25 * 8 + 4 * 2 * 5 * 8 * 16)
  decoder = 3 * (8 * 2 * 3 * 64 + 4 * 2 * 9 * 8 + 4 * 2 * 3 * 8 * 16)
  cross = 3 * (4 * 2 * 3 * 64 + 4 * 2 * 5 * 64 + 4 * 2 * 3 * 5 * 8)
  assert forward_flops(config(), 2, 5, 3) == encoder + decoder + cross + 2 * 2 * 3 * 8 * 96
  assert planning.train_step_flops(T5(config()), 2, 5, 3) == 3 * forward_flops(config(), 2, 5, 3)


@pytest.mark.parametrize("gated", [False, True])
def test_the_formula_counts_the_products_of_the_traced_model(gated):
  # Without the position bias, whose one-hot product is not counted.
  settings = config(gated_mlp=gated, positions="none")
  batch = blank("encoder_decoder", Lengths(0, 5, 3), 2, packed=False, shifted=False)
  model = T5(settings)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
  assert traced_flops(lambda v: model.apply(v, batch)["logits"], shapes) == forward_flops(settings, 2, 5, 3)


@pytest.mark.parametrize("embedding_dim", [None, 6])
def test_the_formula_counts_both_models_of_electra(embedding_dim):
  settings = config(num_decoder_layers=0, positions="none", mlm_head=True, embedding_dim=embedding_dim)
  batch = blank("encoder", Lengths(0, 5, 5), 2, packed=False, shifted=False)
  model = ELECTRA(settings, generator_share=0.5)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)

  def logits(variables):
    return {name: x for name, x in model.apply(variables, batch).items() if name.endswith("logits")}

  parts, width = model_flops_by_part(model, 2, 5), embedding_dim or 8
  assert traced_flops(logits, shapes) == sum(parts.values())
  assert parts["generator"] == 2 * (8 * 10 * 4 * 4 + 4 * 50 * 4 + 4 * 10 * 4 * 8) + 4 * 10 * width * 4
  planned = layer_operations(model, DeviceShare(2, 5, 0, platform="cpu"))
  products = [operation for operation in planned if operation.kind == "product"]
  total = sum(operation.count * operation.flops for operation in products)
  assert total == 3 * (sum(parts.values()) - 2 * 10 * 8)  # without the last product of the discriminator, [d, 1]


def test_the_formula_counts_both_heads_of_spanbert():
  settings = config(num_decoder_layers=0, positions="none", mlm_head=True)
  batch = blank("encoder", Lengths(0, 5, 5), 2, packed=False, shifted=False)
  model = SpanBERT(settings, position_dim=7)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)

  def outputs(variables):
    found = model.apply(variables, batch)
    return found["logits"], found["auxiliary"]["boundary_loss"].losses

  assert traced_flops(outputs, shapes) == sum(model_flops_by_part(model, 2, 5).values())


def test_albert_has_the_products_of_all_layers_and_the_parameters_of_one():
  encoder = dict(num_encoder_layers=4, num_decoder_layers=0, positions="none", mlm_head=True, embedding_dim=4)
  encoder["norm_position"] = "post"  # no final norm
  batch = blank("encoder", Lengths(5, 5, 0), 2, packed=False, shifted=False)
  totals, sizes = [], []
  for groups in (None, 1):
    model = BERT(config(layer_groups=groups, **encoder))
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
    totals.append(traced_flops(lambda v, model=model: model.apply(v, batch)["logits"], shapes))
    sizes.append(sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]["encoder"])))
    assert totals[-1] == forward_flops(model.config, 2, 5, 0)
  assert totals[0] == totals[1] and sizes[0] == 4 * sizes[1]
  saved = [
    count_activations(BERT(config(layer_groups=groups, **encoder)), batch, platform="cpu") for groups in (None, 1)
  ]
  assert saved[0] == saved[1]


def test_grouped_heads_a_window_and_projected_tokens_by_hand():
  """B=2, L=5, d=8, a=8, f=16, V=96; one head of keys (c=4); 3 layers. A window hides scores that are computed here."""
  sizes = dict(num_encoder_layers=0, num_kv_heads=1, gated_mlp=True, positions="none")
  batch = blank("decoder", Lengths(0, 0, 5), 2, packed=False, shifted=False)
  projected = dict(embedding_dim=6, embedding_projection="tokens")
  for more in ({}, projected):
    model = GPT(config(**sizes, **more))
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
    assert traced_flops(lambda v, m=model: m.apply(v, batch)["logits"], shapes) == forward_flops(model.config, 2, 0, 5)
  products = 3 * (4 * 10 * 8 * (8 + 4) + 6 * 10 * 8 * 16) + 2 * 10 * 8 * 96
  assert forward_flops(config(**sizes), 2, 0, 5) == products + 3 * 4 * 10 * 5 * 8
  assert forward_flops(config(**sizes, attention_window=2), 2, 0, 5) == products + 3 * 4 * 10 * 2 * 8
  planned = layer_operations(GPT(config(**sizes)), DeviceShare(2, 0, 5, platform="cpu"))
  total = sum(operation.count * operation.flops for operation in planned if operation.kind == "product")
  assert total == 3 * forward_flops(config(**sizes), 2, 0, 5)


def test_a_tensor_axis_splits_grouped_heads():
  sizes = dict(num_encoder_layers=0, positions="none", embed_dim=32, head_dim=8)
  whole = GPT(config(**sizes, num_heads=4, num_kv_heads=2, mlp_dim=32, vocab_size=96))
  half = GPT(config(**sizes, num_heads=2, num_kv_heads=1, mlp_dim=16, vocab_size=48))
  batch = blank("decoder", Lengths(0, 0, 16), 2, packed=False, shifted=False)
  assert count_activations(whole, batch, 2, platform="cpu") == count_activations(half, batch, platform="cpu")


def test_disentangled_attention_counts_both_terms_and_the_projections_of_its_table():
  settings = config(
    num_encoder_layers=2, num_decoder_layers=0, positions="disentangled", relative_buckets=8, relative_max_distance=8,
    mlm_head=True, convolution_width=3,
  )  # fmt: skip
  batch = blank("encoder", Lengths(5, 5, 0), 2, packed=False, shifted=False)
  model = BERT(settings)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
  one_hot = 2 * 2 * (2 * 10 * 16 * 8)  # copies rows of the table to distances, in 2 layers; not counted
  found = traced_flops(lambda v: model.apply(v, batch)["logits"], shapes) - one_hot
  assert found == forward_flops(settings, 2, 5, 0)


def test_the_products_of_any_function():
  x, y = jax.ShapeDtypeStruct((3, 4), "float32"), jax.ShapeDtypeStruct((4, 5), "float32")
  assert traced_flops(lambda x, y: x @ y, x, y) == 2 * 3 * 4 * 5
  # Muon on a kernel X of 64 x 128: each of five steps computes A = X X^T, A A, and the product of that with X.
  params = {"decoder": {"layers_0": {"kernel": jax.ShapeDtypeStruct((64, 128), "float32")}}}
  update = optimizers.muon(1e-3).transformation
  flops = traced_flops(update.update, params, jax.eval_shape(update.init, params), params)
  assert flops == 5 * (2 * 64 * 128 * 64 + 2 * 64**3 + 2 * 64 * 64 * 128)


def test_t5_base_has_about_six_flops_per_parameter_and_token():
  base = TransformerConfig(
    vocab_size=32128, embed_dim=768, mlp_dim=3072, num_heads=12, num_encoder_layers=12, num_decoder_layers=12
  )
  flops = planning.train_step_flops(T5(base), 128, 512, 114)
  # By hand: encoder 84.9 M weights see 512 tokens, decoder 113.2 M see 114 (28.3/2 M of them 512), output 24.7 M
  # see 114: 6 * 128 * (84.9e6 * 512 + 99.1e6 * 114 + 14.2e6 * 512 + 24.7e6 * 114) = 4.98e13, attention 4e12 more.
  assert 5.0e13 < flops < 5.6e13


def test_state_memory_is_exact_and_split_by_the_mesh():
  batch = blank("encoder_decoder", Lengths(0, 5, 3), 8, packed=False, shifted=False)
  optimizer = optimizers.adamw(schedules.constant_rate())
  found = {}
  for fsdp in (1, 8):
    mesh = parallel.make_mesh(parallel.MeshAxes(data=8 // fsdp, fsdp=fsdp))
    spec = state_spec(T5(config()), optimizer, batch, mesh)
    found[fsdp] = planning.state_bytes(
      spec.shapes.params, spec.shardings.params, spec.shapes.opt_state, spec.shardings.opt_state, "float32"
    )
  count = sum(leaf.size for leaf in jax.tree.leaves(spec.shapes.params))
  assert found[1].parameters == 4 * count
  assert found[1].optimizer == 2 * 4 * count + 2 * 4  # two moments, and two step counts
  # All but the position tables (2 x 32 x 2 floats) has an embed axis of 8, split 8 ways.
  assert found[8].parameters == (4 * count - 512) // 8 + 512
  # Gathered weights are all matrices: everything except the norms' scales (15 of them, 8 wide).
  assert found[8].weights == found[1].weights == 4 * (count - 15 * 8)


def test_large_numbers_are_abbreviated():
  assert [large(n) for n in (999, 12_345, 1.2e6, 3.456e9, 7e13)] == ["999", "12,345", "1.2 M", "3.46 G", "70 T"]
  assert large(2.5e12, "FLOP") == "2.5 TFLOP" and large(1.4e21, "FLOP") == "1.4 ZFLOP"


def test_the_card_is_aligned():
  card = render_run_card({"a": "one", "longer": "two\nthree"}).split("\n")
  assert card[1:-1] == ["a       one", "longer  two", "        three"] and set(card[0]) == {"-"}


@pytest.mark.parametrize(
  ("packed", "backend", "skips"), [(True, "auto", True), (False, "auto", False), (True, "xla", False)]
)  # fmt: skip
def test_a_plan_notes_that_packed_rows_may_be_faster(packed, backend, skips):
  model = gpt(1, compute_dtype="bfloat16", dropout_rate=0.1, attention_backend=backend)
  names = ["decoder_input_tokens", *(["decoder_segment_ids", "decoder_positions"] if packed else [])]
  batch = {name: jax.ShapeDtypeStruct((8, 128), np.int32) for name in names}
  boxed = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  work = planning.Work(model, planning.State(boxed, {}), batch)
  planned = planning.forecast(work, planning.parse_topology("h200"), parallel.MeshAxes(), with_memory=False)
  planned = dataclasses.replace(planned, memory=planning.MemoryEstimate(1, 1, 1, 1, 1, 1, "at the loss"))
  text = render_plan([planned], planning.price_of(1.0, planned.topology.chip), [])
  assert ("between the examples of a packed row" in text) == skips


@pytest.mark.parametrize("memory, share", [(0, 1.0), (3, 1.0), (3, 0.25)])
def test_the_formula_counts_both_streams_and_the_memory_of_xlnet(memory, share):
  settings = config(num_decoder_layers=0, positions="transformer_xl", norm_position="post", mlm_head=True)
  batch = blank("encoder", Lengths(0, 13, 13), 2, packed=False, shifted=False)
  model = XLNet(settings, predicted_share=share, memory_length=memory)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
  found = traced_flops(lambda v: model.apply(v, batch, deterministic=False)["logits"], shapes)
  parts = model_flops_by_part(model, 2, 13)
  angles = (2 * (13 - memory) + memory + 2 * memory) * 8  # of sinusoids: the outer product of distances and frequencies
  # A third of the memory's forward pass is counted, as it has no backward pass.
  assert found == sum(parts.values()) + 2 * parts.get("memory", 0) + angles
  predictions = 8 if share < 1 else 13 - memory
  assert parts["output"] == 2 * 2 * predictions * 8 * 96
  assert parts["encoder MLP"] == 2 * 4 * 2 * (13 - memory + predictions) * 8 * 16
