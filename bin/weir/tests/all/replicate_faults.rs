//! Replications with name clashes, lost data, changed replicas and unreachable servers. The tests
//! check the data that arrives, the events, and the commands that the output recommends.
//!
//! Not here: replications without such faults (`replicate`).
//!
//! Invariant: a test runs the command after `try:` in the list exactly as it is printed, and the
//! replication then resumes.

use std::fs;

use serde_json::Value;

use crate::common::rng::Rng;
use crate::common::{MIB, eventually, spoil};
use crate::replicate::{Pair, TIMEOUT, names, write};

/// Starts two servers that replicate `tank/v`, and waits until one snapshot is replicated.
fn replicated() -> (Pair, Rng) {
    let pair = Pair::new();
    let mut rng = Rng::new(32);
    pair.source().weir("volume create tank/v --size 64MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 4);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    eventually("it arrives", TIMEOUT, || {
        let now = pair.shown("tank/v");
        now["snapshot"].is_string() && now["state"] == "waiting"
    });
    (pair, rng)
}

/// Stops the source server and overwrites a block on both of its disks.
fn lose(pair: &mut Pair, block: &[u8]) {
    pair.source.take().unwrap().stop_clean();
    for disk in ["a", "b"] {
        spoil(&pair.dirs.file(disk), block);
    }
    pair.start();
}

/// Returns the guids of the snapshots of a volume.
fn guids(server: &crate::common::Server, of: &str) -> Vec<Value> {
    let list = server.weir(&format!("snapshot list {of} --json")).json();
    list["snapshots"].as_array().unwrap().iter().map(|one| one["guid"].clone()).collect()
}

/// Waits until a replication run has failed with an error that contains `part`. Returns the
/// messages in the output of `replicate list`.
fn failing(pair: &Pair, part: &str) -> String {
    eventually("a run fails", TIMEOUT, || {
        let now = pair.shown("tank/v");
        now["state"] == "failing" && now["error"].as_str().is_some_and(|why| why.contains(part))
    });
    pair.source().weir("replicate list").ok().talk
}

// Regression: a replication stopped for ever if the receiver had a snapshot of a user or a schedule
// with the same name as a later snapshot of the source.
#[test]
fn snapshot_with_a_taken_name_is_skipped_with_one_event() {
    let (pair, mut rng) = replicated();
    pair.back().weir("snapshot create back/v@daily").ok();
    pair.source().weir("snapshot create tank/v@daily").ok();
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.source().weir("snapshot create tank/v@weekly").ok();
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.caught_up("tank/v");
    pair.same("tank/v@weekly", "back/v@weekly");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));
    pair.caught_up("tank/v");
    let events = pair.source().weir("events").ok().out;
    assert_eq!(events.matches("tank/v@daily is skipped").count(), 1, "{events}");
    assert!(events.contains("back/v@daily") && !events.contains("not replicated"), "{events}");
    let daily = guids(pair.back(), "back/v@daily");
    assert_ne!(daily, guids(pair.source(), "tank/v@daily"), "the receiver's own stays");
}

// Regression: a user created a snapshot with the name of the sent one while its stream was
// interrupted. Each run then resumed the stream and failed at its end.
#[test]
fn interrupted_stream_with_a_taken_name_is_aborted() {
    let (pair, mut rng) = replicated();
    pair.back().weir("snapshot create back/v@mine").ok();
    pair.create("tank/v", "back/v", "--every 1h --bandwidth 1MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 16);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    pair.source().weir("replicate run tank/v").ok();
    eventually("something is sent", TIMEOUT, || {
        let now = pair.shown("tank/v");
        now["state"] == "sending" && now["sent_bytes"].as_u64().unwrap() > MIB
    });
    pair.source().weir("replicate pause tank/v").ok();
    let shown = pair.back().weir("volume show back/v --json").json();
    let coming = shown["receiving"].as_str().unwrap();
    pair.back().weir(&format!("snapshot rename back/v@mine back/v@{coming}")).ok();
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.source().weir("replicate resume tank/v").ok();
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    assert_ne!(last, coming, "another one was taken");
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));
}

