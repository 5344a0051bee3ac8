//! End-to-end tests of access control: users of the machine, tokens over TCP and TLS, and files
//! that callers name in their calls.
//!
//! Not here: the role that each operation needs (weir-api tests the roles of all operations).
//!
//! Invariant: each refused access in these tests was once possible for every local user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::ports::free_address;
use crate::common::{
    Dirs, GIB, MIB, Ran, Server, WEIR, certificate, code, eventually, is_root, write_secret,
};
use rustix::process::Signal;

/// UID and GID of a user that owns no files.
const NOBODY: &str = "65534";

/// Starts a server that also listens on TCP. Returns the server and its TCP address.
fn serve(dirs: &Dirs, more: &[&str]) -> (Server, String) {
    let address = free_address();
    let mut command = dirs.serve();
    command.args(["--api", &address]).args(more);
    (Server::start(dirs, "", command), address)
}

/// Creates a token. Returns the path of its file.
fn token(server: &Server, dirs: &Dirs, name: &str, more: &str) -> String {
    let file = dirs.file(&format!("{name}.token")).display().to_string();
    server.weir(&format!("token create {name} {more} --out {file}")).ok();
    file
}

fn by_token(server: &Server, at: &str, file: &str, line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    server.weir_with(&words, &[("WEIR_API", at), ("WEIR_TOKEN_FILE", file)])
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
}

#[test]
fn tcp_callers_are_limited_to_the_role_and_scope_of_their_token() {
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let (server, at) = serve(&dirs, &[]);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/secret --size 8MiB").ok();
    let without = server.weir_with(&["pool", "list"], &[("WEIR_API", &at)]);
    without.fails(code::PERMISSION, &["token", "weir token create", "WEIR_TOKEN_FILE"]);

    let driver = token(&server, &dirs, "driver", "--role admin --scope tank/k8s-*");
    let viewer = token(&server, &dirs, "viewer", "--role viewer --expires 1h");
    let as_driver = |line: &str| by_token(&server, &at, &driver, line);
    as_driver("volume create tank/k8s-1 --size 8MiB").ok();
    as_driver("snapshot create tank/k8s-1@a").ok();
    for line in [
        "volume create tank/other --size 8MiB",
        "volume show tank/secret",
        "snapshot clone tank/k8s-1@a tank/other",
        "volume rename tank/k8s-1 tank/other",
        "snapshot create -r tank@b",
        "export create nbd tank/secret",
        "pool export tank",
        "token list",
    ] {
        as_driver(line).fails(code::PERMISSION, &["scope"]);
    }
    let list = as_driver("volume list").ok().out;
    assert!(list.contains("tank/k8s-1") && !list.contains("secret"), "{list}");
    let events = as_driver("events").ok().out;
    assert!(events.contains("tank/k8s-1") && !events.contains("secret"), "{events}");
    by_token(&server, &at, &viewer, "pool status tank").ok();
    by_token(&server, &at, &viewer, "volume create tank/x --size 8MiB")
        .fails(code::PERMISSION, &["operator", "viewer"]);

    // The history shows the token and its address, without the port.
    let history = server.weir("pool history tank").ok().out;
    assert!(history.contains("token driver from 127.0.0.1 "), "{history}");
    assert!(history.contains(&format!("uid {}", rustix::process::geteuid().as_raw())), "{history}");

    let tokens = server.weir("token list --json").json();
    assert_eq!(tokens["tokens"][0]["last_used_from"], "127.0.0.1");
    server.weir("token revoke driver").ok();
    as_driver("volume list").fails(code::PERMISSION, &["revoked"]);
    let refused = server.weir("token list --json").json();
    assert_eq!(refused["refused"], 1);
    assert!(server.weir("events").ok().out.contains("invalid token from 127.0.0.1"));

    // Only the token file of the caller contains the secret.
    let secret = fs::read_to_string(&viewer).unwrap();
    let secret = secret.trim();
    let kept = fs::read_to_string(dirs.short("state").join("tokens.json")).unwrap();
    assert!(!kept.contains(secret) && !server.talk().contains(secret));
    let bits = fs::metadata(dirs.short("state").join("tokens.json")).unwrap().permissions().mode();
    assert_eq!(bits & 0o777, 0o600);
    mode(Path::new(&viewer), 0o644);
    by_token(&server, &at, &viewer, "pool list").fails(code::PERMISSION, &["chmod 600", &viewer]);
    // Tokens survive a restart of the server.
    mode(Path::new(&viewer), 0o600);
    server.stop_clean();
    let (server, at) = serve(&dirs, &[]);
    by_token(&server, &at, &viewer, "pool status tank").ok();
    server.stop_clean();
}

