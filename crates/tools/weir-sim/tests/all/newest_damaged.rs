//! Disks whose newest uberblocks are damaged in every copy.
//!
//! `planted_bugs` covers txgs that a server recorded; disks that lack a part of the history are
//! tested elsewhere.
//!
//! Invariant: no test is random; time is virtual.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::select;
use weir_base::Guid;
use weir_base::limits::OWNER_HEARTBEAT;
use weir_dataset::{DatasetError, Engine};
use weir_device::Device;
use weir_format::Uberblock;
use weir_format::layout::SLOT_BYTES;
use weir_pool::{ImportOptions, PlantedBug, PoolError};
use weir_sim::{CutPlan, SimWorld};

use crate::owned_pool::{BYTES, assert_holds, host, import, import_with, pool, pool_with, world};
use crate::timed::options;

/// Overwrites every copy of the newest `count` uberblocks.
fn damage_newest(world: &SimWorld, count: u64) {
    damage_newest_on(world, count, |_| true);
}

/// As [`damage_newest`], on some disks only.
fn damage_newest_on(world: &SimWorld, count: u64, is_one: impl Fn(usize) -> bool) {
    let mut found = Vec::new();
    for (index, disk) in world.disks().iter().enumerate() {
        for at in (0..disk.geometry().len_bytes).step_by(SLOT_BYTES) {
            let mut slot = [0; SLOT_BYTES];
            disk.peek(at, &mut slot);
            found.extend(Uberblock::decode(&slot).ok().map(|uberblock| (uberblock.txg, index, at)));
        }
    }
    let newest = found.iter().map(|(txg, ..)| txg.0).max().unwrap();
    for (txg, index, at) in found {
        if txg.0 + count > newest && is_one(index) {
            world.disk(index).scribble(at..at + SLOT_BYTES as u64, at);
        }
    }
}

/// End of the server that had the pool open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server closed the pool.
    Closed,
    /// The server was killed long after its last commit.
    KilledLater,
    /// The server was killed right after its last commit.
    KilledAtOnce,
}

