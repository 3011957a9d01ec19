"""What watches over a run: stalls, other trainers, signals, values that are not finite."""
