"""The train loop: state, loss, step, optimizers, checkpoints, metrics. Independent of any model or data set."""
