"""Attention and norm kernels for NVIDIA GPUs."""
