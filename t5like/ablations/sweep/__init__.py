"""Runs the recipes of a table: what is left to do, who does it, and what came out."""
