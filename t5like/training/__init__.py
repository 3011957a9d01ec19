"""The train loop: state, loss, step, optimizers, checkpoints, metrics. Knows no model and no data set."""
