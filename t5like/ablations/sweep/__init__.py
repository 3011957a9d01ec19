"""Runs the recipes of a table: planning, workers, claims and results."""
