"""Benchmarks against peers and hardware limits. Nothing is imported here: peers may run without jax."""
