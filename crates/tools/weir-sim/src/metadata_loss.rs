//! Metadata loss: corrupts all copies of parts of the metadata trees, in closed and in open pools,
//! and checks all other data. `scenario` covers damage within the redundancy.
//!
//! Invariants:
//! - every import succeeds, and the pool accepts writes and commits, also across power cuts;
//! - a read returns an error or data once written to that block, so no live space was reused;
//! - a block that a walk reaches without a corrupted node keeps its content;
//! - an import that needs force writes nothing if it runs without force;
//! - when the nodes are readable again, every volume, snapshot and block is readable again;
//! - data written and flushed after the metadata loss survives the next power cut;
//! - in an open pool the metadata loss affects nothing, because RAM holds the lost nodes;
//! - no counter is too low, and a counter is too high only if the pool reports this possibility.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine, LostDatasets};
use weir_format::SEGMENT_ENTRIES_PER_BLOCK;
use weir_pool::{
    ImportOptions, LostPart, LostTables, MetadataTree, OwnPlace, PoolError, ScanState,
};

use crate::check::detected_or_harmless;
use crate::client::whole_blocks;
use crate::cut::CutPlan;
use crate::expected::ExpectedState;
use crate::history::{Tag, contents_of, tags_of};
use crate::media::MediaImage;
use crate::objects::layer::SimLayer;
use crate::objects::readable::Readable;
use crate::rng::Rng;
use crate::scenario::{FaultPlan, Layout, Scenario};
use crate::world::SimWorld;

/// Number of writes to each volume after a loss.
const WRITES: usize = 12;
/// Number of commits that reclaim all dead space after all volumes were destroyed.
const COMMITS: usize = 8;

/// Maximum number of polls until a scrub ends.
const POLLS_MAX: usize = 2_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Virtual time limit of writes to the log, far more than the disks need.
const LOG_LIMIT: Duration = Duration::from_secs(10);
const TREES: [MetadataTree; 4] = [
    MetadataTree::Segments,
    MetadataTree::Datasets,
    MetadataTree::Remaps,
    MetadataTree::References,
];

/// Content written after the metadata loss, by volume and block.
type Written = BTreeMap<(String, usize), Tag>;
/// Content of sectors before the metadata loss, by volume and block. The loss must not change it.
type Exact = BTreeMap<(String, usize), Vec<Tag>>;

/// True if this check supports the scenario: a single disk, or a mirror, whose legs have equal data
/// at equal offsets.
pub(crate) fn fits(scenario: &Scenario) -> bool {
    let plain = matches!(scenario.layout, Layout::Single | Layout::Mirror);
    plain && scenario.trouble == FaultPlan::None && !scenario.reshapes
}

/// Corrupts nodes or blocks of one metadata tree of a closed or open pool, and continues across
/// more power cuts.
pub(crate) fn lose_some(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    expected: &ExpectedState,
) -> Result<(), String> {
    if Rng::new(seed).stream("own trees", 1).coin() {
        lose_in_use(scenario, seed, images, expected)
    } else {
        lose_and_go_on(scenario, seed, images, expected)
    }
}

/// State of a pool before its metadata loss.
#[derive(Default)]
struct Before {
    /// Addresses of the nodes and blocks of the metadata tree that were corrupted.
    lost: Vec<OwnPlace>,
    /// Names of volumes and snapshots.
    names: Vec<String>,
    /// Content of every block.
    whole: Exact,
    /// Blocks of `whole` that can be read without any lost node or block.
    exact: Exact,
    /// Content of all datasets with many objects, which clients do not change after the loss.
    objects: Readable,
    /// Flushed writes that exist only in the log.
    logged: Written,
    /// All copies of the lost nodes and blocks.
    flipped: Vec<Flipped>,
}

/// A copy of a node or block in which bits were flipped.
struct Flipped {
    /// Index of the leg that holds the copy.
    image: usize,
    offset: u64,
    /// Bytes of the copy after the flip.
    bytes: Vec<u8>,
}

