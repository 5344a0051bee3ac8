//! Two hosts on shared disks: the second host watches the owner slot of the first, refuses the
//! import while the slot changes, and imports the pool with force or after the first host is gone.
//!
//! bin/weir tests the locks between processes of one host.
//!
//! Invariant: no test is random; time is virtual.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_base::limits::{OWNER_HEARTBEAT, OWNER_WATCH, TAKEOVER_WAIT};
use weir_base::{Clock, ErrorKind};
use weir_dataset::DatasetError;
use weir_device::Device as _;
use weir_pool::{PlantedBug, PoolError};
use weir_sim::SimWorld;

use crate::owned_pool::{
    BYTES, assert_holds, host, import, import_alone, keep, pool, pool_with, world,
};

// Regression: a second server imported a pool in use without force.
#[test]
fn import_of_a_pool_in_use_needs_force() {
    let world = world(1);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            let first = pool(&world, a).await;
            keep(&world, &first);
            let clock = world.executor().clock();
            let before = clock.monotonic();
            let error = import(&world, b, 100, false).await.map(drop).unwrap_err();
            assert!(matches!(&error, DatasetError::Pool(PoolError::InUse { .. })), "{error}");
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(
                clock.monotonic().saturating_sub(before) < 3 * OWNER_HEARTBEAT,
                "it was told late"
            );
            first.volume("v").unwrap().write(0, &vec![2; BYTES]).await.unwrap();
            first.sync().await.unwrap();

            let second = import(&world, b, 101, true).await.unwrap();
            assert_eq!(first.pool().check_alive().unwrap_err().kind(), ErrorKind::Poisoned);
            first.sync().await.unwrap_err();
            assert_holds(&second, 2).await;
            second.volume("v").unwrap().write(0, &vec![3; BYTES]).await.unwrap();
            second.sync().await.unwrap();
            second.pool().check_alive().unwrap();
        })
        .unwrap();
}

/// The owner did not close the pool and sends no more heartbeats, as after a power cut of its host.
#[test]
fn pool_of_a_dead_host_is_imported_after_the_watch() {
    let world = world(2);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            drop(pool(&world, a).await);
            let clock = world.executor().clock();
            let before = clock.monotonic();
            let second = import(&world, b, 100, false).await.unwrap();
            let took = clock.monotonic().saturating_sub(before);
            assert!(took >= OWNER_WATCH && took < OWNER_WATCH + TAKEOVER_WAIT, "{took:?}");
            assert_holds(&second, 1).await;
            // After the clean close, another host imports the pool without a wait.
            second.pool().release_owner().await;
            drop(second);
            let before = clock.monotonic();
            let third = import(&world, a, 101, false).await.unwrap();
            assert!(clock.monotonic().saturating_sub(before) < Duration::from_secs(1));
            assert_holds(&third, 1).await;
        })
        .unwrap();
}

/// Another host takes the pool over while the owner is suspended. The owner notices the takeover at
/// its next commit or heartbeat, and acknowledges nothing afterwards.
#[test]
fn owner_commits_nothing_after_a_takeover() {
    let world = world(3);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            // The owner sends no heartbeats, as if suspended.
            let first = pool(&world, a).await;
            let second = import(&world, b, 100, false).await.unwrap();
            first.volume("v").unwrap().write(0, &vec![9; BYTES]).await.unwrap();
            first.commit().await.unwrap_err();
            assert_eq!(first.pool().check_alive().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_holds(&second, 1).await;
            second.sync().await.unwrap();
            drop(second);
            let again = import(&world, b, 101, false).await.unwrap();
            assert_holds(&again, 1).await;
        })
        .unwrap();
}

fn writes(world: &SimWorld) -> u64 {
    world.disks().iter().map(|disk| disk.stats().writes.load(Ordering::Relaxed)).sum()
}

/// Polls `operation` at most `polls` times; returns `None` if it needs more polls.
async fn poll_some<T>(mut operation: Pin<&mut impl Future<Output = T>>, polls: usize) -> Option<T> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        operation.as_mut().poll(context).map(Some)
    })
    .await
}

