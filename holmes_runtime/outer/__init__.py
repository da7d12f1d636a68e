"""Islands: runs apart that exchange, now and then, how their parameters have changed."""
