//! Invalid arguments on the command line and unsuitable disks: the server refuses them, names the
//! cause and the object, and changes nothing.
//!
//! Not here: invalid NBD requests (bad_clients.rs), disks that fail in use (failing_disks.rs).
//!
//! Invariant: every refusal names the object and has the exit code of its kind; every disk stays
//! unchanged, byte for byte.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, OpenOptions, Permissions};
use std::hash::{Hash, Hasher};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{SeekFrom, seek};

use weir_format::label::checksum_of;
use weir_format::layout::{CONFIG_BYTES, OWNER_OFFSET, SLOT_BYTES, label_offsets};

use crate::common::{Dirs, MIB, Ran, Server, WEIR, code, tool};

const DISK: u64 = 128 * MIB;

/// Returns a hash and the length of the content of a file. Leaves out the owner slots of both
/// labels, because a server that has imported the pool writes to them every few seconds.
fn sum(path: &Path) -> (u64, u64) {
    let file = fs::File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len();
    let slots = label_offsets(bytes).map(|label| label + OWNER_OFFSET);
    let mut hasher = DefaultHasher::new();
    let mut part = vec![0; SLOT_BYTES];
    let mut at = 0;
    // Skip the holes of these sparse files: they read as zeros, and the hash leaves out zeros.
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        let hole = seek(&file, SeekFrom::Hole(data)).unwrap();
        at = data - data % SLOT_BYTES as u64;
        while at < hole {
            let len = part.len().min((bytes - at) as usize);
            file.read_exact_at(&mut part[..len], at).unwrap();
            if !slots.contains(&at) && part[..len].iter().any(|byte| *byte != 0) {
                (at, &part[..len]).hash(&mut hasher);
            }
            at += len as u64;
        }
    }
    (bytes, hasher.finish())
}

/// A server, and disks that the test must not change.
struct Watched {
    // Fields are dropped in order: the server must end before its directories are removed.
    server: Server,
    dirs: Dirs,
    disks: Vec<PathBuf>,
}

impl Watched {
    fn new(names: &[&str]) -> Self {
        let dirs = Dirs::new();
        let disks = names.iter().map(|name| dirs.disk(name, DISK)).collect();
        let server = dirs.start();
        Self { server, dirs, disks }
    }

    /// Runs a command line that must fail with this error and change no disk.
    #[track_caller]
    fn refuses(&self, line: &str, code: i32, parts: &[&str]) {
        let before: Vec<_> = self.disks.iter().map(|disk| sum(disk)).collect();
        let state = fs::read(self.dirs.short("state/state.json")).ok();
        self.server.weir(line).fails(code, &[parts, &["weir: "]].concat());
        let after: Vec<_> = self.disks.iter().map(|disk| sum(disk)).collect();
        assert_eq!(before, after, "weir {line} changed a disk");
        let state_after = fs::read(self.dirs.short("state/state.json")).ok();
        assert_eq!(state, state_after, "weir {line} changed the server's state");
    }
}

/// Runs a server whose start must fail.
fn no_start(words: &[&str]) -> Ran {
    let mut command = Command::new("timeout");
    // If the server starts against expectation, `timeout` ends it, and the exit code shows this.
    command.args(["20", WEIR]).args(words).env_remove("WEIR_API");
    Ran::of(&words.join(" "), &command.output().unwrap())
}

#[test]
fn disks_with_data_need_force() {
    let mut all = Watched::new(&["pool", "ext4", "swap", "free"]);
    let [pool, ext4, swap, free] =
        ["pool", "ext4", "swap", "free"].map(|name| all.dirs.file(name).display().to_string());
    tool("mkfs.ext4", &["-q", "-F", &ext4]);
    tool("mkswap", &[&swap]);
    all.server.weir("pool create old pool").ok();
    all.server.weir("pool export old").ok();
    for (disk, what) in [(&pool, "pool \"old\""), (&ext4, "ext4"), (&swap, "swap")] {
        let parts = [disk.as_str(), what, "--force"];
        all.refuses(&format!("pool create new {disk}"), code::EXISTS, &parts);
        all.refuses(&format!("pool create new mirror {free} {disk}"), code::EXISTS, &parts);
    }
    // The server does not keep a refused disk open, so another server can use it.
    all.server.weir(&format!("pool create first {free}")).ok();
    for (disk, name) in [(&pool, "p"), (&ext4, "e"), (&swap, "s")] {
        all.server.weir(&format!("pool create --force {name} {disk}")).ok();
        assert_eq!(all.server.status(name)["state"], "online");
    }
    all.server.assert_alive();
}

