"""Converts a seqio task to the rows of a token cache."""
