#!/bin/busybox sh
# PID 1 of a machine that runs tests and is switched off. Its arguments come from the kernel's command line, as variables:
# cgroups, the version of control groups; run and skip, which tests to run and to skip.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /root
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
ip link set lo up
hostname kernels

if [ "$cgroups" = 2 ]; then
  mount -t cgroup2 cgroup /sys/fs/cgroup
  echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
else
  mount -t tmpfs cgroup /sys/fs/cgroup
  for controller in cpu memory freezer pids; do
    mkdir "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
  done
fi

# The wall clock is an hour late, and an hour later it is right again, and so on.
(while sleep 1; do date -s "@$(($(date +%s) - 3600))"; sleep 1; date -s "@$(($(date +%s) + 3600))"; done) >/dev/null 2>&1 &

stty -F /dev/ttyS1 raw
for binary in /suites/*; do
  name=${binary##*/}
  echo "### begin $name"
  cd /tmp
  "$binary" -test.v=test2json -test.timeout=0 -test.run="$run" -test.skip="$skip" 2>&1
  echo "### end $name $?"
done >/dev/ttyS1 </dev/null
sleep 1 # until it is written
poweroff -f
