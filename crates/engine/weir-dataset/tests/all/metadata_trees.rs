//! Damage to the metadata trees (directory, segment table, remap and reference tables) on every
//! leg, in some or all copies: data loss is limited to the damaged parts.
//!
//! weir-sim tests damage combined with crashes and load; `lost_nodes` tests damage to the trees of
//! volumes.
//!
//! Invariants: a readable block has the content that was written last; a pool imports, accepts
//! writes and destroys volumes, whatever part of these trees is unreadable.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{
    DatasetError, Engine, EngineOptions, LostDatasets, PropertyChange, PropertyTarget, SnapshotId,
    Volume,
};
use weir_device::MemoryDevice;
use weir_format::{VdevKind, VdevRole};
use weir_pool::{
    CreateOptions, ImportOptions, LostTables, MetadataTree, OwnPlace, PlantedBug, ScanState,
    VdevSpec,
};

const MEMORY_BYTES: u64 = 4 << 20;
pub(crate) const DISK_BYTES: usize = 64 << 20;
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
pub(crate) const BLOCKS: usize = 300;
/// Size of the volume that makes the pool nearly full for a while.
const BALLAST_MIB: u64 = 46;
const FIRST_OF_BALLAST: u32 = 1 << 30;
/// Number of commits after which destroyed data is free space.
const COMMITS: usize = 80;

pub(crate) struct Bench {
    pub(crate) disk: Arc<MemoryDevice>,
    pub(crate) engine: Arc<Engine>,
    /// Content number of each block of each volume.
    pub(crate) volumes: BTreeMap<String, Vec<u32>>,
    /// Content number of each block of the snapshot of `b`.
    snapshot: Vec<u32>,
    random: u64,
    pub(crate) next: u32,
    /// Bug of the engines that [`Self::crash`] opens.
    pub(crate) bug: PlantedBug,
}

fn block(content: u32) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut state = u64::from(content);
    if content > 0 {
        for byte in &mut block {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        block[..4].copy_from_slice(&content.to_le_bytes());
    }
    block
}

/// Polls a future to completion and commits if it waits for a commit.
pub(crate) fn drive<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    loop {
        for _ in 0..10_000 {
            if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
        }
        now(engine.sync()).unwrap();
    }
}

pub(crate) fn reopen(disk: &Arc<MemoryDevice>) -> Arc<Engine> {
    try_reopen(disk, false).unwrap()
}

pub(crate) fn try_reopen(
    disk: &Arc<MemoryDevice>,
    force: bool,
) -> Result<Arc<Engine>, DatasetError> {
    open(disk, force, PlantedBug::None)
}

fn open(
    disk: &Arc<MemoryDevice>,
    force: bool,
    bug: PlantedBug,
) -> Result<Arc<Engine>, DatasetError> {
    let import = ImportOptions { force, ..import() };
    let how = EngineOptions { bug, ..options(MEMORY_BYTES) };
    now(Engine::open(as_devices(&[Arc::clone(disk)]), import, &how))
}

pub(crate) fn places_of(engine: &Engine, wanted: impl Fn(&OwnPlace) -> bool) -> Vec<OwnPlace> {
    let places = now(engine.pool().own_places()).unwrap();
    places.into_iter().filter(wanted).collect()
}

pub(crate) fn damage(disk: &MemoryDevice, places: &[OwnPlace]) {
    for place in places {
        for (_, offset) in place.copies.into_iter().flatten() {
            let start = offset as usize;
            disk.corrupt(start..start + place.len, |byte| *byte = !*byte);
        }
    }
}

