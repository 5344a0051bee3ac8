//! Pools, volumes and exports from their creation to their destruction, with standard clients.
//!
//! Not here: crashes (crash.rs), refusals (bad_input.rs), the demo (demo.rs).
//!
//! Invariant: if an external program supports a feature, that program is the client.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::nbd::ENOSPC;
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Server, eventually, fio, fio_output, run, text, tool};
use rustix::process::Signal;
use serde_json::Value;

fn names(list: &Value, of: &str) -> Vec<String> {
    let all = list[of].as_array().unwrap();
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// The server must write no core files, which would contain secrets, and must raise its limit of
/// file descriptors, because each client needs one.
#[test]
fn server_disables_core_files_and_raises_its_descriptor_limit() {
    let dirs = Dirs::new();
    let server = dirs.start();
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    };
    assert_eq!(limit("Max core file size").0, "0");
    let (soft, hard) = limit("Max open files");
    assert_eq!(soft, hard);
}

#[test]
fn pools_of_every_layout_are_created_and_destroyed() {
    let dirs = Dirs::new();
    for name in ["a", "b", "c", "d"] {
        dirs.disk(name, 256 * MIB);
    }
    let mut server = dirs.start();
    let place = dirs.file("").display().to_string();
    for (layout, vdevs, legs) in
        [("a", 1, 1), ("mirror a b", 1, 2), ("mirror a b mirror c d", 2, 2), ("a b c", 3, 1)]
    {
        server.weir(&format!("pool create tank {layout}")).ok();
        let again = server.weir(&format!("pool create tank {layout}")).ok();
        assert!(again.talk.contains("nothing changed"), "{}", again.talk);
        let status = server.status("tank");
        assert_eq!(status["state"], "online", "{status:#}");
        assert_eq!(status["vdevs"].as_array().unwrap().len(), vdevs, "{layout}");
        let of_first = status["vdevs"][0]["disks"].as_array().unwrap().len();
        assert_eq!(of_first, legs, "{layout}");
        let human = server.weir("pool status tank").ok().out;
        assert!(human.contains("state: ONLINE") && human.contains("No known data"), "{human}");
        assert!(server.weir("pool list").ok().out.contains("tank"));

        server.volume("tank/v", "64MiB");
        let job = ["--rw=randwrite", "--bs=16k", "--size=32m", "--iodepth=8"];
        fio(&server.uri("tank/v"), &[&job[..], &["--verify=crc32c"]].concat());
        server.weir("export delete tank/v").ok();
        server.weir("pool export tank").ok();
        assert_eq!(server.weir("pool list --json").json()["pools"], Value::Array(vec![]));
        let found = server.weir(&format!("pool import -d {place} --json")).json();
        assert_eq!(names(&found, "pools"), ["tank"]);
        server.weir(&format!("pool import -d {place} tank")).ok();
        server.weir("export create nbd tank/v").ok();
        fio(&server.uri("tank/v"), &[&job[..], &["--verify=crc32c", "--verify_only=1"]].concat());
        server.weir("export delete tank/v").ok();
        server.weir("pool destroy tank --yes").ok();
        let found = server.weir(&format!("pool import -d {place} --json")).json();
        assert_eq!(names(&found, "pools"), Vec::<String>::new(), "destroyed and yet found");
    }
    server.assert_alive();
}

