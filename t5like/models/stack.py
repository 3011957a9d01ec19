"""A stack of blocks with a shared relative position bias and a final norm."""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like import parallel
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.attention.residuals import ATTENTION_RESULTS
from t5like.kernels.platform import target_platform
from t5like.models.attention import Context, RelativeBiasTable, RelativeTable, alibi_bias
from t5like.models.blocks import Block
from t5like.models.config import TransformerConfig
from t5like.models.layers import Dropout, Norm, constrain_activations, kernel_init
from t5like.models.modifications.relative_attention import RelativePositions
from t5like.models.positions import sinusoids
from t5like.models.tuning import Tuning, applied, extensions, inside, tuning_below

_policies = jax.checkpoint_policies
REMAT_POLICIES = {
  # Recomputes only norms and activations, which takes no longer than reading them from memory.
  "elementwise": _policies.save_from_both_policies(
    _policies.dots_saveable, _policies.save_only_these_names(ATTENTION_RESULTS)
  ),
  # Saves matrix products with weights, but not attention scores (which grow with length^2).
  "dots": _policies.dots_with_no_batch_dims_saveable,
  "full": _policies.nothing_saveable,
}


def choose_layer_loop(config: TransformerConfig, platform: str | None = None) -> tuple[str, str]:
  """Returns how layers run, "loop" or "unrolled", and the reason. Checkpoints are the same for both."""
  if not config.scan_layers:
    return "unrolled", "layers are not stacked; a loop needs SCAN_LAYERS = True"
  if config.layer_loop != "auto":
    return config.layer_loop, "requested by name"
  if (platform or target_platform()) == "gpu":
    return "unrolled", "on a GPU, a loop copies saved activations"
  return "loop", "one layer is compiled for all"


def describe_layer_loop(config: TransformerConfig, platform: str | None = None) -> str:
  """Formats the result of `choose_layer_loop` for the run card."""
  mode, reason = choose_layer_loop(config, platform)
  return f"{mode} ({reason})"


_FROZEN_LAYERS: contextvars.ContextVar[Mapping[str, int]] = contextvars.ContextVar("frozen_layers", default={})  # noqa: B039


@contextlib.contextmanager
def frozen_layers(counts: Mapping[str, int]) -> Iterator[None]:
  """Declares, while a step is traced, that the first n layers of stacks are frozen: {"encoder": 6}.

  Scanned layers are differentiated as one: the gradients of all would be computed for the sake of the last. So the
  frozen ones get a scan of their own, in which the backward pass only passes through if something before it trains.
  Unscanned layers do not need this. Gradients are exact in either case.
  """
  token = _FROZEN_LAYERS.set(counts)
  try:
    yield
  finally:
    _FROZEN_LAYERS.reset(token)


# A model that is applied with this collection as mutable leaves in it, for each call of a stack (encoder, decoder or
# shared), "states" [layers + 1, batch, length, embed] (see `all_states`) and the weights of attention, "self" and in
# decoders "cross", [layers, batch, heads, queries, keys]. What is not used is not computed either.
INSIDE = "inside"


