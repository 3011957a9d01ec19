"""Evaluation of models with a head."""
