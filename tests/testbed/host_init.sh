#!/bin/sh
# The first process of a host, already inside the host's own network, mount and UTS namespaces.
# It gives the host its name and its private places, says so, and then holds the namespaces open.
#   host_init.sh NAME FOLDER
set -eu
name=$1 folder=$2
echo "$name" >/proc/sys/kernel/hostname
mount -n -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/sshd
mount -n -t tmpfs -o mode=1777 tmpfs /dev/shm
for file in passwd shadow hosts; do
    if [ -e "/etc/$file" ]; then
        mount -n --bind "$folder/etc/$file" "/etc/$file"
    fi
done
echo "$name is booted"
exec sleep infinity >/dev/null 2>&1
