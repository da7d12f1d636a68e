"""Published models on the disk: configurations, tensor names and headers, read without torch."""