/// Commits four states of a volume, each filled with a different byte, and damages the newest
/// `damaged` uberblocks. Returns the error of an import or the byte that the import found.
async fn import_after(world: &SimWorld, end: End, damaged: u64, bug: PlantedBug) -> Imported {
    let first = pool_with(world, host("a"), bug).await;
    for byte in [4, 5, 6, 7] {
        first.volume("v").unwrap().write(0, &vec![byte; BYTES]).await.unwrap();
        first.commit().await.unwrap();
    }
    match end {
        End::Closed => first.pool().release_owner().await,
        End::KilledLater => {
            let timer = world.executor();
            let beats = pin!(first.pool().keep_owner(|time| timer.sleep(time)));
            select(beats, timer.sleep(3 * OWNER_HEARTBEAT)).await;
        }
        End::KilledAtOnce => (),
    }
    drop(first);
    damage_newest(world, damaged);
    match import_with(world, host("b"), (100, false), bug).await {
        Ok(engine) => {
            let mut out = [0];
            engine.volume("v").unwrap().read(0, &mut out).await.unwrap();
            Imported::As(out[0])
        }
        Err(DatasetError::Pool(PoolError::OlderThanSeen { by, .. })) => Imported::Older(by.into()),
        Err(DatasetError::Pool(PoolError::NewestDamaged { damaged, .. })) => {
            Imported::Damaged(damaged)
        }
        Err(error) => panic!("{error}"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Imported {
    As(u8),
    Older(String),
    Damaged(usize),
}

fn imported(end: End, damaged: u64, bug: PlantedBug) -> Imported {
    let world = world(1);
    world.run_until(import_after(&world, end, damaged, bug)).unwrap()
}

#[test]
fn pool_with_intact_uberblocks_is_imported() {
    for end in [End::Closed, End::KilledLater, End::KilledAtOnce] {
        assert_eq!(imported(end, 0, PlantedBug::None), Imported::As(7), "{end:?}");
    }
}

#[test]
fn import_requires_the_txg_of_the_owner_slot() {
    let named = || Imported::Older("the owner slot of disk0 names".to_owned());
    for damaged in 1..4 {
        assert_eq!(imported(End::Closed, damaged, PlantedBug::None), named());
        assert_eq!(imported(End::KilledLater, damaged, PlantedBug::None), named());
    }
    // An import with this planted bug ignores the owner slot and opens an old state (byte 5).
    assert_eq!(imported(End::Closed, 2, PlantedBug::OldDisksTrusted), Imported::As(5));
}

#[test]
fn crash_explains_one_torn_uberblock() {
    assert_eq!(imported(End::KilledAtOnce, 1, PlantedBug::None), Imported::As(6));
    assert_eq!(imported(End::KilledAtOnce, 2, PlantedBug::None), Imported::Damaged(2));
    assert_eq!(imported(End::KilledAtOnce, 3, PlantedBug::None), Imported::Damaged(3));
    assert_eq!(imported(End::KilledAtOnce, 2, PlantedBug::OldDisksTrusted), Imported::As(5));
}

/// A user who forces the import accepts the loss of the damaged uberblocks; the next import must
/// not require force again.
#[test]
fn import_after_a_forced_import_needs_no_force() {
    let world = world(2);
    let b = host("b");
    world
        .run_until(async {
            let damaged = import_after(&world, End::KilledAtOnce, 3, PlantedBug::None).await;
            assert_eq!(damaged, Imported::Damaged(3));
            drop(import(&world, b, 101, true).await.unwrap());
            // Nothing changed in the pool after the forced import.
            let again = import(&world, b, 102, false).await.unwrap();
            assert_holds(&again, 4).await;
        })
        .unwrap();
}

// Regression: each of two power cuts tore an uberblock on disk 0 of a mirror, while disk 1 kept an
// intact copy. The next import had only disk 0 and was refused.
#[test]
fn power_cuts_in_a_row_do_not_block_the_import_of_one_disk() {
    let world = world(2);
    world
        .run_until(async {
            let engine = pool(&world, host("a")).await;
            for byte in 0..4 {
                engine.volume("v").unwrap().write(0, &vec![byte; BYTES]).await.unwrap();
                engine.commit().await.unwrap();
            }
        })
        .unwrap();
    damage_newest_on(&world, 1, |disk| disk == 0);
    let images = world.cut(CutPlan::Everything);
    let world = SimWorld::from_media(2, images);
    let found = Rc::new(RefCell::new(Vec::new()));
    let cuts = Rc::clone(&found);
    world.on_step(move |cut| {
        for plan in 0..4 {
            cuts.borrow_mut().push(cut.cut(CutPlan::Random(cut.steps * 4 + plan)));
        }
    });
    world.run_until(import_unowned(&world, 101)).unwrap().unwrap();
    world.crash();
    let cuts = found.take();
    assert!(cuts.len() > 200, "{}", cuts.len());
    for mut images in cuts {
        images.truncate(1);
        let world = SimWorld::from_media(3, images);
        world.run_until(import_unowned(&world, 102)).unwrap().unwrap();
    }
}

/// Imports the pool without an owner.
async fn import_unowned(world: &SimWorld, import_epoch: u64) -> Result<(), DatasetError> {
    let disks = world.devices();
    let how = ImportOptions::new(Guid(import_epoch));
    Engine::open(disks, how, &options(world, PlantedBug::None)).await.map(drop)
}

/// A damaged uberblock slot blocks an import only if no disk has an intact copy of the uberblock.
#[test]
fn damage_on_one_disk_does_not_block_the_import() {
    let world = world(3);
    world
        .run_until(async {
            drop(pool(&world, host("a")).await);
            let ring = weir_format::layout::RING_OFFSET;
            world.disk(0).scribble(ring..ring + (128 * SLOT_BYTES) as u64, 1);
            assert_holds(&import(&world, host("b"), 100, false).await.unwrap(), 1).await;
        })
        .unwrap();
}
