"""What runs on a node beside the ranks: agent, relay, torchrun; standard library only."""
