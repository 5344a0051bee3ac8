//! Lost nodes of a volume: writes, trims, snapshots, rollbacks and clones after the loss, and the
//! expected state of every block.
//!
//! `crate::scenario` covers faults within the redundancy, and many concurrent clients.
//!
//! Invariants:
//! - a block that is not below a lost node has its exact content. A read of a block below a lost
//!   node fails until the block is written or trimmed, or the node is readable again;
//! - when a read of an unreadable block returns, the block is on the damage list; an import
//!   restores the stored damage list; after a complete scrub the list has only unreadable blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::{Engine, PoolDamage, SnapshotId, Volume, VolumeSpec};
use weir_format::Compression;
use weir_pool::{DiskAddress, PlantedBug};

use super::run::{Base, LostNodes, entries_of, open_view, run};
use crate::client::whole_blocks;
use crate::history::{GARBAGE, Tag, contents_of, tags_of, write_of};

/// The volume that loses nodes, and a volume that must not be affected.
const VICTIM: &str = "victim";
const OTHER: &str = "other";
/// Number of blocks of each volume: two leaves below one node, the second not full.
const BLOCKS: usize = 200;
/// Number of blocks that one leaf points to.
const LEAF: usize = 128;
const SNAPSHOTS_MAX: usize = 3;

/// Expected state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Holds(Tag),
    /// A node on the path to the block is lost; before the loss, the block had this content.
    Lost(Tag),
    /// The block is lost. After a power cut, several contents before the loss are possible.
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

/// State of one run of this check.
struct Run {
    base: Base,
    promises: Promises,
    /// Blocks on the damage list when the list was last stored on disk, each with its volume or
    /// snapshot.
    listed: BTreeSet<(String, usize)>,
}

/// Corrupts nodes of one volume and checks the consequences.
///
/// # Errors
/// The first violated guarantee, with the seed that replays it.
pub fn lose_nodes(seed: u64, bug: PlantedBug) -> Result<(), String> {
    run(seed, bug, |base| Run { base, promises: Promises::default(), listed: BTreeSet::new() })
}

/// A leaf, or the only node of the second level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    level: u8,
    index: u64,
}

impl LostNodes for Run {
    type Victim = Node;

    const WHAT: &'static str = "lost nodes";
    const VICTIM: &'static str = VICTIM;
    const STEPS: u64 = 14;

    fn base(&mut self) -> &mut Base {
        &mut self.base
    }

    /// Creates two volumes and up to two snapshots.
    async fn fill(&mut self, engine: &Engine) -> Result<(), String> {
        for name in [VICTIM, OTHER] {
            let size_bytes = (BLOCKS * BLOCK_BYTES) as u64;
            let compression = Compression::Lz4;
            let spec = VolumeSpec { name: name.to_owned(), size_bytes, compression };
            engine.create_volume(&spec).await.map_err(|error| error.to_string())?;
            self.promises.views.insert(name.to_owned(), vec![vec![Cell::Holds(0)]; BLOCKS]);
            for block in 0..BLOCKS {
                if self.base.rng.below(5) > 0 {
                    self.write(engine, name, block, 1).await?;
                }
            }
            engine.sync().await.map_err(|error| error.to_string())?;
        }
        for _ in 0..self.base.rng.below(3) {
            self.take(engine).await?;
            for _ in 0..3 {
                let block = self.base.rng.index(BLOCKS);
                self.write(engine, VICTIM, block, 1).await?;
            }
        }
        engine.sync().await.map_err(|error| error.to_string())?;
        self.promises.settle_all();
        Ok(())
    }

    fn views(&self) -> Vec<String> {
        self.promises.views.keys().filter(|view| *view != OTHER).cloned().collect()
    }

    fn some_victim(&mut self, views: &[String]) -> (usize, Node) {
        let rng = &mut self.base.rng;
        let view = rng.index(views.len());
        let (level, index) = if rng.below(3) == 0 { (2, 0) } else { (1, rng.below(2)) };
        (view, Node { level, index })
    }

    async fn place(view: &Volume, victim: Node) -> Result<Option<DiskAddress>, String> {
        let Node { level, index } = victim;
        view.disk_address(level, index).await.map_err(|error| error.to_string())
    }

