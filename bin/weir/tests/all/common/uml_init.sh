# The init program of a User-Mode Linux guest. The test puts a line in front of it, which sets
# `shared` and `modules` (two folders of the host) and `addresses`. The guest's first root is the
# host's root, read-only.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
ip link set lo up
for address in $addresses; do ip address add "$address/24" dev vec0; done
ip link set vec0 up

# A writable root: an overlay that keeps changes in memory.
mount -t proc proc /proc
insmod "$modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"
mount -t tmpfs -o size=50% changes /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/root
umount /proc
cd /mnt/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs devtmpfs dev
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mkdir -p dev/pts dev/shm run/lock lib/modules run/host run/old
mount -t devpts devpts dev/pts
mount -t tmpfs shm dev/shm
mount -t tmpfs -o mode=0755 mnt mnt
mount --bind "$modules" lib/modules
mount -t hostfs -o "$shared" host run/host
pivot_root . run/old
cd /run/host

# Functions for all steps.
cat >/run/functions <<'END'
# Waits until a command succeeds, within the step's limit. `read` waits without starting a process:
# the start of a process is slow in a guest.
until_true() { until "$@" >/dev/null 2>&1; do read -r -t 0.3 -u 9 || :; done; }
# Starts the script /run/host/NAME in the background.
start() {
    { bash -eu -o pipefail "/run/host/$1" && echo 0 >"/run/$1.status" \
        || echo $? >"/run/$1.status"; } >"/run/$1.out" 2>&1 </dev/null &
}
# Waits for the end of the script; prints its output and returns its status.
join() {
    until_true test -s "/run/$1.status"
    cat "/run/$1.out"
    return "$(cat "/run/$1.status")"
}
END
export BASH_ENV=/run/functions

mkfifo /run/never
exec 9<>/run/never
: >booted
number=1
until [ -e halt ]; do
    # Waits without starting a process.
    if [ ! -e "step-$number" ]; then
        read -r -t 0.05 -u 9
        continue
    fi
    BASH_XTRACEFD=8 timeout -k 5 "$(cat "limit-$number")" bash -eux -o pipefail "step-$number" \
        >/run/out 2>&1 </dev/null 8>/run/trace
    status=$?
    if [ "$status" -ne 0 ]; then
        { echo "-- trace:"; tail -n 40 /run/trace; echo "-- kernel:"; dmesg | tail -n 40; } >>/run/out
    fi
    # A file of the host is complete only after its last writer has closed it.
    cp /run/out "out-$number"
    echo "$status" >"status-$number.new"
    mv "status-$number.new" "status-$number"
    number=$((number + 1))
done
cd /
sync
echo o >/proc/sysrq-trigger
while :; do read -r -t 1 -u 9; done
