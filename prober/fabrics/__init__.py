"""What hosts show of their fabrics, and which of them share one."""
