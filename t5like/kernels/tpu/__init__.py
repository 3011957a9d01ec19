"""Attention kernels for TPUs."""
