"""T5X checkpoints in all formats, written from a golden model's weights."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from t5x_checkpoints import t5x_tree, write_msgpack, write_zarr

from t5like.errors import UserError
from t5like.interop import huggingface, t5x

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


@pytest.fixture(scope="module", params=["t5_1_0", "t5_1_1"])
def expected(request):
  return huggingface.load(GOLDEN / request.param)


def assert_loads(path: Path, expected) -> None:
  imported = t5x.load(path)
  assert imported.report.missing == imported.report.unexpected == []
  config = dataclasses.replace(imported.model.config, dropout_rate=expected.model.config.dropout_rate)
  assert config == expected.model.config
  jax.tree.map(np.testing.assert_array_equal, imported.params, expected.params)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "wrap", [lambda t: {"optimizer": {"target": t}}, lambda t: {"target": t}, lambda t: {"params": t}]
)
def test_legacy_msgpack(tmp_path, expected, wrap):
  write_msgpack(tmp_path / "checkpoint_3", t5x_tree(expected.params), wrap)
  assert_loads(tmp_path, expected)
  assert_loads(tmp_path / "checkpoint_3", expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pointer", ["kvstore", "placeholder"])
def test_zarr_folder(tmp_path, expected, pointer):
  """Matrices in zarr folders of several chunks, vectors in the index."""
  folder = tmp_path / "checkpoint_1000"
  folder.mkdir()
  index = t5x_tree(expected.params)
  for path, value in index.items():
    if value.ndim > 1:
      name = "target." + path.replace("/", ".")
      write_zarr(folder, name, value)
      spec = {"driver": "zarr", "kvstore": {"driver": "gfile", "path": name}}
      index[path] = spec if pointer == "kvstore" else f"PLACEHOLDER://{name}"
  write_msgpack(folder / "checkpoint", index)
  assert_loads(folder, expected)
  assert_loads(tmp_path, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["layers", None])
def test_scanned_over_axis_1(tmp_path, expected, inner):
  """T5X's scalable models: encoder/layers/... or encoder/encoder/..., with the layers as axis 1."""
  layers, tree = {}, {}
  for path, value in t5x_tree(expected.params).items():
    stack, *rest = path.split("/")
    if rest and rest[0].startswith("layers_"):
      layers.setdefault("/".join([stack, inner or stack, *rest[1:]]), []).append(value)
    else:
      tree[path] = value
  tree |= {path: np.stack(values, axis=1) for path, values in layers.items()}
  write_msgpack(tmp_path / "checkpoint_5", tree)
  assert_loads(tmp_path, expected)


@pytest.mark.sampled(1)
def test_separate_heads_axis(tmp_path, expected):
  heads = expected.model.config.num_heads

  def split(path, value):
    if "attention/" not in path or not path.endswith("kernel"):
      return value
    return value.reshape((heads, -1, value.shape[1]) if "/out/" in path else (value.shape[0], heads, -1))

  write_msgpack(tmp_path / "checkpoint_5", {p: split(p, v) for p, v in t5x_tree(expected.params).items()})
  assert_loads(tmp_path, expected)


@pytest.mark.sampled(1)
def test_a_relative_bias_per_layer(tmp_path, expected):
  """T5X's scalable models: equal tables in every layer are equivalent to one shared table."""
  tree = t5x_tree(expected.params)
  for stack, layers in (("encoder", 2), ("decoder", expected.model.config.num_decoder_layers)):
    table = tree.pop(f"{stack}/relpos_bias/rel_embedding")
    tree[f"{stack}/layers/relative_posemb/rel_embedding"] = np.stack([table] * layers, axis=1)
  write_msgpack(tmp_path / "checkpoint_5", tree)
  batch = {name: np.arange(1, 13, dtype=np.int32)[None] for name in ("encoder_input_tokens", "decoder_input_tokens")}
  shared = jax.jit(expected.model.apply)({"params": expected.params}, batch)["logits"]
  for scan_layers in (False, True):
    imported = t5x.load(tmp_path, scan_layers=scan_layers)
    assert not imported.model.config.share_relative_bias
    own = jax.jit(imported.model.apply)({"params": imported.params}, batch)["logits"]
    np.testing.assert_allclose(own, shared, rtol=0, atol=1e-5)


def test_a_config_of_another_size_is_rejected(tmp_path, expected):
  write_msgpack(tmp_path / "checkpoint_5", t5x_tree(expected.params))
  config = dataclasses.replace(expected.model.config, mlp_dim=99, num_encoder_layers=1)
  with pytest.raises(UserError) as error:
    t5x.load(tmp_path, config)
  assert "mlp_dim: checkpoint 24, config 99" in str(error.value)
  assert "num_encoder_layers: checkpoint 2, config 1" in str(error.value)


def test_invalid_t5x_checkpoints(tmp_path, expected):
  with pytest.raises(UserError, match="no T5X checkpoint"):
    t5x.load(tmp_path)
  write_msgpack(tmp_path / "checkpoint_1", t5x_tree(expected.params))
  content = (tmp_path / "checkpoint_1").read_bytes()
  (tmp_path / "checkpoint_1").write_bytes(content[:-100])
  with pytest.raises(UserError, match="not an intact T5X checkpoint"):
    t5x.load(tmp_path)
  write_msgpack(tmp_path / "checkpoint_1", {"a/b": np.ones(2)})
  with pytest.raises(UserError, match="not a T5X encoder-decoder"):
    t5x.load(tmp_path)
  (tmp_path / "checkpoint_2").write_bytes(content)
  with pytest.raises(UserError, match="several checkpoints"):
    t5x.load(tmp_path)
  write_msgpack(
    tmp_path / "checkpoint_2", t5x_tree(expected.params) | {"token_embedder/embedding": "PLACEHOLDER://gone"}
  )
  with pytest.raises(UserError, match="cannot read token_embedder/embedding"):
    t5x.load(tmp_path / "checkpoint_2")