impl Bench {
    /// Creates two volumes that share blocks, one of them with a snapshot, in a pool with cleaned
    /// segments.
    pub(crate) fn new() -> Self {
        let disk = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
        let sizes = CreateOptions {
            segment_bytes: Some(256 << 10),
            strip_bytes: Some(4096),
            log_bytes: Some(1 << 20),
            disk_bytes_min: Some(DISK_BYTES as u64),
        };
        let disks = as_devices(&[Arc::clone(&disk)]);
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let how = options(MEMORY_BYTES);
        let engine = now(Engine::create("tank", &[vdev], sizes, &how, &mut guid)).unwrap();
        let volumes = BTreeMap::new();
        let (snapshot, bug) = (Vec::new(), PlantedBug::None);
        let mut bench = Self { disk, engine, volumes, snapshot, random: 7, next: 1, bug };
        bench.make("a");
        bench.make("b");
        for at in 0..BLOCKS {
            let content = bench.next;
            bench.write("a", at, content);
            // Every third block of `b` equals the block of `a` at the same index.
            let content = if at % 3 == 0 { content } else { content + 1 };
            bench.write("b", at, content);
        }
        now(bench.engine.sync()).unwrap();
        bench.snapshot.clone_from(&bench.volumes["b"]);
        let snapshot = SnapshotId::new("b", "s");
        now(bench.engine.create_snapshots(&[snapshot])).unwrap();
        bench.fill();
        for _ in 0..400 {
            for _ in 0..20 {
                let (at, content) = (bench.random(), bench.next);
                bench.write("a", at, content);
            }
            now(bench.engine.sync()).unwrap();
            if bench.engine.pool().table_memory().remap_tables > 2 {
                break;
            }
        }
        let tables = bench.engine.pool().table_memory();
        assert!(tables.remap_tables > 2 && tables.reference_tables > 0, "{tables:?}");
        now(bench.engine.destroy_volume("ballast", true)).unwrap();
        for _ in 0..COMMITS {
            now(bench.engine.sync()).unwrap();
        }
        bench
    }

    /// Fills the pool until the cleaner must reclaim space.
    pub(crate) fn fill(&self) {
        const MIB: u64 = 1 << 20;
        now(self.engine.create_volume_with("ballast", (BALLAST_MIB * MIB).into(), &[])).unwrap();
        let volume = self.volume("ballast");
        for at in 0..BALLAST_MIB {
            let blocks: Vec<u8> =
                (0..256).flat_map(|n| block(FIRST_OF_BALLAST + at as u32 * 256 + n)).collect();
            drive(&self.engine, volume.write(at * MIB, &blocks)).unwrap();
        }
        now(self.engine.sync()).unwrap();
    }

    pub(crate) fn make(&mut self, name: &str) {
        now(self.engine.create_volume_with(name, (BLOCKS as u64 * BLOCK).into(), &[])).unwrap();
        now(self.engine.set_dedupe(name, true)).unwrap();
        self.volumes.insert(name.to_owned(), vec![0; BLOCKS]);
    }

