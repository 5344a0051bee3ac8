//! Access to NBD exports: by address and certificate over TCP, by user over the unix socket.
//!
//! Not here: the management interface (access.rs), hostile clients (bad_clients.rs).
//!
//! Invariant: a client that the server refuses gets no data from it, not even the greeting.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::common::ports::free_address;
use crate::common::{Dirs, MIB, Ran, Server, code, eventually, is_root, run, tool};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Starts a server with these options that exports `tank/v`, also on a TCP port of loopback.
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

/// Returns the greeting of the server; empty if the server closes the connection without one.
fn greeting(address: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    match stream.read(&mut greeting) {
        Ok(count) => greeting[..count].to_vec(),
        // A connection reset counts as the end of the connection.
        Err(_) => Vec::new(),
    }
}

fn refused(dirs: &Dirs, options: &[&str], code: i32, parts: &[&str]) {
    let mut serve = dirs.serve();
    let output = serve.args(options).stdin(Stdio::null()).output().unwrap();
    Ran::of(&options.join(" "), &output).fails(code, parts);
}

// Regression: over loopback, every local user could read and write every volume.
#[test]
fn tcp_accepts_only_allowed_addresses() {
    let dirs = Dirs::new();
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
    // The log has at most one such line in ten seconds, and the connections above took less than 30
    // s.
    assert!(server.talk().matches(line).count() <= 3, "{}", server.talk());
    assert!(tool("nbdinfo", &["--size", &server.uri("tank/v")]).contains("16777216"));
    server.assert_alive();
}

#[test]
fn nbd_listens_only_on_the_unix_socket_by_default() {
    let dirs = Dirs::new();
    let state = dirs.short("state").display().to_string();
    let api = format!("unix:{}", dirs.short("api").display());
    let mut command = std::process::Command::new(crate::common::WEIR);
    command.args(["serve", "--memory", "256MiB", "--state", &state, "--api", &api]);
    let server = Server::start(&dirs, "", command);
    let shown = server.weir("server show --json").json();
    let listens = shown["nbd_addresses"].as_array().unwrap();
    assert_eq!(listens.len(), 1, "{shown}");
    assert_eq!(listens[0], format!("unix:{state}/nbd.sock").as_str());
}

/// Returns the GID of a group of this machine.
fn group_number(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields.find(|fields| fields[0] == name)?.get(2)?.parse().ok()
}

#[test]
fn unix_socket_is_open_to_the_server_user_and_one_group() {
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

// Regression: another user could replace the server's socket by a socket of their own, and so
// received the writes of clients.
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

/// Creates a CA with this name, and certificates of the CA for a server and a client. The files are
/// named as standard clients expect: the directory NAME contains `ca-cert.pem`, `client-cert.pem`
/// and `client-key.pem`.
fn certificates(dirs: &Dirs, name: &str) {
    let dir = dirs.file(name);
    fs::create_dir(&dir).unwrap();
    let path = |file: &str| dir.join(file).display().to_string();
    let (ca, ca_key) = (path("ca-cert.pem"), path("ca-key.pem"));
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let of_ca = ["-x509", "-days", "30", "-subj", "/CN=weir-ca", "-keyout", &ca_key, "-out", &ca];
    let signs = ["-addext", "keyUsage=critical,keyCertSign"];
    tool("openssl", &[&new[..], &of_ca, &signs].concat());
    for (whose, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let [pem, key] = ["cert", "key"].map(|end| path(&format!("{whose}-{end}.pem")));
        let subject = format!("/CN={whose}");
        let usage = format!("extendedKeyUsage={usage}");
        let end = ["-x509", "-days", "30", "-CA", &ca, "-CAkey", &ca_key, "-subj", &subject];
        let names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", &usage];
        let more = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let use_of_key = ["-addext", "keyUsage=critical,digitalSignature"];
        let to = ["-keyout", &key, "-out", &pem];
        tool("openssl", &[&new[..], &end, &names, &more, &use_of_key, &to].concat());
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&key, private).unwrap();
    }
}

