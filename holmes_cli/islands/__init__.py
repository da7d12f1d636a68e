"""What the commands show and do of a run of islands."""
