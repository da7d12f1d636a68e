"""`holmes demo`: the three commands on hosts that are processes of this machine."""
