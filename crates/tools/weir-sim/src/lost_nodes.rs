//! Scenario of lost tree nodes: corrupts nodes of one volume on every leg, then continues with
//! writes, trims, snapshots, rollbacks, clones, scrubs and power cuts, and checks every block.
//!
//! `scenario` covers faults within the redundancy, and many concurrent clients.
//!
//! Invariants:
//! - a block that is not below a lost node has its exact content. A read of a block below a lost
//!   node fails until the block is written or trimmed, or the node is readable again;
//! - the pool is never suspended, and every import succeeds;
//! - when a read of an unreadable block returns, the block is on the damage list; an import
//!   restores the stored damage list; after a complete scrub the list has only unreadable blocks;
//! - after the damaged volume is destroyed, every counter equals a walk of the trees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{
    DatasetError, Engine, EngineOptions, PoolDamage, SnapshotId, Volume, VolumeSpec,
};
use weir_format::Compression;
use weir_pool::{DiskAddress, ImportOptions, PlantedBug};

use crate::client::whole_blocks;
use crate::cut::CutPlan;
use crate::error::SimError;
use crate::executor::JoinHandle;
use crate::history::{GARBAGE, Tag, contents_of, tags_of, write_of};
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::scenario::{Layout, Room, Scenario, devices};
use crate::world::SimWorld;

/// The volume that loses nodes, and a volume that must not be affected.
const VICTIM: &str = "victim";
const OTHER: &str = "other";
/// Number of blocks of each volume: two leaves below one node, the second not full.
const BLOCKS: usize = 200;
/// Number of blocks that one leaf points to.
const LEAF: usize = 128;
/// Number of steps in one generation, from an import to the next power cut; most cuts come earlier.
const STEPS: u64 = 14;
/// Number of generations after the damage.
const LIVES: u64 = 3;
const SNAPSHOTS_MAX: usize = 3;
const MEMORY_BYTES: u64 = 4 << 20;
/// Virtual time within which scans, frees and a recount end.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_mins(1);

/// Expected state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Holds(Tag),
    /// A node on the path to the block is lost; before the loss, the block had this content.
    Lost(Tag),
    /// The block is lost; because of a power cut, its content before the loss is one of several.
    LostEither,
    /// The block was [`Self::LostEither`] and is readable again; it may have any content.
    Found,
}

impl Cell {
    /// True if a read of the block may have this result.
    fn admits(self, found: Result<Tag, ErrorKind>) -> bool {
        match self {
            Self::Holds(tag) => found == Ok(tag),
            Self::Lost(_) | Self::LostEither => found == Err(ErrorKind::Data),
            Self::Found => found.is_ok_and(|tag| tag != GARBAGE),
        }
    }

    fn is_lost(self) -> bool {
        matches!(self, Self::Lost(_) | Self::LostEither)
    }

    /// Narrows the possible states of a block to the state that a read shows; `None` if no possible
    /// state allows the result `found`.
    fn settled(all: &[Self], found: Result<Tag, ErrorKind>) -> Option<Self> {
        let mut fits = all.iter().copied().filter(|cell| cell.admits(found));
        let first = fits.next()?;
        Some(match found {
            Ok(tag) => Self::Holds(tag),
            Err(_) if fits.all(|cell| cell == first) => first,
            Err(_) => Self::LostEither,
        })
    }
}

/// Possible states of each block after a power cut: first the durable state, then the state after
/// each later change.
type Cells = Vec<Vec<Cell>>;

/// Expected state of the pool in this run.
#[derive(Clone, Default)]
struct Promises {
    /// Possible states of the blocks, by name of the volume or of the snapshot (volume@snapshot).
    views: BTreeMap<String, Cells>,
    tags: Tag,
    snapshots: u64,
    /// Blocks that changed after the damage list was stored.
    changed: BTreeSet<(String, usize)>,
}

impl Promises {
    fn now(&self, view: &str) -> Vec<Cell> {
        self.views[view].iter().map(|cell| *cell.last().expect("a block is something")).collect()
    }

    fn change(&mut self, view: &str, block: usize, to: Cell) {
        self.changed.insert((view.to_owned(), block));
        self.views.get_mut(view).expect("it is there")[block].push(to);
    }

    /// Makes the newest state of each block durable.
    fn settle(&mut self, view: &str) {
        for cell in self.views.get_mut(view).expect("it is there") {
            cell.drain(..cell.len() - 1);
        }
    }