// The schedules of the two servers give their snapshots the same names.
#[test]
fn schedules_on_both_servers_do_not_conflict() {
    let (pair, mut rng) = replicated();
    pair.source().weir("schedule set tank/v hourly=2 daily=2").ok();
    let taken = |server, of: &str, sort: &str| {
        let all = names(server, of);
        all.iter().filter(|name| name.contains(sort)).count()
    };
    eventually("they are taken", TIMEOUT, || taken(pair.source(), "tank/v", "auto-") == 2);
    // Also create a local volume in the receiving pool: the scheduler handles both volumes in one
    // pass.
    pair.back().weir("volume create back/own --size 16MiB").ok();
    pair.back().weir("schedule set back hourly=24 daily=7").ok();
    eventually("the other one is", TIMEOUT, || taken(pair.back(), "back/own", "auto-") == 2);
    assert_eq!(taken(pair.back(), "back/v", "auto-"), 0, "nothing is taken of a replica");
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.caught_up("tank/v");
    assert_eq!(guids(pair.back(), "back/v"), guids(pair.source(), "tank/v"));
    // Users prune a replica with a schedule like this.
    pair.back().weir("schedule set back/v hourly=0 daily=7 --prune-only").ok();
    let list = pair.back().weir("schedule list").ok().out;
    assert!(list.contains("hourly=0,daily=7") && list.contains("prunes only"), "{list}");
    eventually("it is pruned", TIMEOUT, || taken(pair.back(), "back/v", "auto-hourly") == 0);
    assert_eq!(taken(pair.back(), "back/v", "auto-daily"), 1);
    pair.caught_up("tank/v");
    assert_eq!(taken(pair.back(), "back/v", "auto-hourly"), 0, "it is not sent again");
    // After a local write, the volume is not a replica any more, so its schedule takes snapshots.
    write(pair.back(), "back/v", &mut rng, 1);
    pair.back().weir("schedule clear back/v").ok();
    eventually("one is taken", TIMEOUT, || taken(pair.back(), "back/v", "auto-hourly") == 1);
}

// An operator may not destroy snapshots. But an operator could give a user's snapshot the name and
// the tag of a run's snapshot, and so make the next run destroy it.
#[test]
fn run_destroys_only_snapshots_that_runs_took() {
    let (pair, mut rng) = replicated();
    pair.source().weir("snapshot create tank/v@monday").ok();
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.caught_up("tank/v");
    pair.same("tank/v@monday", "back/v@monday");
    for (server, of, tag) in
        [(pair.source(), "tank/v", "replication"), (pair.back(), "back/v", "replica")]
    {
        server.weir(&format!("snapshot rename {of}@monday {of}@repl-mine")).ok();
        server.weir(&format!("snapshot hold {tag} {of}@repl-mine")).ok();
    }
    for _ in 0..2 {
        write(pair.source(), "tank/v", &mut rng, 1);
        pair.caught_up("tank/v");
    }
    pair.same("tank/v@repl-mine", "back/v@repl-mine");
    let runs =
        |server, of: &str| names(server, of).iter().filter(|name| name.contains("@repl-2")).count();
    assert_eq!((runs(pair.source(), "tank/v"), runs(pair.back(), "back/v")), (1, 1));
    let events = pair.source().weir("events").ok().out;
    assert!(!events.contains("not replicated"), "{events}");
}

// Regression: a client had written a lost block again, but the replication stayed `failing` for
// ever: its own snapshot still contained the lost block.
#[test]
fn run_after_repair_of_lost_data_takes_another_snapshot() {
    let (mut pair, mut rng) = replicated();
    let mut lost = vec![0; 4096];
    rng.fill(&mut lost);
    pair.source().weir("export create nbd tank/v").ok();
    let mut client = pair.source().client("tank/v");
    client.write(0, &lost).unwrap();
    drop(client);
    // Do not flush: `spoil` must find the block in a segment, and a flush would put a second copy
    // into the intent log.
    pair.source().weir("snapshot create tank/v@any").ok();
    pair.source().weir("snapshot destroy tank/v@any --yes").ok();
    lose(&mut pair, &lost);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    pair.source().weir("replicate run tank/v").ok();
    let said = failing(&pair, "");
    let next = "weir pool status -v tank; then: weir replicate run tank/v";
    assert!(said.contains("try: restore the lost data") && said.contains(next), "{said}");
    let first = names(pair.source(), "tank/v");
    pair.source().weir("replicate run tank/v").ok();
    eventually("another snapshot takes the place of the first", TIMEOUT, || {
        let names = names(pair.source(), "tank/v");
        names.len() == 2 && names != first && pair.shown("tank/v")["state"] == "failing"
    });
    // The status names the snapshot of the run, or the volume that shares the lost block with it.
    let listed = pair.source().weir("pool status -v tank").ok().out;
    assert!(listed.contains("@repl-"), "the list names what is lost: {listed}");

    let mut client = pair.source().client("tank/v");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    pair.source().weir("export delete tank/v").ok();
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));
    assert_eq!(
        names(pair.source(), "tank/v"),
        [format!("tank/v@{last}")],
        "the failed one is gone"
    );
}