#[test]
fn restart_keeps_pools_volumes_and_exports() {
    let dirs = Dirs::new();
    for name in ["a", "b", "c"] {
        dirs.disk(name, 256 * MIB);
    }
    let mut server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.weir("pool create solo c").ok();
    server.weir("volume create tank/v1 --size 64MiB").ok();
    server.weir("volume create tank/v2 --size 1TiB -o compression=off").ok();
    server.weir("volume create solo/v --size 16MiB").ok();
    server.weir("volume set compression=off tank/v1").ok();
    server.weir("volume resize tank/v1 --size 128MiB").ok();
    server.weir("volume create tank/gone --size 16MiB").ok();
    server.weir("volume destroy tank/gone --yes").ok();
    let uri = server.weir("export create nbd tank/v1").ok().out;
    assert_eq!(uri.trim(), server.uri("tank/v1"));
    server.weir("export create nbd tank/v1 --read-only --name backup").ok();
    server.weir("export create nbd solo/v --name x").ok();
    server.weir("export delete x").ok();
    let show = |server: &Server| {
        let lines = ["volume list -H", "export list -H", "volume show tank/v1 --json"];
        lines.map(|line| server.weir(line).ok().out)
    };
    let before = show(&server);
    assert!(before[0].contains("tank/v1\t134217728\t"), "{}", before[0]);
    assert!(before[1].contains("backup\tnbd\ttank/v1\tro"), "{}", before[1]);
    for signal in [Signal::TERM, Signal::INT] {
        let sockets = ["api", "nbd"].map(|name| dirs.short(name));
        let (status, took) = server.stop(signal);
        assert!(status.success(), "{signal:?}: {status}");
        assert!(took < Duration::from_secs(2), "{signal:?}: {took:?}");
        assert!(sockets.iter().all(|socket| !socket.exists()), "a socket file stayed");
        server = dirs.start();
        assert_eq!(before, show(&server));
        assert_eq!(names(&server.weir("pool list --json").json(), "pools"), ["solo", "tank"]);
    }
    let output = run("qemu-io", &["-f", "raw", "-c", "write 0 4k", &server.uri("backup")]);
    assert!(!output.status.success(), "written: {}", text(&output));
    tool("qemu-io", &["-f", "raw", "-r", "-c", "read 0 4k", &server.uri("backup")]);
    server.assert_alive();
}

/// Returns the CPU time of a process in clock ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The process name in parentheses may contain any character, so count the fields from the last
    // parenthesis on.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn idle_server_uses_no_cpu() {
    let dirs = Dirs::new();
    for name in ["a", "b"] {
        dirs.disk(name, 256 * MIB);
    }
    let mut server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "64MiB");
    let mut client = server.client("tank/v");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_ticks(server.pid());
    std::thread::sleep(Duration::from_secs(5));
    let used = cpu_ticks(server.pid()) - before;
    eprintln!("idle with one connection: {} ms of CPU in 5 s", used * 10);
    assert!(used < 5, "{} ms of CPU in 5 s", used * 10);
    server.assert_alive();
}

/// Creates a file in which every second MiB has random data and the others have zeros.
fn image(path: &Path, mebibytes: u64) {
    let mut rng = Rng::new(42);
    let mut data = vec![0; (mebibytes * MIB) as usize];
    for part in data.chunks_mut(MIB as usize).step_by(2) {
        rng.fill(part);
    }
    fs::write(path, data).unwrap();
}

fn served(dirs: &Dirs) -> Server {
    for name in ["a", "b"] {
        dirs.disk(name, 2 * GIB);
    }
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "64MiB");
    server
}

