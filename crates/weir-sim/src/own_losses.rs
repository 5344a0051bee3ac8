//! Recoveries of pools that lost nodes and blocks of their own trees (directory, segment table,
//! remap and reference tables) in every copy on every leg, while they were closed or in use: what
//! that costs, and that it costs nothing else.
//!
//! Not here: damage that the redundancy covers (scenario).
//!
//! Invariants:
//! - the pool opens, takes writes and commits, over power cuts;
//! - a block is an error or something that was written there: nothing was used again too early;
//! - a block whose pointers need none of the lost nodes keeps its content;
//! - what was written and flushed after the loss is there after the next cut;
//! - nodes that are lost while the pool is in use cost nothing: RAM has what they lead to;
//! - no counter is too low, and one is too high only where the pool says that it may be.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine, LostDatasets};
use weir_format::SEGMENT_ENTRIES_PER_BLOCK;
use weir_pool::{ImportOptions, LostPart, LostTables, OwnPlace, OwnTree, PoolError, ScanState};

use crate::books::Books;
use crate::check::detected_or_harmless;
use crate::client::whole_blocks;
use crate::cut::CutPlan;
use crate::history::{Tag, contents_of, tags_of};
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::scenario::{Layout, Scenario, Trouble, devices};
use crate::world::SimWorld;

/// Writes after a loss, to each volume.
const WRITES: usize = 12;
/// Commits after everything was destroyed: enough for what is dead to come back.
const COMMITS: usize = 8;

/// Looks at a scrub until it is done.
const LOOKS_MAX: usize = 2_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
const TREES: [OwnTree; 4] =
    [OwnTree::Segments, OwnTree::Datasets, OwnTree::Remaps, OwnTree::References];

/// What was written after the loss: by volume and block.
type Written = BTreeMap<(String, usize), Tag>;
/// Content of sectors before the loss, by volume and block; they must hold the same after it.
type Exact = BTreeMap<(String, usize), Vec<Tag>>;

/// Whether such a recovery can be tried: both legs of a mirror have the same at the same place.
pub(crate) fn fits(scenario: &Scenario) -> bool {
    let plain = matches!(scenario.layout, Layout::Single | Layout::Mirror);
    plain && scenario.trouble == Trouble::None && !scenario.reshapes
}

/// Loses parts of one of the pool's own trees, closed or in use, and goes on over more power cuts.
pub(crate) fn lose_some(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    books: &Books,
) -> Result<(), String> {
    if Rng::new(seed).stream("own trees", 1).coin() {
        lose_in_use(scenario, seed, images, books)
    } else {
        lose_and_go_on(scenario, seed, images, books)
    }
}

/// Loses parts of one of the trees of a closed pool and goes on, over two more power cuts.
fn lose_and_go_on(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    books: &Books,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("own trees", 0);
    let mut books = books.clone();
    let (images, lost, mut exact) = lose(scenario, seed, images, &mut rng)?;
    let told = |what: String| format!("{what}, after the loss of {lost:?}");
    let mut written = Written::new();
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 1).await?;
        detected_or_harmless(&engine, &books).await?;
        is_exact(&engine, &exact, &lost).await?;
        let (committer, timer) = (Arc::clone(&engine), world.executor().clone());
        let run = async move { committer.run(|time| timer.sleep(time)).await };
        let run = world.executor().spawn("committer", run);
        let wrote = write_some(&engine, &mut books, &mut written, &mut rng).await;
        if rng.coin() {
            // Half of the time what was flushed is in the log alone.
            return wrote;
        }
        engine.stop();
        run.await.map_err(|error| format!("commit: {error}"))?;
        wrote
    });
    let images = images.map_err(told)?;
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 2).await?;
        detected_or_harmless(&engine, &books).await?;
        is_there(&engine, &written).await?;
        exact.retain(|block, _| !written.contains_key(block));
        is_exact(&engine, &exact, &lost).await?;
        counts(&engine, &lost).await?;
        destroy_all(&engine).await?;
        counts(&engine, &lost).await
    });
    let images = images.map_err(told)?;
    let last = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        open(scenario, world, seed + 3).await.map(drop)
    });
    last.map(drop).map_err(told)
}

