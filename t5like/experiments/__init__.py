"""Experiments: the settings of a training run, their checks, and its token caches."""
