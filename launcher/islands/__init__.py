"""A run of islands: several launches side by side, the meeting of their ranks, and the verdict on all."""
