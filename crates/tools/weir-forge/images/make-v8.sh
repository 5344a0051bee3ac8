#!/usr/bin/env bash
# Makes the images of format 8 with a `weir` of commit 83d099e: make-v8.sh WEIR FOLDER
#
# Writes FOLDER/<disk>.img.zst. The test `old_formats` of weir-sim states what the pools contain.
# The server is killed (SIGKILL) after a flush, so that an import replays the intent log.
set -euo pipefail
weir=$(readlink -f "$1"); out=$(readlink -f "$2"); work=$(mktemp -d); cd "$work"
socket="$work/nbd.sock"; export WEIR_API="unix:$work/api.sock"
truncate -s 64M mirror-a.img mirror-b.img raidz-a.img raidz-b.img raidz-c.img raidz-d.img
"$weir" serve --state "$work/state" --api "$WEIR_API" --nbd "unix:$socket" --memory 256MiB > serve.log 2>&1 &
server=$!
trap 'kill -9 $server 2>/dev/null || true; rm -rf "$work"' EXIT
until "$weir" pool list > pools.log 2>&1; do sleep 0.1; done

# write VOLUME GENERATION FIRST COUNT: blocks of 4 KiB, each filled with a line that names it.
write() {
  python3 - "$@" > content <<'PY'
import sys
volume, generation, first, count = sys.argv[1], *map(int, sys.argv[2:])
for block in range(first, first + count):
    line = f"{volume} block {block} generation {generation}\n".encode()
    sys.stdout.buffer.write((line * (4096 // len(line) + 1))[:4096])
PY
  qemu-io -f raw -c "write -q -s content $(($3 * 4096)) $(($4 * 4096))" -c flush "nbd+unix:///$1?socket=$socket"
}

"$weir" pool create v8m mirror "$work/mirror-a.img" "$work/mirror-b.img"
"$weir" set quota=40MiB ops:owner=ada v8m
"$weir" volume create v8m/vm1 --size 8MiB -o compression=zstd-3
"$weir" volume create v8m/dup1 --size 4MiB
"$weir" volume create v8m/dup2 --size 4MiB
"$weir" volume create v8m/media --size 8MiB -b 128KiB
"$weir" set dedupe=on v8m/dup1 v8m/dup2
"$weir" set refreservation=auto v8m/media
for volume in vm1 dup1 dup2 media; do "$weir" export create nbd v8m/$volume; done
write v8m/vm1 1 0 512
"$weir" snapshot create v8m/vm1@one
"$weir" snapshot hold backup v8m/vm1@one
"$weir" bookmark create v8m/vm1@one '#mark'
write v8m/vm1 2 100 200
"$weir" snapshot create v8m/vm1@two
"$weir" snapshot clone v8m/vm1@one v8m/clone
"$weir" export create nbd v8m/clone
write v8m/clone 3 0 10
# dup2 gets the content of dup1.
write v8m/dup1 1 0 256
qemu-io -f raw -c "write -q -s content 0 $((256 * 4096))" -c flush "nbd+unix:///v8m/dup2?socket=$socket"
write v8m/media 1 0 320
"$weir" set readonly=on v8m/dup1
# A stream that breaks off after 1 MiB of 2 MiB.
"$weir" volume create v8m/source --size 8MiB -o compression=off
"$weir" export create nbd v8m/source
write v8m/source 1 0 512
"$weir" snapshot create v8m/source@full
"$weir" send v8m/source@full > stream
head -c 1048576 stream | "$weir" receive v8m/half || true
"$weir" receive --token v8m/half
"$weir" volume list; "$weir" snapshot list; "$weir" bookmark list; "$weir" get all v8m/vm1 v8m/media

"$weir" pool create v8z raidz2 "$work/raidz-a.img" "$work/raidz-b.img" "$work/raidz-c.img" "$work/raidz-d.img"
"$weir" volume create v8z/data --size 8MiB
"$weir" export create nbd v8z/data
write v8z/data 1 0 1024
"$weir" snapshot create v8z/data@first
sleep 6 # a txg commits the volumes
write v8z/data 2 7 3
write v8m/vm1 4 400 3
kill -9 $server
for image in *.img; do zstd -q -19 --long=27 -f "$image" -o "$out/$image.zst"; done
ls -l "$out"
