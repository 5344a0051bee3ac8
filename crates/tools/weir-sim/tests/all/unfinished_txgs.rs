//! Uberblocks of unfinished or abandoned txgs that return after a later import. An import first
//! writes its *claim*: an uberblock that repeats the state that it opened. The claim must count as
//! newer than those txgs, because the import may have overwritten their blocks.
//!
//! `planted_bugs` draws such sequences at random; here each power cut is at a chosen step.
//!
//! Invariant: no test is random; a seed replays its run.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::select;
use weir_base::limits::OWNER_HEARTBEAT;
use weir_base::{BLOCK_BYTES, Guid, RecordSize, Txg};
use weir_dataset::{DatasetError, Engine, EngineOptions, VolumeSize};
use weir_format::layout::{LABEL_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES, segments_offset};
use weir_format::{Uberblock, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, PoolError, VdevSpec};
use weir_sim::{CutPlan, DiskOptions, MediaImage, Rng, SimWorld};

use crate::owned_pool::host;
use crate::timed;

const LOG_BYTES: u64 = 512 << 10;
const VOLUME_BLOCKS: usize = 64;

fn options(world: &SimWorld) -> EngineOptions {
    let (clock, bug) = (world.executor().clock(), PlantedBug::None);
    EngineOptions { memory_bytes: 4 << 20, clock, bug }
}

/// Disks without power, and the content of the volume that clients flushed.
#[derive(Clone)]
struct Machine {
    disks: Vec<MediaImage>,
    content: Vec<u8>,
}

/// Content of the disks if the power fails before one step of a run.
struct Cut {
    /// No unflushed write survived.
    nothing: Vec<MediaImage>,
    /// All unflushed writes survived.
    everything: Vec<MediaImage>,
}

/// Uberblocks in the first label of a disk.
fn ring(disk: &MediaImage) -> Vec<Uberblock> {
    let slot = |index: u64| {
        let mut bytes = [0; SLOT_BYTES];
        disk.read(RING_OFFSET + index * SLOT_BYTES as u64, &mut bytes);
        Uberblock::decode(&bytes).ok()
    };
    (0..RING_SLOTS).filter_map(slot).collect()
}

/// True if a disk has the claim of this import epoch; with `commit`, true if it has a later
/// uberblock of this epoch.
fn has(disk: &MediaImage, import_epoch: u64, commit: bool) -> bool {
    ring(disk).iter().any(|uberblock| {
        let newest = &uberblock.lineage[0];
        newest.id == Guid(import_epoch) && (uberblock.txg > newest.first) == commit
    })
}