    fn lose(&mut self, view: &str, victim: Node) {
        let span = if victim.level == 1 { LEAF } else { LEAF * LEAF };
        let first = victim.index as usize * span;
        let cells = self.promises.views.get_mut(view).expect("it is there");
        for cell in &mut cells[first..BLOCKS.min(first + span)] {
            if let [Cell::Holds(tag)] = cell[..] {
                *cell = vec![Cell::Lost(tag)];
            }
        }
    }

    fn find_again(&mut self) {
        for cell in self.promises.views.values_mut().flatten().flatten() {
            match *cell {
                Cell::Lost(tag) => *cell = Cell::Holds(tag),
                Cell::LostEither => *cell = Cell::Found,
                Cell::Holds(_) | Cell::Found => {}
            }
        }
    }

    async fn step(&mut self, engine: &Arc<Engine>) -> Result<(), String> {
        let name = if self.base.rng.below(4) > 0 { VICTIM } else { OTHER };
        let (block, count) = (self.base.rng.index(BLOCKS - 6), 1 + self.base.rng.index(6));
        match self.base.rng.below(20) {
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

    async fn judge(&mut self, engine: &Engine) -> Result<(), String> {
        let before = engine.damage();
        for (name, cells) in &mut self.promises.views {
            let view = open_view(engine, name).map_err(|error| format!("{name}: {error}"))?;
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
        Ok(())
    }

    /// Commits, which stores the damage list on disk, and keeps a copy of the list.
    async fn opened(&mut self, engine: &Engine) -> Result<(), String> {
        engine.sync().await.map_err(|error| format!("sync: {error}"))?;
        let damage = engine.damage();
        let views = self.promises.views.keys();
        let blocks = views.flat_map(|view| (0..BLOCKS).map(|block| (view.clone(), block)));
        self.listed = blocks.filter(|(view, block)| lists(&damage, view, *block)).collect();
        self.promises.changed.clear();
        Ok(())
    }

    async fn judge_list(&mut self, engine: &Engine) -> Result<(), String> {
        let damage = engine.damage();
        for name in self.promises.views.keys() {
            let view = open_view(engine, name).map_err(|error| format!("{name}: {error}"))?;
            for block in (0..BLOCKS).filter(|block| lists(&damage, name, *block)) {
                let mut bytes = [0; BLOCK_BYTES];
                if view.read((block * BLOCK_BYTES) as u64, &mut bytes).await.is_ok() {
                    return Err(format!("{name} block {block} is intact, but on the damage list"));
                }
            }
        }
        Ok(())
    }

    async fn destroyed(&mut self, engine: &Engine) -> Result<(), String> {
        self.promises.views.retain(|name, _| name == OTHER);
        self.judge(engine).await
    }
}

impl Run {
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
            let tag = self.promises.tags << 8 | self.base.rng.below(2);
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
        let taken = engine.create_snapshots(&[SnapshotId::new(VICTIM, &name)]).await;
        taken.map_err(|error| format!("snapshot: {error}"))?;
        let cells = now.into_iter().map(|cell| vec![cell]).collect();
        self.promises.views.insert(format!("{VICTIM}@{name}"), cells);
        self.promises.settle_all();
        Ok(())
    }

    async fn destroy(&mut self, engine: &Engine) -> Result<(), String> {
        let names = self.promises.snapshots();
        let name = names[self.base.rng.index(names.len())].clone();
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
        let done = engine.rollback(&SnapshotId::new(VICTIM, &name), true).await;
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
        let to = self.base.rng.index(BLOCKS - count);
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
}

/// True if the damage list contains a block of a volume or snapshot.
fn lists(damage: &PoolDamage, view: &str, block: usize) -> bool {
    let offset = (block * BLOCK_BYTES) as u64;
    entries_of(damage, view)
        .any(|data| (data.offset_bytes..data.offset_bytes + data.len_bytes).contains(&offset))
}

/// Tag of the write that filled the whole block; [`GARBAGE`] if no single write filled it.
fn tag_of_block(bytes: &[u8; BLOCK_BYTES]) -> Tag {
    let found = tags_of(bytes);
    let write = write_of(found[0]);
    if found == whole_blocks(&[write]) { write } else { GARBAGE }
}
