"""Inference with a head: labels, tags and answers, with probabilities."""
