//! The engine in another program: runs the example server of weir-export with `qemu-io` as client.
//!
//! Not here: `weir serve` (tested by the other files).
//!
//! Invariant: cargo builds the example with the same profile as the program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{WEIR, accepts, eventually, tool};

#[test]
fn example_server_works_with_qemu_io() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, socket) = (folder.path().join("disk"), folder.path().join("nbd"));
    let programs = Path::new(WEIR).parent().unwrap();
    let mut server = Command::new(programs.join("examples/serve_volume"))
        .args([&disk, &socket])
        .stdin(Stdio::piped())
        .spawn()
        .expect("cargo xtask e2e builds the example of weir-export");
    eventually("the example listens", Duration::from_secs(30), || accepts(&socket));
    let uri = format!("nbd+unix:///vol?socket={}", socket.display());
    let printed = tool(
        "qemu-io",
        &[
            &["-f", "raw", &uri, "-c", "write -P 0x5a 1M 64k", "-c", "flush"][..],
            &["-c", "read -P 0x5a 1M 64k", "-c", "read -P 0 2M 64k"],
        ]
        .concat(),
    );
    assert_eq!(printed.matches("read 65536/65536 bytes").count(), 2, "{printed}");
    assert!(!printed.contains("failed"), "{printed}");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    // The pool must be intact: the disk has the data that qemu-io flushed, and the example closed
    // the pool with a last commit.
    tool(WEIR, &["check", "-d", disk.to_str().unwrap(), "tank"]);
}
