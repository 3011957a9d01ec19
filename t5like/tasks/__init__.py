"""seqio tasks: where the examples come from, how they become text, how predictions are scored.

Importing this package is cheap. `registry`, `text_pipeline` and the task modules import seqio and
TensorFlow; `metrics` and `postprocessors` are plain Python.
"""