    fn settle_all(&mut self) {
        let views: Vec<String> = self.views.keys().cloned().collect();
        views.iter().for_each(|view| self.settle(view));
    }

    fn snapshots(&self) -> Vec<String> {
        self.views.keys().filter_map(|view| Some(view.split_once('@')?.1.to_owned())).collect()
    }
}

fn volume(engine: &Engine, name: &str) -> Result<Arc<Volume>, String> {
    engine.volume(name).map_err(|error| error.to_string())
}

fn snapshot_id(name: &str) -> SnapshotId {
    SnapshotId { volume: VICTIM.to_owned(), name: name.to_owned() }
}

fn view(engine: &Engine, name: &str) -> Result<Arc<Volume>, DatasetError> {
    match name.split_once('@') {
        Some((_, snapshot)) => engine.open_snapshot(&snapshot_id(snapshot)),
        None => engine.volume(name),
    }
}

/// A lost node and its corrupted bytes.
pub(crate) struct LostNode {
    place: DiskAddress,
    bytes: Vec<u8>,
}

impl LostNode {
    /// The node at this address, which was corrupted.
    pub(crate) fn new(images: &[MediaImage], place: DiskAddress) -> Self {
        Self { place, bytes: bytes_at(images, place) }
    }
}

/// Addresses of the lost nodes whose space the pool has not reused: the corrupted bytes are still
/// there. If the pool still needs another node, a later check fails.
pub(crate) fn lost_nodes_at(images: &[MediaImage], lost: &[LostNode]) -> Vec<DiskAddress> {
    let is_there = |lost: &&LostNode| bytes_at(images, lost.place) == lost.bytes;
    lost.iter().filter(is_there).map(|lost| lost.place).collect()
}

fn bytes_at(images: &[MediaImage], place: DiskAddress) -> Vec<u8> {
    let mut bytes = vec![0; place.len];
    images[0].read(place.offset, &mut bytes);
    bytes
}

/// State of one run of this check.
struct Run {
    seed: u64,
    rng: Rng,
    bug: PlantedBug,
    layout: Layout,
    promises: Promises,
    lives: u64,
    /// Blocks on the damage list when the list was last stored on disk, each with its volume or
    /// snapshot.
    listed: BTreeSet<(String, usize)>,
}

