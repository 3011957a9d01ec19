"""Parameter trees: flat or nested, with separate or stacked layers; checks against a model."""

import re
from collections.abc import Mapping

import flax.linen as nn
import numpy as np
from flax import traverse_util

from t5like.errors import UserError
from t5like.interop.mapping import Parameters
from t5like.models import BERT, GPT, T5
from t5like.models.heads import WithHead
from t5like.models.shapes import boxed_shapes
from t5like.training.checkpoints.layer_layouts import LAYER, STACKED


def flatten(params: Mapping) -> Parameters:
  return traverse_util.flatten_dict(dict(params), sep="/")


def unflatten(params: Parameters) -> dict:
  return traverse_util.unflatten_dict(params, sep="/")


def stack_layers(params: Parameters) -> Parameters:
  """Stacks `encoder/layers_3/x` of every layer to `encoder/layers/x`, with a leading layers axis."""
  stacked, layers = {}, {}
  for path, value in params.items():
    match = LAYER.fullmatch(path)
    if match is None:
      stacked[path] = value
    else:
      layers.setdefault(f"{match['stack']}/layers/{match['rest']}", {})[int(match["index"])] = value
  return stacked | {path: np.stack([by[i] for i in range(len(by))]) for path, by in layers.items()}


def unstack_layers(params: Parameters) -> Parameters:
  """Inverts `stack_layers`; layers that are separate already stay as they are."""
  separate = {}
  for path, value in params.items():
    match = STACKED.fullmatch(path)
    if match is None:
      separate[path] = value
    else:
      separate |= {f"{match['stack']}/layers_{i}/{match['rest']}": layer for i, layer in enumerate(np.asarray(value))}
  return separate


def unstacked_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the parameters of separate layers."""
  separate = {}
  for path, shape in shapes.items():
    match = STACKED.fullmatch(path)
    paths = [path] if match is None else [f"{match['stack']}/layers_{i}/{match['rest']}" for i in range(shape[0])]
    separate |= dict.fromkeys(paths, shape if match is None else shape[1:])
  return separate


def expected_shapes(model: T5 | BERT | GPT | WithHead) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of all parameters of `model`, without computing any."""
  return {path: leaf.shape for path, leaf in flatten(nn.unbox(boxed_shapes(model))).items()}


# The fields that determine a shape, for error messages.
_FIELDS = (
  (r"^head/", "the labels: id2label or num_labels"),
  (r"token_embedder/embedding|logits_dense|mlm_head/bias", "VOCAB_SIZE, EMBED_DIM"),
  (r"position_embedding", "MAX_POSITIONS, EMBED_DIM"),
  (r"mlp/w", "EMBED_DIM, MLP_DIM"),
  (r"attention/|relpos_bias", "EMBED_DIM, NUM_HEADS, HEAD_DIM"),
  (r".*", "EMBED_DIM"),
)


def check_parameters(model: T5 | BERT | GPT | WithHead, params: Parameters, source: str) -> None:
  """Raises UserError at the first difference between parameters and those of `model`."""
  expected = expected_shapes(model)
  # The embedding first: its shape shows whether the vocabulary or the width is wrong.
  for path in sorted(
    set(expected) | set(params), key=lambda path: (not path.endswith("token_embedder/embedding"), path)
  ):
    if path not in params or path not in expected:
      present, absent = ("the model", source) if path in expected else (source, "the model")
      raise UserError(f"{present} has a parameter {path} that {absent} lacks", try_="the gin file of that model")
    if params[path].shape != expected[path]:
      field = next(field for pattern, field in _FIELDS if re.search(pattern, path))
      raise UserError(
        f"{source} has another size or vocabulary than the model",
        parameter=path,
        checkpoint=params[path].shape,
        model=expected[path],
        field=field,
        try_="the config.json or gin file that belongs to the checkpoint",
      )
