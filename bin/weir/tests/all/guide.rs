//! Runs the commands of the pages of docs/guide, of the pages in docs/operating and of
//! docs/bench.md as a reader pastes them.
//!
//! Not here: the examples in the help texts (`words`), the demo of the README (`demo`).
//!
//! Invariant: the test runs every command of the code blocks that are marked `sh` or `console`, and
//! changes only the paths of disks, sockets and secrets in them. Blocks that are marked `text` are
//! output, settings, or commands that need a second machine, root or hardware.

use std::path::Path;

use crate::common::{Dirs, GIB, Ran, Server, WEIR};
use crate::mounts::{Place, on_fuse};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const TANK: &str = "weir pool create tank mirror sda sdb; weir volume create tank/vm1 64MiB";

/// Commands that create the objects of a page. Each page starts with a server, empty disks and
/// a program `ssh` that runs its command on this machine.
const SETUP: &[(&str, &[&str])] = &[
    ("operating/advise", &[TANK, "weir volume create tank/small 64MiB"]),
    (
        "operating/check",
        &[
            "mkdir -p disk/by-id; mv sda sdb disk/by-id; ln -s disk/by-id/sda a.img",
            "ln -s disk/by-id/sdb b.img; weir pool create tank mirror disk/by-id/sd[ab]",
            "weir pool export tank",
        ],
    ),
    ("operating/dedupe", &[TANK, "weir volume create tank/vm2 64MiB"]),
    (
        "operating/disks",
        &[
            "weir pool create tank mirror sda sdb mirror sdc sdl mirror sdd sdm",
            "weir pool offline tank sdc; rm sdc; truncate -s 16G sdc",
            "weir pool offline tank sdd; mv sdd sde",
            "truncate -s 16G nvme0n1 nvme1n1",
        ],
    ),
    ("operating/flush-check", &[]),
    (
        "operating/iscsi",
        &[TANK, "umask 077; echo secret-of-esx1 > esx1.secret; echo secret-of-vms1 > vms.secret"],
    ),
    ("operating/memory", &[]),
    ("operating/nfs", &["weir pool create tank mirror sda sdb"]),
    ("operating/pool-status", &[TANK]),
    ("operating/properties", &[TANK, "weir volume create tank/media 64MiB"]),
    ("operating/quotas", &[TANK]),
    ("operating/records", &[TANK, "weir volume create tank/small 64MiB"]),
    (
        "operating/replication",
        &[TANK, "weir pool create back sdc; weir volume create back/vm1 64MiB"],
    ),
    (
        "operating/rescue",
        &[
            "mkdir -p disk/by-id; mv sda sdb disk/by-id; ln -s disk/by-id/sda a.img",
            "weir pool create tank mirror disk/by-id/sd[ab]; weir volume create tank/vm1 64MiB",
            "weir pool export tank",
        ],
    ),
    (
        "operating/send",
        &[
            TANK,
            "weir pool create back sdc",
            "for day in monday tuesday friday; do weir snapshot create tank/vm1@$day; done",
        ],
    ),
    ("operating/snapshots", &[TANK, "weir volume create tank/vm2 64MiB"]),
    ("bench", &[TANK]),
];

/// Server with empty disks and the shell of a reader.
struct Reader {
    server: Server,
    socket: String,
    path: String,
}

impl Reader {
    fn new(dirs: &Dirs) -> Self {
        for disk in 'a'..='m' {
            dirs.disk(&format!("sd{disk}"), 16 * GIB);
        }
        let mut command = dirs.serve();
        command.args(["--iscsi", "127.0.0.1:0", "--nfs", "127.0.0.1:0"]);
        let server = Server::start(dirs, "", command);
        let program = Path::new(WEIR).parent().unwrap().display();
        let path = format!("{}:{program}:{}", dirs.file("").display(), crate::common::path());
        let reader = Self { server, socket: dirs.short("nbd").display().to_string(), path };
        reader.run("printf '#!/bin/sh\\nshift; exec \"$@\"\\n' > ssh; chmod +x ssh").ok();
        reader
    }

    /// Runs a command line of a page.
    fn run(&self, line: &str) -> Ran {
        let script = line.replace("/dev/", "").replace("/tmp/", "").replace("/etc/weir/", "");
        let script = script.replace("/srv/", "./");
        let script = script.replace("/var/lib/weir/nbd.sock", &self.socket);
        let mut shell = self.server.shell(&format!("set -o pipefail; {script}"));
        Ran::of(line, &shell.env("PATH", &self.path).output().unwrap())
    }

    /// Runs all commands of a page; returns their number. A command whose output in the page
    /// starts with `weir:` must fail with this error, all others must succeed.
    fn run_page(&self, page: &str) -> usize {
        let mut count = 0;
        for (kind, text) in blocks(page) {
            let text = text.replace("\\\n", " ");
            let mut lines = text.lines().peekable();
            while let Some(line) = lines.next() {
                let command = match kind {
                    "sh" => line,
                    "console" if line.starts_with("$ ") => &line[2..],
                    "console" | "text" => continue,
                    other => panic!("a code block is marked {other:?}, not sh, console or text"),
                };
                let ran = self.run(command);
                match lines.peek().filter(|output| output.starts_with("weir: ")) {
                    Some(error) => assert!(ran.talk.contains(*error), "{ran:?}"),
                    None => assert_eq!(ran.code, Some(0), "{command}: {ran:?}"),
                }
                count += 1;
            }
        }
        count
    }
}

/// Returns the kind and the text of each code block.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').unwrap()).collect()
}

#[test]
fn commands_of_the_tour_work() {
    let dirs = Dirs::new();
    let reader = Reader::new(&dirs);
    let count = reader.run_page(include_str!("../../../../docs/guide/tour.md"));
    assert!(count > 25, "{count} commands");
}

#[test]
fn commands_of_the_filesystem_page_work() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let _places = ["home", "monday"].map(|name| Place::new(&dirs, name));
        let reader = Reader::new(&dirs);
        let count = reader.run_page(include_str!("../../../../docs/guide/filesystem.md"));
        assert!(count > 20, "{count} commands");
    });
}

/// Runs the commands of these pages, each with a new server.
fn run_pages(is_wanted: impl Fn(&str) -> bool) {
    for (name, setup) in SETUP.iter().filter(|(name, _)| is_wanted(name)) {
        let page = std::fs::read_to_string(format!("{ROOT}/docs/{name}.md")).unwrap();
        let dirs = Dirs::new();
        let reader = Reader::new(&dirs);
        for line in *setup {
            reader.run(line).ok();
        }
        let count = reader.run_page(&page);
        assert!(count > 0, "docs/{name}.md has an example");
    }
}

/// Pages with tests of their own, because their commands measure for a long time.
const SLOW: [&str; 2] = ["bench", "operating/iscsi"];

#[test]
fn commands_of_the_operating_pages_work() {
    let listed = std::fs::read_dir(format!("{ROOT}/docs/operating")).unwrap().count() + 1;
    assert_eq!(listed, SETUP.len(), "SETUP lists every page");
    run_pages(|page| !SLOW.contains(&page));
}

#[test]
fn commands_of_the_iscsi_page_work() {
    run_pages(|page| page == "operating/iscsi");
}

#[test]
fn commands_of_the_bench_page_work() {
    run_pages(|page| page == "bench");
}
