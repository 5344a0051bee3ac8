//! `weir pool status` for data that has no intact copy on any disk, also after a restart.
//!
//! Not here: the snapshots and clones that share such data (the tests of weir-dataset), repair
//! (healing.rs).

use std::time::Duration;

use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Server};

const DISK: u64 = 256 * MIB;
const BLOCK: usize = 4096;
const EIO: u32 = 5;

fn block(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn status(server: &Server) -> String {
    // The output wraps its lines, so compare the text without line breaks.
    let text = server.weir("pool status -v tank").ok().out;
    one_line(&text)
}

/// Returns the text with a single space in place of each line break.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn status_lists_lost_data_until_it_is_overwritten() {
    // Regression: while clients got EIO, the status said "Applications are unaffected". After a
    // restart it said "No known data errors".
    let dirs = Dirs::new();
    let disks = ["a", "b"].map(|name| dirs.disk(name, DISK));
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/vm1", "64MiB");
    let mut client = server.client("tank/vm1");
    for number in 0..4 {
        client.write(number * BLOCK as u64, &block(number)).unwrap();
    }
    // Do not flush: the test needs the block in a segment, and a flush would put it into the intent
    // log.
    server.weir("snapshot create tank/vm1@monday").ok();
    drop(client);
    server.stop_clean();
    disks.iter().for_each(|disk| crate::common::spoil(disk, &block(2)));

    let server = dirs.start();
    assert!(status(&server).contains("errors: No known data errors"), "nothing met it yet");
    let mut client = server.client("tank/vm1");
    assert_eq!(client.read(2 * BLOCK as u64, BLOCK as u32), Err(EIO));
    assert_eq!(client.read(0, BLOCK as u32).unwrap(), block(0));
    let lost = |server: &Server| {
        let text = status(server);
        for part in [
            "state: ONLINE",
            "Applications are affected.",
            "errors: 1 range (4KiB) in 1 volume has no good copy:",
            "DATA OFFSET LENGTH FOUND SHARED BY",
            "tank/vm1 8192 4096",
            "@monday",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("unaffected") && !text.contains("No known"), "{text}");
        let brief = one_line(&server.weir("pool status tank").ok().out);
        assert!(brief.contains("'weir pool status -v tank' lists it"), "{brief}");
        let json = server.status("tank");
        assert_eq!(json["damage"]["ranges"][0]["volume"], "tank/vm1");
        assert_eq!(json["damage"]["ranges"][0]["snapshots"][0], "monday");
        assert_eq!((&json["damage"]["bytes"], &json["state"]), (&4096.into(), &"online".into()));
    };
    lost(&server);
    let told = |kind: &str| server.weir("events --json").ok().out.contains(kind);
    crate::common::eventually("an event", Duration::from_mins(1), || told("data_lost"));
    drop(client);
    server.stop_clean();

    let server = dirs.start();
    lost(&server);
    let mut client = server.client("tank/vm1");
    client.write(2 * BLOCK as u64, &block(9)).unwrap();
    client.flush().unwrap();
    server.weir("pool scrub --wait tank").ok();
    let text = status(&server);
    assert!(text.contains("tank/vm1@monday 8192 4096"), "the snapshot has it still: {text}");
    server.weir("snapshot destroy --yes tank/vm1@monday").ok();
    let clean = || status(&server).contains("errors: No known data errors");
    crate::common::eventually("an empty list", Duration::from_mins(1), clean);
    let told = || server.weir("events --json").ok().out.contains("damage_cleared");
    crate::common::eventually("an event", Duration::from_mins(1), told);
    drop(client);
    server.stop_clean();
}