class Stack(nn.Module):
  """A stack of `num_layers` blocks: layers_0, layers_1, ..., or `layers` with a leading axis if stacked."""

  config: TransformerConfig
  num_layers: int
  has_cross_attention: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context, cache: tuple | dict | None = None
  ) -> tuple[jax.Array, tuple | dict | None]:
    """Maps x [batch, length, embed] to hidden states; also returns the updated cache (None in training)."""
    config, embedded = self.config, x
    shows = self.is_mutable_collection(INSIDE) and not self.is_initializing()
    if shows:
      context = dataclasses.replace(context, return_states=True, return_weights=True)
    if config.positions == "relative_bias" and config.share_relative_bias:
      context = dataclasses.replace(context, bias=RelativeBiasTable(config, name="relpos_bias")(context.bidirectional))
    if config.positions == "alibi":
      context = dataclasses.replace(context, bias=alibi_bias(config))
    if config.positions == "disentangled":
      context = dataclasses.replace(context, relative=RelativeTable(config, name="relative_embedding")())
    if config.positions == "transformer_xl":
      keys = context.mask.key_valid.shape[1]
      relative = RelativePositions(config, name="positions")(x, keys, context)
      context = dataclasses.replace(context, relative=relative)
    for build in extensions(self, "prefixes"):
      context = dataclasses.replace(context, prefixes=build(config, name="prefixes")())
    after_first = None
    if config.convolution_width:
      convolution = Convolution(config, name="convolution")
      after_first = lambda x: convolution(embedded, x, context)  # noqa: E731
    x, cache = self._layers(x, context, cache, after_first)
    if config.norm_position != "post":
      x = Norm(config, name="final_norm")(x)
    if config.final_dropout:
      x = Dropout(config.dropout_rate)(x, context.deterministic)
    if shows:
      self.sow(INSIDE, "states", all_states(embedded, x, cache))
      for kind in ("self", "cross") if context.encoded is not None else ("self",):
        self.sow(INSIDE, kind, of_layers(cache, kind))
    return x, cache

  def _layers(
    self,
    x: jax.Array,
    context: Context,
    cache: tuple | dict | None,
    after_first: Callable[[jax.Array], jax.Array] | None,
  ):
    remat = self.config.remat
    if self.config.repeats_layers(self.name):
      return self._repeated_layers(x, context, cache)
    if self.config.scan_layers:
      frozen = _FROZEN_LAYERS.get().get("/".join(self.path), 0)
      split = 0 < frozen < self.num_layers or after_first
      if split and not self.is_initializing() and cache is None:
        return self._in_parts(x, context, frozen, after_first)
      if after_first:  # creates its parameters
        after_first(x)
      # Unrolling would not speed up initialization, only compile it more than once.
      if self.is_initializing() or choose_layer_loop(self.config)[0] == "loop":
        # The loop already keeps XLA from merging the recomputation with the forward pass.
        block = Block if remat == "none" else nn.remat(Block, policy=REMAT_POLICIES[remat], prevent_cse=False)
        return _scanned(block, self.num_layers)(self.config, self.has_cross_attention, name="layers")(x, cache, context)
      if remat == "none":
        block = _scanned(Block, self.num_layers, unroll=True)
        return block(self.config, self.has_cross_attention, name="layers")(x, cache, context)
      return self._unrolled_with_remat(x, context, cache)
    writes = self.is_initializing() or self.is_mutable_collection("intermediates")
    if self.is_initializing() and parallel.shapes_only():
      run = self._run_once()
    else:
      run = self._run_module if writes else self._layer_function(traced=isinstance(x, jax.core.Tracer))
    new_cache = []
    for i in range(self.num_layers):
      x, layer_cache = run(i, x, cache and cache[i], context)
      if i == 0 and after_first:
        x = after_first(x)
        layer_cache = {**layer_cache, "states": x} if context.return_states else layer_cache
      new_cache.append(layer_cache)
    return x, None if new_cache[0] is None else tuple(new_cache)

  def _run_module(self, number: int, x: jax.Array, cache: dict | None, context: Context):
    """Runs a layer as a module, which may create or write variables."""
    remat = self.config.remat
    block = Block if remat == "none" else nn.remat(Block, policy=REMAT_POLICIES[remat])
    return block(self.config, self.has_cross_attention, name=f"layers_{number}")(x, cache, context)

  def _run_once(self) -> Callable:
    """Returns a function that runs a layer, or gives it the parameters of an earlier one that is alike."""
    first: dict[Tuning | None, tuple] = {}

    def run(number: int, x: jax.Array, cache: dict | None, context: Context):
      tuning = tuning_below(self, f"layers_{number}")
      if tuning in first:
        earlier, result = first[tuning]
        self.put_variable("params", f"layers_{number}", self.get_variable("params", f"layers_{earlier}"))
        return result
      first[tuning] = number, self._run_module(number, x, cache, context)
      return first[tuning][1]

    return run

  def _layer_function(self, traced: bool) -> Callable:
    """Returns a function that runs a layer. If `traced`, layers that are alike share one trace.

    Without that, tracing takes most of the time before a deep model is compiled. XLA still optimizes each layer by
    itself.
    """
    block, remat = Block(self.config, self.has_cross_attention, parent=None), self.config.remat
    variables, keys = self.variables, self._dropout_keys()

    def layer(tuning, variables, key, x, cache, context):
      with applied(tuning):
        return block.apply(variables, x, cache, context, rngs={} if key is None else {"dropout": key})

    if remat != "none":
      layer = jax.checkpoint(layer, policy=REMAT_POLICIES[remat], static_argnums=0)
    if traced:
      layer = jax.jit(layer, static_argnums=0)

    def run(number: int, x: jax.Array, cache: dict | None, context: Context):
      name = f"layers_{number}"
      own = {collection: nn.unbox(of[name]) for collection, of in variables.items() if name in of}
      return layer(tuning_below(self, name), own, None if keys is None else keys[number], x, cache, context)

    return run

  def _dropout_keys(self) -> jax.Array | None:
    """Returns a random key for each layer; None without dropout."""
    return jax.random.split(self.make_rng("dropout"), self.num_layers) if self.has_rng("dropout") else None

  def _repeated_layers(
    self, x: jax.Array, context: Context, cache: tuple | dict | None
  ) -> tuple[jax.Array, tuple | dict | None]:
    """Runs each of `layer_groups` layers several times before the next (Lan et al. 2019, section 3.1)."""
    config, groups = self.config, self.config.groups_of(self.name)
    repeats = self.num_layers // groups
    loops = config.scan_layers and (self.is_initializing() or choose_layer_loop(config)[0] == "loop")
    block = Block
    if config.remat != "none":
      block = nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=not loops)
    if not config.scan_layers:
      layers = [block(config, self.has_cross_attention, name=f"layers_{i}") for i in range(groups)]
      outputs = []
      for i in range(self.num_layers):
        x, output = layers[i // repeats](self._with_signal(x, context, i), cache and cache[i], context)
        outputs.append(output)
      return x, None if outputs[0] is None else tuple(outputs)

    def group(layer: Block, x: jax.Array, inputs: tuple, context: Context) -> tuple[jax.Array, dict | None]:
      again = nn.scan(
        lambda layer, x, each: layer(self._with_signal(x, context, each[1]), each[0], context),
        variable_broadcast="params", variable_axes={"intermediates": 0},
        split_rngs={"params": False, "dropout": True}, length=repeats, unroll=not loops,
      )  # fmt: skip
      return again(layer, x, inputs)

    scanned = _scanned(group, groups, in_axes=(0, nn.broadcast), unroll=not loops)
    # The cache and the number of each run of a layer: [groups, repeats, ...].
    inputs = (cache, jnp.arange(self.num_layers, dtype=jnp.int32))
    inputs = jax.tree.map(lambda each: each.reshape(groups, repeats, *each.shape[1:]), inputs)
    x, outputs = scanned(block(config, self.has_cross_attention, name="layers"), x, inputs, context)
    return x, jax.tree.map(lambda each: each.reshape(self.num_layers, *each.shape[2:]), outputs)

  def _with_signal(self, x: jax.Array, context: Context, number: jax.Array | int) -> jax.Array:
    """Adds the coordinates of positions and of the layer `number` (Dehghani et al. 2018, section 2.1), if in use."""
    if not self.config.layer_signal:
      return x
    positions = jnp.arange(x.shape[1])[None] if context.positions is None else context.positions
    signal = sinusoids(positions, x.shape[-1]) + sinusoids(jnp.reshape(number, (1, 1)), x.shape[-1])
    return x + signal.astype(x.dtype)

  def _unrolled_with_remat(self, x: jax.Array, context: Context, cache: dict | None):
    """Runs stacked layers unrolled, with rematerialization.

    The inputs of the recomputation pass through an optimization barrier, or XLA would merge it with the forward pass,
    and whatever passes through a barrier is materialized. Slices of the parameters would become a copy of all of them
    that lives throughout the step. So the stacked arrays pass through, and a layer takes its slices after the barrier.
    """
    stacked = jax.lax.stop_gradient(nn.unbox(self.variables["params"]["layers"]))

    def layer(block: Block, x, cache, number, stacked, context):
      def read(variables):
        take = functools.partial(jax.lax.dynamic_index_in_dim, index=number, keepdims=False)
        substitute = lambda variable, array: _substitute(variable, take(array))  # noqa: E731
        return jax.tree.map(substitute, nn.unbox(variables), {"params": stacked})

      return nn.map_variables(lambda block: block(x, cache, context), "params", trans_in_fn=read)(block)

    # For the layer's variables (which only receive gradients), its random keys, and each of its arguments.
    barrier = (False, True, True, True, False, True, True)
    layer = nn.remat(layer, policy=REMAT_POLICIES[self.config.remat], prevent_cse=barrier)
    scanned = _scanned(layer, self.num_layers, in_axes=(0, 0, nn.broadcast, nn.broadcast), unroll=True)
    block = Block(self.config, self.has_cross_attention, name="layers")
    return scanned(block, x, cache, jnp.arange(self.num_layers), stacked, context)

  def _in_parts(
    self, x: jax.Array, context: Context, frozen: int, after_first: Callable[[jax.Array], jax.Array] | None
  ) -> tuple[jax.Array, dict | None]:
    """Runs stacked layers in several scans: the first `frozen` without gradients of their parameters, then the rest.

    With `after_first`, the first layer has a scan of its own.
    """
    params = nn.unbox(self.variables["params"]["layers"])
    keys = self._dropout_keys()  # a layer's dropout does not depend on the split
    unroll, outputs = choose_layer_loop(self.config)[0] == "unrolled", []
    cuts = sorted({0, 1 if after_first else 0, min(frozen, self.num_layers), self.num_layers})
    for first, last in itertools.pairwise(cuts):
      take = lambda stacked, first=first, last=last: jax.tree.map(lambda p: p[first:last], stacked)  # noqa: E731
      part = take(params)
      # A copy without gradients, from which rematerialization reads: see `_unrolled_with_remat`.
      constant = jax.lax.stop_gradient(part)
      trained = constant if last <= frozen else part
      layer = self._functional_layer(unroll)

      def body(x, layer_inputs, constant=constant, layer=layer):
        params, key, number = layer_inputs
        return layer(params, key, x, number, constant, context)

      with inside((*self.path, "layers")):
        x, each = jax.lax.scan(body, x, (trained, take(keys), jnp.arange(last - first)), unroll=unroll)
      if first == 0 and after_first:
        x = after_first(x)
        each = {**each, "states": x[None]} if context.return_states else each
      outputs.append(each)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)

  def _functional_layer(self, unroll: bool) -> Callable:
    """Returns a layer as a function of its parameters, rematerialized as configured."""
    block, remat = Block(self.config, self.has_cross_attention, parent=None), self.config.remat

    def layer(params, key, x, number, stacked, context):
      if unroll and remat != "none":
        at = functools.partial(jax.lax.dynamic_index_in_dim, index=number, keepdims=False)
        params = jax.tree.map(lambda p, s: _substitute(p, at(s)), params, stacked)
      return block.apply({"params": params}, x, None, context, rngs={} if key is None else {"dropout": key})

    if remat == "none":
      return layer
    barrier = (False, True, True, False, True, True) if unroll else False
    return jax.checkpoint(layer, policy=REMAT_POLICIES[remat], prevent_cse=barrier)