#[test]
fn disk_is_not_used_twice() {
    let mut all = Watched::new(&["a", "b"]);
    symlink(all.dirs.file("a"), all.dirs.file("soft")).unwrap();
    fs::hard_link(all.dirs.file("a"), all.dirs.file("hard")).unwrap();
    for second in ["a", "./a", "soft", "hard"] {
        for layout in [format!("a {second}"), format!("mirror b a mirror c {second}")] {
            let parts = [second, "twice"];
            all.refuses(&format!("pool create tank {layout}"), code::INVALID, &parts);
        }
    }
    all.server.weir("pool create tank a").ok();
    for name in ["a", "soft", "hard"] {
        let line = format!("pool create --force other {name}");
        all.server.weir(&line).fails(code::BUSY, &[name, "is a disk of pool tank"]);
    }
    all.server.assert_alive();
}

#[test]
fn unusable_disks_are_refused() {
    let mut all = Watched::new(&["a", "ro"]);
    all.dirs.disk("small", 32 * MIB);
    all.dirs.disk("empty", 0);
    fs::create_dir(all.dirs.file("dir")).unwrap();
    fs::set_permissions(all.dirs.file("ro"), Permissions::from_mode(0o444)).unwrap();
    for (name, exit, part) in [
        ("small", code::INVALID, "has 32MiB, at least 64MiB are needed"),
        ("empty", code::INVALID, "at least"),
        ("absent", code::NOT_FOUND, "No such file"),
        ("dir", code::INVALID, "directory"),
        ("/dev/null", code::INVALID, "neither a file nor a block device"),
        ("ro", code::READ_ONLY, "read-only"),
    ] {
        let parts = [name, part];
        all.refuses(&format!("pool create tank {name}"), exit, &parts);
        all.refuses(&format!("pool create tank mirror a {name}"), exit, &parts);
    }
    assert!(!all.dirs.file("absent").exists(), "a missing disk was made");
    all.server.assert_alive();
}

#[test]
fn unequal_mirror_legs_use_the_smaller_size() {
    let mut all = Watched::new(&["a"]);
    all.dirs.disk("big", 4 * DISK);
    let talk = all.server.weir("pool create tank mirror a big").ok().talk;
    assert!(talk.contains("sizes differ") && talk.contains("128MiB of each"), "{talk}");
    let size = all.server.status("tank")["size_bytes"].as_u64().unwrap();
    assert!(size < DISK && size > DISK / 2, "{size}");
    all.server.weir("pool destroy tank --yes").ok();
    let json = all.server.weir("pool create tank mirror a big --json").json();
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(1), "{json:#}");
    // On the longer disk, the second label is where the shorter disk ends. The restarted server
    // must find the label there.
    all.server.kill();
    all.server = all.dirs.start();
    assert_eq!(all.server.status("tank")["state"], "online");
    all.server.assert_alive();
}

#[test]
fn disk_in_use_is_locked_by_one_server() {
    let mut all = Watched::new(&["a", "b"]);
    all.server.weir("pool create tank mirror a b").ok();
    let mut other = Server::start(&all.dirs, "2", all.dirs.serve_as("2"));
    let dir = all.dirs.file("");
    let import = format!("pool import -d {} tank", dir.display());
    let parts = ["\"tank\"", "skipped", "/a", "in use by another process"];
    other.weir(&import).fails(code::NOT_FOUND, &parts);
    for force in ["", "--force"] {
        let line = format!("pool create {force} mine {}", all.dirs.file("a").display());
        other.weir(&line).fails(code::BUSY, &["/a", "in use by another process"]);
    }
    assert_eq!(all.server.status("tank")["state"], "online");
    // After the export, the other server may import the pool.
    all.server.weir("pool export tank").ok();
    other.weir(&import).ok();
    all.server.weir(&import).fails(code::NOT_FOUND, &parts);
    other.assert_alive();
    all.server.assert_alive();
}

#[test]
fn state_directory_is_locked_by_one_server() {
    let mut all = Watched::new(&["a"]);
    all.server.weir("pool create tank a").ok();
    let state = all.dirs.short("state").display().to_string();
    let unix = |name: &str| format!("unix:{}", all.dirs.short(name).display());
    let (api, nbd) = (unix("api2"), unix("nbd2"));
    let second = ["serve", "--state", &state, "--api", &api, "--nbd", &nbd];
    no_start(&second).fails(code::BUSY, &[&state, "another weir"]);
    all.server.assert_alive();
}