#[test]
fn standard_tools_copy_compare_and_map() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    let uri = server.uri("tank/v");
    server.weir("export create nbd tank/v --read-only --name ro").ok();
    let listed = tool("nbdinfo", &["--list", &server.uri("")]);
    for name in ["export=\"ro\"", "export=\"tank/v\""] {
        assert!(listed.contains(name), "{name} is missing:\n{listed}");
    }
    let info = tool("nbdinfo", &[&uri]);
    for part in ["export-size: 67108864", "can_multi_conn: true", "base:allocation"] {
        assert!(info.contains(part), "{part} is missing:\n{info}");
    }
    let info = tool("nbdinfo", &[&server.uri("ro")]);
    assert!(info.contains("is_read_only: true"), "{info}");

    let (source, back) = (dirs.file("source.raw"), dirs.file("back.raw"));
    image(&source, 64);
    let (from, to) = (source.to_str().unwrap(), back.to_str().unwrap());
    tool("nbdcopy", &["--flush", from, &uri]);
    tool("nbdcopy", &[&uri, to]);
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap(), "nbdcopy changed the data");
    let map = |uri: &str| tool("qemu-img", &["map", "-f", "raw", "--output=json", uri]);
    let holes = |map: &str| map.matches("\"zero\": true").count();
    assert_eq!(holes(&map(&uri)), 32, "zeros take space");

    server.volume("tank/w", "64MiB");
    let other = server.uri("tank/w");
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", from, &other]);
    let same = tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &other]);
    assert!(same.contains("Images are identical."), "{same}");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &other, to]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", from, to]);
    tool("qemu-io", &["-f", "raw", "-c", "discard 4M 1M", "-c", "flush", &other]);
    // The discarded range and the zeros on both sides of it appear as a single hole.
    assert_eq!(holes(&map(&other)), 31, "a discarded range is no hole:\n{}", map(&other));
    let differ = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &other]);
    assert_eq!(differ.status.code(), Some(1), "{}", text(&differ));
    server.assert_alive();
}

#[test]
fn qemu_io_uses_every_command() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    let uri = server.uri("tank/v");
    let io = |commands: &[&str]| {
        let mut words = vec!["-f", "raw"];
        words.extend(commands.iter().flat_map(|command| ["-c", *command]));
        words.push(&uri);
        let out = tool("qemu-io", &words);
        assert!(!out.contains("failed") && !out.contains("rror"), "{out}");
    };
    io(&[
        "write -P 0xa5 0 1M",
        "write -f -P 0x5a 64k 4k",
        "read -P 0xa5 0 64k",
        "read -P 0x5a 64k 4k",
        "write -z 4k 8k",
        "write -z -u 128k 64k",
        "discard 256k 64k",
        "write -P 0x11 512 512",
        "aio_write -P 7 2M 1M",
        "aio_write -P 8 3M 1M",
        "aio_flush",
        "flush",
    ]);
    let reads = [
        "read -P 0x11 512 512",
        "read -P 0xa5 1k 3k",
        "read -P 0 4k 8k",
        "read -P 0xa5 12k 52k",
        "read -P 0 128k 64k",
        "read -P 0 256k 64k",
        "read -P 7 2M 1M",
        "read -P 8 3M 1M",
        "read -P 0 4M 60M",
    ];
    io(&reads);
    server.kill();
    server = dirs.start();
    io(&reads);
    server.assert_alive();
}

#[test]
fn fio_verifies_every_pattern() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    let uri = server.uri("tank/v");
    let check = ["--verify=crc32c", "--verify_fatal=1", "--size=64m", "--fsync=64"];
    for job in [
        &["--rw=randwrite", "--bs=4k", "--iodepth=32"][..],
        &["--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16"],
        &["--rw=write", "--bs=1M", "--iodepth=16"],
        &["--rw=randtrimwrite", "--bs=4k", "--iodepth=8"],
    ] {
        // fio cannot verify trimmed blocks, so leave out its verification for trim jobs.
        let check = if job[0].contains("trim") { &check[2..] } else { &check[..] };
        fio(&uri, &[job, check].concat());
    }
    server.assert_alive();
}