/// Writes random blocks to the volume and to `content`.
async fn change(engine: &Engine, content: &mut [u8], seed: u64) -> Result<(), DatasetError> {
    let mut rng = Rng::new(seed);
    for _ in 0..10 {
        let mut bytes = vec![0; 3 * BLOCK_BYTES];
        rng.fill(&mut bytes);
        let at = rng.index(VOLUME_BLOCKS - 3) * BLOCK_BYTES;
        engine.volume("v")?.write(at as u64, &bytes).await?;
        content[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(())
}

/// Creates a pool with committed changes, and with flushed changes that only the log has.
fn pool(kind: VdevKind, disks: usize) -> Machine {
    let len = 2 * LABEL_BYTES + LOG_BYTES + (12 << 20);
    let disks = (0..disks).map(|leg| DiskOptions::new(&format!("disk{leg}"), len));
    let world = SimWorld::new(1, &disks.collect::<Vec<_>>());
    let mut content = vec![0; VOLUME_BLOCKS * BLOCK_BYTES];
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let run = async {
        let vdev = VdevSpec { kind, role: VdevRole::Data, disks: world.devices() };
        let engine = Engine::create("tank", &[vdev], sizes, &options(&world), &mut guid).await?;
        let (bytes, record) = (content.len() as u64, RecordSize::BLOCK);
        engine.create_volume_with("v", VolumeSize { bytes, record }, &[]).await?;
        change(&engine, &mut content, 1).await?;
        engine.commit().await?;
        change(&engine, &mut content, 2).await?;
        let volume = engine.volume("v")?;
        engine.flush(&volume).await
    };
    world.run_until(run).expect("no power cut").expect("intact disks");
    Machine { disks: world.cut(CutPlan::Nothing), content }
}

/// Imports the pool on `disks` and returns the disks before each step of the import.
fn import(disks: &[MediaImage], import_epoch: u64, force: bool) -> Result<Vec<Cut>, DatasetError> {
    let world = SimWorld::from_media(import_epoch, disks.to_vec());
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&cuts);
    world.on_step(move |point| {
        let [nothing, everything] = [CutPlan::Nothing, CutPlan::Everything].map(|p| point.cut(p));
        sink.borrow_mut().push(Cut { nothing, everything });
    });
    let how = ImportOptions { force, ..ImportOptions::new(Guid(import_epoch)) };
    let opened = world.run_until(Engine::open(world.devices(), how, &options(&world)));
    drop(opened.expect("no power cut")?);
    Ok(cuts.take())
}

/// Imports the pool and checks all data and counters.
fn check(disks: &[MediaImage], content: &[u8]) -> Result<(), DatasetError> {
    check_with(disks, content, false)
}

fn check_with(disks: &[MediaImage], content: &[u8], force: bool) -> Result<(), DatasetError> {
    let world = SimWorld::from_media(9, disks.to_vec());
    let run = async {
        let how = ImportOptions { force, ..ImportOptions::new(Guid(900)) };
        let engine = Engine::open(world.devices(), how, &options(&world)).await?;
        let mut found = vec![0; content.len()];
        engine.volume("v")?.read(0, &mut found).await?;
        assert!(found == content, "the import opened another state");
        assert_eq!(engine.check_live_bytes().await?, []);
        Ok(())
    };
    world.run_until(run).expect("no power cut")
}

/// Imports the pool and cuts the power when the uberblock of the import's first commit is on disk 0
/// only.
fn cut_during_first_commit(disks: &[MediaImage], import_epoch: u64) -> Vec<MediaImage> {
    let cuts = import(disks, import_epoch, false).unwrap();
    let is_unfinished = |cut: &&Cut| {
        has(&cut.everything[0], import_epoch, true)
            && cut.nothing.iter().all(|disk| !has(disk, import_epoch, true))
    };
    let cut = cuts.iter().find(is_unfinished).expect("the uberblock is not durable at once");
    let mut disks = cut.nothing.clone();
    disks[0] = cut.everything[0].clone();
    disks
}

/// Imports the pool without disk 0, cuts the power at each step between the import's claim and its
/// next uberblock, and calls `then` with all disks: disk 0, and the others after the cut.
fn each_cut_without_disk_0(
    disks: &[MediaImage],
    import_epoch: u64,
    mut then: impl FnMut(&str, &[MediaImage]),
) {
    let cuts = import(&disks[1..], import_epoch, false).unwrap();
    let mut count = 0;
    for (step, cut) in cuts.iter().enumerate() {
        for (plan, images) in [("nothing", &cut.nothing), ("everything", &cut.everything)] {
            let is_claimed = images.iter().all(|disk| has(disk, import_epoch, false));
            if is_claimed && images.iter().all(|disk| !has(disk, import_epoch, true)) {
                let mut all = vec![disks[0].clone()];
                all.extend(images.iter().cloned());
                then(&format!("cut at step {step}, {plan} survives"), &all);
                count += 1;
            }
        }
    }
    assert!(count > 20, "the import writes after its claim: {count} cuts");
}

/// Import A is cut during its first commit, whose uberblock is on disk 0 only. Import B runs
/// without disk 0 and is cut after its claim. Then disk 0 returns, and the claim of B must win.
fn assert_unfinished_commit_is_superseded(machine: &Machine) {
    let disks = cut_during_first_commit(&machine.disks, 100);
    check(&disks, &machine.content).unwrap();
    check(&disks[1..], &machine.content).unwrap();
    let mut failed = Vec::new();
    each_cut_without_disk_0(&disks, 101, |at, all| {
        if let Err(error) = check(all, &machine.content) {
            failed.push(format!("{at}: {error}"));
        }
    });
    assert!(failed.is_empty(), "{} cuts:\n{}", failed.len(), failed.join("\n"));
}

// Regression: import A was cut when the uberblock of its first commit was on disk 0 only. Import B
// ran without disk 0 and overwrote blocks of A's txg. When disk 0 returned, the next import chose
// A's uberblock, because its log epoch is higher than the log epoch of B's claim. On raidz, flushed
// changes in the overwritten blocks were unreadable, although the log still had them.
#[test]
fn unfinished_first_commit_on_a_mirror_is_superseded() {
    assert_unfinished_commit_is_superseded(&pool(VdevKind::Mirror, 2));
}

#[test]
fn unfinished_first_commit_on_raidz1_is_superseded() {
    assert_unfinished_commit_is_superseded(&pool(VdevKind::Raidz1, 3));
}

/// Imports the pool on these disks, commits changes, and flushes further changes to the log.
fn work(disks: &[MediaImage], import_epoch: u64, content: &mut [u8]) -> Vec<MediaImage> {
    let world = SimWorld::from_media(import_epoch, disks.to_vec());
    let run = async {
        let how = ImportOptions::new(Guid(import_epoch));
        let engine = Engine::open(world.devices(), how, &options(&world)).await?;
        change(&engine, content, import_epoch).await?;
        engine.commit().await?;
        change(&engine, content, import_epoch + 1).await?;
        let volume = engine.volume("v")?;
        engine.flush(&volume).await
    };
    world.run_until(run).expect("no power cut").expect("enough disks");
    world.cut(CutPlan::Nothing)
}

#[test]
fn unfinished_first_commit_on_a_stale_leg_is_superseded() {
    let mut machine = pool(VdevKind::Mirror, 2);
    let alone = work(&machine.disks[1..], 50, &mut machine.content);
    machine.disks[1] = alone[0].clone();
    assert_unfinished_commit_is_superseded(&machine);
}

/// Import C finds a claim of A and a claim of B. Neither of these import epochs knew the other, and
/// B has an unfinished txg on a disk that is missing.
#[test]
fn claims_that_do_not_know_each_other_are_both_superseded() {
    let machine = pool(VdevKind::Raidz2, 4);
    // The power fails while import A writes its claim: only disk x has the claim.
    let cuts = import(&machine.disks, 100, false).unwrap();
    let claimed = cuts.iter().find(|cut| has(&cut.everything[0], 100, false)).unwrap();
    assert!(claimed.nothing.iter().all(|disk| !has(disk, 100, false)));
    let x = &claimed.everything[0];
    // B imports the pool without x. The uberblock of B's first commit is on y only.
    let without_x = cut_during_first_commit(&claimed.nothing[1..], 101);
    let [y, z, w] = &without_x[..] else { panic!("three disks are left") };
    // C imports the pool without y, and y returns afterwards.
    let mut failed = Vec::new();
    for present in [[x, z, w], [z, w, x]] {
        let disks: Vec<MediaImage> = std::iter::once(y).chain(present).cloned().collect();
        each_cut_without_disk_0(&disks, 102, |at, all| {
            // The uberblock on y lists x as stale, so B may have committed its txg without the
            // other disks, and clients may have read the data of this txg. So the import may
            // report these disks as diverged.
            match check(all, &machine.content) {
                Err(DatasetError::Pool(PoolError::Diverged { .. })) => {
                    check_with(all, &machine.content, true).unwrap();
                }
                Err(error) => failed.push(format!("{at}: {error}")),
                Ok(()) => {}
            }
        });
    }
    assert!(failed.is_empty(), "{} cuts:\n{}", failed.len(), failed.join("\n"));
}

/// Builds a mirror with the newest commit of import epoch 100 on disk 0 only: disk 1 fails while
/// the server writes the uberblock of commit number `commit` (the claim is number 0). The server
/// continues on disk 0, writes this commit's txg into the owner slot, and flushes further changes.
fn committed_on_disk_0(mut machine: Machine, commit: u64) -> Machine {
    let world = SimWorld::from_media(100, machine.disks.clone());
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&cuts);
    world.on_step(move |point| sink.borrow_mut().push(point.cut(CutPlan::Nothing)));
    let options = timed::options(&world, PlantedBug::None);
    let run = async {
        let owner = Some(host("a"));
        let how = ImportOptions { owner, ..ImportOptions::new(Guid(100)) };
        let engine = Engine::open(world.devices(), how, &options).await?;
        for _ in 1..commit {
            change(&engine, &mut machine.content, 3).await?;
            engine.commit().await?;
        }
        change(&engine, &mut machine.content, 4).await?;
        let volume = engine.volume("v")?;
        engine.flush(&volume).await?;
        let timer = world.executor();
        let beats = pin!(engine.pool().keep_owner(|time| timer.sleep(time)));
        select(beats, timer.sleep(3 * OWNER_HEARTBEAT)).await;
        Ok::<_, DatasetError>(())
    };
    world.run_until(run).expect("no power cut").expect("intact disks");
    let is_committed = |disk: &MediaImage| {
        let first = |uberblock: &Uberblock| uberblock.lineage[0].first;
        let of_epoch = |uberblock: &Uberblock| uberblock.lineage[0].id == Guid(100);
        let commits = |uberblock: &Uberblock| uberblock.txg.0 - first(uberblock).0;
        ring(disk).iter().any(|uberblock| of_epoch(uberblock) && commits(uberblock) == commit)
    };
    let before = cuts.take().into_iter().rfind(|disks| !is_committed(&disks[1]));
    machine.disks = vec![
        // Disk 0 had seconds to write its cache to the media, so it has the owner slot.
        world.cut(CutPlan::Everything).swap_remove(0),
        before.expect("the uberblock was written").swap_remove(1),
    ];
    machine
}