/// Corrupts nodes or blocks of one metadata tree of a closed pool and continues across more power
/// cuts.
fn lose_and_go_on(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    expected: &ExpectedState,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("own trees", 0);
    let mut expected = expected.clone();
    let (images, mut before) = lose(scenario, seed, images, (&mut expected, &mut rng))?;
    let lost = before.lost.clone();
    let told = |what: String| format!("{what}, after the loss of {lost:?}");
    let mut written = Written::new();
    let mut is_refused = false;
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        is_refused = open_unforced(scenario, world, seed + 1).await?.is_none();
        Ok(())
    });
    let mut images = images.map_err(told)?;
    if is_refused && rng.coin() {
        restore(&mut images, &before.flipped);
        written.append(&mut before.logged);
        let expected = (&expected, &before, &written);
        return return_all(scenario, seed, images, expected, &mut rng).map_err(told);
    }
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 2).await?;
        detected_or_harmless(&engine, &expected).await?;
        before.keep_logged(&engine, &mut written);
        is_there(&engine, &written).await?;
        is_exact(&engine, &before.exact, &lost).await?;
        objects_survive(&engine, &expected, (&before.objects, &lost)).await?;
        let (committer, timer) = (Arc::clone(&engine), world.executor().clone());
        let run = async move { committer.run(|time| timer.sleep(time)).await };
        let run = world.executor().spawn("committer", run);
        let wrote = write_some(&engine, &mut expected, &mut written, &mut rng).await;
        if rng.coin() {
            // In half of the runs, stop here, so that the flushed data exists only in the log.
            return wrote;
        }
        engine.stop();
        run.await.map_err(|error| format!("commit: {error}"))?;
        wrote
    });
    let mut images = images.map_err(told)?;
    if rng.coin() {
        restore(&mut images, &before.flipped);
        let expected = (&expected, &before, &written);
        return return_all(scenario, seed, images, expected, &mut rng).map_err(told);
    }
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 3).await?;
        detected_or_harmless(&engine, &expected).await?;
        is_there(&engine, &written).await?;
        before.exact.retain(|block, _| !written.contains_key(block));
        is_exact(&engine, &before.exact, &lost).await?;
        objects_survive(&engine, &expected, (&before.objects, &lost)).await?;
        counts(&engine, &lost).await?;
        destroy_all(&engine).await?;
        counts(&engine, &lost).await
    });
    let images = images.map_err(told)?;
    let last = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        open(scenario, world, seed + 4).await.map(drop)
    });
    last.map(drop).map_err(told)
}

/// Opens a pool whose lost metadata is readable again and expects the complete state before the
/// loss. A recount then corrects the counters.
fn return_all(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    (expected, before, written): (&ExpectedState, &Before, &Written),
    rng: &mut Rng,
) -> Result<(), String> {
    let mut whole = before.whole.clone();
    whole.retain(|block, _| !written.contains_key(block) && !before.logged.contains_key(block));
    let is_back = async |engine: &Engine| {
        let names = names_of(engine).await?;
        if names != before.names {
            return Err(format!("{:?} were imported as {names:?}", before.names));
        }
        is_exact(engine, &whole, &[]).await?;
        is_there(engine, written).await?;
        objects_survive(engine, expected, (&before.objects, &[])).await?;
        counts(engine, &before.lost).await
    };
    let told = |what: String| format!("{what}, after the lost parts became readable again");
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 5).await?;
        is_back(&engine).await?;
        scrub(world, &engine).await?;
        is_back(&engine).await
    });
    let images = images.map_err(told)?;
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 6).await?;
        is_back(&engine).await?;
        destroy_all(&engine).await?;
        counts(&engine, &before.lost).await
    });
    let images = images.map_err(told)?;
    let last = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        open(scenario, world, seed + 7).await.map(drop)
    });
    last.map(drop).map_err(told)
}

