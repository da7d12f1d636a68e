"""Inventories, hosts, jobs and plans that tests of several folders share, each file by what it makes."""
