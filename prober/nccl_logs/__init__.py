"""NCCL's logs of a run, read into facts, and the causes that these facts show."""