impl Before {
    /// Writes only to the log, because a commit would move the metadata that is about to be lost. A
    /// write that waits for a commit, because the log or the pool is full, is aborted after
    /// [`LOG_LIMIT`]; the content of all written blocks is then unknown.
    async fn log_some(
        &mut self,
        world: &SimWorld,
        engine: &Engine,
        (expected, rng): (&mut ExpectedState, &mut Rng),
    ) -> Result<(), String> {
        let mut written = Written::new();
        let ended = {
            let write = pin!(write_some(engine, expected, &mut written, rng));
            match select(write, world.executor().sleep(LOG_LIMIT)).await {
                Either::Left((done, _)) => done.map(|()| true)?,
                Either::Right(_) => false,
            }
        };
        if ended {
            self.logged = written;
        } else {
            for block in written.keys() {
                self.exact.remove(block);
                self.whole.remove(block);
            }
        }
        Ok(())
    }

    /// After an import, records in `written` the logged writes of every volume that the import
    /// found. A forced import may drop the writes to a volume that it did not find.
    fn keep_logged(&mut self, engine: &Engine, written: &mut Written) {
        for (block, tag) in &self.logged {
            self.exact.remove(block);
            if engine.volume(&block.0).is_ok() {
                written.insert(block.clone(), *tag);
            }
        }
    }
}

async fn names_of(engine: &Engine) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for volume in engine.volumes() {
        let name = volume.info().name;
        let snapshots = engine.snapshots(&name).await;
        let snapshots = snapshots.map_err(|error| format!("snapshots: {error}"))?;
        names.extend(snapshots.iter().map(|snapshot| format!("{name}@{}", snapshot.name)));
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}

/// Overwrites all nodes of one tree of an open pool and empties the pool's cache. The pool must
/// lose nothing, because its tables in RAM hold the content of the nodes.
fn lose_in_use(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    expected: &ExpectedState,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("own trees in use", 0);
    let (mut expected, mut written, mut exact) = (expected.clone(), Written::new(), Exact::new());
    let mut objects = Readable::default();
    let tree = TREES[rng.index(TREES.len())];
    let told = |what: String| format!("{what}, after the loss of nodes of {tree:?} in use");
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed).await?;
        exact = contents(&engine, &[]).await?;
        objects = expected.objects.readable(&engine).await?;
        let places = engine.pool().own_places().await.map_err(|error| error.to_string())?;
        let nodes = places.into_iter().filter(|place| place.tree == tree && place.level > 0);
        scribble(world, &nodes.collect::<Vec<_>>(), &mut rng);
        engine.pool().cache().clear();
        let (committer, timer) = (Arc::clone(&engine), world.executor().clone());
        let run = async move { committer.run(|time| timer.sleep(time)).await };
        let run = world.executor().spawn("committer", run);
        write_some(&engine, &mut expected, &mut written, &mut rng).await?;
        let is_changed = matches!(tree, MetadataTree::Segments | MetadataTree::Datasets);
        if rng.coin() || !is_changed || written.is_empty() {
            scrub(world, &engine).await?;
        }
        engine.sync().await.map_err(|error| format!("commit: {error}"))?;
        engine.stop();
        run.await.map_err(|error| format!("the committer failed: {error}"))
    });
    let images = images.map_err(told)?;
    exact.retain(|block, _| !written.contains_key(block));
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 1).await?;
        is_exact(&engine, &exact, &[]).await?;
        is_there(&engine, &written).await?;
        objects_survive(&engine, &expected, (&objects, &[])).await?;
        counts(&engine, &[]).await?;
        let (datasets, tables) = (engine.lost_datasets(), engine.pool().lost_tables());
        if (&datasets, &tables) != (&LostDatasets::default(), &LostTables::default()) {
            return Err(format!("{datasets:?} and {tables:?} are lost, although RAM had them"));
        }
        destroy_all(&engine).await?;
        counts(&engine, &[]).await
    });
    let images = images.map_err(told)?;
    let last = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        counts(&*open(scenario, world, seed + 2).await?, &[]).await
    });
    last.map(drop).map_err(told)
}

