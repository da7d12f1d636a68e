"""Configuration, messages and schedules shared by planner, launcher and ranks. Free of torch."""