/// Corrupts nodes of one pool and checks the consequences.
///
/// # Errors
/// The first violated guarantee, with the seed that replays it.
pub fn lose_nodes(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("lost nodes", 0);
    let layout = if rng.coin() { Layout::Single } else { Layout::Mirror };
    let mut run = Run {
        seed,
        rng,
        bug,
        layout,
        promises: Promises::default(),
        lives: 0,
        listed: BTreeSet::new(),
    };
    run.all().map_err(|what| format!("lost nodes, seed {seed}, life {}: {what}", run.lives))
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        let images = self.fill()?;
        let (mut images, places) = self.damage(images)?;
        for _ in 0..LIVES {
            images = self.live(images)?;
        }
        if self.rng.coin() {
            let there = lost_nodes_at(&images, &places);
            flip(&mut images, self.layout, &there);
            self.find_again();
        }
        self.end(images)
    }

    fn world(&mut self, images: Vec<MediaImage>) -> SimWorld {
        self.lives += 1;
        SimWorld::from_media(self.seed.wrapping_mul(1000) + self.lives, images)
    }

    async fn open(&self, world: &SimWorld) -> Result<Arc<Engine>, String> {
        open(world, Guid(self.seed ^ self.lives << 40), self.bug).await
    }

    /// Creates a pool with two volumes and up to two snapshots.
    fn fill(&mut self) -> Result<Vec<MediaImage>, String> {
        let world = self.world(Scenario::new_pool(self.layout, Room::Ample));
        let filled = world.run_until(async {
            let engine = self.open(&world).await?;
            for name in [VICTIM, OTHER] {
                let size_bytes = (BLOCKS * BLOCK_BYTES) as u64;
                let compression = Compression::Lz4;
                let spec = VolumeSpec { name: name.to_owned(), size_bytes, compression };
                engine.create_volume(&spec).await.map_err(|error| error.to_string())?;
                self.promises.views.insert(name.to_owned(), vec![vec![Cell::Holds(0)]; BLOCKS]);
                for block in 0..BLOCKS {
                    if self.rng.below(5) > 0 {
                        self.write(&engine, name, block, 1).await?;
                    }
                }
                engine.sync().await.map_err(|error| error.to_string())?;
            }
            for _ in 0..self.rng.below(3) {
                self.take(&engine).await?;
                for _ in 0..3 {
                    let block = self.rng.index(BLOCKS);
                    self.write(&engine, VICTIM, block, 1).await?;
                }
            }
            engine.sync().await.map_err(|error| error.to_string())?;
            self.promises.settle_all();
            Ok::<(), String>(())
        });
        filled.map_err(|error| error.to_string())??;
        Ok(world.cut(CutPlan::Everything))
    }

    /// Corrupts one or two nodes of the victim or of a snapshot, on all legs.
    fn damage(
        &mut self,
        images: Vec<MediaImage>,
    ) -> Result<(Vec<MediaImage>, Vec<LostNode>), String> {
        let world = self.world(images);
        let lost = world.run_until(async {
            let engine = self.open(&world).await?;
            let mut places = Vec::new();
            for _ in 0..=self.rng.below(2) {
                let views: Vec<String> = self.promises.views.keys().cloned().collect();
                let of_victim: Vec<&String> = views.iter().filter(|v| *v != OTHER).collect();
                let name = of_victim[self.rng.index(of_victim.len())];
                // Choose the only node of the second level, or one leaf.
                let (level, index) =
                    if self.rng.below(3) == 0 { (2, 0) } else { (1, self.rng.below(2)) };
                let place = place_of(&engine, name, level, index).await?;
                let Some(place) = place.filter(|place| !places.contains(place)) else { continue };
                places.push(place);
                for other in of_victim {
                    if place_of(&engine, other, level, index).await? == Some(place) {
                        self.lose(other, level, index);
                    }
                }
            }
            Ok::<_, String>(places)
        });
        let places = lost.map_err(|error| error.to_string())??;
        let mut images = world.cut(CutPlan::Everything);
        flip(&mut images, self.layout, &places);
        let lost = places.into_iter().map(|place| LostNode::new(&images, place)).collect();
        Ok((images, lost))
    }

    fn lose(&mut self, view: &str, level: u8, index: u64) {
        let span = if level == 1 { LEAF } else { LEAF * LEAF };
        let first = index as usize * span;
        let cells = self.promises.views.get_mut(view).expect("it is there");
        for cell in &mut cells[first..BLOCKS.min(first + span)] {
            if let [Cell::Holds(tag)] = cell[..] {
                *cell = vec![Cell::Lost(tag)];
            }
        }
    }

    /// Records that the lost nodes are readable again, as when a disk reconnects.
    fn find_again(&mut self) {
        for cell in self.promises.views.values_mut().flatten().flatten() {
            match *cell {
                Cell::Lost(tag) => *cell = Cell::Holds(tag),
                Cell::LostEither => *cell = Cell::Found,
                Cell::Holds(_) | Cell::Found => {}
            }
        }
    }

    /// Runs one generation: opens the pool, checks it, and changes it until the power is cut.
    /// Returns the disks.
    fn live(&mut self, images: Vec<MediaImage>) -> Result<Vec<MediaImage>, String> {
        let world = self.world(images);
        let opened = world.run_until(async {
            let engine = self.open(&world).await?;
            self.judge(&engine).await?;
            self.store_list(&engine).await?;
            Ok::<_, String>(engine)
        });
        let engine = opened.map_err(|error| error.to_string())??;
        if self.rng.below(4) > 0 {
            world.crash_after(world.step_count() + 1 + self.rng.below(120));
        }
        let worked = world.run_until(self.work(&world, &engine));
        match worked {
            Ok(done) => done?,
            Err(SimError::Crashed { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        drop(engine);
        let plan = if self.rng.coin() { CutPlan::Nothing } else { CutPlan::Everything };
        Ok(world.cut(plan))
    }

    async fn work(&mut self, world: &SimWorld, engine: &Arc<Engine>) -> Result<(), String> {
        let background = Background::start(world, engine);
        for _ in 0..STEPS {
            self.step(engine).await?;
        }
        background.stop(engine).await
    }

    async fn step(&mut self, engine: &Arc<Engine>) -> Result<(), String> {
        let name = if self.rng.below(4) > 0 { VICTIM } else { OTHER };
        let (block, count) = (self.rng.index(BLOCKS - 6), 1 + self.rng.index(6));
        match self.rng.below(20) {
            0..7 => self.write(engine, name, block, count).await,
            7..9 => self.zero(engine, name, block, count).await,
            9 => self.zero(engine, name, block / 2, LEAF / 2).await,
            10..13 => {
                let found = volume(engine, name)?;
                engine.flush(&found).await.map_err(|error| format!("flush: {error}"))?;
                self.promises.settle(name);
                Ok(())
            }
            13..15 => {
                engine.sync().await.map_err(|error| format!("sync: {error}"))?;
                self.promises.settle_all();
                Ok(())
            }
            15..17 if self.promises.snapshots().len() < SNAPSHOTS_MAX => self.take(engine).await,
            15..17 => self.destroy(engine).await,
            17 => self.roll_back(engine).await,
            18 => match engine.scrub_start() {
                Err(error) if error.kind() != ErrorKind::Busy => Err(format!("scrub: {error}")),
                _ => Ok(()),
            },
            _ => self.clone_part(engine, block, count).await,
        }
    }

    async fn write(
        &mut self,
        engine: &Engine,
        name: &str,
        block: usize,
        count: usize,
    ) -> Result<(), String> {
        let mut bytes = Vec::new();
        for block in block..block + count {
            // Record the change before its acknowledgement, because a power cut may keep the
            // change.
            self.promises.tags += 1;
            let tag = self.promises.tags << 8 | self.rng.below(2);
            bytes.extend(contents_of(&whole_blocks(&[tag])));
            self.promises.change(name, block, Cell::Holds(tag));
        }
        let found = volume(engine, name)?;
        let done = found.write((block * BLOCK_BYTES) as u64, &bytes).await;
        done.map_err(|error| format!("write: {error}"))
    }

    async fn zero(
        &mut self,
        engine: &Engine,
        name: &str,
        block: usize,
        count: usize,
    ) -> Result<(), String> {
        (block..block + count).for_each(|b| self.promises.change(name, b, Cell::Holds(0)));
        let (offset, len) = ((block * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        let done = volume(engine, name)?.zero(offset, len).await;
        done.map_err(|error| format!("zero: {error}"))
    }

    async fn take(&mut self, engine: &Engine) -> Result<(), String> {
        self.promises.snapshots += 1;
        let name = format!("s{}", self.promises.snapshots);
        let now = self.promises.now(VICTIM);
        let taken = engine.create_snapshots(&[snapshot_id(&name)]).await;
        taken.map_err(|error| format!("snapshot: {error}"))?;
        let cells = now.into_iter().map(|cell| vec![cell]).collect();
        self.promises.views.insert(format!("{VICTIM}@{name}"), cells);
        self.promises.settle_all();
        Ok(())
    }

    async fn destroy(&mut self, engine: &Engine) -> Result<(), String> {
        let names = self.promises.snapshots();
        let name = names[self.rng.index(names.len())].clone();
        // From here on, a cut may leave the snapshot present or destroyed, so do not check it.
        self.promises.views.remove(&format!("{VICTIM}@{name}"));
        let destroyed = engine.destroy_snapshots(VICTIM, &[name]).await;
        destroyed.map_err(|error| format!("destroy: {error}"))?;
        self.promises.settle_all();
        Ok(())
    }

    async fn roll_back(&mut self, engine: &Engine) -> Result<(), String> {
        let Some(name) = self.promises.snapshots().pop() else { return Ok(()) };
        let cells = self.promises.now(&format!("{VICTIM}@{name}"));
        cells.into_iter().enumerate().for_each(|(b, cell)| self.promises.change(VICTIM, b, cell));
        // A rollback destroys the snapshots that are newer than its snapshot. Compare the numbers
        // in their names, because the last name in the list need not be the newest snapshot.
        let newer: Vec<String> = self.promises.snapshots();
        let number = |name: &str| name[1..].parse::<u64>().expect("names are numbers");
        for other in newer.iter().filter(|other| number(other) > number(&name)) {
            self.promises.views.remove(&format!("{VICTIM}@{other}"));
        }
        let done = engine.rollback(&snapshot_id(&name), true).await;
        done.map_err(|error| format!("rollback: {error}"))?;
        self.promises.settle_all();
        Ok(())
    }

    /// Clones blocks of the victim to the other volume. The engine clones all of them, or none and
    /// returns an error.
    async fn clone_part(
        &mut self,
        engine: &Engine,
        from: usize,
        count: usize,
    ) -> Result<(), String> {
        let to = self.rng.index(BLOCKS - count);
        let source = self.promises.now(VICTIM);
        let is_lost = source[from..from + count].iter().any(|cell| cell.is_lost());
        if !is_lost {
            for at in 0..count {
                self.promises.change(OTHER, to + at, source[from + at]);
            }
        }
        let (victim, other) = (volume(engine, VICTIM)?, volume(engine, OTHER)?);
        let bytes = |blocks: usize| (blocks * BLOCK_BYTES) as u64;
        let (start, end, len) = (bytes(from), bytes(to), bytes(count));
        match engine.clone_range(&victim, start, &other, end, len).await {
            Ok(()) if is_lost => Err("a clone of lost blocks was created".to_owned()),
            Err(error) if is_lost && error.kind() == ErrorKind::Data => Ok(()),
            done => {
                done.map_err(|error| format!("clone: {error}"))?;
                self.promises.settle_all();
                Ok(())
            }
        }
    }

    /// Reads every block of every volume and snapshot, compares the result with the possible states
    /// of the block, and narrows these states to the state found.
    async fn judge(&mut self, engine: &Engine) -> Result<(), String> {
        let before = engine.damage();
        for (name, cells) in &mut self.promises.views {
            let view = view(engine, name).map_err(|error| format!("{name}: {error}"))?;
            for (block, cell) in cells.iter_mut().enumerate() {
                let mut bytes = [0; BLOCK_BYTES];
                let read = view.read((block * BLOCK_BYTES) as u64, &mut bytes).await;
                let found = read.map(|()| tag_of_block(&bytes)).map_err(|error| error.kind());
                if found.is_err() {
                    let at = (name.clone(), block);
                    let stored = self.listed.contains(&at) && !self.promises.changed.contains(&at);
                    if stored && !lists(&before, name, block) {
                        return Err(format!(
                            "{name} block {block} left the damage list, but is still lost"
                        ));
                    }
                    if !lists(&engine.damage(), name, block) {
                        return Err(format!(
                            "{name} block {block} is lost, but not on the damage list"
                        ));
                    }
                }
                let is = Cell::settled(cell, found)
                    .ok_or_else(|| format!("{name} block {block}: {found:?}, expected {cell:?}"))?;
                *cell = vec![is];
            }
        }
        counts(engine).await
    }

    /// Commits, which stores the damage list on disk, and keeps a copy of the list.
    async fn store_list(&mut self, engine: &Engine) -> Result<(), String> {
        engine.sync().await.map_err(|error| format!("sync: {error}"))?;
        let damage = engine.damage();
        let views = self.promises.views.keys();
        let blocks = views.flat_map(|view| (0..BLOCKS).map(|block| (view.clone(), block)));
        self.listed = blocks.filter(|(view, block)| lists(&damage, view, *block)).collect();
        self.promises.changed.clear();
        Ok(())
    }

    /// Checks, after a complete scrub, that the damage list has exactly the unreadable blocks.
    async fn judge_list(&mut self, engine: &Engine) -> Result<(), String> {
        self.judge(engine).await?;
        let damage = engine.damage();
        for name in self.promises.views.keys() {
            let view = view(engine, name).map_err(|error| format!("{name}: {error}"))?;
            for block in (0..BLOCKS).filter(|block| lists(&damage, name, *block)) {
                let mut bytes = [0; BLOCK_BYTES];
                if view.read((block * BLOCK_BYTES) as u64, &mut bytes).await.is_ok() {
                    return Err(format!("{name} block {block} is intact, but on the damage list"));
                }
            }
        }
        Ok(())
    }

    /// Checks the pool, destroys the victim, and expects all of its space to be freed.
    fn end(&mut self, images: Vec<MediaImage>) -> Result<(), String> {
        let world = self.world(images);
        let ended = world.run_until(async {
            let engine = self.open(&world).await?;
            self.judge(&engine).await?;
            let background = Background::start(&world, &engine);
            engine.scrub_start().map_err(|error| format!("scrub: {error}"))?;
            world.executor().sleep(SETTLED_AFTER).await;
            self.judge_list(&engine).await?;
            let destroyed = engine.destroy_volume(VICTIM, true).await;
            destroyed.map_err(|error| format!("destroy: {error}"))?;
            self.promises.views.retain(|name, _| name == OTHER);
            world.executor().sleep(SETTLED_AFTER).await;
            background.stop(&engine).await?;
            if engine.pool().damaged_since().is_some() {
                return Err("damage is left".to_owned());
            }
            self.judge(&engine).await
        });
        ended.map_err(|error| error.to_string())?
    }
}

/// Background tasks of an engine: commits and scans.
pub(crate) struct Background {
    commits: JoinHandle<Result<(), DatasetError>>,
    scans: JoinHandle<Result<(), DatasetError>>,
}

impl Background {
    pub(crate) fn start(world: &SimWorld, engine: &Arc<Engine>) -> Self {
        let (committer, timer) = (Arc::clone(engine), world.executor().clone());
        let commits = async move { committer.run(|time| timer.sleep(time)).await };
        let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
        let scans = async move { scanner.run_scans(|time| timer.sleep(time)).await };
        let commits = world.executor().spawn("committer", commits);
        Self { commits, scans: world.executor().spawn("scans", scans) }
    }

    /// Stops the engine and waits for the tasks.
    pub(crate) async fn stop(self, engine: &Engine) -> Result<(), String> {
        engine.stop();
        self.commits.await.map_err(|error| format!("the committer failed: {error}"))?;
        self.scans.await.map_err(|error| format!("the scans failed: {error}"))
    }
}

/// True if the damage list contains a block of a volume or snapshot.
fn lists(damage: &PoolDamage, view: &str, block: usize) -> bool {
    let (volume, snapshot) = view.split_once('@').map_or((view, None), |(v, s)| (v, Some(s)));
    let offset = (block * BLOCK_BYTES) as u64;
    damage.data.iter().any(|data| {
        let range = data.offset_bytes..data.offset_bytes + data.len_bytes;
        let has = snapshot.map_or(data.in_volume, |own| data.snapshots.iter().any(|s| s == own));
        data.volume == volume && range.contains(&offset) && has
    })
}

/// Tag of the write that filled the whole block; otherwise the tag for garbage.
fn tag_of_block(bytes: &[u8; BLOCK_BYTES]) -> Tag {
    let found = tags_of(bytes);
    let write = write_of(found[0]);
    if found == whole_blocks(&[write]) { write } else { GARBAGE }
}

async fn place_of(
    engine: &Engine,
    name: &str,
    level: u8,
    index: u64,
) -> Result<Option<DiskAddress>, String> {
    let view = view(engine, name).map_err(|error| error.to_string())?;
    view.disk_address(level, index).await.map_err(|error| error.to_string())
}

/// Flips bits of the blocks at these addresses on every leg; a second call restores them.
pub(crate) fn flip(images: &mut [MediaImage], layout: Layout, places: &[DiskAddress]) {
    for image in &mut images[..layout.disks()] {
        for place in places {
            (0..4).for_each(|n| image.flip_bit(place.offset + n * 16, 3));
        }
    }
}

/// Opens the pool on the disks of a world.
pub(crate) async fn open(
    world: &SimWorld,
    import_epoch: Guid,
    bug: PlantedBug,
) -> Result<Arc<Engine>, String> {
    let clock = world.executor().clock();
    let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug };
    let how = ImportOptions::new(import_epoch);
    let opened = Engine::open(devices(world), how, &options).await;
    opened.map_err(|error| format!("open: {error}"))
}

/// Compares every counter of the pool with a walk of its trees.
pub(crate) async fn counts(engine: &Engine) -> Result<(), String> {
    let walk = |error: DatasetError| format!("walk: {error}");
    if let Some(wrong) = engine.check_live_bytes().await.map_err(walk)?.first() {
        return Err(format!("live bytes {wrong:?}"));
    }
    if let Some(wrong) = engine.check_references().await.map_err(walk)?.first() {
        return Err(format!("{wrong:?}"));
    }
    if let Some(wrong) = engine.check_accounts().await.map_err(walk)?.first() {
        return Err(format!("{wrong:?}"));
    }
    match engine.check_places().await.map_err(walk)? {
        Some(places) => Err(format!("{places:?}")),
        None => Ok(()),
    }
}
