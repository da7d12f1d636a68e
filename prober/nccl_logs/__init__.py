"""NCCL's logs of a run, read into facts, and the causes that those facts show; pure analysis of text."""
