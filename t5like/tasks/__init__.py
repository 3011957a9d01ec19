"""The seqio registry: what the examples are, how they become text, how answers are scored.

Importing this package costs nothing: `registry`, `text_pipeline` and the task modules import seqio
and TensorFlow; `metrics` and `postprocessors` are plain Python.
"""