#[test]
fn ports_in_use_prevent_the_start() {
    let mut all = Watched::new(&["a"]);
    all.server.weir("pool create tank a").ok();
    all.server.volume("tank/v", "16MiB");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let unix = |name: &str| format!("unix:{}", all.dirs.short(name).display());
    let (api, nbd) = (unix("api"), unix("nbd"));
    let (free_api, free_nbd) = (unix("free-api"), unix("free-nbd"));
    let state = all.dirs.short("state3").display().to_string();
    for (api, nbd, wrong) in [
        (&port, &free_nbd, &port),
        (&free_api, &port, &port),
        (&api, &free_nbd, &api),
        (&free_api, &nbd, &nbd),
    ] {
        let words = ["serve", "--api", api, "--nbd", nbd, "--state", &state];
        let words = [&words[..], &["--nbd-allow", "127.0.0.1"]].concat();
        no_start(&words).fails(code::BUSY, &[wrong, "try: "]);
    }
    fs::write(all.dirs.short("file"), "precious").unwrap();
    let file = unix("file");
    for (api, nbd) in [(&file, &free_nbd), (&free_api, &file)] {
        let ran = no_start(&["serve", "--api", api, "--nbd", nbd, "--state", &state]);
        assert!(!matches!(ran.code, Some(0 | 101 | 124)), "{:?}: {}", ran.code, ran.talk);
        assert!(ran.talk.contains("/file"), "{}", ran.talk);
    }
    assert_eq!(fs::read(all.dirs.short("file")).unwrap(), b"precious");
    assert_eq!(all.server.client("tank/v").size_bytes, 16 * MIB, "the first one was disturbed");
    all.server.assert_alive();
}

#[test]
fn disk_without_permission_is_refused() {
    let dirs = Dirs::new();
    // Give the server's user access to everything except the disk.
    fs::set_permissions(dirs.short(""), Permissions::from_mode(0o755)).unwrap();
    let mut command = dirs.serve();
    if rustix::process::geteuid().is_root() {
        // The server creates its sockets in a directory of its own user.
        std::os::unix::fs::chown(dirs.short(""), Some(65534), None).unwrap();
        // Root can access every disk, so run the server as user 65534.
        let copy = dirs.short("weir");
        fs::copy(WEIR, &copy).unwrap();
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
        nobody.args(command.get_args()).current_dir(dirs.short(""));
        command = nobody;
    }
    let secret = dirs.short("secret");
    fs::File::create(&secret).unwrap().set_len(DISK).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o0)).unwrap();
    let mut server = Server::start(&dirs, "", command);
    let line = format!("pool create tank {}", secret.display());
    server.weir(&line).fails(code::PERMISSION, &["/secret", "ermission denied"]);
    server.assert_alive();
}

#[test]
fn invalid_arguments_are_refused() {
    let mut all = Watched::new(&["a", "b"]);
    all.server.weir("pool create tank a").ok();
    all.server.volume("tank/v", "16MiB");
    for (line, exit, parts) in [
        ("pool create new b -o color=blue", code::INVALID, &["\"color\"", "nknown"][..]),
        ("volume create tank/w --size 1M -o color=blue", code::INVALID, &["color", "nknown"]),
        ("volume create tank/w --size 1M -o compression=zip", code::INVALID, &["zip", "lz4"]),
        ("volume set color=blue tank/v", code::INVALID, &["color"]),
        ("volume create tank/w --size 10GG", code::INVALID, &["10GG"]),
        ("volume create tank/w --size 0", code::INVALID, &["0", "empty"]),
        ("volume create tank/w --size -4096", code::INVALID, &["-4096", "negative"]),
        ("volume create tank/w --size 4097", code::INVALID, &["4097", "it has no unit"]),
        ("volume create tank/w --size 17TiB", code::INVALID, &["16TiB"]),
        ("volume resize tank/v --size 16777217", code::INVALID, &["16777217", "multiple"]),
        ("volume resize tank/v --size 10GG", code::INVALID, &["10GG"]),
        ("volume resize tank/v --size 0", code::INVALID, &["0"]),
        ("volume create tank/../w --size 1M", code::INVALID, &["bad volume name", "'/'"]),
        ("volume create tank --size 1M", code::INVALID, &["tank/vm1"]),
        ("volume create tank/w@1 --size 1M", code::INVALID, &["'@'"]),
        ("volume create none/w --size 1M", code::NOT_FOUND, &["\"none\""]),
        ("pool create 1new b", code::INVALID, &["'1'"]),
        ("pool create mirror b", code::INVALID, &["\"mirror\""]),
        ("pool create raidz9 b", code::INVALID, &["\"raidz\""]),
        ("pool create tank b", code::EXISTS, &["tank"]),
        ("pool create new mirror b", code::INVALID, &["two disks"]),
        ("volume create tank/v --size 1M", code::EXISTS, &["tank/v"]),
        ("volume destroy tank/v --yes", code::BUSY, &["tank/v", "exported"]),
        ("pool destroy tank --yes", code::BUSY, &["tank", "exported"]),
        ("pool destroy tank", code::INVALID, &["tank", "--yes"]),
        ("pool export tank", code::BUSY, &["tank/v"]),
        ("pool export none", code::NOT_FOUND, &["\"none\""]),
        ("pool import none -d .", code::NOT_FOUND, &["\"none\"", "-d"]),
        ("export create nbd tank/none", code::NOT_FOUND, &["tank/none"]),
        ("export create nbd tank/v --read-only", code::EXISTS, &["tank/v"]),
        ("export delete none", code::NOT_FOUND, &["none"]),
    ] {
        all.refuses(line, exit, parts);
    }
    all.server.assert_alive();
}

