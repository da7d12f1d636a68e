"""Training over ranks: the pipeline, and gradients and optimizer states over replicas."""
