#!/usr/bin/env python3
"""Measure the null NBD servers with fio, and print medians.

Needs fio with the nbd engine. Build first: cargo build --release.
  measure.py BIN_DIR [ROUNDS [SECONDS]]      the table
  measure.py --refuse COMMAND...             run COMMAND with io_uring refused
The server "compio-poll" is null-compio with io_uring refused by seccomp.
"""
import ctypes, itertools, json, os, statistics, struct, subprocess, sys, time

SERVERS = ["uring", "compio", "tokio", "compio-poll"]
PORTS = itertools.count(10811)  # a new port for each run: no TIME_WAIT clash


def refuse_io_uring():
    """Make io_uring_setup(2) (number 425) fail with EPERM in this process."""
    code = b"".join(struct.pack("HBBI", *i) for i in [
        (0x20, 0, 0, 0),           # load the system call number
        (0x15, 0, 1, 425),         # io_uring_setup?
        (0x06, 0, 0, 0x00050001),  # yes: return EPERM
        (0x06, 0, 0, 0x7FFF0000),  # no: allow
    ])
    buf = ctypes.create_string_buffer(code)
    prog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buf)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.byref(prog), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(bin_dir, server, transport, rw, depth, seconds):
    """One fio run. Returns (CPU us per op, IOPS, mean latency in us)."""
    path = f"/tmp/null-{os.getpid()}.sock"
    if transport == "unix":
        address, uri = f"unix:{path}", f"nbd+unix:///?socket={path}"
    else:
        port = next(PORTS)
        address, uri = f"tcp:{port}", f"nbd://127.0.0.1:{port}/"
    poll = server == "compio-poll"
    proc = subprocess.Popen(
        [f"{bin_dir}/null-{'compio' if poll else server}", address],
        stderr=subprocess.DEVNULL, preexec_fn=refuse_io_uring if poll else None)
    try:
        time.sleep(0.15)
        before = cpu_seconds(proc.pid)
        out = subprocess.run(
            ["fio", "--name=x", "--ioengine=nbd", "--thread=1", f"--uri={uri}", f"--rw={rw}",
             "--bs=4k", f"--iodepth={depth}", "--time_based", f"--runtime={seconds}",
             "--size=1G", "--output-format=json"],
            check=True, capture_output=True, text=True).stdout
        used = cpu_seconds(proc.pid) - before
    finally:
        proc.kill()
        proc.wait()
    job = json.loads(out[out.index("{"):])["jobs"][0][rw.removeprefix("rand")]
    return used * 1e6 / job["total_ios"], job["iops"], job["lat_ns"]["mean"] / 1000


def main():
    if sys.argv[1] == "--refuse":
        refuse_io_uring()
        os.execvp(sys.argv[2], sys.argv[2:])
    bin_dir = sys.argv[1]
    rounds, seconds = (int(a) for a in (sys.argv[2:] + ["5", "5"][len(sys.argv) - 2:]))
    results = {}
    for number in range(rounds):
        for transport in ["unix", "tcp"]:
            for rw in ["randread", "randwrite"]:
                for depth in [32, 1]:
                    for server in SERVERS:  # alternate the servers, not the cases
                        key = (transport, rw, depth, server)
                        value = run(bin_dir, server, transport, rw, depth, seconds)
                        results.setdefault(key, []).append(value)
                        print(number, *key, *(f"{v:.2f}" for v in value), file=sys.stderr, flush=True)
    print("| transport | test | server | CPU us/op QD32 | IOPS QD32 | CPU us/op QD1 | latency us QD1 |")
    print("|---|---|---|---|---|---|---|")
    for transport in ["unix", "tcp"]:
        for rw in ["randread", "randwrite"]:
            for server in SERVERS:
                deep, one = ([statistics.median(c) for c in zip(*results[transport, rw, d, server])]
                             for d in [32, 1])
                print(f"| {transport} | {rw} | {server} | {deep[0]:.2f} | {deep[1]:.0f} "
                      f"| {one[0]:.2f} | {one[2]:.1f} |")


if __name__ == "__main__":
    main()