/// Runs a scrub to its end.
async fn scrub(world: &SimWorld, engine: &Arc<Engine>) -> Result<(), String> {
    match engine.scrub_start() {
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(()),
        started => drop(started.map_err(|error| format!("scrub: {error}"))?),
    }
    let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
    let run = async move { scanner.run_scans(|time| timer.sleep(time)).await };
    let run = world.executor().spawn("scans", run);
    for _ in 0..POLLS_MAX {
        world.executor().sleep(POLL_INTERVAL).await;
        let ends = |scan: weir_pool::ScanStatus| scan.state == ScanState::Finished;
        if engine.pool().scan_status().is_some_and(ends) {
            break;
        }
    }
    engine.stop();
    // No committer runs in this world, so commit in this loop, because the scans may wait for a
    // commit.
    let mut run = run;
    loop {
        match select(run, pin!(world.executor().sleep(POLL_INTERVAL))).await {
            Either::Left((done, _)) => {
                return done.map_err(|error| format!("the scans failed: {error}"));
            }
            Either::Right(((), rest)) => run = rest,
        }
        engine.sync().await.map_err(|error| format!("commit: {error}"))?;
    }
}

/// Runs a future on these disks, then cuts the power and drops all unflushed writes.
fn in_world(
    images: Vec<MediaImage>,
    seed: u64,
    run: impl AsyncFnOnce(&SimWorld) -> Result<(), String>,
) -> Result<Vec<MediaImage>, String> {
    let world = SimWorld::from_media(seed, images);
    world.run_until(run(&world)).map_err(|error| error.to_string())??;
    Ok(world.cut(CutPlan::Nothing))
}

/// Opens a pool without force; returns `None` if the pool needs force.
async fn open_unforced(
    scenario: &Scenario,
    world: &SimWorld,
    import_epoch: u64,
) -> Result<Option<Arc<Engine>>, String> {
    match open_with(scenario, world, ImportOptions::new(Guid(import_epoch))).await {
        Err(DatasetError::Pool(
            // A leg that the operator took offline may have a good copy of the lost metadata, so
            // the import needs force.
            PoolError::LossWhileMissing { .. }
            | PoolError::DirectoryLost { .. }
            | PoolError::LoggedForLost { .. },
        )) => Ok(None),
        opened => opened.map(Some).map_err(|error| format!("open: {error}")),
    }
}

async fn open_with(
    scenario: &Scenario,
    world: &SimWorld,
    how: ImportOptions,
) -> Result<Arc<Engine>, DatasetError> {
    let options = scenario.options(world);
    let engine = Engine::open_with_layer(world.devices(), how, &options, &SimLayer).await?;
    scenario.shrink_tables(&engine);
    Ok(engine)
}

/// Opens a pool, with force if the import requires it.
async fn open(
    scenario: &Scenario,
    world: &SimWorld,
    import_epoch: u64,
) -> Result<Arc<Engine>, String> {
    if let Some(engine) = open_unforced(scenario, world, import_epoch).await? {
        return Ok(engine);
    }
    let how = ImportOptions { force: true, ..ImportOptions::new(Guid(import_epoch)) };
    open_with(scenario, world, how).await.map_err(|error| format!("open: {error}"))
}

/// Corrupts a few nodes or blocks of one tree, or one whole level. In some runs, flushed writes
/// that exist only in the log precede the loss.
fn lose(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    (expected, rng): (&mut ExpectedState, &mut Rng),
) -> Result<(Vec<MediaImage>, Before), String> {
    let mut before = Before::default();
    let mut images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed).await?;
        if scenario.objects {
            // Commit the logged changes of objects, because a forced import drops logged changes
            // that need a lost part.
            engine.sync().await.map_err(|error| format!("commit: {error}"))?;
        }
        let mut places = engine.pool().own_places().await.map_err(|error| error.to_string())?;
        let tree = TREES[rng.index(TREES.len())];
        places.retain(|place| place.tree == tree);
        rng.shuffle(&mut places);
        let few = 1 + rng.index(3);
        let level = places.first().map_or(0, |place| place.level);
        if rng.coin() {
            places.retain(|place| place.level == level);
        } else {
            places.truncate(few);
        }
        before.lost = places;
        before.names = names_of(&engine).await?;
        before.exact = contents(&engine, &before.lost).await?;
        before.whole = contents(&engine, &[]).await?;
        before.objects = expected.objects.readable(&engine).await?;
        if rng.coin() {
            before.log_some(world, &engine, (expected, rng)).await?;
        }
        Ok(())
    })?;
    before.flipped = flip(&mut images, &before.lost);
    Ok((images, before))
}

