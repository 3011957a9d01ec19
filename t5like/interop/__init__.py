"""Checkpoints of other libraries: Hugging Face (both ways) and T5X (in). See README.md here."""
