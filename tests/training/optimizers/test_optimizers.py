"""Optimizers compared with published values, hand computations, and optax where it has them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5like.errors import UserError
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.optimizers.moving_average import averaged_parameters, has_average
from t5like.training.optimizers.updates import FactoredMoments, orthogonalize

ALL = ["adafactor", "adamw", "adamw_scaled", "lamb", "lion", "muon"]


def make(name, learning_rate=0.1, **options):
  return getattr(optimizers, name)(learning_rate, **options)


def compiled(optimizer):
  """Returns (gradients, state, parameters) -> (parameters, state), with type promotion as in the train step."""

  @jax.jit
  def step(gradients, state, params):
    with jax.numpy_dtype_promotion("standard"):
      updates, state = optimizer.transformation.update(gradients, state, params)
      return optax.apply_updates(params, updates), state

  return step


def run(optimizer, params, gradients):
  state, step = jax.jit(optimizer.transformation.init)(params), compiled(optimizer)
  for gradient in gradients:
    params, state = step(gradient, state, params)
  return params, state


def run_optax(transformation, params, gradients):
  with jax.numpy_rank_promotion("allow"):
    return run(optimizers.Optimizer(transformation, None, "", None, None), params, gradients)[0]


def random_tree(shapes, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return {k: jnp.asarray(scale * rng.standard_normal(s), jnp.float32) for k, s in shapes.items()}


def with_moments(state, moments):
  is_moments = lambda node: isinstance(node, FactoredMoments)  # noqa: E731
  return jax.tree.map(lambda node: moments if is_moments(node) else node, state, is_leaf=is_moments)


def find_moments(state):
  is_moments = lambda node: isinstance(node, FactoredMoments)  # noqa: E731
  return next(node for node in jax.tree.leaves(state, is_leaf=is_moments) if is_moments(node))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "clip_norm, row, column", [(None, 0.9574349, 0.6169143), (1.0, 0.478811, 0.13829)], ids=["plain", "clipped"]
)
def test_adafactor_has_t5xs_published_values(clip_norm, row, column):
  # T5X's test: ones(3, 2) as parameters and gradients, v_row .9, v_col .1, step 1, learning rate .1 -> parameters .9.
  optimizer = make("adafactor", min_dim_size_to_factor=0, clip_norm=clip_norm)
  ones = {"x": jnp.ones((3, 2))}
  state = optimizer.transformation.init(ones)
  moments = find_moments(state)
  assert moments.row["x"].shape == (2,) and moments.column["x"].shape == (3,)
  start = moments._replace(count=jnp.int32(1), row={"x": jnp.full(2, 0.9)}, column={"x": jnp.full(3, 0.1)})
  params, state = compiled(optimizer)(ones, with_moments(state, start), ones)
  np.testing.assert_allclose(find_moments(state).row["x"], [row] * 2, rtol=2e-6)
  np.testing.assert_allclose(find_moments(state).column["x"], [column] * 3, rtol=2e-6)
  np.testing.assert_allclose(params["x"], 0.9 * np.ones((3, 2)), rtol=1e-6)


def test_adafactor_does_not_factor_small_matrices():
  # T5X's test: v .5 at step 1 -> .787174, the parameters again .9.
  optimizer, ones = make("adafactor", min_dim_size_to_factor=32), {"x": jnp.ones((3, 2))}
  state = optimizer.transformation.init(ones)
  start = find_moments(state)._replace(count=jnp.int32(1), full={"x": jnp.full((3, 2), 0.5)})
  params, state = compiled(optimizer)(ones, with_moments(state, start), ones)
  np.testing.assert_allclose(find_moments(state).full["x"], np.full((3, 2), 0.787174), rtol=1e-6)
  np.testing.assert_allclose(params["x"], 0.9 * np.ones((3, 2)), rtol=1e-6)


def test_adafactor_equals_optaxs_over_several_steps():
  shapes = {"wide": (8, 24), "tall": (24, 8), "small": (4, 24), "vector": (16,), "cube": (3, 9, 12)}
  params = random_tree(shapes, 0, 0.3)
  gradients = [random_tree(shapes, seed) for seed in range(1, 6)]
  schedule = schedules.inverse_square_root(warmup_steps=10)
  ours, _ = run(make("adafactor", schedule, min_dim_size_to_factor=8), params, gradients)
  reference = run_optax(optax.adafactor(schedule, min_dim_size_to_factor=8), params, gradients)
  for name in shapes:
    np.testing.assert_allclose(ours[name], reference[name], rtol=2e-5, atol=1e-6)


def test_adafactors_learning_rate_is_relative_to_the_parameter():
  # The first update is gradient / sqrt(gradient^2): 1 in each entry, of RMS 1. Its size: rate * RMS of the parameter.
  params = {"large": jnp.full((4,), 10.0), "zero": jnp.zeros((4,))}
  gradients = [{"large": jnp.full((4,), 7.0), "zero": jnp.full((4,), 1e-5)}]
  new, _ = run(make("adafactor"), params, gradients)
  np.testing.assert_allclose(new["large"], np.full(4, 9.0), rtol=1e-6)
  np.testing.assert_allclose(new["zero"], np.full(4, -1e-4), rtol=1e-5)  # 0.1 * 1e-3
  new, _ = run(make("adafactor", multiply_by_parameter_scale=False), params, gradients)
  np.testing.assert_allclose(new["large"], np.full(4, 9.9), rtol=1e-6)


def adam_by_hand(params, gradients, rate, b1, b2, eps, decay=0.0, scale=lambda p: 1.0):
  p, m, v = np.asarray(params, np.float64), 0.0, 0.0
  for n, g in enumerate(gradients, 1):
    g = np.asarray(g, np.float64)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    update = m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + eps)
    p = p - rate * (scale(p) * update + decay * p)
  return p


def test_adamw_by_hand():
  shapes = {"x": (4, 3)}
  params, gradients = random_tree(shapes, 0), [random_tree(shapes, seed) for seed in range(1, 5)]
  new, _ = run(make("adamw", b2=0.98, weight_decay=0.3, clip_norm=None), params, gradients)
  expected = adam_by_hand(params["x"], [g["x"] for g in gradients], 0.1, 0.9, 0.98, 1e-8, decay=0.3)
  np.testing.assert_allclose(new["x"], expected, rtol=1e-5, atol=1e-6)


def test_scaled_adamw_moves_by_a_share_of_the_parameters_rms():
  shapes = {"x": (4, 3), "tiny": (5,)}
  params, gradients = random_tree(shapes, 0, 3.0), [random_tree(shapes, seed) for seed in range(1, 5)]
  params["tiny"] *= 1e-6
  new, _ = run(make("adamw_scaled", weight_decay=0.3, clip_norm=None), params, gradients)
  rms = lambda p: max(1e-3, np.sqrt(np.mean(p * p)))  # noqa: E731
  for name in shapes:
    given = [g[name] for g in gradients]
    expected = adam_by_hand(params[name], given, 0.1, 0.9, 0.999, 1e-6, decay=0.3, scale=rms)
    np.testing.assert_allclose(new[name], expected, rtol=5e-5, atol=1e-8)


def adafactor_by_hand(params, gradients, rate, decay_rate, epsilon, factored, threshold, least):
  """Algorithms 4 and 5 of Shazeer and Stern 2018, for one variable."""
  p, row, column, full = np.asarray(params, np.float64), 0.0, 0.0, 0.0
  for n, g in enumerate(gradients, 1):
    g = np.asarray(g, np.float64)
    keep, squared = 1 - n**-decay_rate, np.square(g) + epsilon
    row = keep * row + (1 - keep) * squared.mean(-1)
    column = keep * column + (1 - keep) * squared.mean(0)
    full = keep * full + (1 - keep) * squared
    update = g / np.sqrt(np.outer(row, column) / row.mean() if factored else full)
    update = update / max(1.0, np.sqrt(np.mean(update**2)) / threshold)
    p = p - rate * update * max(least, np.sqrt(np.mean(p**2)))
  return p


def test_adafactor_with_every_option_changed():
  shapes = {"factored": (6, 9), "full": (3, 9), "vector": (12,)}
  params, gradients = random_tree(shapes, 0, 0.3), [random_tree(shapes, seed) for seed in range(1, 5)]
  params["vector"] *= 0.01  # smaller than min_parameter_scale
  options = dict(decay_rate=0.4, epsilon=0.05)
  new, _ = run(
    make("adafactor", **options, min_dim_size_to_factor=6, clipping_threshold=0.5, min_parameter_scale=0.02),
    params, gradients,
  )  # fmt: skip
  for name in shapes:
    given = [g[name] for g in gradients]
    expected = adafactor_by_hand(
      params[name], given, 0.1, **options, factored=name == "factored", threshold=0.5, least=0.02
    )
    np.testing.assert_allclose(new[name], expected, rtol=1e-5, atol=1e-7)


def test_adamw_variants_with_every_option_changed():
  shapes = {"x": (4, 3)}
  params, gradients = random_tree(shapes, 0, 0.1), [random_tree(shapes, seed) for seed in range(1, 4)]
  given, options = [g["x"] for g in gradients], dict(b1=0.6, b2=0.8, eps=0.3)
  new, _ = run(make("adamw", **options, clip_norm=None), params, gradients)
  np.testing.assert_allclose(new["x"], adam_by_hand(params["x"], given, 0.1, **options), rtol=1e-5)
  new, _ = run(make("adamw_scaled", **options, min_parameter_scale=0.5, clip_norm=None), params, gradients)
  expected = adam_by_hand(params["x"], given, 0.1, **options, scale=lambda p: 0.5)  # the parameters stay smaller
  np.testing.assert_allclose(new["x"], expected, rtol=1e-5)
  layers = lambda tree: {"decoder": {"layers_0": {"kernel": tree["x"]}}, "norm": tree["x"]}  # noqa: E731
  new, _ = run(make("muon", **options, clip_norm=None), layers(params), [layers(g) for g in gradients])
  np.testing.assert_allclose(new["norm"], adam_by_hand(params["x"], given, 0.1, **options), rtol=1e-5)


def test_lion_with_every_option_changed():
  # b1 .5, b2 .5: after 4 the momentum is 2; .5 * 2 + .5 * -1 > 0 > .5 * 2 + .5 * -3, and of 2 -> .5 is left, < 1.
  params = {"x": jnp.zeros(3)}
  gradients = [{"x": jnp.array(g)} for g in ([4.0, 4.0, 4.0], [-1.0, -3.0, -1.0], [-1.0, 3.0, 0.0])]
  new, _ = run(make("lion", b1=0.5, b2=0.5, clip_norm=None), params, gradients)
  np.testing.assert_allclose(new["x"], [-0.1, -0.1, -0.3], rtol=1e-6)


def muon_by_hand(params, gradients, rate, beta, steps, rms):
  """Nesterov momentum with its bias corrected, then x <- 3.4445 x - 4.775 (x x^T) x + 2.0315 (x x^T)^2 x."""
  p, m = np.asarray(params, np.float64), 0.0
  for n, g in enumerate(gradients, 1):
    g = np.asarray(g, np.float64)
    m = beta * m + (1 - beta) * g
    x = beta * m / (1 - beta ** (n + 1)) + (1 - beta) * g / (1 - beta**n)
    x = x / np.linalg.norm(x)
    for _ in range(steps):
      x = 3.4445 * x - 4.775 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    p = p - rate * rms * max(p.shape) ** 0.5 * x
  return p


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_muon_with_every_option_changed(shape):
  tree = lambda seed: {"encoder": {"layers_0": random_tree({"kernel": shape}, seed)}}  # noqa: E731
  pick = lambda tree: tree["encoder"]["layers_0"]["kernel"]  # noqa: E731
  gradients = [tree(seed) for seed in (1, 2, 3)]
  new, _ = run(
    make("muon", beta=0.7, newton_schulz_steps=2, update_rms=0.5, clip_norm=None, matrices="encoder/layers_0/k.*"),
    tree(0), gradients,
  )  # fmt: skip
  expected = muon_by_hand(pick(tree(0)), [pick(g) for g in gradients], 0.1, beta=0.7, steps=2, rms=0.5)
  np.testing.assert_allclose(pick(new), expected, rtol=1e-4, atol=1e-6)


def test_lamb_is_optax_lamb_and_scales_every_layer_of_a_stack():
  shapes = {"kernel": (4, 6), "bias": (6,)}
  params, gradients = random_tree(shapes, 0), [random_tree(shapes, seed) for seed in (1, 2, 3)]
  options = dict(b1=0.8, b2=0.99, eps=1e-4, weight_decay=0.1)
  theirs = run_optax(optax.lamb(0.1, **options), params, gradients)
  ours, _ = run(make("lamb", unadapted=None, clip_norm=None, **options), params, gradients)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)
  # By default biases and norms have AdamW's update.
  ours, _ = run(make("lamb", clip_norm=None, **options), params, gradients)
  adamw, _ = run(make("adamw", clip_norm=None, **options), params, gradients)
  np.testing.assert_allclose(ours["kernel"], theirs["kernel"], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(ours["bias"], adamw["bias"], rtol=1e-6)
  # Layers of different norms, stacked and separate; one of zeros keeps AdamW's update.
  layers = [s * random_tree({"k": (3, 5)}, n)["k"] for n, s in enumerate((1.0, 10.0, 0.0))]
  slopes = [random_tree({"k": (3, 5)}, n)["k"] for n in (5, 6, 7)]
  separate, _ = run(make("lamb"), {f"layers_{n}": {"k": x} for n, x in enumerate(layers)},
                    [{f"layers_{n}": {"k": x} for n, x in enumerate(slopes)}])  # fmt: skip
  stacked, _ = run(make("lamb"), {"layers": {"k": jnp.stack(layers)}}, [{"layers": {"k": jnp.stack(slopes)}}])
  for n in range(3):
    np.testing.assert_allclose(stacked["layers"]["k"][n], separate[f"layers_{n}"]["k"], rtol=1e-5, atol=1e-6)
  change = jnp.linalg.norm(stacked["layers"]["k"] - jnp.stack(layers), axis=(1, 2))
  np.testing.assert_allclose(change[:2], [0.1 * jnp.linalg.norm(x) for x in layers[:2]], rtol=1e-4)


def test_lion_moves_by_the_sign():
  # Step 1: sign(.1 g) = sign(g). Then m = .01 * 4 = .04, and .9 * .04 + .1 * -0.3 = .006 > 0: the sign is the old one.
  params = {"x": jnp.array([1.0, 1.0])}
  gradients = [{"x": jnp.array([4.0, -4.0])}, {"x": jnp.array([-0.3, -4.0])}]
  new, _ = run(make("lion", clip_norm=None), params, gradients)
  np.testing.assert_allclose(new["x"], [0.8, 1.2], rtol=1e-6)
  new, _ = run(make("lion", weight_decay=0.5, clip_norm=None), params, gradients[:1])
  np.testing.assert_allclose(new["x"], [1 - 0.1 - 0.05, 1 + 0.1 - 0.05], rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(12, 12), (6, 20), (20, 6), (3, 8, 12)])
def test_muon_updates_are_nearly_orthogonal(shape):
  matrix = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)
  values = np.linalg.svd(np.asarray(orthogonalize(matrix, 5)), compute_uv=False)
  assert 0.6 < values.min() and values.max() < 1.3
  u, _, v = np.linalg.svd(np.asarray(matrix), full_matrices=False)
  # Singular vectors are unchanged; singular values are between .6 and 1.3.
  cosine = np.sum(u @ v * np.asarray(orthogonalize(matrix, 5))) / np.sum(values)
  assert cosine > 0.99


def test_muon_updates_many_layers_like_one():
  kernels = random_tree({"kernel": (7, 2, 3)}, 0)["kernel"]  # more layers than rows and columns
  stack, one = {"decoder": {"layers": {"kernel": kernels}}}, {"decoder": {"layers_0": {"kernel": kernels[0]}}}
  stack, one = (run(make("muon", clip_norm=None), tree, [tree])[0]["decoder"] for tree in (stack, one))
  np.testing.assert_allclose(stack["layers"]["kernel"][0], one["layers_0"]["kernel"], rtol=1e-4)


def muon_tree(seed):
  flat = random_tree({"wi": (6, 20), "wo": (20, 6), "norm": (6,)}, seed)
  layer = {"wi": {"kernel": flat["wi"]}, "wo": {"kernel": flat["wo"]}, "norm": {"scale": flat["norm"]}}
  return {"encoder": {"layers_0": {"mlp": layer}}, "token_embedder": {"embedding": flat["wo"] + 1.0}}


def test_muon_updates_the_layers_kernels_and_adamw_the_rest():
  params, gradients = muon_tree(0), [muon_tree(seed) for seed in (1, 2, 3)]
  new, _ = run(make("muon", clip_norm=None, b2=0.95), params, gradients)
  layer = lambda tree: tree["encoder"]["layers_0"]["mlp"]  # noqa: E731
  for pick in (lambda t: t["token_embedder"]["embedding"], lambda t: layer(t)["norm"]["scale"]):
    expected = adam_by_hand(pick(params), [pick(g) for g in gradients], 0.1, 0.9, 0.95, 1e-8)
    np.testing.assert_allclose(pick(new), expected, rtol=1e-5, atol=1e-6)
  moved = np.asarray(layer(new)["wi"]["kernel"] - layer(params)["wi"]["kernel"])
  assert 0.7 * 0.02 < np.sqrt(np.mean(moved**2)) / 3**0.5 < 3**0.5 * 0.02  # three updates of RMS about 0.1 * 0.2


@pytest.mark.skipif(
  "consistent_rms" not in inspect.signature(optax.contrib.muon).parameters, reason="optax 0.2.6 scales Muon otherwise"
)
def test_muon_equals_optaxs_on_kernels():
  params, gradients = muon_tree(0), [muon_tree(seed) for seed in (1, 2, 3)]
  new, _ = run(make("muon", clip_norm=None), params, gradients)
  pick = lambda tree: {k: v["kernel"] for k, v in tree["encoder"]["layers_0"]["mlp"].items() if k != "norm"}  # noqa: E731
  expected = run_optax(optax.contrib.muon(0.1, consistent_rms=0.2), pick(params), [pick(g) for g in gradients])
  for name in ("wi", "wo"):
    np.testing.assert_allclose(pick(new)[name], expected[name], atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ALL)
def test_scanned_layers_are_updated_like_unrolled_ones(name):
  options = {"min_dim_size_to_factor": 2} if name == "adafactor" else {}  # stacked norms, [2, 6], must not be factored

  def trees(seed):
    # Layers of very different sizes: their RMS must not be mixed.
    layers = [jax.tree.map(lambda x, i=i: x * 10.0**i, muon_tree(seed + 10 * i)["encoder"]["layers_0"]) for i in (0, 1)]
    unrolled = {"encoder": {f"layers_{i}": layer for i, layer in enumerate(layers)}}
    return unrolled, {"encoder": {"layers": jax.tree.map(lambda *xs: jnp.stack(xs), *layers)}}

  starts, gradients = trees(0), [trees(seed) for seed in (1, 2)]
  unrolled, scanned = (run(make(name, **options), starts[i], [g[i] for g in gradients])[0] for i in (0, 1))
  stacked = jax.tree.map(lambda *xs: np.stack(xs), *unrolled["encoder"].values())
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), scanned["encoder"]["layers"], stacked
  )


def test_gradients_are_clipped_by_their_global_norm():
  # Norm of (3, 4) is 5: clipped to 1 they are (.6, .8). Lion's momentum is .01 of the clipped gradient.
  params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
  gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
  _, state = run(make("lion", clip_norm=1.0), params, [gradients])
  momentum = sorted(float(leaf[0]) for leaf in jax.tree.leaves(state) if leaf.shape == (1,))
  assert momentum == pytest.approx([0.006, 0.008], rel=1e-5)
  _, state = run(make("lion", clip_norm=10.0), params, [gradients])
  assert sorted(float(leaf[0]) for leaf in jax.tree.leaves(state) if leaf.shape == (1,)) == pytest.approx([0.03, 0.04])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ALL)
def test_the_moving_average_is_of_visited_parameters(name):
  # decay .5: weights of three updates are 1, 2, 4, divided by 7. The initial parameters have no weight.
  optimizer, params = make(name, ema_decay=0.5), muon_tree(0)
  state, step, visited = optimizer.transformation.init(params), compiled(optimizer), []
  assert has_average(state)
  for seed in (1, 2, 3):
    params, state = step(muon_tree(seed), state, params)
    visited.append(params)
  average = averaged_parameters(state, params)
  expected = jax.tree.map(lambda a, b, c: (a + 2 * b + 4 * c) / 7, *visited)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), average, expected)
  plain, _ = run(make(name), muon_tree(0), [muon_tree(seed) for seed in (1, 2, 3)])
  jax.tree.map(np.testing.assert_array_equal, params, plain)


def test_a_long_moving_average_is_normalized_exactly():
  # decay .9999, constant parameters: the average equals them at every step, even if 1 - decay^n is tiny.
  optimizer = make("lion", 0.0, ema_decay=0.9999)
  params = {"x": jnp.array([3.0], jnp.bfloat16)}
  params, state = run(optimizer, params, [{"x": jnp.ones(1, jnp.bfloat16)}] * 3)
  average = averaged_parameters(state, params)["x"]
  assert average.dtype == jnp.bfloat16 and float(average[0]) == 3.0


def test_requesting_a_missing_average_is_an_error():
  params = {"x": jnp.ones(2)}
  state = make("adamw").transformation.init(params)
  assert not has_average(state)
  with pytest.raises(UserError, match="no moving average") as error:
    averaged_parameters(state, params)
  assert "ema_decay" in error.value.lines["try"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["adamw", "adamw_scaled", "lion", "muon"])
def test_momentum_may_be_stored_in_bfloat16(name):
  params = muon_tree(0)
  _, state = run(make(name, momentum_dtype="bfloat16"), params, [muon_tree(1), muon_tree(2)])
  halves = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.bfloat16]
  assert sorted(x.shape for x in halves) == sorted(x.shape for x in jax.tree.leaves(params))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ALL)
def test_bfloat16_parameters_stay_bfloat16(name):
  half = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)  # noqa: E731
  optimizer = make(name)
  start = optimizer.transformation.init(half(muon_tree(0)))
  new, state = run(optimizer, half(muon_tree(0)), [half(muon_tree(1))])
  assert all(x.dtype == jnp.bfloat16 and bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(new))
  # The compiled step takes its own output: dtypes must not change.
  assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(start)]


def test_descriptions_name_what_is_not_a_default_everywhere():
  assert make("lion").description == "lion(b1=0.9, b2=0.99, weight_decay=0.0, clip_norm=1.0)"
  rules = [(".*scale", 0.0), (".*", 0.1)]
  text = make("adafactor", weight_decay=rules, learning_rate_multipliers=rules, ema_decay=0.9).description
  assert text == (
    "adafactor(decay_rate=0.8, clipping_threshold=1.0, weight_decay=by path, learning_rate_multipliers=by path, "
    "ema_decay=0.9)"
  )


@pytest.mark.parametrize(
  "name, options",
  [
    ("adamw", {"b1": 1.0}),
    ("adamw", {"b2": "0.9"}),
    ("lion", {"clip_norm": 0.0}),
    ("lion", {"ema_decay": 1.0}),
    ("lion", {"ema_decay": 0.0}),
    ("adafactor", {"clipping_threshold": -1.0}),
    ("muon", {"newton_schulz_steps": 0}),
    ("muon", {"matrices": "("}),
    ("adamw", {"weight_decay": "0.1"}),
    ("adamw", {"weight_decay": -0.1}),
    ("adamw", {"weight_decay": [("*", 0.1)]}),
    ("adamw", {"learning_rate_multipliers": [(".*",)]}),
  ],
)
def test_invalid_options_are_refused(name, options):
  with pytest.raises(UserError):
    make(name, **options)
