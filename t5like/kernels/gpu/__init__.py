"""Attention and norms for NVIDIA GPUs."""
