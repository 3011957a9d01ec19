"""The cost of a run: planned before it starts, and compared with what it took."""