/// Runs `qemu-img info` on an export over TLS with the certificates in the directory `creds`.
fn qemu_img(dirs: &Dirs, creds: &str, address: &str) -> std::process::Output {
    let dir = dirs.file(creds).display().to_string();
    let object = format!("tls-creds-x509,id=tls0,dir={dir},endpoint=client");
    let (host, port) = address.split_once(':').unwrap();
    let image = format!(
        "driver=nbd,server.type=inet,server.host={host},server.port={port},export=tank/v,\
         tls-creds=tls0"
    );
    run("qemu-img", &["info", "--object", &object, "--image-opts", &image])
}

#[test]
fn standard_clients_use_starttls_and_others_are_refused() {
    let dirs = Dirs::new();
    certificates(&dirs, "ours");
    certificates(&dirs, "strangers");
    let path = |name: &str| dirs.file(name).display().to_string();
    let (pem, key) = (path("ours/server-cert.pem"), path("ours/server-key.pem"));
    let tls = ["--nbd-tls", "--tls-cert", &pem, "--tls-key", &key, "--nbd-allow", "127.0.0.1"];
    let (mut server, address) = serve(&dirs, &tls);
    let uri = |dir: &str| format!("nbds://{address}/tank/v?tls-certificates={}", path(dir));
    let info = tool("nbdinfo", &[&uri("ours")]);
    assert!(info.contains("with TLS"), "{info}");
    let shown = server.weir("export list --json").ok().out;
    assert!(shown.contains(&format!("nbds://{address}/tank/v")), "{shown}");

    // The client writes and reads long ranges concurrently.
    let image: Vec<u8> = (0..16 * MIB).map(|at| (at / 4096 * 31 + at % 251) as u8).collect();
    fs::write(dirs.file("image"), &image).unwrap();
    tool("nbdcopy", &["--flush", &path("image"), &uri("ours")]);
    tool("nbdcopy", &[&uri("ours"), &path("back")]);
    assert!(fs::read(dirs.file("back")).unwrap() == image, "what was written is read");
    let output = qemu_img(&dirs, "ours", &address);
    assert!(output.status.success(), "{}", crate::common::text(&output));

    let plain = run("nbdinfo", &[&format!("nbd://{address}/tank/v")]);
    assert!(!plain.status.success(), "clear text was taken");
    let wrong = run("nbdinfo", &[&uri("strangers")]);
    assert!(!wrong.status.success(), "a server that no certificate vouches for was believed");

    // If a client sends clear text after STARTTLS, the server closes the connection without a
    // reply.
    let mut injected = TcpStream::connect(&address).unwrap();
    injected.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 18];
    injected.read_exact(&mut greeting).unwrap();
    let starttls = b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0";
    let list = b"IHAVEOPT\0\0\0\x03\0\0\0\0";
    injected.write_all(&[&starttls[..], list].concat()).unwrap();
    let mut answer = Vec::new();
    // A connection reset counts as the end of the connection.
    drop(injected.read_to_end(&mut answer));
    assert!(answer.is_empty(), "{answer:?}");
    // TLS is required only over TCP; the unix socket needs none.
    assert!(tool("nbdinfo", &["--size", &server.uri("tank/v")]).contains("16777216"));
    server.assert_alive();
}

#[test]
fn clients_with_a_certificate_need_no_address() {
    let dirs = Dirs::new();
    certificates(&dirs, "ours");
    certificates(&dirs, "strangers");
    let path = |name: &str| dirs.file(name).display().to_string();
    let (pem, key) = (path("ours/server-cert.pem"), path("ours/server-key.pem"));
    let ca = path("ours/ca-cert.pem");
    let tls = ["--nbd-tls", "--tls-cert", &pem, "--tls-key", &key, "--nbd-tls-client-ca", &ca];
    let (mut server, address) = serve(&dirs, &tls);
    let uri = |dir: &str| format!("nbds://{address}/tank/v?tls-certificates={}", path(dir));
    assert!(tool("nbdinfo", &[&uri("ours")]).contains("with TLS"));
    let output = qemu_img(&dirs, "ours", &address);
    assert!(output.status.success(), "{}", crate::common::text(&output));
    // Both clients below trust the CA of the server. One has a certificate of another CA, the other
    // has none.
    fs::copy(&ca, dirs.file("strangers/ca-cert.pem")).unwrap();
    assert!(!run("nbdinfo", &[&uri("strangers")]).status.success());
    for end in ["cert", "key"] {
        fs::remove_file(dirs.file(&format!("strangers/client-{end}.pem"))).unwrap();
    }
    assert!(!run("nbdinfo", &[&uri("strangers")]).status.success());
    assert!(!qemu_img(&dirs, "strangers", &address).status.success());
    server.assert_alive();
}

