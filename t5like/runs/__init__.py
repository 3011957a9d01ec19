"""Executes an experiment: prepare, train, evaluate in the loop, report."""
