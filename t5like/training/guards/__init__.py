"""Guards of a run: stalls, other trainers, signals, non-finite values and early stopping."""
