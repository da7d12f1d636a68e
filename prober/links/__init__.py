"""The link test: the pairs of hosts, the programs on them, and the findings on the results."""
