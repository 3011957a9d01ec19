"""The mesh and what is split over it."""

from t5like.parallel.mesh import MeshAxes, check_batch, describe_mesh, make_mesh
from t5like.parallel.rules import (
  LOGICAL_AXIS_RULES,
  batch_sharding,
  parameter_shardings,
  replicated,
  sharding_context,
  shardings_like_parameters,
)

__all__ = [
  "LOGICAL_AXIS_RULES",
  "MeshAxes",
  "batch_sharding",
  "check_batch",
  "describe_mesh",
  "make_mesh",
  "parameter_shardings",
  "replicated",
  "sharding_context",
  "shardings_like_parameters",
]
