"""Published training steps: the measurements, where they were taken, and their prediction by the cost model."""
