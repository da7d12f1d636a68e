"""RDMA devices and ports: sysfs, rdma, ibstat, ibv_devinfo, ibdev2netdev, mlxlink."""
