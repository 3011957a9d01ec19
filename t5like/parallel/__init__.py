"""Device meshes, sharding of parameters and batches, and multi-host start-up."""

from t5like.parallel.batch_shards import BatchShards, batch_shards, is_first_of_group, shard_group, to_global_arrays
from t5like.parallel.coverage import check_sharded
from t5like.parallel.mesh import MeshAxes, MeshError, abstract_mesh, check_batch, describe_mesh, make_mesh, row_shards
from t5like.parallel.multihost import any_host_requested_stop, start, stop_signals
from t5like.parallel.presets import PRESETS
from t5like.parallel.rules import (
  LOGICAL_AXIS_RULES,
  active_rules,
  batch_sharding,
  parameter_shardings,
  replicated,
  sharding_context,
  shardings_like_parameters,
  use_preset,
)
from t5like.parallel.shapes import parameter_shapes, shapes_only

__all__ = [
  "LOGICAL_AXIS_RULES",
  "PRESETS",
  "BatchShards",
  "MeshAxes",
  "MeshError",
  "abstract_mesh",
  "any_host_requested_stop",
  "batch_shards",
  "batch_sharding",
  "check_batch",
  "check_sharded",
  "describe_mesh",
  "is_first_of_group",
  "make_mesh",
  "parameter_shapes",
  "parameter_shardings",
  "shard_group",
  "replicated",
  "row_shards",
  "active_rules",
  "sharding_context",
  "shapes_only",
  "shardings_like_parameters",
  "start",
  "stop_signals",
  "to_global_arrays",
  "use_preset",
]