    pub(crate) fn random(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.random >> 33) as usize % BLOCKS
    }

    pub(crate) fn volume(&self, name: &str) -> Arc<Volume> {
        self.engine.volume(name).unwrap()
    }

    pub(crate) fn write(&mut self, name: &str, at: usize, content: u32) {
        let volume = self.volume(name);
        drive(&self.engine, volume.write(at as u64 * BLOCK, &block(content))).unwrap();
        self.volumes.get_mut(name).unwrap()[at] = content;
        self.next = self.next.max(content + 2);
    }

    /// Flushes every volume, damages the selected nodes and blocks, and simulates a crash.
    pub(crate) fn lose(&mut self, wanted: impl Fn(&OwnPlace) -> bool) {
        let places = places_of(&self.engine, wanted);
        assert!(!places.is_empty(), "there is something to be lost");
        damage(&self.disk, &places);
        self.crash();
    }

    pub(crate) fn crash(&mut self) {
        for volume in self.engine.volumes() {
            drive(&self.engine, self.engine.flush(&volume)).unwrap();
        }
        self.engine = open(&self.disk, false, self.bug).unwrap();
    }

    /// Compares every readable block with the model; returns the number of unreadable blocks.
    pub(crate) fn unreadable(&self) -> usize {
        let mut unreadable = 0;
        for (name, contents) in &self.volumes {
            let volume = self.volume(name);
            for (at, content) in contents.iter().enumerate() {
                let mut out = [0; BLOCK_BYTES];
                match now(volume.read(at as u64 * BLOCK, &mut out)) {
                    Ok(()) => assert!(out == block(*content), "{name}: block {at}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Data, "{name}: {error}");
                        unreadable += 1;
                    }
                }
            }
        }
        unreadable
    }

    /// Returns the number of unreadable blocks of the snapshot of `b`. Compares the readable blocks
    /// with the content that was saved when the snapshot was created.
    pub(crate) fn unreadable_in_snapshot(&self) -> usize {
        let id = SnapshotId::new("b", "s");
        let view = self.engine.open_snapshot(&id).unwrap();
        let mut unreadable = 0;
        for (at, content) in self.snapshot.iter().enumerate() {
            let mut out = [0; BLOCK_BYTES];
            match now(view.read(at as u64 * BLOCK, &mut out)) {
                Ok(()) => assert!(out == block(*content), "snapshot: block {at}"),
                Err(_) => unreadable += 1,
            }
        }
        unreadable
    }

    /// Returns a checksum of all bytes of the disk.
    pub(crate) fn disk_sum(&self) -> u64 {
        let sum = Cell::new(0_u64);
        let add = |byte: &mut u8| sum.set(sum.get().wrapping_mul(31).wrapping_add((*byte).into()));
        self.disk.corrupt(0..DISK_BYTES, add);
        sum.get()
    }

    /// Writes to all volumes until dead space is reused, and commits.
    pub(crate) fn fill_some(&mut self) {
        for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
            for _ in 0..6 {
                for _ in 0..80 {
                    let (at, content) = (self.random(), self.next);
                    self.write(&name, at, content);
                }
                now(self.engine.sync()).unwrap();
            }
        }
        for _ in 0..6 {
            now(self.engine.sync()).unwrap();
        }
    }

    /// Creates a volume and writes all its blocks.
    pub(crate) fn fill_with(&mut self, name: &str, blocks: usize) {
        now(self.engine.create_volume_with(name, (blocks as u64 * BLOCK).into(), &[])).unwrap();
        self.volumes.insert(name.to_owned(), vec![0; blocks]);
        for at in 0..blocks {
            self.write(name, at, self.next);
        }
        now(self.engine.sync()).unwrap();
    }

    /// Overwrites `writes` random blocks of a volume. Skips blocks whose mapping is unreadable.
    pub(crate) fn overwrite_some(&mut self, name: &str, writes: usize) {
        let volume = self.volume(name);
        for n in 0..writes {
            let random = self.random() * BLOCKS + self.random();
            let contents = self.volumes.get_mut(name).unwrap();
            let at = random % contents.len();
            match drive(&self.engine, volume.write(at as u64 * BLOCK, &block(self.next))) {
                Ok(()) => contents[at] = self.next,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Data, "{error}"),
            }
            self.next += 1;
            if n % 64 == 0 {
                now(self.engine.sync()).unwrap();
            }
        }
    }

    /// Writes to all volumes, across crashes. Then checks that all new data is readable.
    pub(crate) fn go_on(&mut self) {
        for round in 0..6 {
            for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
                for _ in 0..10 {
                    let (at, content) = (self.random(), self.next);
                    self.write(&name, at, content);
                }
            }
            if round % 2 == 0 {
                now(self.engine.sync()).unwrap();
            }
            self.unreadable();
            self.crash();
        }
        for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
            for at in 0..BLOCKS {
                self.write(&name, at, self.next);
            }
        }
        now(self.engine.sync()).unwrap();
        assert_eq!(self.unreadable(), 0, "everything was written anew");
        self.crash();
        assert_eq!(self.unreadable(), 0, "and is there after a crash");
    }

    pub(crate) fn destroy_all(&mut self) {
        let names: Vec<String> = std::mem::take(&mut self.volumes).into_keys().collect();
        for name in &names {
            now(self.engine.destroy_volume(name, true)).unwrap();
        }
        for _ in 0..COMMITS {
            now(self.engine.sync()).unwrap();
        }
        assert!(names.iter().all(|name| self.engine.volume(name).is_err()));
    }
}

/// Regression: one bad sector in the tree of the remap tables made the pool impossible to import.
#[test]
fn lost_remap_tables_lose_only_the_blocks_that_they_map() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        bench.lose(|place| place.tree == MetadataTree::Remaps && place.level == level);
        let unreadable = bench.unreadable();
        assert!((1..BLOCKS).contains(&unreadable), "{unreadable} blocks");
        bench.go_on();
        bench.destroy_all();
    }
}

/// A shared block whose reference count is lost stays allocated after each known reference is gone.
#[test]
fn lost_reference_tables_keep_blocks_that_may_be_shared() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        bench.lose(|place| place.tree == MetadataTree::References && place.level == level);
        assert_eq!(bench.unreadable(), 0, "level {level}: every block can be read");
        bench.go_on();
        bench.destroy_all();
    }
}

/// Regression: segments described by a lost part of the segment table counted as free, and new
/// writes overwrote their data.
#[test]
fn lost_segments_are_never_overwritten() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        bench.lose(|place| place.tree == MetadataTree::Segments && place.level == level);
        let unreadable = bench.unreadable();
        assert!(unreadable > 0, "blocks in lost segments cannot be read");
        // The lost part of the segment table stays in the tree unchanged, so that a disk that has
        // the part can restore it.
        let before = bench.engine.pool().space();
        assert!(before.free_bytes > 0, "some places are free for sure: {before:?}");
        bench.make("n");
        bench.volumes.retain(|name, _| name == "n");
        bench.go_on();
        bench.destroy_all();
    }
}

