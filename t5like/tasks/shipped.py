"""Importing this registers every task and mixture that t5like ships, so that a module of yours can mix them."""

from t5like.tasks import registry

registry.import_modules()
