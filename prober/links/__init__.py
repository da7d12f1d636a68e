"""The link test: which pairs, what runs on their hosts, and what the results say."""
