//! Runs the commands of the tour (docs/guide/tour.md) as a reader pastes them.
//!
//! Not here: the examples in the help texts (`words`), the demo of the README (`demo`).
//!
//! Invariant: the test runs every line of the code blocks that are marked `sh`, and changes only
//! the names of the disks and of the socket in them.

use crate::common::{Dirs, GIB, Ran, Server, WEIR};

#[test]
fn commands_of_the_tour_work() {
    const TOUR: &str = include_str!("../../../../docs/guide/tour.md");
    let dirs = Dirs::new();
    for disk in 'b'..='f' {
        dirs.disk(&format!("sd{disk}"), 16 * GIB);
    }
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let server = Server::start(&dirs, "", command);
    let program = std::path::Path::new(WEIR).parent().unwrap();
    let path = format!("{}:{}", program.display(), crate::common::path());
    let socket = dirs.short("nbd").display().to_string();
    let mut count = 0;
    for block in TOUR.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for line in block.lines() {
            let script = line.replace("/dev/", "").replace("/tmp/", "");
            let script = script.replace("/var/lib/weir/nbd.sock", &socket);
            let mut shell = server.shell(&format!("set -o pipefail; {script}"));
            let ran = Ran::of(line, &shell.env("PATH", &path).output().unwrap());
            assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
            count += 1;
        }
    }
    assert!(count > 25, "{count} commands");
}
