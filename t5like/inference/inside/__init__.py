"""Looks inside a loaded model: attention weights, states of every layer, and words by their states in context."""
