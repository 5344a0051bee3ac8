//! NFS shares with the most common client: the Linux kernel.
//!
//! Not here: clients without a kernel and refused calls (shares), full and failing pools
//! (shares_trouble), each procedure (weir-nfs).
//!
//! Invariants:
//! - the client is the kernel of a guest ([`crate::common::uml`]); this machine mounts nothing;
//! - tests wait for conditions, so no result depends on the speed of this machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::network::{Network, SUBNETS};
use crate::common::uml::Guest;
use crate::common::{Dirs, GIB, Server, code, eventually};
use crate::mounts::{Place, on_fuse_within};

const LIMIT: Duration = Duration::from_mins(1);

/// Mounts the path $1 of the server at the directory $2.
const FUNCTIONS: &str = r#"
mount_share() {
    mkdir -p "$2"
    local options="vers=3,tcp,nolock,port=2049,mountport=2049,mountproto=tcp,${3:-hard}"
    mount -t nfs -o "$options" "$host:$1" "$2"
}
"#;

/// Command of a server for a guest.
pub(crate) fn command(dirs: &Dirs) -> Command {
    let mut command = dirs.serve();
    command.args(["--nfs", &format!("{}:2049", SUBNETS[0].here)]);
    command
}

fn serve(dirs: &Dirs, network: &Network) -> Server {
    Server::start(dirs, "", network.inside(&command(dirs)))
}

/// Starts a server with the share tank/home, and a guest that has mounted it at /mnt/home.
fn mounted(dirs: &Dirs, network: &Network) -> (Server, Guest) {
    dirs.disk("a", 2 * GIB);
    let server = serve(dirs, network);
    server.weir("pool create tank a").ok();
    let guest = client_of(&server, network);
    (server, guest)
}

/// Creates the share tank/home, and starts a guest that has mounted it at /mnt/home.
pub(crate) fn client_of(server: &Server, network: &Network) -> Guest {
    server.weir("filesystem create tank/home").ok();
    let rule = format!("{}:no_root_squash", SUBNETS[0].there);
    server.weir_words(&["share", "create", "nfs", "tank/home", "--allow", &rule]).ok();
    let mut guest = Guest::boot(network);
    guest.run(&format!("cat >>/run/functions <<'END'\nhost={}\n{FUNCTIONS}\nEND", SUBNETS[0].here));
    guest.run("modprobe nfsv3; mount_share /tank/home /mnt/home");
    guest
}

fn statistics(server: &Server) -> Value {
    server.weir("share stat tank/home --json").json()
}

// A client keeps its mount and its handles while the server is killed and starts again.
#[test]
fn client_continues_after_the_server_was_killed() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (mut server, mut guest) = mounted(&dirs, &network);
    guest.run(
        "cd /mnt/home; mkdir -p src; cp -r /usr/include/linux src/; echo synced >synced; sync",
    );
    guest.start(
        "writer",
        "for number in $(seq 200); do
            head -c 100000 /dev/zero | tr '\\0' x >/mnt/home/file-$number
            sync /mnt/home/file-$number
        done",
    );
    for _ in 0..4 {
        let before = statistics(&server)["calls"]["writes"]["calls"].as_u64().unwrap();
        let writes = || statistics(&server)["calls"]["writes"]["calls"].as_u64().unwrap();
        eventually("the client writes", LIMIT, || writes() > before);
        server.kill();
        server = serve(&dirs, &network);
    }
    guest.join("writer", Duration::from_mins(3));
    let out = guest.run(
        "cd /mnt/home; cat synced; diff -r src/linux /usr/include/linux && echo same
        for file in file-*; do tr -d x <$file | wc -c; done | sort | uniq -c
        stat -c %s file-* | sort | uniq -c",
    );
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words, ["synced", "same", "200", "0", "200", "100000"], "{out}");
    guest.run("umount /mnt/home");
    server.stop_clean();
}

