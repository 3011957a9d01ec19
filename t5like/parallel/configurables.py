"""Registers the mesh with gin."""

import gin

from t5like.parallel.mesh import MeshAxes

gin.external_configurable(MeshAxes, "MESH")