#[test]
fn lost_directory_records_lose_only_their_datasets() {
    let mut bench = Bench::new();
    let user = |value: &str| PropertyChange::User("t:a".to_owned(), Some(value.to_owned()));
    let target = PropertyTarget::Pool;
    now(bench.engine.change_properties(std::slice::from_ref(&target), &[user("x")])).unwrap();
    let of =
        |index| move |p: &OwnPlace| p.tree == MetadataTree::Datasets && (p.level, p.index) == index;
    // The lost directory entry describes `a`, the first dataset. `b` and its snapshot stay usable.
    bench.lose(of((0, 1)));
    assert!(bench.engine.volume("a").is_err());
    let lost = bench.engine.lost_datasets().numbers;
    assert!(matches!(&lost[..], [only] if *only == (1..2)), "{lost:?}");
    bench.volumes.remove("a");
    assert_eq!(bench.unreadable(), 0);
    bench.make("a");
    bench.go_on();
    // The lost directory entry describes the pool itself.
    bench.lose(of((0, 0)));
    assert!(bench.engine.lost_datasets().properties);
    assert_eq!(bench.unreadable(), 0);
    now(bench.engine.change_properties(&[target], &[user("y")])).unwrap();
    bench.crash();
    assert!(!bench.engine.lost_datasets().properties);
}

/// Runs scans until no damage is left.
pub(crate) fn mend(engine: &Engine) {
    mend_for(engine, |engine| {
        let scrubs = engine.pool().scan_status().is_some_and(|s| s.state == ScanState::Running);
        !(scrubs || engine.pool().damaged_since().is_some())
    });
    assert_eq!(engine.pool().damaged_since(), None);
}

