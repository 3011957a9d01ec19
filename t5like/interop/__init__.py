"""Checkpoints of other libraries: Hugging Face (import and export) and T5X (import). See README.md."""
