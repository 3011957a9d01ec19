"""What a run leaves behind: metrics, logs, plots, profiles, goodput."""