// Regression: the claim of an import without disk 0 counted as newer than a txg that only disk 0
// has, although the owner slot on disk 0 names this txg. The next import of all disks lost the
// changes that clients had flushed after this txg.
#[test]
fn txg_that_an_owner_slot_names_is_not_superseded() {
    for commit in [1, 2] {
        let machine = committed_on_disk_0(pool(VdevKind::Mirror, 2), commit);
        each_cut_without_disk_0(&machine.disks, 101, |at, all| {
            check(all, &machine.content).unwrap_or_else(|error| panic!("{at}: {error}"));
        });
    }
}

/// Overwrites the bootstrap tables of the newest `count` txgs on a mirror. Returns the original
/// bytes, each range with its offset.
fn damage_roots(disks: &mut [MediaImage], count: u64) -> Vec<(u64, Vec<u8>)> {
    let uberblocks = ring(&disks[0]);
    let newest = uberblocks.iter().map(|uberblock| uberblock.txg).max().unwrap();
    let mut before = Vec::new();
    for uberblock in uberblocks.iter().filter(|found| found.txg > Txg(newest.0 - count)) {
        for copy in &uberblock.bootstrap {
            let at = segments_offset(LOG_BYTES) + copy.offset;
            let mut bytes = vec![0; uberblock.bootstrap_bytes as usize];
            disks[0].read(at, &mut bytes);
            disks.iter_mut().for_each(|disk| disk.write(at, &vec![0xaa; bytes.len()]));
            before.push((at, bytes));
        }
    }
    before
}

