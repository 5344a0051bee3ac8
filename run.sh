#!/bin/sh
# `make run`: builds the program and serves the demo pool. It does not build xtask first, which would take a minute.
set -e
target=${CARGO_TARGET_DIR:-target}
cores=$(nproc)
then="then it serves a demo pool in ./weir-demo. Ctrl-C stops the server; the data stays."
if [ -x "$target/quick/weir" ]; then
    echo "Weir: this builds what changed, $then"
else
    # A build from nothing takes about 220 s of processor time.
    minutes=$(((220 / cores + 59) / 60))
    echo "Weir: this compiles the program and its libraries, about $minutes minutes on $cores cores, $then"
fi

# Programs in the commands that the demo prints. The server runs without them.
missing=
for need in nbdinfo:libnbd-bin qemu-img:qemu-utils fio:fio; do
    command -v "${need%%:*}" >/dev/null || missing="$missing ${need#*:}"
done
if [ -n "$missing" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    mkdir -p "$target"
    # Installs them while the program compiles.
    if command -v apt-get >/dev/null && { [ -z "$as_root" ] || $as_root true 2>/dev/null; }; then
        echo "Weir: installs$missing meanwhile (log: $target/apt.log)"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        { $as_root apt-get install --yes --no-install-recommends $missing ||
            { $as_root apt-get update && $as_root apt-get install --yes --no-install-recommends $missing; }
        } >"$target/apt.log" 2>&1 </dev/null &
    else
        echo "Weir: the commands that the demo prints need packages: apt-get install$missing"
    fi
fi
cargo build --profile quick --package weir
wait
exec "$target/quick/weir" serve --demo