/// Flips bits in every copy of these nodes and blocks on every leg.
fn flip(images: &mut [MediaImage], places: &[OwnPlace]) -> Vec<Flipped> {
    let mut flipped = Vec::new();
    for place in places {
        for (_, offset) in place.copies.into_iter().flatten() {
            for (image, media) in images.iter_mut().enumerate() {
                flip_copy(media, offset);
                let mut bytes = vec![0; place.len];
                media.read(offset, &mut bytes);
                flipped.push(Flipped { image, offset, bytes });
            }
        }
    }
    flipped
}

/// Restores the flipped bits, except in copies that the pool has overwritten: the pool reuses the
/// space of a lost reference table.
fn restore(images: &mut [MediaImage], flipped: &[Flipped]) {
    for Flipped { image, offset, bytes } in flipped {
        let mut found = vec![0; bytes.len()];
        images[*image].read(*offset, &mut found);
        if found == *bytes {
            flip_copy(&mut images[*image], *offset);
        }
    }
}

fn flip_copy(media: &mut MediaImage, offset: u64) {
    (0..4).for_each(|n| media.flip_bit(offset + n * 16, 3));
}

fn scribble(world: &SimWorld, places: &[OwnPlace], rng: &mut Rng) {
    for place in places {
        for (_, offset) in place.copies.into_iter().flatten() {
            for disk in world.disks() {
                disk.scribble(offset..offset + place.len as u64, rng.next_u64());
            }
        }
    }
}

/// Segments whose entry in the segment table or whose remap table is lost.
fn described(lost: &[OwnPlace]) -> Vec<Range<u64>> {
    let of = |place: &OwnPlace| {
        let blocks = LostPart { level: place.level, index: place.index }.blocks();
        let each = match place.tree {
            MetadataTree::Segments => SEGMENT_ENTRIES_PER_BLOCK as u64,
            MetadataTree::Remaps => 1,
            MetadataTree::Datasets | MetadataTree::References => return None,
        };
        Some(blocks.start.saturating_mul(each)..blocks.end.saturating_mul(each))
    };
    lost.iter().filter_map(of).collect()
}

/// Content of every block that is readable without the metadata in `lost`.
async fn contents(engine: &Engine, lost: &[OwnPlace]) -> Result<Exact, String> {
    let (described, mut exact) = (described(lost), Exact::new());
    for volume in engine.volumes() {
        let info = volume.info();
        for block in 0..info.size_bytes as usize / BLOCK_BYTES {
            let record = (block * BLOCK_BYTES / info.record_size.bytes()) as u64;
            let needs = volume.segments_behind(record).await;
            let needs = needs.map_err(|error| format!("lookup: {error}"))?;
            if needs.iter().any(|vseg| described.iter().any(|range| range.contains(&vseg.0))) {
                continue;
            }
            let mut bytes = [0; BLOCK_BYTES];
            let read = volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await;
            read.map_err(|error| format!("read before the loss: {error}"))?;
            exact.insert((info.name.clone(), block), tags_of(&bytes));
        }
    }
    Ok(exact)
}

/// Compares every block with its content before the loss. If a node of the directory is lost, a
/// volume may be missing.
async fn is_exact(engine: &Engine, exact: &Exact, lost: &[OwnPlace]) -> Result<(), String> {
    let may_be_gone = lost.iter().any(|place| place.tree == MetadataTree::Datasets);
    for ((name, block), tags) in exact {
        let volume = match engine.volume(name) {
            Err(_) if may_be_gone => continue,
            found => found.map_err(|error| format!("{name}: {error}"))?,
        };
        let mut bytes = [0; BLOCK_BYTES];
        let read = volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await;
        read.map_err(|error| format!("{name} block {block} needs no lost node: {error}"))?;
        if tags_of(&bytes) != *tags {
            return Err(format!("{name} block {block} has wrong data"));
        }
    }
    Ok(())
}