// If a user's snapshot has lost data, only a user can destroy it; `replicate list` names the
// command.
#[test]
fn user_snapshot_with_lost_data_is_named_with_a_remedy() {
    let (mut pair, mut rng) = replicated();
    let mut lost = vec![0; 4096];
    rng.fill(&mut lost);
    pair.source().weir("export create nbd tank/v").ok();
    let mut client = pair.source().client("tank/v");
    client.write(0, &lost).unwrap();
    pair.source().weir("snapshot create tank/v@mine").ok();
    client.write(0, &[7; 4096]).unwrap();
    drop(client);
    lose(&mut pair, &lost);
    pair.source().weir("export delete tank/v").ok();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    pair.source().weir("replicate run tank/v").ok();
    let said = failing(&pair, "");
    let destroy = "snapshot destroy tank/v@mine";
    assert!(said.contains(&format!("weir {destroy}")), "{said}");
    pair.source().weir(&format!("{destroy} --yes")).ok();
    pair.caught_up("tank/v");
}

// Regression: `replicate list` recommended "receive with -F", a command that replications do not
// use.
#[test]
fn changed_replica_resumes_after_the_advised_rollback() {
    let (pair, mut rng) = replicated();
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    write(pair.back(), "back/v", &mut rng, 1);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    pair.source().weir("replicate run tank/v").ok();
    let said = failing(&pair, "was changed since");
    let rollback = format!("snapshot rollback back/v@{last}");
    assert!(said.contains("try: on the other server:"), "{said}");
    assert!(said.contains(&format!("weir {rollback};")), "{said}");
    assert_eq!(pair.shown("tank/v")["action"].as_str().unwrap().matches("weir ").count(), 2);
    pair.back().weir(&format!("{rollback} --yes")).ok();
    pair.caught_up("tank/v");
}

// Regression: a failed comparison was shown only until the next run. Also, the age of the newest
// snapshot was 0 s if the clock was behind the creation time of that snapshot.
#[test]
fn failed_comparison_and_unknown_age_stay_visible() {
    let (mut pair, _) = replicated();
    assert_eq!(pair.compared("tank/v")["is_same"], true);
    pair.back.take().unwrap().stop_clean();
    pair.source().weir("replicate verify tank/v").ok();
    let failed = |pair: &Pair| pair.shown("tank/v")["verify_failed"].clone();
    eventually("the comparison fails", TIMEOUT, || failed(&pair)["error"].is_string());
    pair.start();
    pair.caught_up("tank/v");
    pair.source.take().unwrap().stop_clean();
    // Simulate a clock that is ten years behind the creation time of the snapshot.
    let path = pair.dirs.short("state").join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let time = &mut state["replications"][0]["last"]["unix_ms"];
    *time = (time.as_u64().unwrap() + 10 * 365 * 86_400_000).into();
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    pair.start();
    let list = pair.source().weir("replicate list").ok();
    assert!(list.out.contains("FAILED 20") && list.out.contains("unknown"), "{list:?}");
    let next = "weir replicate verify tank/v";
    assert!(list.talk.contains("verification failed") && list.talk.contains(next), "{list:?}");
    assert!(pair.shown("tank/v")["lag_ms"].is_null());
    assert_eq!(pair.compared("tank/v")["is_same"], true);
    assert!(failed(&pair).is_null());
}
