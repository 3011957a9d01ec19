"""Records of a run: metrics, logs, plots, profiles, goodput."""
