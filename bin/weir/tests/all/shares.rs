//! NFS shares with libnfs, a client that runs without a kernel: rules, statistics, shares of
//! mounted filesystems, refused calls, restarts and rollbacks.
//!
//! Not here: the kernel of Linux as a client (shares_kernel), each procedure (weir-nfs).
//!
//! Invariant: every client command has a time limit, because an NFS client waits for its server.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::common::ports::free_port;
use crate::common::{Dirs, GIB, Server, code, eventually, is_root, run, text};
use crate::mounts::{Place, on_fuse};

const LIMIT: Duration = Duration::from_secs(30);

/// A server with a pool and a filesystem, tank/home, that listens for NFS.
pub(crate) struct Served {
    dirs: Dirs,
    pub(crate) server: Server,
    pub(crate) port: u16,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with(serve)
    }

    fn with(serve: impl FnOnce(&Dirs, u16) -> Server) -> Self {
        let (dirs, port) = (Dirs::new(), free_port());
        dirs.disk("disk-a", 2 * GIB);
        let server = serve(&dirs, port);
        server.weir("pool create tank disk-a").ok();
        server.weir("filesystem create tank/home").ok();
        Self { dirs, server, port }
    }

    /// Shares tank/home with programs of this machine, which have no reserved port.
    pub(crate) fn share(&self) {
        self.server
            .weir("share create nfs tank/home --allow 127.0.0.1:no_root_squash,insecure")
            .ok();
    }

    /// URL of a path, such as /tank/home/file.
    fn url(&self, path: &str) -> String {
        let port = self.port;
        format!("nfs://127.0.0.1{path}?version=3&nfsport={port}&mountport={port}")
    }

    fn list(&self, path: &str) -> Output {
        run("timeout", &["30", "nfs-ls", &self.url(path)])
    }

    /// Names in a directory.
    #[track_caller]
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let output = self.list(path);
        assert!(output.status.success(), "{}", text(&output));
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut names: Vec<String> = out
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    pub(crate) fn read(&self, path: &str) -> Output {
        run("timeout", &["30", "nfs-cat", &self.url(path)])
    }

    /// Copies this text into a new file.
    pub(crate) fn write(&self, path: &str, content: &str) -> Output {
        let source = self.dirs.file("source");
        fs::write(&source, content).unwrap();
        run("timeout", &["30", "nfs-cp", source.to_str().unwrap(), &self.url(path)])
    }

    fn shown(&self, name: &str) -> Value {
        self.server.weir(&format!("share show {name} --json")).json()
    }
}

fn serve(dirs: &Dirs, port: u16) -> Server {
    let mut command = dirs.serve();
    command.args(["--nfs", &format!("127.0.0.1:{port}")]);
    Server::start(dirs, "", command)
}

