//! Tests of third-party clients with an export in memory on a unix socket.
//!
//! Tests of hostile clients and time limits are in sessions.rs.
//!
//! Invariants:
//! - if a client program is missing, the test fails and prints the program's name;
//! - each test has its own server and directory.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::Scratch;
use crate::common::memory::{Memory, MemoryExports};
use weir_nbd::Nbd;
use weir_nbd::limits::OWN_BYTES;
use weir_net::{Address, Budget, Listener, ServerHandle, serve};

const MIB: u64 = 1 << 20;

struct Setup {
    scratch: Scratch,
    exports: Arc<MemoryExports>,
    server: ServerHandle<Nbd>,
}

impl Setup {
    fn new(name: &str) -> Self {
        let exports = Arc::new(
            MemoryExports::default()
                .with("disk/a", Memory::new(32 * MIB))
                .with("disk/ro", Memory::new(MIB).read_only())
                .with("disk/slow", Memory::new(32 * MIB).slow()),
        );
        let scratch = Scratch::new(name);
        let address = Address::Unix(scratch.file("nbd.sock"));
        let listener = Listener::bind(&address).expect("a fresh socket");
        let server = serve(
            vec![listener],
            Arc::new(Nbd::new(
                Arc::<MemoryExports>::clone(&exports),
                Budget::new(64 << 20, OWN_BYTES),
            )),
            2,
        )
        .expect("threads");
        Self { scratch, exports, server }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.scratch.file("nbd.sock").display())
    }

    /// Creates an image with random data and zeros, to test how clients handle sparse files.
    fn image(&self) -> PathBuf {
        let mut data = vec![0_u8; 32 * MIB as usize];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for (index, word) in data.chunks_mut(8).enumerate() {
            // Every other MiB stays zero.
            if index / (1 << 17) % 2 == 0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
        }
        let path = self.scratch.file("image.raw");
        std::fs::write(&path, &data).expect("room for an image");
        path
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program} cannot be run ({error}); install fio, qemu-utils and libnbd-bin")
    })
}

fn ok(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{program} {arguments:?} failed:\n{text}");
    text
}

#[test]
fn nbdinfo_reports_all_capabilities() {
    let setup = Setup::new("nbdinfo");
    let text = ok("nbdinfo", &[&setup.uri("disk/a")]);
    for expected in [
        "newstyle-fixed without TLS, using structured packets",
        "export-size: 33554432 (32M)",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 512",
        "block_size_preferred: 65536",
        "block_size_maximum: 33554432",
        "a volume in memory",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing in:\n{text}");
    }
    let text = ok("nbdinfo", &["--list", &setup.uri("")]);
    for name in ["export=\"disk/a\"", "export=\"disk/ro\"", "export=\"disk/slow\""] {
        assert!(text.contains(name), "{name} is missing in:\n{text}");
    }
    let text = ok("nbdinfo", &[&setup.uri("disk/ro")]);
    assert!(text.contains("is_read_only: true"), "{text}");
    let output = run("nbdinfo", &[&setup.uri("disk/none")]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("No such file or directory for export: disk/none"), "{text}");
}

#[test]
fn nbdcopy_in_and_out() {
    for export in ["disk/a", "disk/slow"] {
        let setup = Setup::new(&format!("nbdcopy{}", export.len()));
        let image = setup.image();
        let back = setup.scratch.file("back.raw");
        let (image, back) = (image.to_str().unwrap(), back.to_str().unwrap());
        let uri = setup.uri(export);
        ok("nbdcopy", &["--flush", image, &uri]);
        let flushes = setup.exports.volume(export).flushes.load(Ordering::SeqCst);
        assert!(flushes > 0, "--flush asks for a flush");
        ok("nbdcopy", &[&uri, back]);
        assert!(std::fs::read(image).unwrap() == std::fs::read(back).unwrap(), "{export}");
        let map = ok("nbdinfo", &["--map", "--totals", &uri]);
        assert!(map.contains("hole,zero"), "zeros were not sent as data:\n{map}");
    }
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    for export in ["disk/a", "disk/slow"] {
        let setup = Setup::new(&format!("qemu-img{}", export.len()));
        let image = setup.image();
        let back = setup.scratch.file("back.qcow2");
        let (image, back) = (image.to_str().unwrap(), back.to_str().unwrap());
        let uri = setup.uri(export);
        ok("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
        let text = ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
        assert!(text.contains("Images are identical."), "{text}");
        ok("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, back]);
        ok("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", image, back]);
        let map = ok("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
        let (data, zero) = (map.matches("\"data\": true"), map.matches("\"zero\": true"));
        assert_eq!((data.count(), zero.count()), (16, 16), "{map}");
    }
}

#[test]
fn qemu_io_uses_every_command() {
    let setup = Setup::new("qemu-io");
    let io = |export: &str, commands: &[&str]| {
        let uri = setup.uri(export);
        let mut arguments = vec!["-f", "raw"];
        arguments.extend(commands.iter().flat_map(|command| ["-c", *command]));
        arguments.push(&uri);
        run("qemu-io", &arguments)
    };
    for export in ["disk/a", "disk/slow"] {
        let output = io(
            export,
            &[
                "write -P 0xa5 0 1M",
                "write -f -P 0x5a 64k 4k",
                "read -P 0xa5 0 64k",
                "read -P 0x5a 64k 4k",
                "write -z 4k 8k",
                "write -z -u 128k 64k",
                "discard 256k 64k",
                "read -P 0 4k 8k",
                "read -P 0 128k 64k",
                "read -P 0 256k 64k",
                "read -P 0xa5 12k 52k",
                "write -P 0x11 512 512",
                "read -P 0x11 512 512",
                "aio_write -P 7 2M 1M",
                "aio_write -P 8 3M 1M",
                "aio_flush",
                "read -P 7 2M 1M",
                "read -P 8 3M 1M",
                "flush",
            ],
        );
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("failed"), "{export}: {output:?}");
        assert!(setup.exports.volume(export).flushes.load(Ordering::SeqCst) >= 2, "FUA and flush");
    }
    let output = io("disk/ro", &["read -P 0 0 4k", "write -P 1 0 4k"]);
    assert!(!output.status.success(), "a read-only export takes no write: {output:?}");
}

#[test]
fn fio_verifies_its_writes() {
    let setup = Setup::new("fio");
    for export in ["disk/a", "disk/slow"] {
        let uri = format!("--uri={}", setup.uri(export));
        let job = |rest: &[&str]| {
            let mut arguments =
                vec!["--name=verify", "--ioengine=nbd", &uri, "--size=32M", "--verify=crc32c"];
            arguments.extend([
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--do_verify=1",
                "--fsync=64",
            ]);
            arguments.extend(rest);
            let text = ok("fio", &arguments);
            assert!(text.contains("err= 0"), "{text}");
        };
        job(&["--rw=randwrite", "--bs=4k", "--iodepth=32"]);
        job(&["--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16"]);
        job(&["--rw=write", "--bs=1M", "--iodepth=16"]);
    }
}

#[test]
fn stop_removes_the_socket_and_releases_the_exports() {
    let setup = Setup::new("stop");
    ok("nbdinfo", &["--size", &setup.uri("disk/a")]);
    let socket = setup.scratch.file("nbd.sock");
    assert!(socket.exists());
    setup.server.stop();
    assert!(!socket.exists(), "the socket's file goes with the server");
    assert_eq!(Arc::strong_count(&setup.exports), 1, "nothing holds the exports");
}
