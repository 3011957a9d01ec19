"""Measurements next to peers and limits. Import from the files: peers run where neither jax nor numpy is installed."""