/// Starts a server that sees a copy of /etc with other contents of these files, in its own mount
/// namespace. The copy is the directory `etc` of the test.
fn serve_with_etc(dirs: &Dirs, port: u16, files: &[(&str, &str)]) -> Server {
    const SCRIPT: &str = r#"
        cp -a /etc "$1" && cp "$2"/* "$1" && mount --bind "$1" /etc && shift 2 && exec "$@"
    "#;
    let (copy, own) = (dirs.file("etc"), dirs.file("own"));
    fs::create_dir(&own).unwrap();
    files.iter().for_each(|(name, content)| fs::write(own.join(name), content).unwrap());
    let mut serve = dirs.serve();
    serve.args(["--nfs", &format!("127.0.0.1:{port}")]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).args([copy, own]);
    command.arg(serve.get_program()).args(serve.get_args()).env_remove("WEIR_API");
    command.current_dir(serve.get_current_dir().expect("a test has its own directory"));
    Server::start(dirs, "", command)
}

/// Starts a server whose user database has the user 7007 in 20 groups: 8000 to 8019.
fn serve_with_groups(dirs: &Dirs, port: u16) -> Server {
    let of_anna = (8000..8020).map(|gid| format!("g{gid}:x:{gid}:anna\n"));
    let groups = format!("root:x:0:\nanna:x:7007:\n{}", of_anna.collect::<String>());
    let users = "root:x:0:0::/:/bin/sh\nanna:x:7007:7007::/:/bin/sh\n";
    serve_with_etc(dirs, port, &[("passwd", users), ("group", &groups)])
}

/// Name services without a network.
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files\nnetgroup: files\n";

#[test]
fn host_names_and_netgroups_are_clients_of_a_share() {
    if !is_root() {
        return;
    }
    let served = Served::with(|dirs, port| {
        let hosts = "127.0.0.1 localhost client.example\n";
        let netgroups = "admins (client.example,,) (other.example,,)\n";
        let files = [("hosts", hosts), ("netgroup", netgroups), ("nsswitch.conf", NSSWITCH)];
        serve_with_etc(dirs, port, &files)
    });
    let server = &served.server;
    let share = |words: &[&str]| server.weir_words(&[&["share"], words].concat());
    let rule = |client: &str, right: &str| format!("{client}:{right},no_root_squash,insecure");
    let allow = |client, right| {
        share(&["allow", "tank/home", &rule(client, right)]).ok();
        // On a busy machine, a lookup may end after the call.
        eventually("the lookups end", LIMIT, || {
            let shown = served.shown("tank/home");
            let names = shown["names"].as_array().unwrap().clone();
            names.iter().all(|name| name["age_seconds"].is_u64())
        });
    };
    let create = ["create", "nfs", "tank/home", "--allow", &rule("nowhere.example", "rw")];
    let created = share(&create).ok();
    assert!(created.talk.contains("nowhere.example has no address now: "), "{}", created.talk);
    assert!(!served.list("/tank/home").status.success(), "the name grants nothing");
    allow("Client.example", "ro");
    assert_eq!(served.names("/tank/home"), [""; 0]);
    assert!(!served.write("/tank/home/f", "text").status.success(), "read-only");
    allow("@admins", "rw");
    assert!(!served.write("/tank/home/f", "text").status.success(), "the host name decides");
    share(&["deny", "tank/home", "client.example"]).ok();
    allow("127.0.0.0/8", "ro");
    assert!(served.write("/tank/home/f", "text").status.success(), "the netgroup decides");
    let shown = served.shown("tank/home");
    let [nowhere, admins] = [0, 1].map(|at| &shown["names"][at]);
    assert_eq!(
        (&nowhere["name"], &nowhere["address_count"]),
        (&"nowhere.example".into(), &0.into())
    );
    assert!(nowhere["problem"].is_string(), "{shown}");
    assert_eq!(
        (&admins["name"], &admins["addresses"][0]),
        (&"@admins".into(), &"127.0.0.1".into())
    );
    let problem = admins["problem"].as_str().unwrap();
    assert!(problem.starts_with("other.example: "), "{problem}");
    let lines = share(&["show", "tank/home"]).ok().out;
    for part in ["@admins: 127.0.0.1; other.example: ", "nowhere.example has no address now: "] {
        assert!(lines.contains(part), "{lines}");
    }
    // A name gets its address later.
    share(&["deny", "tank/home", "127.0.0.0/8", "@admins"]).ok();
    assert!(!served.list("/tank/home").status.success(), "no rule names the client now");
    fs::write(served.dirs.file("etc").join("hosts"), "127.0.0.1 nowhere.example\n").unwrap();
    eventually("the next lookup finds the address", 2 * LIMIT, || {
        served.list("/tank/home").status.success()
    });
    share(&["allow", "tank/home", "*.example"]).fails(code::INVALID, &["wildcards", "/16"]);
    share(&["allow", "tank/home", "@no-such-group"]).ok();
    let unknown = &served.shown("tank/home")["names"][1];
    assert!(unknown["problem"].as_str().unwrap().contains("nsswitch.conf"), "{unknown}");
}

#[test]
fn users_have_more_groups_than_a_call_carries_with_manage_gids() {
    if !is_root() {
        return;
    }
    let served = Served::with(serve_with_groups);
    served.share();
    let source = served.dirs.file("source");
    fs::write(&source, "of a group").unwrap();
    let of = |uid: u32, gid: u32| format!("{}&uid={uid}&gid={gid}", served.url("/tank/home/f"));
    let written = run("timeout", &["30", "nfs-cp", source.to_str().unwrap(), &of(0, 8019)]);
    assert!(written.status.success(), "{}", text(&written));
    let read = || run("timeout", &["30", "nfs-cat", &of(7007, 7007)]);
    assert!(!read().status.success(), "the call has only the group 7007");
    let rule = "127.0.0.1:no_root_squash,insecure,manage_gids";
    served.server.weir_words(&["share", "allow", "tank/home", rule]).ok();
    // On a busy machine, a lookup may take more than a second.
    eventually("the lookup succeeds", LIMIT, || read().status.success());
    assert_eq!(String::from_utf8_lossy(&read().stdout), "of a group");
    let shown = served.server.weir("server show --json").json();
    assert_eq!(shown["nfs_addresses"][0], format!("127.0.0.1:{}", served.port));
}

#[test]
fn clients_have_the_rights_of_the_rules_of_a_share() {
    let served = Served::new();
    let server = &served.server;
    let created = server.weir("share create nfs tank/home").ok();
    assert!(created.talk.contains("no client may use it yet"), "{}", created.talk);
    assert!(!served.list("/tank/home").status.success(), "there is no rule");
    let allow = |rule: &str| server.weir_words(&["share", "allow", "tank/home", rule]).ok();
    allow("127.0.0.1:ro,no_root_squash,insecure");
    assert_eq!(served.names("/tank/home"), [""; 0]);
    assert!(!served.write("/tank/home/f", "text").status.success(), "read-only");
    allow("127.0.0.0/24:rw,no_root_squash,insecure");
    assert!(!served.write("/tank/home/f", "text").status.success(), "the longer prefix decides");
    server.weir("share deny tank/home 127.0.0.1").ok();
    assert!(served.write("/tank/home/f", "text").status.success());
    assert_eq!(String::from_utf8_lossy(&served.read("/tank/home/f").stdout), "text");
    assert_eq!(served.names("/tank/home"), ["f"]);
    let listed = server.weir("share list -H -o name,allow").ok().out;
    assert_eq!(listed.trim(), "tank/home\t127.0.0.0/24:rw,no_root_squash,insecure");
    server.weir("share deny tank/home 127.0.0.0/24").ok();
    assert!(!served.read("/tank/home/f").status.success(), "no rule names the client any more");

    let figures = server.weir("share stat tank/home --json").json();
    let calls = |of: &Value, class: &str| of["calls"][class]["calls"].as_u64().unwrap();
    assert_eq!(figures["calls"]["written_bytes"], 4);
    assert_eq!(figures["calls"]["read_bytes"], 4);
    let client = &figures["clients"][0];
    assert_eq!(client["address"], "127.0.0.1");
    for class in ["reads", "writes", "metadata"] {
        assert!(calls(&figures, class) > 0 && calls(client, class) == calls(&figures, class));
        let of = &figures["calls"][class];
        let [p50, p99] = ["p50_us", "p99_us"].map(|field| of[field].as_u64().unwrap());
        assert!(p50 <= p99, "{of}");
    }
    let lines = server.weir("share stat tank/home").ok().out;
    assert!(lines.lines().count() == 3 && lines.contains("127.0.0.1"), "{lines}");
}

#[test]
fn events_count_refused_squashed_and_stale_calls() {
    let served = Served::new();
    let server = &served.server;
    server.weir("share create nfs tank/home --allow 10.9.9.9").ok();
    assert!(!served.list("/tank/home").status.success(), "no rule names the client");
    let event = |kind: &str| {
        let lines = server.weir("events --pool tank --json").json();
        let events = lines["events"].as_array().expect("a list of events").clone();
        events.into_iter().find(|event| event["kind"] == kind)
    };
    eventually("an event reports the refused call", LIMIT, || event("share_refused").is_some());
    let refused = event("share_refused").unwrap();
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("share tank/home: ") && message.contains("127.0.0.1"), "{message}");
    assert_eq!(refused["level"], "warning");
    // Root of the client is the anonymous user, which may not create files.
    server.weir_words(&["share", "allow", "tank/home", "127.0.0.1:insecure"]).ok();
    let as_root = format!("{}&uid=0&gid=0", served.url("/tank/home/f"));
    let source = served.dirs.file("source");
    fs::write(&source, "text").unwrap();
    let written = run("timeout", &["30", "nfs-cp", source.to_str().unwrap(), &as_root]);
    assert!(!written.status.success(), "{}", text(&written));
    let figures = server.weir("share stat tank/home --json").json();
    let count = |field: &str| figures[field].as_u64().unwrap();
    assert!(count("refused") > 0 && count("squashed") > 0, "{figures}");
    assert_eq!(count("stale"), 0, "{figures}");
    let shown = server.weir("share stat tank/home").ok();
    assert!(shown.talk.contains(" calls squashed, "), "{}", shown.talk);
}

#[test]
fn share_and_mount_show_the_same_files() {
    on_fuse(|| {
        let served = Served::new();
        served.share();
        let home = Place::new(&served.dirs, "home");
        served.server.weir(&format!("mount tank/home {}", home.text())).ok();
        fs::write(home.at("from-mount"), "mount").unwrap();
        assert_eq!(String::from_utf8_lossy(&served.read("/tank/home/from-mount").stdout), "mount");
        assert!(!home.at("from-nfs").exists());
        assert!(served.write("/tank/home/from-nfs", "nfs").status.success());
        assert_eq!(fs::read(home.at("from-nfs")).unwrap(), b"nfs");
        served.server.weir("filesystem quota tank/home --user 7 1MiB").ok();
        served.server.weir("unmount tank/home").ok();
        assert_eq!(served.names("/tank/home"), ["from-mount", "from-nfs"]);
        let quota = served.server.weir("filesystem usage tank/home --by user -H").ok().out;
        assert!(quota.contains("1048576"), "{quota}");
        served.server.weir("share delete tank/home").ok();
        served.server.weir("mount tank/home").ok();
        assert_eq!(fs::read(home.at("from-nfs")).unwrap(), b"nfs");
        served.server.weir("unmount tank/home").ok();
    });
}

#[test]
fn directories_are_shared_under_their_own_names() {
    on_fuse(|| {
        let served = Served::new();
        served.share();
        let home = Place::new(&served.dirs, "home");
        served.server.weir(&format!("mount tank/home {}", home.text())).ok();
        fs::create_dir_all(home.at("a/b")).unwrap();
        assert!(served.write("/tank/home/a/b/deep", "deep").status.success());
        let create = |more: &[&str]| {
            let rule = ["share", "create", "nfs", "tank/home", "--allow", "127.0.0.1:ro,insecure"];
            served.server.weir_words(&[&rule, more].concat())
        };
        create(&["--directory", "/a/b/"]).ok();
        assert_eq!(served.shown("tank/home/a/b")["directory"], "a/b");
        assert_eq!(served.names("/tank/home/a/b"), ["deep"], "the longest path decides");
        assert!(!served.write("/tank/home/a/b/new", "").status.success(), "read-only");
        assert!(!served.list("/tank/home/a/b/..").status.success(), "no way out of the directory");
        create(&["--name", "b", "--directory", "a/b"]).ok();
        assert_eq!(served.names("/b"), ["deep"]);
        create(&["--directory", "x"]).fails(code::NOT_FOUND, &["tank/home has no directory x"]);
        create(&["--directory", "a/b/deep"]).fails(code::NOT_FOUND, &["no directory a/b/deep"]);
        for bad in ["../etc", "a/../a", "a//b", "."] {
            create(&["--directory", bad]).fails(code::INVALID, &["directory"]);
        }
        served.server.weir("unmount tank/home").ok();
    });
}

#[test]
fn calls_that_would_pull_a_filesystem_from_under_its_clients_are_refused() {
    let served = Served::new();
    let server = &served.server;
    served.share();
    let again = "share create nfs tank/home --allow 127.0.0.1:no_root_squash,insecure";
    assert!(server.weir(again).ok().talk.contains("nothing changed"));
    server
        .weir("share create nfs tank/home")
        .fails(code::EXISTS, &["exists already", "share allow"]);
    server
        .weir("filesystem destroy tank/home --yes")
        .fails(code::BUSY, &["is shared as", "share delete"]);
    server.weir("pool destroy tank --yes").fails(code::BUSY, &["is shared as"]);
    server.weir("pool export tank").fails(code::BUSY, &["is shared as"]);
    server.weir("volume create tank/vm --size 64MiB").ok();
    server.weir("share create nfs tank/vm").fails(code::INVALID, &["is a volume"]);
    server.weir("share create nfs tank/none").fails(code::NOT_FOUND, &["tank/none"]);
    server.weir("share create smb tank/home").fails(code::INVALID, &["smb"]);
    server.weir("share create tank/home nfs").fails(code::INVALID, &["the protocol comes first"]);
    server.weir("share allow tank/home 10.0.0.0/99").fails(code::INVALID, &["10.0.0.0/99"]);
    server.weir("share allow tank/home 10.0.0.1:rx").fails(code::INVALID, &["rx"]);
    server.weir("share deny tank/home 10.9.9.9").fails(code::NOT_FOUND, &["no rule for 10.9.9.9"]);
    server.weir("share delete none").fails(code::NOT_FOUND, &["none"]);
    server.weir("snapshot create tank/home@a").ok();
    server.weir("share create nfs tank/home@a").fails(code::INVALID, &["tank/home@a"]);

    // A rename keeps the name of the share, which clients mount.
    assert!(served.write("/tank/home/f", "text").status.success());
    server.weir("filesystem rename tank/home tank/users").ok();
    assert_eq!(served.shown("tank/home")["filesystem"], "tank/users");
    assert_eq!(served.names("/tank/home"), ["f"]);
    // A rollback keeps the share too, but the file is newer than the snapshot.
    server.weir("snapshot rollback tank/users@a --yes").ok();
    assert_eq!(served.names("/tank/home"), [""; 0]);
    assert!(served.shown("tank/home")["unavailable"].is_null());

    server.weir("share delete tank/home").ok();
    assert!(!served.list("/tank/home").status.success());
    server.weir("filesystem destroy tank/users -r --yes").ok();
    server.weir("pool export tank").ok();
}

#[test]
fn shares_and_their_rules_are_limited() {
    let served = Served::new();
    let server = &served.server;
    for number in 0..64 {
        server.weir(&format!("share create nfs tank/home --name s{number}")).ok();
    }
    server.weir("share create nfs tank/home").fails(code::NO_SPACE, &["64 shares"]);
    server.weir("share delete s7").ok();
    let rules: Vec<String> = (0..=255).map(|number| format!("10.0.0.{number}")).collect();
    let mut words = vec!["share", "create", "nfs", "tank/home"];
    words.extend(rules.iter().flat_map(|rule| ["--allow", rule]));
    server.weir_words(&words).ok();
    server.weir("share allow tank/home 10.0.1.0").fails(code::NO_SPACE, &["256 rules"]);
    words.extend(["--name", "other", "--allow", "10.0.1.0"]);
    server.weir_words(&words).fails(code::INVALID, &["256 rules"]);
    let names: Vec<String> = (0..=64).map(|number| format!("@group{number}")).collect();
    let mut words = vec!["share", "create", "nfs", "tank/home", "--name", "other"];
    words.extend(names.iter().flat_map(|name| ["--allow", name]));
    server.weir_words(&words).fails(code::NO_SPACE, &["64 host names and netgroups"]);
}

#[test]
fn shares_return_with_their_pool() {
    let Served { dirs, server, port } = Served::new();
    let served = Served { dirs, server, port };
    served.share();
    assert!(served.write("/tank/home/f", "text").status.success());
    let Served { dirs, server, port } = served;
    server.kill();
    let served = Served { server: serve(&dirs, port), dirs, port };
    assert_eq!(served.names("/tank/home"), ["f"], "after SIGKILL");
    // A forced export ends the shares of the pool.
    served.server.weir("pool export tank --force").ok();
    assert!(!served.list("/tank/home").status.success());
    served.server.weir("share show tank/home").fails(code::NOT_FOUND, &["tank/home"]);
    served.server.weir("pool import tank -d .").ok();
    served.share();
    assert_eq!(served.names("/tank/home"), ["f"]);
    let Served { dirs, server, port } = served;
    server.stop_clean();
    // Without --nfs the share stays, and its description says why no client can use it.
    let server = dirs.start();
    let shown = server.weir("share show tank/home --json").json();
    assert!(shown["unavailable"].as_str().unwrap().contains("--nfs"), "{shown}");
    server.weir("share delete tank/home").ok();
    let mut other = dirs.serve_as("-b");
    other.args(["--nfs", &format!("127.0.0.1:{port}"), "--nfs", &format!("127.0.0.1:{port}")]);
    let twice = other.output().unwrap();
    assert_eq!(twice.status.code(), Some(code::INVALID), "{}", text(&twice));
    eventually("the port is free", LIMIT, || !served_at(port));
}

fn served_at(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}
