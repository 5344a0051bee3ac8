//! Recoveries of pools that lost nodes and blocks of the directory or of the reference tables in
//! every copy on every leg: what that costs, and that it costs nothing else.
//!
//! Not here: damage that the redundancy covers (scenario); segment table and remap tables, whose
//! loss takes nodes of volumes with it.
//!
//! Invariants:
//! - the pool opens, takes writes and commits, over power cuts;
//! - a block is an error or something that was written there: nothing was used again too early;
//! - what was written and flushed after the loss is there after the next cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine};
use weir_pool::{ImportOptions, OwnPlace, OwnTree, PoolError};

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

/// What was written after the loss: by volume and block.
type Written = BTreeMap<(String, usize), Tag>;

/// Whether such a recovery can be tried: both legs of a mirror have the same at the same place.
pub(crate) fn fits(scenario: &Scenario) -> bool {
    let plain = matches!(scenario.layout, Layout::Single | Layout::Mirror);
    plain && scenario.trouble == Trouble::None && !scenario.reshapes
}

/// Loses parts of one of the pool's own trees and goes on, over two more power cuts.
pub(crate) fn lose_and_go_on(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    books: &Books,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("own trees", 0);
    let mut books = books.clone();
    let (images, lost) = lose(scenario, seed, images, &mut rng)?;
    let told = |what: String| format!("{what}, after the loss of {lost:?}");
    let mut written = Written::new();
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed + 1).await?;
        detected_or_harmless(&engine, &books).await?;
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
        destroy_all(&engine).await
    });
    let images = images.map_err(told)?;
    let last = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        open(scenario, world, seed + 3).await.map(drop)
    });
    last.map(drop).map_err(told)
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
        let how =
            ImportOptions { force, opening: Guid(opening), waits_for_all: false, owner: None };
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

/// Damages a few places of one tree, or all of a level.
fn lose(
    scenario: &Scenario,
    seed: u64,
    images: Vec<MediaImage>,
    rng: &mut Rng,
) -> Result<(Vec<MediaImage>, Vec<OwnPlace>), String> {
    let mut lost = Vec::new();
    let images = in_world(images, rng.next_u64(), async |world: &SimWorld| {
        let engine = open(scenario, world, seed).await?;
        let mut places = engine.pool().own_places().await.map_err(|error| error.to_string())?;
        let trees = [OwnTree::Datasets, OwnTree::References];
        let tree = trees[rng.index(trees.len())];
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
        Ok(())
    })?;
    let world = SimWorld::from_media(rng.next_u64(), images);
    for place in &lost {
        for offset in [Some(place.offset), place.second].into_iter().flatten() {
            for disk in world.disks() {
                disk.scribble(offset..offset + place.len as u64, rng.next_u64());
            }
        }
    }
    Ok((world.cut(CutPlan::Everything), lost))
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
