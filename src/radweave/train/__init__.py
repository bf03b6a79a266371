"""The training engine: stages, optimiser, loop, checkpoints."""
