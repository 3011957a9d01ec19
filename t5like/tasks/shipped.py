"""Import this module to register all shipped tasks and mixtures, for example to mix them in your own module."""

from t5like.tasks import registry

registry.import_modules()
