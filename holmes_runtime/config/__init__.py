"""What the controller tells a node, and schedules: read by planner, launcher and ranks alike; free of torch."""