/// Runs scans until `is_done`, then stops the engine.
pub(crate) fn mend_for(engine: &Engine, is_done: impl Fn(&Engine) -> bool) {
    let looks = Cell::new(0);
    now(engine.run_scans(|_| {
        looks.set(looks.get() + 1);
        if looks.get() > 5000 || is_done(engine) {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
    assert!(is_done(engine), "{:?}", engine.pool().lost_tables());
}

pub(crate) fn assert_nothing_is_lost(engine: &Engine) {
    assert_eq!(engine.lost_datasets(), LostDatasets::default());
    assert_eq!(engine.pool().lost_tables(), LostTables::default());
    assert_eq!(now(engine.check_live_bytes()).unwrap(), []);
    assert_eq!(now(engine.check_references()).unwrap(), []);
    assert_eq!(now(engine.check_places()).unwrap(), None);
}

/// Regression: the first commit that had to read an unreadable node suspended the pool, although
/// RAM had everything below that node.
#[test]
fn nodes_lost_in_an_open_pool_are_rewritten_from_memory() {
    for tree in [
        MetadataTree::Segments,
        MetadataTree::Datasets,
        MetadataTree::Remaps,
        MetadataTree::References,
    ] {
        let mut bench = Bench::new();
        let places = places_of(&bench.engine, |place| place.tree == tree && place.level > 0);
        assert!(!places.is_empty());
        damage(&bench.disk, &places);
        bench.engine.pool().cache().clear();
        for at in 0..BLOCKS {
            // The writes have new content, except one block whose content `b` already has. Metadata
            // tables change, and some become empty.
            let content = if at == 7 { bench.volumes["b"][100] } else { bench.next };
            bench.write("a", at, content);
        }
        now(bench.engine.sync()).unwrap();
        assert!(bench.engine.pool().damaged_since().is_some(), "{tree:?}: a commit met it");
        bench.crash();
        assert_eq!(bench.unreadable(), 0, "{tree:?}");
        mend(&bench.engine);
        assert_nothing_is_lost(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        bench.go_on();
        bench.destroy_all();
    }
}

/// Regression: a scrub reported lost records of the directory but left them unreadable on disk, so
/// that the next restart lost them.
#[test]
fn scrub_rewrites_lost_tree_nodes_from_memory() {
    for tree in [MetadataTree::Segments, MetadataTree::Datasets] {
        let mut bench = Bench::new();
        let places = places_of(&bench.engine, |place| place.tree == tree);
        damage(&bench.disk, &places);
        bench.engine.pool().cache().clear();
        bench.engine.scrub_start().unwrap();
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        assert_eq!(bench.unreadable(), 0, "{tree:?}");
        bench.go_on();
    }
}

/// Regression: the next restart lost a node whose last copy had become bad while no operation read
/// it.
#[test]
fn verify_rewrites_bad_copies_of_metadata_trees_from_memory() {
    for tree in [
        MetadataTree::Segments,
        MetadataTree::Datasets,
        MetadataTree::Remaps,
        MetadataTree::References,
    ] {
        let mut bench = Bench::new();
        let places = places_of(&bench.engine, |place| place.tree == tree && place.level > 0);
        damage(&bench.disk, &places);
        now(bench.engine.verify_own_trees()).unwrap();
        let txg = bench.engine.pool().committed_txg();
        now(bench.engine.verify_own_trees()).unwrap();
        assert_eq!(bench.engine.pool().committed_txg(), txg, "{tree:?}: all are good now");
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        assert_eq!(bench.unreadable(), 0, "{tree:?}");
    }
}

/// Regression: space below lost reference tables was never reclaimed.
#[test]
fn lost_reference_counts_are_recounted() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        bench.lose(|place| place.tree == MetadataTree::References && place.level == level);
        bench.engine.scrub_start().unwrap();
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        bench.go_on();
        assert_nothing_is_lost(&bench.engine);
        bench.destroy_all();
        assert_nothing_is_lost(&bench.engine);
    }
}

/// Regression: physical segments of lost segment table entries stayed reserved, although no pointer
/// referenced them any more.
#[test]
fn unreferenced_lost_segments_become_free() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        bench.lose(|place| place.tree == MetadataTree::Segments && place.level == level);
        assert!(bench.unreadable() > 0);
        assert!(bench.engine.pool().lost_tables().withheld_bytes > 0);
        bench.destroy_all();
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        assert_eq!(bench.engine.pool().lost_tables(), LostTables::default());
        bench.make("n");
        bench.go_on();
    }
}

fn damage_copies(bench: &Bench, places: &[OwnPlace], copies: std::ops::Range<usize>) {
    for place in places {
        for copy in &place.copies[copies.clone()] {
            let (_, offset) = copy.expect("there are three");
            let start = offset as usize;
            bench.disk.corrupt(start..start + place.len, |byte| *byte = !*byte);
        }
    }
}

/// Regression: the two copies of a metadata node were half a segment apart, and damage to a region
/// with both copies lost all volumes.
#[test]
fn metadata_survives_the_loss_of_two_copies() {
    for copies in [0..2, 1..3] {
        let mut bench = Bench::new();
        let places = places_of(&bench.engine, |_| true);
        let is_far = |place: &OwnPlace| {
            let [first, _, third] = place.copies.map(|copy| copy.expect("there are three").1);
            first.abs_diff(third) > DISK_BYTES as u64 / 4
        };
        assert!(places.iter().all(is_far), "{places:?}");
        damage_copies(&bench, &places, copies);
        bench.crash();
        assert_eq!(bench.unreadable(), 0);
        assert_nothing_is_lost(&bench.engine);
        bench.go_on();
    }
}

#[test]
fn scrub_repairs_each_copy_of_metadata_trees() {
    for bad in 0..3 {
        let mut bench = Bench::new();
        let places = places_of(&bench.engine, |_| true);
        damage_copies(&bench, &places, bad..bad + 1);
        bench.crash();
        bench.engine.scrub_start().unwrap();
        mend(&bench.engine);
        let scan = bench.engine.pool().scan_status().unwrap();
        assert_eq!((scan.damaged, scan.unrepaired), (0, 0), "copy {bad}");
        assert!(bad < 2 || scan.repaired_bytes > 0, "copy {bad}");
        let places = places_of(&bench.engine, |_| true);
        let others: Vec<usize> = (0..3).filter(|copy| *copy != bad).collect();
        others.into_iter().for_each(|copy| damage_copies(&bench, &places, copy..copy + 1));
        bench.crash();
        assert_eq!(bench.unreadable(), 0, "copy {bad}");
    }
}

#[test]
fn metadata_survives_the_loss_of_one_copy() {
    let mut bench = Bench::new();
    let places = places_of(&bench.engine, |_| true);
    damage_copies(&bench, &places, 0..1);
    bench.crash();
    assert_eq!(bench.unreadable(), 0);
    assert!(bench.engine.lost_datasets().numbers.is_empty());
    now(bench.engine.sync()).unwrap();
    // The import rewrote the nodes that it read from second copies, so the second copies may be
    // lost now.
    damage_copies(&bench, &places, 1..2);
    bench.crash();
    assert_eq!(bench.unreadable(), 0);
    bench.go_on();
}
