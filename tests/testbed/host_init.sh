#!/bin/sh
# The first process of a host, already inside the host's own network, mount and UTS namespaces.
# It gives the host its name and its private places, says so, and then holds the namespaces open.
#   host_init.sh NAME FOLDER PYTHON
set -eu
name=$1 folder=$2 python=$3
# In a user namespace /proc/sys/kernel/hostname is not ours to write, and `hostname` is no tool of every machine.
"$python" -I -S -c 'import socket, sys; socket.sethostname(sys.argv[1])' "$name"
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
