"""What torch's CUDA build shows without a GPU: `make test-cuda-build`."""
