"""GPUs: the outputs of nvidia-smi, their links and their processes."""