// Permissions of files that a program creates without the right to write (git objects, install),
// appends by two clients, exclusive creation, and what one client sees of another.
#[test]
fn programs_of_two_mounts_work_as_on_a_local_disk() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (server, mut guest) = mounted(&dirs, &network);
    guest.run("mount_share /tank/home /mnt/second nosharecache,hard");
    let out = guest.run(
        "cd /mnt/home; chmod 1777 .
        echo data >/tmp/source; install -m 444 /tmp/source installed; cat installed
        ( set -o noclobber; echo one >exclusive; ! echo two >exclusive ) 2>/dev/null; cat exclusive
        for number in $(seq 20); do
            echo a$number >>appended; sync appended
            echo b$number >>/mnt/second/appended; sync /mnt/second/appended
        done
        wc -l <appended
        echo close-to-open >seen; cat /mnt/second/seen
        ln seen linked; stat -c %h /mnt/second/seen
        mkfifo fifo; mknod device c 1 3; stat -c %F fifo device
        touch -d 2001-02-03T04:05:06 seen; stat -c %Y seen
        mv seen moved; ls | wc -l; rm -r fifo device; ls | wc -l",
    );
    let lines: Vec<&str> = out.lines().collect();
    let expected = [
        "data",
        "one",
        "40",
        "close-to-open",
        "2",
        "fifo",
        "character special file",
        "981173106",
        "7",
        "5",
    ];
    assert_eq!(lines, expected, "{out}");
    let git = "cd /mnt/home; export GIT_AUTHOR_DATE=2001-02-03T04:05:06Z HOME=/tmp
        git config --global user.email a@b; git config --global user.name c
        git init -q tree; cd tree; cp /usr/include/linux/*.h .; git add .; git commit -qm all
        git fsck --full --strict; cd ..; git clone -q tree copy; git -C copy fsck; echo clean";
    assert!(guest.run_within(Duration::from_mins(3), git).ends_with("clean\n"));
    guest.run("umount /mnt/second /mnt/home");
    server.stop_clean();
}

// Both kernels cache files: the one of the mount on the server, and the one of the client.
#[test]
fn mount_of_the_server_sees_the_changes_of_a_client_at_once() {
    on_fuse_within(Duration::from_mins(4), || {
        let (dirs, network) = (Dirs::new(), Network::new());
        let (server, mut guest) = mounted(&dirs, &network);
        let home = Place::new(&dirs, "home");
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        for round in 0..3 {
            let (text, longer) = (format!("round {round}"), format!("a longer text {round}"));
            fs::write(home.at("file"), &text).unwrap();
            let seen = guest.run(&format!(
                "cd /mnt/home; cat file; echo {longer} >file; touch new-{round}; mkdir -p dir
                rm -f old-*; touch old-{round}; chmod 640 dir"
            ));
            assert_eq!(seen, text, "a client that opens a file sees the last close");
            assert_eq!(fs::read_to_string(home.at("file")).unwrap(), format!("{longer}\n"));
            let mut names: Vec<_> = fs::read_dir(home.at("")).unwrap().map(name).collect();
            names.sort();
            assert_eq!(names.len(), 4 + round, "{names:?}");
            assert!(home.at(&format!("old-{round}")).exists());
            let mode = fs::metadata(home.at("dir")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
            fs::set_permissions(home.at("dir"), Permissions::from_mode(0o755)).unwrap();
        }
        guest.run("umount /mnt/home");
        server.weir("unmount tank/home").ok();
        server.stop_clean();
    });
}

fn name(entry: std::io::Result<fs::DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}

/// File with the process number of rpcbind; dropping the `Rpcbind` ends the process.
struct Rpcbind(PathBuf);

impl Drop for Rpcbind {
    fn drop(&mut self) {
        let pid = fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

// With rpcbind, a client needs no port in its command.
#[test]
fn client_finds_the_server_through_rpcbind() {
    let (dirs, network) = (Dirs::new(), Network::new());
    dirs.disk("a", 2 * GIB);
    // rpcbind has a /run of its own.
    let script = "mount -t tmpfs run /run && { rpcbind -f & } && echo $! >\"$0\" && \
        until [ -S /run/rpcbind.sock ]; do sleep 0.1; done && exec \"$@\"";
    let rpcbind = Rpcbind(dirs.file("rpcbind.pid"));
    let mut command = dirs.serve();
    command.args(["--nfs", &format!("{}:2049", SUBNETS[0].here), "--rpcbind"]);
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "sh", "-c", script]).arg(&rpcbind.0).arg(command.get_program());
    wrapped.args(command.get_args()).current_dir(command.get_current_dir().unwrap());
    let server = Server::start(&dirs, "", network.inside(&wrapped));
    server.weir("pool create tank a").ok();
    server.weir("filesystem create tank/home").ok();
    server.weir("filesystem quota tank/home --user root 1GiB").ok();
    let rule = format!("{}:no_root_squash", SUBNETS[0].there);
    let created = server.weir_words(&["share", "create", "nfs", "tank/home", "--allow", &rule]);
    let command = created.ok().out.trim().to_owned();
    assert!(command.starts_with("mount -t nfs ") && !command.contains("port="), "{command}");
    let mut guest = Guest::boot(&network);
    guest.run(&format!("modprobe nfsv3; {command}; echo text >/mnt/file; cat /mnt/file"));
    let here = SUBNETS[0].here;
    let out = guest.run(&format!("rpcinfo -p {here}; showmount -e {here}; umount /mnt"));
    for program in ["nfs", "mountd", "nfs_acl", "rquotad", "nlockmgr"] {
        assert!(out.contains(program), "{program} is missing: {out}");
    }
    assert!(out.contains(&format!("/tank/home {}", SUBNETS[0].there)), "{out}");
    server.stop_clean();
    drop(rpcbind);
}

// Linux mounts each snapshot below the share by itself, as a file system of its own.
#[test]
fn client_enters_snapshots_and_gets_errors_after_their_destruction() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (server, mut guest) = mounted(&dirs, &network);
    guest.run("cd /mnt/home; mkdir d; echo monday >file; echo deep >d/below; sync file d/below");
    server.weir("snapshot create tank/home@monday").ok();
    guest.run("cd /mnt/home; echo tuesday >file; rm -r d; sync file");
    server.weir("snapshot create tank/home@tuesday").ok();
    let out = guest.run(
        "cd /mnt/home; ls -A; cd .weir/snapshot; ls; cat monday/file tuesday/file monday/d/below
        cp -a monday/file ../../restored; cat ../../restored
        stat -c %d .. monday tuesday | sort -u | wc -l; find monday tuesday -type f | wc -l
        tar -C monday -cf - . | tar -tf - | grep -c file",
    );
    let words: Vec<&str> = out.split_whitespace().collect();
    let expected = "file monday tuesday monday tuesday deep monday 3 3 1";
    assert_eq!(words, expected.split(' ').collect::<Vec<_>>(), "{out}");
    let refused = guest.run(
        "cd /mnt/home/.weir/snapshot; export LC_ALL=C
        touch monday/new 2>&1 || :; rm monday/file 2>&1 || :; mkdir new 2>&1 || :",
    );
    assert_eq!(refused.matches("Read-only file system").count(), 3, "{refused}");

    guest.start(
        "reader",
        "cd /mnt/home/.weir/snapshot/monday; until [ -e /run/end ]; do cat file || :; done",
    );
    server.weir("snapshot destroy tank/home@monday --yes").ok();
    guest
        .run("cd /mnt/home/.weir/snapshot; until_true sh -c '! cat monday/file'; cat tuesday/file");
    guest.run("touch /run/end");
    guest.join("reader", LIMIT);
    server.weir("snapshot rollback tank/home@tuesday --yes").ok();
    guest.run("until_true grep -q tuesday /mnt/home/file; umount -R /mnt/home");
    server.stop_clean();
}

// The operator takes files and shares away from a client that uses them.
#[test]
fn client_gets_errors_and_never_hangs_when_its_share_goes() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (server, mut guest) = mounted(&dirs, &network);
    guest.run("cd /mnt/home; echo old >kept; sync kept");
    server.weir("snapshot create tank/home@a").ok();
    guest.run("cd /mnt/home; echo newer >kept; echo new >new; sync kept new");
    guest.start(
        "load",
        "until [ -e /run/end ]; do
            for number in 1 2 3 4 5; do echo $number >/mnt/home/load-$number || :; done
            cat /mnt/home/load-* >/dev/null || :
        done 2>/dev/null",
    );
    server.weir("snapshot rollback tank/home@a --yes").ok();
    guest.run("until_true grep -q old /mnt/home/kept; until_true test ! -e /mnt/home/new");

    // The rules change while the client is mounted.
    let rule = format!("{}:ro,no_root_squash", SUBNETS[0].there);
    server.weir_words(&["share", "allow", "tank/home", &rule]).ok();
    guest.run("! touch /mnt/home/refused; until_true grep -q old /mnt/home/kept");
    let busy = format!("such as {}", SUBNETS[0].there);
    server.weir("share delete tank/home").fails(code::BUSY, &[&busy, "--force"]);
    assert_eq!(server.weir("share show tank/home --json").json()["clients"], 1);
    server.weir("share delete tank/home --force").ok();
    let stale = guest.run("LC_ALL=C ls /mnt/home 2>&1 || :; touch /run/end");
    assert!(stale.contains("Stale file handle"), "{stale}");
    guest.join("load", LIMIT);

    // The share with the same name and directory accepts the old handles.
    let rule = format!("{}:no_root_squash", SUBNETS[0].there);
    server.weir_words(&["share", "create", "nfs", "tank/home", "--allow", &rule]).ok();
    guest.run("until_true grep -q old /mnt/home/kept; umount /mnt/home");
    server.stop_clean();
}