#[test]
fn other_user_of_the_machine_is_refused_with_a_remedy() {
    if !is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    mode(&dirs.short(""), 0o755);
    // The other user cannot reach the build directory, so copy the program to this directory.
    let program = dirs.short("weir");
    fs::copy(WEIR, &program).unwrap();
    let socket = dirs.short("api");
    let as_nobody = |line: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        command.arg(&program).args(line.split(' ')).stdin(Stdio::null());
        command.env("WEIR_API", format!("unix:{}", socket.display())).current_dir("/");
        Ran::of(line, &command.output().unwrap())
    };
    as_nobody("pool list").fails(code::PERMISSION, &["usermod -aG weir"]);
    // Make the mode of the socket admit every user. The server then still refuses users by the peer
    // credentials that the kernel reports.
    mode(&socket, 0o666);
    as_nobody("pool destroy --yes tank").fails(code::PERMISSION, &["uid 65534", "usermod"]);
    assert!(server.weir("pool list").ok().out.contains("tank"));
    server.stop_clean();
}

#[test]
fn caller_may_use_only_files_in_allowed_directories() {
    // Regression: through a server that ran as root, any caller could overwrite a file of mode 0600
    // in a directory of mode 0700.
    let dirs = Dirs::new();
    let private = dirs.file("private");
    fs::create_dir(&private).unwrap();
    mode(&private, 0o700);
    let victim = private.join("victim");
    fs::write(&victim, vec![b'p'; 128 << 20]).unwrap();
    mode(&victim, 0o600);
    let disks = dirs.file("disks");
    fs::create_dir(&disks).unwrap();
    dirs.disk("disks/a", GIB);
    std::os::unix::fs::symlink(&victim, disks.join("link")).unwrap();
    let (server, at) = serve(&dirs, &["--disk-dir", &disks.display().to_string()]);
    let admin = token(&server, &dirs, "admin", "--role admin");
    let run = |line: &str| by_token(&server, &at, &admin, line);
    let (victim_path, link) = (victim.display(), disks.join("link"));
    for line in [
        format!("pool create --force bad {victim_path}"),
        format!("pool create --force bad {}", link.display()),
        format!("pool create --force bad {}/../private/victim", disks.display()),
        "pool create --force bad /dev/shm/weir-no-such".to_owned(),
    ] {
        let ran = run(&line);
        assert_ne!(ran.code, Some(0), "{line}");
        assert!(!ran.talk.contains("panicked"), "{}", ran.talk);
    }
    run(&format!("pool create --force bad {victim_path}"))
        .fails(code::PERMISSION, &["--disk-dir", "victim"]);
    assert!(fs::read(&victim).unwrap().iter().all(|byte| *byte == b'p'), "it was overwritten");
    run(&format!("pool create tank {}", disks.join("a").display())).ok();
    run(&format!("pool import -d {} none", private.display())).fails(code::NOT_FOUND, &[]);
    server.weir("volume create tank/v --size 8MiB").ok();

    certificate(&dirs, "peer");
    write_secret(&private.join("peer-secret"), "a-secret-of-the-server-alone\n");
    // The command line reads the secret file with the permissions of its user, and the server
    // stores the secret with mode 0600.
    let (ca, secret) = (dirs.file("peer.pem"), private.join("peer-secret"));
    run(&format!(
        "replicate create tank/v --to https://localhost:1/b/v --every 1h --ca {} --secret-file {}",
        ca.display(),
        secret.display()
    ))
    .ok();
    let kept: Vec<_> = fs::read_dir(dirs.short("state").join("secrets")).unwrap().collect();
    assert_eq!(kept.len(), 2, "a certificate and a secret");
    for file in kept {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    server.weir("replicate delete tank/v").ok();
    assert_eq!(fs::read_dir(dirs.short("state").join("secrets")).unwrap().count(), 0);
    // The user that runs the server may name any file as a disk.
    server.weir(&format!("pool create --force owned {victim_path}")).ok();
    server.stop_clean();
}

// Regression: a caller with the role operator could make the server send the server's own secret to
// any port. The server must prevent this if the call contains a certificate, and also if the call
// names a certificate file that the caller may name.
#[test]
fn only_the_owner_may_name_the_secret_file_of_the_server() {
    let dirs = Dirs::new();
    let [private, disks] = ["private", "disks"].map(|name| dirs.file(name));
    [&private, &disks].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    dirs.disk("disks/a", GIB);
    certificate(&dirs, "peer");
    let own = disks.join("own.pem");
    fs::copy(dirs.file("peer.pem"), &own).unwrap();
    let secrets = [private.join("secret"), disks.join("secret")];
    secrets.iter().for_each(|path| write_secret(path, "a-secret-of-the-server-alone\n"));
    let dir = disks.display().to_string();
    let (server, at) = serve(&dirs, &["--disk-dir", &dir, "--iscsi", "127.0.0.1:0"]);
    server.weir(&format!("pool create tank {}", disks.join("a").display())).ok();
    server.weir("volume create tank/v --size 8MiB").ok();
    server.weir("target create iqn.2026-01.org.weir:t").ok();
    let post = |token: &str, path: &str, body: &str| {
        let text = fs::read_to_string(token).unwrap();
        let header = format!("authorization: Bearer {}", text.trim());
        let url = format!("http://{at}/v1/{path}");
        let words =
            ["-sS", "-H", "content-type: application/json", "-H", &header, "-d", body, &url];
        crate::common::text(&crate::common::run("curl", &words))
    };
    let certificates = [("ca", "x".to_owned()), ("ca_file", own.display().to_string())];
    for role in ["operator", "admin"] {
        let token = token(&server, &dirs, role, &format!("--role {role}"));
        for secret in secrets.each_ref().map(|path| path.display()) {
            for (field, ca) in &certificates {
                let body = format!(
                    r#"{{"volume":"tank/v","to":"https://localhost:1/b/v","every_seconds":3600,
                        "{field}":"{ca}","secret_file":"{secret}"}}"#
                );
                let answer = post(&token, "replications", &body);
                let is_refused = answer.contains("permission") && answer.contains("--secret-file");
                assert!(is_refused, "{body}\n{answer}");
            }
            let body = format!(
                r#"{{"target":"iqn.2026-01.org.weir:t","initiator":"iqn.2026-01.org.example:a",
                    "chap":{{"user":"u","secret_file":"{secret}"}}}}"#
            );
            let answer = post(&token, "initiators", &body);
            assert!(answer.contains("permission"), "{answer}");
        }
    }
    server.stop_clean();
}

