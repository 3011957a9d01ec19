"""From decoded text to what the metrics compare. Plain Python: no TensorFlow, no registry."""


def strip_text(text: str, **unused) -> str:
  """The answer without the white space around it."""
  return text.strip()