/// Loses all nodes of one of the trees while the pool is in use, and the cache has none of them.
fn lose_in_use(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    books: &Books,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("own trees in use", 0);
    let (mut books, mut written, mut exact) = (books.clone(), Written::new(), Exact::new());
    let tree = TREES[rng.index(TREES.len())];
    let told = |what: String| format!("{what}, after the loss of nodes of {tree:?} in use");
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed).await?;
        exact = contents(&engine, &[]).await?;
        let places = engine.pool().own_places().await.map_err(|error| error.to_string())?;
        let nodes = places.into_iter().filter(|place| place.tree == tree && place.level > 0);
        scribble(world, &nodes.collect::<Vec<_>>(), &mut rng);
        engine.pool().cache().clear();
        let (committer, timer) = (Arc::clone(&engine), world.executor().clone());
        let run = async move { committer.run(|time| timer.sleep(time)).await };
        let run = world.executor().spawn("committer", run);
        write_some(&engine, &mut books, &mut written, &mut rng).await?;
        let is_changed = matches!(tree, OwnTree::Segments | OwnTree::Datasets);
        if rng.coin() || !is_changed || written.is_empty() {
            scrub(world, &engine).await?;
        }
        engine.sync().await.map_err(|error| format!("commit: {error}"))?;
        engine.stop();
        run.await.map_err(|error| format!("the committer gave up: {error}"))
    });
    let images = images.map_err(told)?;
    exact.retain(|block, _| !written.contains_key(block));
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 1).await?;
        is_exact(&engine, &exact, &[]).await?;
        is_there(&engine, &written).await?;
        counts(&engine, &[]).await?;
        let (datasets, tables) = (engine.lost_datasets(), engine.pool().lost_tables());
        if (&datasets, &tables) != (&LostDatasets::default(), &LostTables::default()) {
            return Err(format!("{datasets:?} and {tables:?} are lost, and RAM had them"));
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

/// Looks at everything on the disks.
async fn scrub(world: &SimWorld, engine: &Arc<Engine>) -> Result<(), String> {
    match engine.scrub_start() {
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(()),
        started => drop(started.map_err(|error| format!("scrub: {error}"))?),
    }
    let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
    let run = async move { scanner.run_scans(|time| timer.sleep(time)).await };
    let run = world.executor().spawn("scans", run);
    for _ in 0..LOOKS_MAX {
        world.executor().sleep(BETWEEN_LOOKS).await;
        let ends = |scan: weir_pool::ScanStatus| scan.state == ScanState::Finished;
        if engine.pool().scan_status().is_some_and(ends) {
            break;
        }
    }
    engine.stop();
    run.await.map_err(|error| format!("the scans gave up: {error}"))
}

/// Runs something on these disks, and cuts the power with nothing of what was not flushed kept.
fn in_world(
    images: Vec<MediaImage>,
    seed: u64,
    run: impl AsyncFnOnce(&SimWorld) -> Result<(), String>,
) -> Result<Vec<MediaImage>, String> {
    let world = SimWorld::from_media(seed, images);
    world.run_until(run(&world)).map_err(|error| error.to_string())??;
    Ok(world.cut(CutPlan::Nothing))
}

async fn open(scenario: &Scenario, world: &SimWorld, opening: u64) -> Result<Arc<Engine>, String> {
    let opened = async |force| {
        let how = ImportOptions { force, ..ImportOptions::new(Guid(opening)) };
        Engine::open(devices(world), how, &scenario.options(world)).await
    };
    let mut engine = opened(false).await;
    if let Err(DatasetError::Pool(PoolError::LossWhileMissing { .. })) = engine {
        // A leg that the operator took offline may have what was lost: it has to be given up.
        engine = opened(true).await;
    }
    let engine = engine.map_err(|error| format!("open: {error}"))?;
    scenario.shrink_tables(&engine);
    Ok(engine)
}

/// Damages a few places of one tree, or all of a level; what needs none of that.
fn lose(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    rng: &mut Rng,
) -> Result<(Vec<MediaImage>, Vec<OwnPlace>, Exact), String> {
    let (mut lost, mut exact) = (Vec::new(), Exact::new());
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed).await?;
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
        lost = places;
        exact = contents(&engine, &lost).await?;
        Ok(())
    })?;
    let world = SimWorld::from_media(rng.next_u64(), images);
    scribble(&world, &lost, rng);
    Ok((world.cut(CutPlan::Everything), lost, exact))
}

