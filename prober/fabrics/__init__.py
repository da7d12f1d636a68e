"""The fabrics that hosts show, and the clusters of hosts that share one."""
