//! Disks without the newest txg of their pool, which the server has seen on other disks.
//!
//! Not here: old legs together with newer legs (healing), diverged halves of a mirror (shape).
//!
//! Invariant: the server never exports older data than it exported before, unless an administrator
//! forces the import.

use std::fs;

use crate::common::nbd::Client;
use crate::common::{Dirs, MIB, code, tool};

// Regression: after one leg had died, the server imported the other leg, which lacked the writes of
// a day. The import needed no `--force`, and clients got the old data.
#[test]
fn old_leg_alone_is_imported_only_by_force() {
    let dirs = Dirs::new();
    let path = |name: &str| dirs.file(name).display().to_string();
    // An import reads all files of the directory, so the hidden leg must be in another directory.
    fs::create_dir(path("away")).unwrap();
    dirs.disk("a", 256 * MIB);
    dirs.disk("b", 256 * MIB);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "16MiB");
    let mut client = server.client("tank/v");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop_clean();

    tool("cp", &["--sparse=always", &path("a"), &path("away/a-old")]);
    fs::rename(dirs.file("a"), dirs.file("away/a")).unwrap();
    let server = dirs.start();
    let mut client = server.client("tank/v");
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    server.kill();

    fs::rename(dirs.file("away/a"), dirs.file("a")).unwrap();
    fs::rename(dirs.file("b"), dirs.file("away/b")).unwrap();
    let server = dirs.start();
    let status = server.status("tank")["status"].to_string();
    assert!(status.contains("which this server has seen"), "{status}");
    assert!(Client::connect(server.nbd(), "tank/v").is_err());
    let dir = dirs.file("a").parent().unwrap().display().to_string();
    let import = format!("pool import -d {dir} tank");
    server.weir(&import).fails(code::EXISTS, &["could not be opened", "pool export --force tank"]);

    // If the newer leg is present, the import needs no force, with or without the old leg.
    server.stop_clean();
    fs::rename(dirs.file("away/b"), dirs.file("b")).unwrap();
    let server = dirs.start();
    assert_eq!(server.client("tank/v").read(0, 4096).unwrap(), vec![2; 4096]);
    server.stop_clean();

    // With only the old leg, an administrator must force the import.
    fs::rename(dirs.file("b"), dirs.file("away/b")).unwrap();
    fs::rename(dirs.file("away/a-old"), dirs.file("a")).unwrap();
    let server = dirs.start();
    server.weir("pool export --force tank").ok();
    server.weir(&import).fails(code::UNAVAILABLE, &["which this server has seen", "--force"]);
    server.weir(&format!("{import} --force")).ok();
    server.weir("export create nbd tank/v").ok();
    assert_eq!(server.client("tank/v").read(0, 4096).unwrap(), vec![1; 4096]);
    server.stop_clean();
}
