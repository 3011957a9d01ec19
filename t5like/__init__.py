"""t5like: pre-train and fine-tune BERT-, GPT- and T5-style models in JAX."""

__version__ = "0.1.0"
