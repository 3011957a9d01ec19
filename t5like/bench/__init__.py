"""Measurements next to peers and limits."""
