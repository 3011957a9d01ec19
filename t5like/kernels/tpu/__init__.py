"""Attention for TPUs."""
