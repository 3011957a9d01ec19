"""The names that gin files use for the mesh."""

import gin

from t5like.parallel.mesh import MeshAxes

gin.external_configurable(MeshAxes, "MESH")
