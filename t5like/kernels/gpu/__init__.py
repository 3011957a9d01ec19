"""Kernels of attention, norms and activations for NVIDIA GPUs."""
