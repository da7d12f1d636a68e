"""The machine: kernel, limits, software, PCI tree, NCCL settings."""
