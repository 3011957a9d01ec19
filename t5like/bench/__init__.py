"""Measurements next to peers and limits. Import from the files: peers run by interpreters that may not have jax."""
