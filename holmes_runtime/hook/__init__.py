"""The hook in a trainer's processes. It gives each torch process group the network that its members share."""
