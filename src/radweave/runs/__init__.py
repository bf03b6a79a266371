"""From a method and overrides to a trained run folder, and back to a model."""
