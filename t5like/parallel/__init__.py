"""The mesh, what is split over it, and the hosts that it spans."""

from t5like.parallel.batch_parts import BatchParts, batch_parts, part_group, to_global_arrays
from t5like.parallel.coverage import check_sharded
from t5like.parallel.mesh import MeshAxes, MeshError, abstract_mesh, check_batch, describe_mesh, make_mesh
from t5like.parallel.multihost import any_host_requested_stop, start, stop_signals
from t5like.parallel.presets import PRESETS
from t5like.parallel.rules import (
  LOGICAL_AXIS_RULES,
  batch_sharding,
  parameter_shardings,
  replicated,
  rules_in_force,
  sharding_context,
  shardings_like_parameters,
  use_preset,
)

__all__ = [
  "LOGICAL_AXIS_RULES",
  "PRESETS",
  "BatchParts",
  "MeshAxes",
  "MeshError",
  "abstract_mesh",
  "any_host_requested_stop",
  "batch_parts",
  "batch_sharding",
  "check_batch",
  "check_sharded",
  "describe_mesh",
  "make_mesh",
  "parameter_shardings",
  "part_group",
  "replicated",
  "rules_in_force",
  "sharding_context",
  "shardings_like_parameters",
  "start",
  "stop_signals",
  "to_global_arrays",
  "use_preset",
]
