"""Network interfaces: sysfs, ip, ethtool, flow control."""