/// Server A is paused after some polls of a commit, server B takes the pool and changes it, and A
/// resumes. Returns the number of writes of A that reached the disks afterwards; `None` if the
/// commit ended before the pause.
fn writes_after_pause(polls: usize, bug: PlantedBug) -> Option<u64> {
    let world = world(4);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            let first = pool_with(&world, a, bug).await;
            first.volume("v").unwrap().write(0, &vec![9; BYTES]).await.unwrap();
            let mut commit = pin!(first.commit());
            if poll_some(commit.as_mut(), polls).await.is_some() {
                return None;
            }
            let second = import(&world, b, 100, false).await.unwrap();
            for byte in [4, 5, 6] {
                second.volume("v").unwrap().write(0, &vec![byte; BYTES]).await.unwrap();
                second.commit().await.unwrap();
            }
            let before = writes(&world);
            let done = commit.await;
            let late = writes(&world) - before;
            if bug != PlantedBug::None {
                return Some(late);
            }
            // The commit succeeded: A wrote the complete commit before the pause, and B's import
            // started from the txg of this commit.
            let Err(error) = done else { return Some(late) };
            assert!(
                error.to_string().contains("taken over by host b"),
                "after {polls} polls: {error}"
            );
            assert_eq!(first.pool().check_alive().unwrap_err().kind(), ErrorKind::Poisoned);
            let legs = first.pool().status().vdevs.into_iter().flat_map(|vdev| vdev.legs);
            assert!(legs.into_iter().all(|leg| leg.write_errors == 0), "no disk failed");
            second.pool().check_alive().unwrap();
            drop(second);
            let third = import(&world, b, 101, false).await.unwrap();
            assert_holds(&third, 6).await;
            Some(late)
        })
        .unwrap()
}

#[test]
fn paused_commit_writes_nothing_after_a_takeover() {
    let pauses: Vec<u64> =
        (0..).map_while(|polls| writes_after_pause(polls, PlantedBug::None)).collect();
    assert!(pauses.len() > 10, "a commit is polled {} times", pauses.len());
    assert!(pauses.iter().all(|late| *late == 0), "{pauses:?}");
}

#[test]
fn writes_of_a_paused_server_without_the_check_are_noticed() {
    let bug = PlantedBug::OwnerNotChecked;
    assert!((0..).map_while(|polls| writes_after_pause(polls, bug)).any(|late| late > 0));
}

/// Pauses server A before a flush instead of a commit: a flush writes only to the log.
#[test]
fn paused_server_logs_nothing_after_a_takeover() {
    let world = world(5);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            let first = pool(&world, a).await;
            let second = import(&world, b, 100, false).await.unwrap();
            let before = writes(&world);
            first.volume("v").unwrap().write(0, &vec![9; 4096]).await.unwrap();
            let error = first.sync().await.unwrap_err();
            assert!(error.to_string().contains("taken over by host b"), "{error}");
            assert_eq!(writes(&world), before);
            assert_holds(&second, 1).await;
        })
        .unwrap();
}

#[test]
fn paused_owner_writes_again_without_a_takeover() {
    let world = world(6);
    let a = host("a");
    world
        .run_until(async {
            let first = pool(&world, a).await;
            world.executor().sleep(Duration::from_hours(1)).await;
            first.volume("v").unwrap().write(0, &vec![7; BYTES]).await.unwrap();
            first.sync().await.unwrap();
            first.commit().await.unwrap();
            assert_holds(&first, 7).await;
        })
        .unwrap();
}

// Regression: the owner slot of a disk that returned to an open pool was overwritten, although
// another server used the disk.
#[test]
fn disk_that_another_server_uses_joins_no_open_pool() {
    let world = world(7);
    let (a, b) = (host("a"), host("b"));
    world
        .run_until(async {
            drop(pool(&world, a).await);
            let other = import_alone(&world, b, 1, 100).await.unwrap();
            let engine = import_alone(&world, a, 0, 101).await.unwrap();
            let guid = engine.pool().find_leg("disk1").unwrap().0;
            let join = async |force| engine.pool().online_leg(guid, world.disk(1), force).await;
            let timer = world.executor().clone();
            let beats = pin!(other.pool().keep_owner(|time| timer.sleep(time)));
            let refused = async {
                for force in [false, true] {
                    let error = join(force).await.unwrap_err();
                    assert!(matches!(&error, PoolError::DiskInUse { .. }), "{error}");
                    assert!(error.to_string().contains("host b (pid 77)"), "{error}");
                }
            };
            // End the heartbeats of the other server as soon as both joins were refused.
            let keeps = matches!(select(pin!(refused), beats).await, Either::Left(_));
            assert!(keeps, "the other server has its pool");
            other.volume("v").unwrap().write(0, &vec![2; BYTES]).await.unwrap();
            other.sync().await.unwrap();
            other.pool().check_alive().unwrap();

            // The other server has stopped without closing its pool, so its owner slot changes no
            // more.
            let clock = world.executor().clock();
            let before = clock.monotonic();
            let error = join(false).await.unwrap_err();
            assert!(matches!(&error, PoolError::DivergedDisk { .. }), "{error}");
            assert!(clock.monotonic().saturating_sub(before) >= OWNER_WATCH);
            join(true).await.unwrap();
            assert_holds(&engine, 1).await;
        })
        .unwrap();
}