#[test]
fn volume_never_shrinks_below_its_data() {
    let mut all = Watched::new(&["a"]);
    all.server.weir("pool create tank a").ok();
    all.server.volume("tank/v", "16MiB");
    let data = vec![7; 4096];
    let mut client = all.server.client("tank/v");
    client.write(9 * MIB, &data).unwrap();
    // Acknowledged writes count as data of the volume, even before a flush.
    let parts = ["tank/v", "holds data up to", "try: TRIM", "blkdiscard --offset 9MiB DEVICE"];
    all.server.weir("volume resize tank/v --size 9MiB").fails(code::INVALID, &parts);
    assert_eq!(client.read(9 * MIB, 4096).unwrap(), data);
    all.server.weir("volume resize tank/v --size 10MiB").ok();
    all.server.weir("volume resize tank/v --size 32MiB").ok();
    assert_eq!(all.server.client("tank/v").read(9 * MIB, 4096).unwrap(), data);
    assert_eq!(all.server.client("tank/v").read(31 * MIB, 4096).unwrap(), vec![0; 4096]);
    client.trim(9 * MIB, 4096).unwrap();
    all.server.weir("volume resize tank/v --size 9MiB").ok();
    assert_eq!(all.server.client("tank/v").size_bytes, 9 * MIB);
    all.server.assert_alive();
}

/// Changes the version in every copy of a disk's config, together with the checksum of the config.
fn set_version(path: &Path, version: u8) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let end = file.metadata().unwrap().len();
    for label in [0, end - MIB] {
        for copy in [label, label + (64 << 10)] {
            let mut config = vec![0; CONFIG_BYTES];
            file.read_exact_at(&mut config, copy).unwrap();
            config[8] = version;
            let body = u32::from_le_bytes(*config[12..].first_chunk().unwrap()) as usize;
            let checksum = checksum_of(version.into(), &config[32..32 + body]);
            config[16..32].copy_from_slice(&checksum.to_le_bytes());
            file.write_all_at(&config, copy).unwrap();
        }
    }
}

#[test]
fn pool_of_a_newer_format_is_refused() {
    labels_of_another_format(99, &["version 99 is newer", "use a newer weir"]);
}

/// Regression: a pool of the first pre-release was reported as a damaged pool of this version.
#[test]
fn pool_of_an_older_format_is_refused() {
    let parts = ["version 1 is older", "older pre-release", "copy the data to a new pool"];
    labels_of_another_format(1, &parts);
}

fn labels_of_another_format(version: u8, parts: &[&str]) {
    let mut all = Watched::new(&["a", "b"]);
    all.server.weir("pool create tank mirror a b").ok();
    all.server.volume("tank/v", "16MiB");
    let server = all.server;
    server.stop_clean();
    for disk in &all.disks {
        set_version(disk, version);
    }
    let before: Vec<_> = all.disks.iter().map(|disk| sum(disk)).collect();
    all.server = all.dirs.start();
    let status = all.server.status("tank");
    let text = status["status"].as_str().unwrap();
    assert_eq!(status["state"], "unavailable", "{status:#}");
    assert!(parts.iter().all(|part| text.contains(part)) && text.contains("/a"), "{text}");
    assert!(status["action"].is_string(), "{status:#}");
    all.refuses(
        "volume create tank/w --size 1M",
        code::UNAVAILABLE,
        &[&["tank"][..], parts].concat(),
    );
    all.refuses("pool create new a", code::EXISTS, &[&["/a"][..], parts].concat());
    let refused = crate::common::nbd::Client::connect(all.server.nbd(), "tank/v").err().unwrap();
    assert!(refused.to_string().contains("tank/v"), "{refused}");
    all.server.weir("pool export --force tank").ok();
    let dir = all.dirs.file("").display().to_string();
    let import = format!("pool import -d {dir} tank");
    let told = ["tank", "/a", "import it with the Weir version that wrote it"];
    all.refuses(&import, code::NOT_FOUND, &[&told[..], parts].concat());
    let after: Vec<_> = all.disks.iter().map(|disk| sum(disk)).collect();
    assert_eq!(before, after);
    all.server.assert_alive();
}
