"""Process groups, each bound to its network, and the time spent waiting for them."""
