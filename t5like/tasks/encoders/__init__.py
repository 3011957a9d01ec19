"""Labeled tasks for encoders with heads: classification, spans, tagging."""
