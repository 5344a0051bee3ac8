//! Who reaches NBD: addresses over TCP, users over the unix socket.
//!
//! Not here: the management interface (access.rs), hostile clients (bad_clients.rs).
//!
//! Invariant: a client that is turned away learns nothing, not even the greeting.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod common;

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Dirs, MIB, Ran, Server, code, eventually, is_root, tool};

/// A free port of loopback.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A server that offers `tank/v`, with these options and NBD on a port of loopback as well.
fn serve(dirs: &Dirs, options: &[&str]) -> (Server, String) {
    dirs.disk("a", 256 * MIB);
    let address = free_address();
    let mut command = dirs.serve();
    command.args(["--nbd", &address]).args(options);
    let server = Server::start(dirs, "", command);
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "16MiB");
    (server, address)
}

/// What the server says first; nothing where it closes the connection.
fn greeting(address: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    match stream.read(&mut greeting) {
        Ok(count) => greeting[..count].to_vec(),
        // A reset is an end as well.
        Err(_) => Vec::new(),
    }
}

fn refused(dirs: &Dirs, options: &[&str], code: i32, parts: &[&str]) {
    let mut serve = dirs.serve();
    let output = serve.args(options).stdin(Stdio::null()).output().unwrap();
    Ran::of(&options.join(" "), &output).fails(code, parts);
}

// Every local user read and wrote every volume over loopback.
#[test]
fn tcp_takes_only_clients_whose_address_is_named() {
    let dirs = Dirs::new();
    let address = free_address();
    refused(&dirs, &["--nbd", &address], code::INVALID, &["--nbd-allow 127.0.0.1"]);
    let (server, address) = serve(&dirs, &["--nbd-allow", "127.0.0.1"]);
    let uri = format!("nbd://{address}/tank/v");
    assert!(tool("nbdinfo", &["--size", &uri]).contains("16777216"));
    server.stop_clean();

    let mut command = dirs.serve();
    command.args(["--nbd", &address, "--nbd-allow", "127.0.0.2,10.0.0.0/8"]);
    let mut server = Server::start(&dirs, "", command);
    for _ in 0..20 {
        assert_eq!(greeting(&address), b"");
    }
    let line = "address not allowed";
    eventually("the log tells of it", Duration::from_secs(20), || server.talk().contains(line));
    // In ten seconds one line; more than that does not fit between two attempts here.
    assert!(server.talk().matches(line).count() <= 3, "{}", server.talk());
    assert!(tool("nbdinfo", &["--size", &server.uri("tank/v")]).contains("16777216"));
    server.assert_alive();
}

#[test]
fn default_is_the_unix_socket_alone() {
    let dirs = Dirs::new();
    let state = dirs.short("state").display().to_string();
    let api = format!("unix:{}", dirs.short("api").display());
    let mut command = std::process::Command::new(common::WEIR);
    command.args(["serve", "--memory", "256MiB", "--state", &state, "--api", &api]);
    let server = Server::start(&dirs, "", command);
    let shown = server.weir("server show --json").json();
    let listens = shown["nbd_addresses"].as_array().unwrap();
    assert_eq!(listens.len(), 1, "{shown}");
    assert_eq!(listens[0], format!("unix:{state}/nbd.sock").as_str());
}

/// The number of a group of this machine.
fn group_number(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields.find(|fields| fields[0] == name)?.get(2)?.parse().ok()
}

#[test]
fn unix_socket_is_for_the_user_of_the_server_and_one_group() {
    let dirs = Dirs::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let server = dirs.start();
    let has_group = is_root() && group_number("weir").is_some();
    assert_eq!(mode(server.nbd()), if has_group { 0o660 } else { 0o600 });
    server.stop_clean();
    refused(
        &dirs,
        &["--nbd-group", "no-such-group"],
        code::INVALID,
        &["no-such-group", "groupadd"],
    );
    if let Some(group) = group_number("nogroup").filter(|_| is_root()) {
        let mut command = dirs.serve();
        command.args(["--nbd-group", "nogroup"]);
        let server = Server::start(&dirs, "", command);
        let meta = fs::metadata(server.nbd()).unwrap();
        assert_eq!((meta.gid(), mode(server.nbd())), (group, 0o660));
    }
}

// Another user put a socket of its own in the place of the server's, and got the writes.
#[test]
fn socket_in_a_directory_that_others_write_to_is_refused_with_the_command() {
    let dirs = Dirs::new();
    let open = dirs.short("open");
    fs::create_dir(&open).unwrap();
    for bits in [0o777, 0o1777] {
        fs::set_permissions(&open, fs::Permissions::from_mode(bits)).unwrap();
        let socket = format!("unix:{}/nbd.sock", open.display());
        let mend = format!("chmod go-w {}", open.display());
        refused(&dirs, &["--nbd", &socket], code::PERMISSION, &[&mend]);
    }
}