#[test]
fn files_readable_by_other_users_are_refused_at_start() {
    let dirs = Dirs::new();
    certificate(&dirs, "peer");
    write_secret(&dirs.file("secret"), "a-secret-of-both-of-them\n");
    let refused = |what: &Path, bits: u32, more: &[&str], command: &str| {
        mode(what, bits);
        let mut serve = dirs.serve();
        let output = serve.args(more).stdin(Stdio::null()).output().unwrap();
        let wanted = format!("{command} {}", what.display());
        Ran::of("serve", &output).fails(code::PERMISSION, &[&wanted]);
    };
    let state = dirs.short("state");
    fs::create_dir(&state).unwrap();
    for bits in [0o755, 0o750, 0o711, 0o1777] {
        refused(&state, bits, &[], "chmod 700");
    }
    mode(&state, 0o700);
    let path = |name: &str| dirs.file(name).display().to_string();
    let (secret, key, pem) = (path("secret"), path("peer.key"), path("peer.pem"));
    let peer = [
        "--peer-listen",
        "127.0.0.1:0",
        "--tls-cert",
        &pem,
        "--tls-key",
        &key,
        "--peer-secret-file",
        &secret,
    ];
    refused(&dirs.file("secret"), 0o644, &peer, "chmod 600");
    mode(&dirs.file("secret"), 0o600);
    refused(&dirs.file("peer.key"), 0o640, &peer, "chmod 600");
    mode(&dirs.file("peer.key"), 0o600);
    let mut command = dirs.serve();
    command.args(peer);
    Server::start(&dirs, "", command).stop_clean();
    // The server refuses plain TCP to other machines. The error names the option that enables TLS.
    let mut open = dirs.serve();
    let output = open.args(["--api", "0.0.0.0:0"]).stdin(Stdio::null()).output().unwrap();
    Ran::of("serve", &output).fails(code::INVALID, &["--tls-cert", "--api-open"]);
}

#[test]
fn tls_is_checked_before_a_token_is_sent_and_reloaded_on_hangup() {
    let dirs = Dirs::new();
    certificate(&dirs, "one");
    certificate(&dirs, "two");
    for end in ["key", "pem"] {
        fs::copy(dirs.file(&format!("one.{end}")), dirs.file(&format!("used.{end}"))).unwrap();
    }
    mode(&dirs.file("used.key"), 0o600);
    let path = |name: &str| dirs.file(name).display().to_string();
    let (pem, key) = (path("used.pem"), path("used.key"));
    let (server, at) = serve(&dirs, &["--tls-cert", &pem, "--tls-key", &key]);
    let at = at.replace("127.0.0.1", "https://localhost");
    let viewer = token(&server, &dirs, "viewer", "--role viewer");
    let show =
        |ca: &str| by_token(&server, &at, &viewer, &format!("server show --ca {}", path(ca)));
    show("one.pem").ok();
    show("two.pem").fails(code::UNAVAILABLE, &["certificate"]);
    by_token(&server, &at, &viewer, "server show").fails(code::INVALID, &["--ca"]);
    // The command line refuses to send a token to another machine in clear text.
    let plain = by_token(&server, "192.0.2.1:7117", &viewer, "server show");
    plain.fails(code::PERMISSION, &["clear text", "https://"]);

    for end in ["key", "pem"] {
        fs::copy(dirs.file(&format!("two.{end}")), dirs.file(&format!("used.{end}"))).unwrap();
    }
    server.signal(Signal::HUP);
    eventually("the new certificate is served", Duration::from_secs(20), || {
        show("two.pem").code == Some(0)
    });
    // If the new certificate is unusable, the server keeps the old certificate.
    fs::write(dirs.file("used.pem"), "rubbish").unwrap();
    server.signal(Signal::HUP);
    eventually("that is told", Duration::from_secs(20), || {
        server.weir("events").ok().out.contains("the old certificate stays in use")
    });
    show("two.pem").ok();
    assert!(server.resident_bytes() < 1024 * MIB);
    server.stop_clean();
}