/// Returns a TLS client that trusts the CA in the directory `ours`.
fn tls_client(dirs: &Dirs) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(dirs.file("ours/ca-cert.pem")).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

/// Connects to the server from this local address.
fn connect_from(from: [u8; 4], address: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::from((from, 0))).unwrap();
    connect(&fd, &address.parse::<SocketAddr>().unwrap()).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Connects like [`connect_from`], and negotiates until the server has acknowledged STARTTLS.
fn started_tls(from: [u8; 4], address: &str) -> TcpStream {
    let mut stream = connect_from(from, address);
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
    stream
}

/// Returns the first TLS records of the client, which contain `bytes` in encrypted form.
fn records(tls: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    tls.writer().write_all(bytes).unwrap();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    records
}

// Clients that never complete a TLS handshake or a TLS record must not delay other clients.
#[test]
fn clients_stalled_in_tls_delay_no_other_client() {
    let dirs = Dirs::new();
    certificates(&dirs, "ours");
    let path = |name: &str| dirs.file(name).display().to_string();
    let (pem, key) = (path("ours/server-cert.pem"), path("ours/server-key.pem"));
    let tls = ["--nbd-tls", "--tls-cert", &pem, "--tls-key", &key, "--nbd-allow", "127.0.0.0/8"];
    let (mut server, address) = serve(&dirs, &tls);
    let uri = format!("nbds://{address}/tank/v?tls-certificates={}", path("ours"));

    let hello = records(&mut tls_client(&dirs), b"");
    let mut stopped = Vec::new();
    for n in 0..200 {
        let mut stream = started_tls([127, 0, 0, 2], &address);
        // Each client sends one of three: half of a message, an invalid record, or nothing.
        match n % 3 {
            0 => stream.write_all(&hello[..hello.len() / 2]).unwrap(),
            1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            _ => {}
        }
        stopped.push(stream);
    }
    assert!(tool("nbdinfo", &["--size", &uri]).contains("16777216"));

    // This client sends half of a TLS record in the middle of a session. The server must still be
    // able to close the connection.
    let mut stream = started_tls([127, 0, 0, 3], &address);
    let mut tls = tls_client(&dirs);
    tls.complete_io(&mut stream).unwrap();
    let go = b"IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x06tank/v\0\0";
    stream.write_all(&records(&mut tls, go)).unwrap();
    let connections = "/exports/0/connections";
    let clients =
        || server.weir("export list --json").json().pointer(connections) == Some(&1.into());
    eventually("the client is counted", Duration::from_secs(20), clients);
    let record = records(&mut tls, &[0; 28]);
    stream.write_all(&record[..record.len() / 2]).unwrap();
    server.weir("export delete tank/v --force").ok();
    // A connection reset counts as the end of the connection.
    drop(stream.read_to_end(&mut Vec::new()));
    server.assert_alive();
    drop(stopped);
    server.stop_clean();
}

/// Sends the option GO for an export. Returns the type of the server's first reply and the
/// connection; `None` if the server closes the connection.
fn go(from: [u8; 4], address: &str, export: &str) -> Option<(u32, TcpStream)> {
    let mut stream = connect_from(from, address);
    stream.read_exact(&mut [0; 18]).ok()?;
    let name = export.as_bytes();
    let len = [name.len() as u32 + 6, name.len() as u32].map(u32::to_be_bytes);
    let parts = [b"\0\0\0\x03IHAVEOPT\0\0\0\x07", &len[0][..], &len[1], name, b"\0\0"];
    stream.write_all(&parts.concat()).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).ok()?;
    Some((u32::from_be_bytes(reply[12..16].try_into().unwrap()), stream))
}

const INFO: u32 = 3;
const UNKNOWN: u32 = 0x8000_0006;