class Convolution(nn.Module):
  """DeBERTa 2's convolution over the input of a stack: norm(x + act(conv(inputs))) after its first layer."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, inputs: jax.Array, x: jax.Array, context: Context) -> jax.Array:
    """Returns [batch, length, embed], 0 on padding."""
    config, length = self.config, x.shape[1]
    dtype, width = jnp.dtype(config.param_dtype), config.convolution_width
    init = nn.with_logical_partitioning(kernel_init(config), (None, "embed", "mlp"))
    kernel = self.param("kernel", init, (width, config.embed_dim, config.embed_dim), dtype).astype(config.dtype)
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("mlp",))
    bias = self.param("bias", zeros, (config.embed_dim,), dtype).astype(config.dtype)
    valid = jnp.ones(x.shape[:2], bool) if context.mask.key_valid is None else context.mask.key_valid.astype(bool)
    padded = jnp.pad(inputs, ((0, 0), (width // 2, width // 2), (0, 0)))
    y = sum(padded[:, i : i + length] @ kernel[i] for i in range(width)) + bias[None, None]
    y = Dropout(config.dropout_rate)(jnp.where(valid[:, :, None], y, 0), context.deterministic)
    x = Norm(config, name="norm")(x + ACTIVATIONS[config.activation](y))
    return constrain_activations(jnp.where(valid[:, :, None], x, 0))


def all_states(embedded: jax.Array, x: jax.Array, layers: tuple | dict) -> jax.Array:
  """Returns [layers + 1, batch, length, embed]: the embeddings, the layers' outputs, and the stack's as the last.

  `layers` is the second result of a stack with `Context.return_states`.
  """
  return jnp.concatenate([embedded[None], of_layers(layers, "states")[:-1], x[None]])


def of_layers(layers: tuple | dict, name: str) -> jax.Array:
  """Returns [layers, ...]: an output of every layer, from the second result of a stack."""
  return layers[name] if isinstance(layers, dict) else jnp.stack([layer[name] for layer in layers])


def _scanned(layer: Callable, num_layers: int, in_axes: tuple = (0, nn.broadcast), unroll: bool = False) -> Callable:
  """Scans a layer over parameters with a leading axis, whose logical name is `layers`."""
  return nn.scan(
    layer,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=in_axes,
    length=num_layers,
    metadata_params={nn.PARTITION_NAME: "layers"},
    unroll=unroll,
  )


@jax.custom_jvp
def _substitute(variable: jax.Array, value: jax.Array) -> jax.Array:
  """Returns `value`, which equals `variable`; gradients flow to `variable`."""
  return value


@_substitute.defjvp
def _substitute_jvp(primals, tangents):
  return primals[1], tangents[0]