/// Compares all objects with their content before the loss. If no lost node or block belongs to the
/// directory, the segment table or the remap tables, all objects must be readable.
async fn objects_survive(
    engine: &Engine,
    expected: &ExpectedState,
    (before, lost): (&Readable, &[OwnPlace]),
) -> Result<(), String> {
    let are_listed = lost.iter().all(|place| place.tree != MetadataTree::Datasets);
    let is_whole = are_listed && described(lost).is_empty();
    expected.objects.readable(engine).await?.judge(before, are_listed, is_whole)
}

/// Compares the counters with a walk of the trees, as far as the walk can read the tree nodes.
async fn counts(engine: &Engine, lost: &[OwnPlace]) -> Result<(), String> {
    fn found<T: Default>(done: Result<T, DatasetError>) -> Result<T, String> {
        match done {
            Err(error) if error.kind() == ErrorKind::Data => Ok(T::default()),
            done => done.map_err(|error| format!("walk: {error}")),
        }
    }
    if let Some(wrong) = found(engine.check_live_bytes().await)?.first() {
        return Err(format!("live bytes {wrong:?}"));
    }
    if let Some(wrong) = found(engine.check_references().await)?.first() {
        return Err(format!("{wrong:?}"));
    }
    // If the directory entry of a snapshot is lost, the space account of its volume is wrong until
    // a recount. So check the accounts only if no part of the directory is lost.
    let are_whole = lost.iter().all(|place| place.tree != MetadataTree::Datasets);
    let accounts = found(engine.check_accounts().await)?;
    if let Some(wrong) = accounts.first().filter(|_| are_whole) {
        return Err(format!("{wrong:?}"));
    }
    match found(engine.check_places().await)? {
        Some(places) => Err(format!("{places:?}")),
        None => Ok(()),
    }
}

/// True if a client may receive this error after a loss.
fn is_allowed(error: &DatasetError) -> bool {
    matches!(error.kind(), ErrorKind::Data | ErrorKind::NoSpace)
}

async fn write_some(
    engine: &Engine,
    expected: &mut ExpectedState,
    written: &mut Written,
    rng: &mut Rng,
) -> Result<(), String> {
    for volume in engine.volumes() {
        let info = volume.info();
        let at = (0..).zip(&expected.volumes).find(|(_, book)| book.name == info.name);
        let Some(at) = at.map(|(at, _)| at) else { continue };
        for _ in 0..WRITES {
            let block = rng.index(info.size_bytes as usize / BLOCK_BYTES);
            let tag = expected.new_tag(at, block, rng.coin());
            match volume
                .write((block * BLOCK_BYTES) as u64, &contents_of(&whole_blocks(&[tag])))
                .await
            {
                Ok(()) => drop(written.insert((info.name.clone(), block), tag)),
                Err(error) if is_allowed(&error) => {}
                Err(error) => return Err(format!("write: {error}")),
            }
        }
        engine.flush(&volume).await.map_err(|error| format!("flush: {error}"))?;
    }
    Ok(())
}

async fn is_there(engine: &Engine, written: &Written) -> Result<(), String> {
    for ((name, block), tag) in written {
        let volume = engine.volume(name).map_err(|error| error.to_string())?;
        let mut bytes = [0; BLOCK_BYTES];
        let read = volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await;
        read.map_err(|error| format!("{name} block {block} was written and flushed: {error}"))?;
        if tags_of(&bytes) != whole_blocks(&[*tag]) {
            return Err(format!("{name} block {block} differs from the flushed write"));
        }
    }
    Ok(())
}

/// Destroys all volumes that can be destroyed, and commits until their space is freed.
async fn destroy_all(engine: &Engine) -> Result<(), String> {
    for volume in engine.volumes() {
        match engine.destroy_volume(&volume.info().name, true).await {
            // A clone, a hold or a stream may prevent the destruction of a volume.
            Ok(_) | Err(DatasetError::InUse { .. }) => {}
            Err(error) => return Err(format!("destroy: {error}")),
        }
    }
    for _ in 0..COMMITS {
        engine.sync().await.map_err(|error| format!("commit: {error}"))?;
    }
    Ok(())
}
