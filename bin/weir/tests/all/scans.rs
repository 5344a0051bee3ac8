//! Scans across restarts of the server: the result of the last scan, and the position of a scrub.
//!
//! Not here: the repairs of a scrub (healing).

use std::time::Duration;

use serde_json::Value;

use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Server, eventually};

const DISK: u64 = 512 * MIB;
/// Time limit, on a busy machine, for steps that usually take seconds.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Starts a server with a pool `tank` that has 96 MiB of data.
fn filled(dirs: &Dirs) -> Server {
    dirs.disk("a", DISK);
    dirs.disk("b", DISK);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "128MiB");
    let mut client = server.client("tank/v");
    let mut rng = Rng::new(16);
    let mut data = vec![0; MIB as usize];
    for number in 0..96 {
        rng.fill(&mut data);
        client.write(number * MIB, &data).unwrap();
    }
    client.flush().unwrap();
    server.weir("snapshot create tank/v@all").ok();
    server
}

fn scan(server: &Server) -> Value {
    server.status("tank")["scan"].clone()
}

fn line(server: &Server) -> String {
    let status = server.weir("pool status tank").ok().out;
    status.lines().find(|line| line.trim_start().starts_with("scan:")).unwrap_or("").to_owned()
}

// Regression: after each restart `scan:` was empty, so users could not see when the last scrub had
// run.
#[test]
fn finished_scrub_is_shown_after_a_restart() {
    let dirs = Dirs::new();
    let server = filled(&dirs);
    server.weir("pool scrub --wait tank").ok();
    let before = line(&server);
    assert!(before.contains("scrub repaired 0B") && before.contains("with 0 errors on 20"));
    server.stop_clean();
    let server = dirs.start();
    assert_eq!(line(&server), before);
    // The disk needs no resilver, so `--wait` must return at once: the finished scrub is no reason
    // to wait.
    server.weir("pool online --wait tank a").ok();
    server.weir("export delete tank/v").ok();
    server.weir("pool export tank").ok();
    let place = dirs.file("").display().to_string();
    server.weir(&format!("pool import tank -d {place}")).ok();
    assert_eq!(line(&server), before);
    // The server records a finished scrub at once, so a kill does not lose its result.
    server.kill();
    assert_eq!(line(&dirs.start()), before);
}

#[test]
fn paused_scrub_stays_paused_and_resumes_at_its_place() {
    let dirs = Dirs::new();
    let server = filled(&dirs);
    // If the scrub finishes before the pause takes effect, start it again.
    eventually("it is paused", TIMEOUT, || {
        server.weir("pool scrub tank").ok();
        server.weir("pool scrub --pause tank").code == Some(0)
    });
    let before = scan(&server);
    assert_eq!(before["state"], "paused");
    server.stop_clean();
    let server = dirs.start();
    let after = scan(&server);
    for field in ["kind", "state", "started_unix_ms", "total_bytes"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    // The pause takes effect after the current segment, which then counts as examined.
    let examined = |scan: &Value| scan["examined_bytes"].as_u64().unwrap();
    assert!(examined(&after) >= examined(&before), "{before} {after}");
    server.weir("pool scrub --wait tank").ok();
    let done = scan(&server);
    assert_eq!(
        (&done["state"], &done["started_unix_ms"]),
        (&"finished".into(), &before["started_unix_ms"])
    );
    assert_eq!(done["errors"], 0);
}

#[test]
fn interrupted_scrub_resumes_with_an_event() {
    let dirs = Dirs::new();
    let mut server = filled(&dirs);
    let mut before = Value::Null;
    for _ in 0..50 {
        server.weir("pool scrub tank").ok();
        before = scan(&server);
        server.stop_clean();
        server = dirs.start();
        // If the scrub finished before the server stopped, there is nothing to resume: try again.
        if server.weir("events").ok().out.contains("scrub_resumed") {
            break;
        }
    }
    assert!(server.weir("events").ok().out.contains("the scrub of pool tank resumes"));
    server.weir("pool scrub --wait tank").ok();
    let done = scan(&server);
    assert_eq!(
        (&done["state"], &done["started_unix_ms"]),
        (&"finished".into(), &before["started_unix_ms"])
    );
}
