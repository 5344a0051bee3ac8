//! The stored creator of a snapshot (user, schedule, replication run or received stream) after a
//! restart, a rename, a promotion and a receive.
//!
//! Tests of bin/weir cover the snapshots that a schedule then destroys.

use std::sync::Arc;

use weir_dataset::{
    PropertyChange, PropertyTarget, ReceiveSpec, Receiver, SnapshotId, TAKEN_BY, TakenBy,
};

use crate::common::{id, now};
use crate::send::{Content, Pool, write};

fn creators(pool: &Pool, volume: &str) -> Vec<(String, Option<TakenBy>)> {
    pool.engine.snapshot_takers(volume).unwrap()
}

fn named(names: &[(&str, Option<TakenBy>)]) -> Vec<(String, Option<TakenBy>)> {
    names.iter().map(|(name, by)| ((*name).to_owned(), *by)).collect()
}

fn take(pool: &Pool, of: SnapshotId, by: TakenBy) {
    now(pool.engine.create_snapshots_by(&[of], Some(by))).unwrap();
}

const SCHEDULE: TakenBy = TakenBy::Schedule(u64::MAX);

#[test]
fn creator_is_stored_until_a_user_takes_the_snapshot_over() {
    let mut pool = Pool::new("tank", 0);
    pool.make("v");
    pool.snap("v", "mine");
    for name in ["kept", "renamed", "held"] {
        take(&pool, id("v", name), SCHEDULE);
    }
    take(&pool, id("v", "run"), TakenBy::Replication);
    now(pool.engine.hold_snapshot(&id("v", "held"), "legal")).unwrap();
    now(pool.engine.rename_snapshot(&id("v", "renamed"), "other")).unwrap();
    now(pool.engine.rename_snapshot(&id("v", "other"), "renamed")).unwrap();
    // Releasing a tag that the snapshot does not have changes nothing.
    now(pool.engine.release_to_user(&id("v", "held"), "none")).unwrap_err();
    let all = |held| {
        named(&[
            ("mine", None),
            ("kept", Some(SCHEDULE)),
            ("renamed", Some(TakenBy::User)),
            ("held", Some(held)),
            ("run", Some(TakenBy::Replication)),
        ])
    };
    pool.reopen();
    assert_eq!(creators(&pool, "v"), all(SCHEDULE));
    now(pool.engine.release_to_user(&id("v", "held"), "legal")).unwrap();
    pool.reopen();
    assert_eq!(creators(&pool, "v"), all(TakenBy::User));
    let infos = now(pool.engine.snapshots("v")).unwrap();
    let shown: Vec<_> = infos.into_iter().map(|info| (info.name, info.taken_by)).collect();
    assert_eq!(shown, all(TakenBy::User));

    // A promotion moves snapshots together with their stored creators.
    now(pool.engine.clone_snapshot(&id("v", "run"), "c")).unwrap();
    now(pool.engine.promote("c")).unwrap();
    assert_eq!(creators(&pool, "c"), all(TakenBy::User));
    assert_eq!(creators(&pool, "v"), []);
}

// Regression: if the property was set on the volume, all of the volume's snapshots counted as
// snapshots of the schedule.
#[test]
fn inherited_value_does_not_mark_snapshots_as_scheduled() {
    let pool = Pool::new("tank", 0);
    pool.make("v");
    pool.snap("v", "mine");
    let value = Some(SCHEDULE.to_string());
    let change = PropertyChange::User(TAKEN_BY.to_owned(), value);
    for target in [PropertyTarget::Pool, PropertyTarget::Volume("v".to_owned())] {
        now(pool.engine.change_properties(&[target], std::slice::from_ref(&change))).unwrap();
    }
    pool.snap("v", "new");
    assert_eq!(creators(&pool, "v"), named(&[("mine", None), ("new", None)]));
}

#[test]
fn received_snapshot_has_the_stream_as_its_creator() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    write(&volume, &mut Content::new(), 0..20, 1);
    source.snap("v", "mine");
    take(&source, id("v", "auto"), SCHEDULE);
    for name in ["mine", "auto"] {
        let into = format!("of-{name}");
        back.receive(&into, &source.whole("v", name)).unwrap();
        let received = TakenBy::Received(back.engine.volume(&into).unwrap().dataset());
        assert_eq!(creators(&back, &into), named(&[(name, Some(received))]));
    } // An operator's stream creates a user's snapshot.
    let spec = ReceiveSpec { volume: "own".into(), roll_back: false, dry_run: false, mark: None };
    let mut receiver = Receiver::for_user(Arc::clone(&back.engine), spec);
    now(receiver.push(&source.whole("v", "auto"))).unwrap();
    now(receiver.finish()).unwrap();
    assert_eq!(creators(&back, "own"), named(&[("auto", Some(TakenBy::User))]));
}
