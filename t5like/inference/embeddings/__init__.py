"""Sentence embeddings of a loaded model, and the nearest ones among many."""
