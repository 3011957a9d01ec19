"""Imports modules of users, which may register names with gin."""

import importlib
from types import ModuleType

import gin


def import_user_module(name: str) -> ModuleType:
  """Imports a module, also after a configuration was loaded, which locks gin: a task's metrics are imported late."""
  with gin.unlock_config():
    return importlib.import_module(name)
