"""Performance-critical operations: attention back ends, norms, embedding lookup, cross entropy."""
