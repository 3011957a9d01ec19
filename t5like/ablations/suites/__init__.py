"""Suites: several fine-tuning recipes with several seeds in one command, and a table of their scores."""
