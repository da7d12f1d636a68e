"""A run of islands: several launches side by side, the rendezvous of their ranks, and the common verdict."""
