"""Labeled tasks in the form encoders with heads take: classes, spans, tags."""
