"""GPUs: nvidia-smi in its three forms, their links and what runs on them."""