fn scribble(world: &SimWorld, places: &[OwnPlace], rng: &mut Rng) {
    for place in places {
        for offset in [Some(place.offset), place.second].into_iter().flatten() {
            for disk in world.disks() {
                disk.scribble(offset..offset + place.len as u64, rng.next_u64());
            }
        }
    }
}

/// Segments that are described by what is lost of the segment table or of the remap tables.
fn described(lost: &[OwnPlace]) -> Vec<Range<u64>> {
    let of = |place: &OwnPlace| {
        let blocks = LostPart { level: place.level, index: place.index }.blocks();
        let each = match place.tree {
            OwnTree::Segments => SEGMENT_ENTRIES_PER_BLOCK as u64,
            OwnTree::Remaps => 1,
            OwnTree::Datasets | OwnTree::References => return None,
        };
        Some(blocks.start.saturating_mul(each)..blocks.end.saturating_mul(each))
    };
    lost.iter().filter_map(of).collect()
}

/// Content of every block that can be read without the nodes that are about to be lost.
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

/// Compares every block with its content before; a volume may be gone if some of the directory
/// is lost.
async fn is_exact(engine: &Engine, exact: &Exact, lost: &[OwnPlace]) -> Result<(), String> {
    let may_be_gone = lost.iter().any(|place| place.tree == OwnTree::Datasets);
    for ((name, block), tags) in exact {
        let volume = match engine.volume(name) {
            Err(_) if may_be_gone => continue,
            found => found.map_err(|error| format!("{name}: {error}"))?,
        };
        let mut bytes = [0; BLOCK_BYTES];
        let read = volume.read((block * BLOCK_BYTES) as u64, &mut bytes).await;
        read.map_err(|error| format!("{name} block {block} needs nothing lost: {error}"))?;
        if tags_of(&bytes) != *tags {
            return Err(format!("{name} block {block} is not what it was"));
        }
    }
    Ok(())
}

/// Compares counters with a walk, as far as that can read what it needs.
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
    // What a lost snapshot says of its volume's space is there again after a recount.
    let are_whole = lost.iter().all(|place| place.tree != OwnTree::Datasets);
    let accounts = found(engine.check_accounts().await)?;
    if let Some(wrong) = accounts.first().filter(|_| are_whole) {
        return Err(format!("{wrong:?}"));
    }
    match found(engine.check_places().await)? {
        Some(places) => Err(format!("{places:?}")),
        None => Ok(()),
    }
}

/// Whether an error is one that a client may get after a loss.
fn is_allowed(error: &DatasetError) -> bool {
    matches!(error.kind(), ErrorKind::Data | ErrorKind::NoSpace)
}

async fn write_some(
    engine: &Engine,
    books: &mut Books,
    written: &mut Written,
    rng: &mut Rng,
) -> Result<(), String> {
    for volume in engine.volumes() {
        let info = volume.info();
        let at = (0..).zip(&books.volumes).find(|(_, book)| book.name == info.name);
        let Some(at) = at.map(|(at, _)| at) else { continue };
        for _ in 0..WRITES {
            let block = rng.index(info.size_bytes as usize / BLOCK_BYTES);
            let tag = books.new_tag(at, block, rng.coin());
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
            return Err(format!("{name} block {block} is not what was written and flushed"));
        }
    }
    Ok(())
}

/// Destroys what can be destroyed, and commits until that is over.
async fn destroy_all(engine: &Engine) -> Result<(), String> {
    for volume in engine.volumes() {
        match engine.destroy_volume(&volume.info().name, true).await {
            // A clone, a tag or a stream keeps it.
            Ok(_) | Err(DatasetError::InUse { .. }) => {}
            Err(error) => return Err(format!("destroy: {error}")),
        }
    }
    for _ in 0..COMMITS {
        engine.sync().await.map_err(|error| format!("commit: {error}"))?;
    }
    Ok(())
}
