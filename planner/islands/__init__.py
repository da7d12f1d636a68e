"""Islands: clusters that train apart, what that costs, and which mode of a job is best on its hosts."""
