"""What a training run is: its settings, their checks, its token caches."""