#[test]
fn export_is_invisible_to_other_tcp_addresses() {
    let dirs = Dirs::new();
    let (mut server, address) = serve(&dirs, &["--nbd-allow", "127.0.0.0/8"]);
    let (ours, theirs) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let seen = |from, export| go(from, &address, export).expect("a server").0;
    assert_eq!((seen(ours, "tank/v"), seen(theirs, "tank/v")), (INFO, INFO));
    let (_, mut cut_off) = go(theirs, &address, "tank/v").unwrap();
    let (_, mut stays) = go(ours, &address, "tank/v").unwrap();

    server.weir("export set tank/v --allow 127.0.0.1").ok();
    assert_eq!((seen(ours, "tank/v"), seen(theirs, "tank/v")), (INFO, UNKNOWN));
    drop(cut_off.read_to_end(&mut Vec::new()));
    stays.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let error = stays.read_to_end(&mut Vec::new()).expect_err("the connection stays");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert!(tool("nbdinfo", &["--size", &server.uri("tank/v")]).contains("16777216"));
    let list = server.weir("export list -v").ok().out;
    assert!(list.contains("ALLOW") && list.contains("127.0.0.1/32"), "{list}");
    let create = "export create nbd tank/v --allow 127.0.0.2";
    server.weir(create).fails(code::EXISTS, &["weir export set tank/v --allow"]);
    server.weir("export set tank/v --allow 127.0.0.7/8").fails(code::INVALID, &["127.0.0.0/8"]);

    // The allow list of the export survives a restart.
    server.stop_clean();
    let mut command = dirs.serve();
    command.args(["--nbd", &address, "--nbd-allow", "127.0.0.0/8"]);
    server = Server::start(&dirs, "", command);
    assert_eq!((seen(ours, "tank/v"), seen(theirs, "tank/v")), (INFO, UNKNOWN));
    server.weir("export set tank/v --allow any").ok();
    assert_eq!(seen(theirs, "tank/v"), INFO);
    server.assert_alive();
}

#[test]
fn delete_of_an_export_names_the_addresses_of_its_clients() {
    let dirs = Dirs::new();
    let (mut server, address) = serve(&dirs, &["--nbd-allow", "127.0.0.0/8"]);
    let open = |from: u8| go([127, 0, 0, from], &address, "tank/v").expect("a server").1;
    let first = open(1);
    let delete = "export delete tank/v";
    server.weir(delete).fails(code::BUSY, &["export tank/v has 1 connection from 127.0.0.1\n"]);
    let _rest = [open(1), open(2), open(3)];
    let _local = server.client("tank/v");
    let all = "export tank/v has 5 connections from 127.0.0.1, 127.0.0.2, 127.0.0.3, the unix \
               socket\n";
    server.weir(delete).fails(code::BUSY, &[all]);
    let _fifth = open(4);
    let most = "127.0.0.1, 127.0.0.2, 127.0.0.3, 127.0.0.4 and 1 more\n";
    server.weir(delete).fails(code::BUSY, &["export tank/v has 6 connections from ", most]);
    // An address is named as long as one of its connections is open.
    drop(first);
    eventually("the server counts the end", Duration::from_secs(20), || {
        server.weir(delete).talk.contains("has 5 connections from 127.0.0.1, ")
    });
    server.weir("export delete tank/v --force").ok();
    server.assert_alive();
}

#[test]
fn export_allow_lists_suffice_without_a_server_list() {
    let dirs = Dirs::new();
    let (mut server, address) = serve(&dirs, &[]);
    let seen = |from: u8, export| go([127, 0, 0, from], &address, export).map(|(kind, _)| kind);
    assert_eq!(seen(1, "tank/v"), None, "no export names an address");
    server.weir("volume create tank/w --size 16MiB").ok();
    let made = server.weir("export create nbd tank/w --allow 127.0.0.1,127.0.0.4/30").ok().out;
    assert!(made.contains(&format!("nbd://{address}/tank/w")), "{made}");
    assert_eq!((seen(1, "tank/w"), seen(5, "tank/w")), (Some(INFO), Some(INFO)));
    assert_eq!(seen(2, "tank/w"), None);
    assert_eq!(seen(1, "tank/v"), Some(UNKNOWN), "it names no address");
    let unix_only = server.weir("export list --json").json();
    let of_v = unix_only["exports"].as_array().unwrap().iter().find(|one| one["name"] == "tank/v");
    assert!(!of_v.unwrap()["uris"].to_string().contains(&address), "{unix_only}");
    server.weir("export delete tank/w").ok();
    assert_eq!(seen(1, "tank/w"), None);
    server.assert_alive();
}