/// Restores the overwritten bytes, except bytes that an import has written since.
fn restore(disk: &mut MediaImage, before: &[(u64, Vec<u8>)]) {
    for (at, bytes) in before {
        let mut now = vec![0; bytes.len()];
        disk.read(*at, &mut now);
        for (now, before) in now.iter_mut().zip(bytes).filter(|(now, _)| **now == 0xaa) {
            *now = *before;
        }
        disk.write(*at, &now);
    }
}

fn content_of(
    disks: &[MediaImage],
    import_epoch: u64,
    force: bool,
) -> Result<Vec<u8>, DatasetError> {
    let world = SimWorld::from_media(import_epoch, disks.to_vec());
    let run = async {
        let how = ImportOptions { force, ..ImportOptions::new(Guid(import_epoch)) };
        let engine = Engine::open(world.devices(), how, &options(&world)).await?;
        let mut found = vec![0; VOLUME_BLOCKS * BLOCK_BYTES];
        engine.volume("v")?.read(0, &mut found).await?;
        Ok::<_, DatasetError>(found)
    };
    world.run_until(run).expect("no power cut")
}

/// The bootstrap tables of the newest `count` txgs become unreadable. A forced import returns to an
/// earlier txg and so abandons these txgs. The power fails before the first commit of the forced
/// import. Then the tables of the abandoned txgs are readable again.
///
/// The next import must find the state that the forced import chose. If the power failed before the
/// forced import wrote its first row, the next import may also find the abandoned state, `newest`.
fn assert_abandoned_txgs_stay_abandoned(mut disks: Vec<MediaImage>, count: u64, newest: &[u8]) {
    let before = damage_roots(&mut disks, count);
    let refused = import(&disks, 100, false).err().expect("no older state without force");
    assert!(matches!(refused, DatasetError::Pool(PoolError::NoUberblock { .. })), "{refused}");
    let content = content_of(&disks, 100, true).expect("an older state is readable");
    let mut failed = Vec::new();
    let mut cuts = 0;
    for (step, cut) in import(&disks, 100, true).unwrap().into_iter().enumerate() {
        for mut images in [cut.nothing, cut.everything] {
            let is_claimed = images.iter().all(|disk| has(disk, 100, false));
            if !is_claimed || images.iter().any(|disk| has(disk, 100, true)) {
                continue;
            }
            cuts += 1;
            images.iter_mut().for_each(|disk| restore(disk, &before));
            let found = match content_of(&images, 101, false) {
                // The forced import may have overwritten log batches of the older state. Without
                // these batches, the next import needs force again.
                Err(DatasetError::Pool(PoolError::LogDamaged { .. })) => {
                    content_of(&images, 101, true)
                }
                found => found,
            };
            match found {
                Ok(found) if found == content || found == newest => {}
                Ok(_) => failed.push(format!("cut at step {step}: another state")),
                Err(error) => failed.push(format!("cut at step {step}: {error}")),
            }
        }
    }
    assert!(cuts > 20, "the import writes after its claim: {cuts} cuts");
    assert!(failed.is_empty(), "{} of {cuts} cuts:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn txgs_that_a_forced_import_abandoned_stay_abandoned() {
    for count in 1..=3 {
        let mut machine = pool(VdevKind::Mirror, 2);
        let disks = work(&machine.disks, 50, &mut machine.content);
        assert_abandoned_txgs_stay_abandoned(disks, count, &machine.content);
    }
}

/// Here the abandoned txgs belong to a later import epoch than the state to which the forced import
/// returns.
#[test]
fn import_epoch_that_a_forced_import_abandoned_stays_abandoned() {
    for count in 2..=3 {
        let machine = pool(VdevKind::Mirror, 2);
        // Import epoch 50 has two txgs: its claim and its first commit.
        let disks = import(&machine.disks, 50, false).unwrap().pop().unwrap().everything;
        assert_abandoned_txgs_stay_abandoned(disks, count, &machine.content);
    }
}

// Regression: a forced import gave its log the same epoch as the abandoned log. The next import
// then replayed batches of the abandoned log over the state that the user had chosen.
#[test]
fn log_of_an_abandoned_import_epoch_is_not_replayed() {
    let machine = pool(VdevKind::Mirror, 2);
    let world = SimWorld::from_media(50, machine.disks);
    let run = async {
        let how = ImportOptions::new(Guid(50));
        let engine = Engine::open(world.devices(), how, &options(&world)).await?;
        let volume = engine.volume("v")?;
        change(&engine, &mut machine.content.clone(), 5).await?;
        engine.flush(&volume).await?;
        engine.commit().await?;
        change(&engine, &mut machine.content.clone(), 6).await?;
        engine.flush(&volume).await
    };
    world.run_until(run).expect("no power cut").expect("intact disks");
    let mut disks = world.cut(CutPlan::Nothing);
    damage_roots(&mut disks, 2);
    let content = content_of(&disks, 100, true).expect("an older state is readable");
    let forced = SimWorld::from_media(100, disks);
    let how = ImportOptions { force: true, ..ImportOptions::new(Guid(100)) };
    let options = options(&forced);
    let open = Engine::open(forced.devices(), how, &options);
    drop(forced.run_until(open).expect("no power cut").expect("an older state is readable"));
    check(&forced.cut(CutPlan::Nothing), &content).unwrap();
}
