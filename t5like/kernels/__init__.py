"""Performance-critical operations: attention back ends, norms, activations, embedding lookup, cross entropy."""