#[test]
fn thin_volume_of_16_tib_works_to_its_last_block() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.volume("tank/huge", "16TiB");
    let uri = server.uri("tank/huge");
    assert_eq!(tool("nbdinfo", &["--size", &uri]).trim(), "17592186044416");
    let end: u64 = 16 << 40;
    let write = format!("write -P 0x77 {} 1M", end - MIB);
    let read = format!("read -P 0x77 {} 1M", end - MIB);
    let zero = format!("read -P 0 {} 1M", end / 2);
    let write_middle = format!("write -P 0x66 {} 4k", end / 3 / 4096 * 4096);
    let arguments = ["-f", "raw", "-c", &write, "-c", &write_middle, "-c", "flush", &uri];
    tool("qemu-io", &arguments);
    server.kill();
    server = dirs.start();
    let out = tool("qemu-io", &["-f", "raw", "-c", &read, "-c", &zero, &server.uri("tank/huge")]);
    assert!(!out.contains("failed"), "{out}");
    let used = server.weir("volume show tank/huge --json").json()["used_bytes"].clone();
    assert_eq!(used.as_u64(), Some(MIB + 4096), "a thin volume uses what was written");
    // Trim the last 2 GiB of the volume in one request.
    server.client("tank/huge").trim(end - 2 * GIB, (2 * GIB) as u32).unwrap();
    tool("nbdinfo", &["--map", "--totals", &server.uri("tank/huge")]);
    server.assert_alive();
}

fn allocated(server: &Server) -> u64 {
    server.status("tank")["allocated_bytes"].as_u64().unwrap()
}

#[test]
fn trim_frees_space() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.volume("tank/big", "512MiB");
    let empty = allocated(&server);
    let uri = server.uri("tank/big");
    fio(&uri, &["--rw=write", "--bs=1M", "--size=256m", "--iodepth=8", "--end_fsync=1"]);
    let full = allocated(&server);
    assert!(full > empty + 200 * MIB, "{empty} -> {full}");
    tool("qemu-io", &["-f", "raw", "-c", "discard 0 256M", "-c", "flush", &uri]);
    eventually("TRIM gives space back", Duration::from_secs(40), || {
        allocated(&server) < empty + 64 * MIB
    });
    fio(&uri, &["--rw=write", "--bs=1M", "--size=256m", "--iodepth=8", "--end_fsync=1"]);
    server.weir("export delete tank/big").ok();
    server.weir("volume destroy tank/big --yes").ok();
    eventually("destroying gives space back", Duration::from_secs(40), || {
        allocated(&server) < empty + 64 * MIB
    });
    server.assert_alive();
}

#[test]
fn full_pool_refuses_writes_and_recovers() {
    const PART: usize = 256 << 10;
    let dirs = Dirs::new();
    dirs.disk("a", 192 * MIB);
    let mut server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "1GiB");
    let mut client = server.client("tank/v");
    let mut data = vec![0; PART];
    let fill = |data: &mut Vec<u8>, index: u64| Rng::new(index).fill(data);
    let mut written = 0;
    let errno = loop {
        fill(&mut data, written);
        match client.write(written * PART as u64, &data) {
            Ok(()) => written += 1,
            Err(errno) => break errno,
        }
        assert!(written * (PART as u64) < GIB, "the pool never fills");
    };
    eprintln!("full after {} MiB of a disk of 192 MiB", written * PART as u64 / MIB);
    assert_eq!(errno, ENOSPC);
    assert!(written * (PART as u64) > 64 * MIB, "full after {written} parts");
    client.flush().expect("what was acknowledged has its place");
    let out = text(&fio_output(
        &server.uri("tank/v"),
        &["--rw=write", "--bs=1M", "--offset=512m", "--size=64m", "--iodepth=4"],
    ));
    assert!(out.contains("No space left on device"), "{out}");
    server.kill();
    server = dirs.start();
    let mut client = server.client("tank/v");
    for index in 0..written {
        fill(&mut data, index);
        assert!(client.read(index * PART as u64, PART as u32).unwrap() == data, "part {index}");
    }
    assert_ne!(server.status("tank")["state"], "faulted", "a full pool stays open");
    client.trim(0, (written * PART as u64 / 2) as u32).unwrap();
    client.flush().unwrap();
    eventually("writes work again after TRIM", Duration::from_secs(40), || {
        fill(&mut data, 7);
        client.write(0, &data).is_ok() && client.flush().is_ok()
    });
    assert!(client.read(0, PART as u32).unwrap() == data);
    server.assert_alive();
    server.stop_clean();
}
