//! Model test of snapshots, clones, rollback and promotion: content and space of every version,
//! across restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{as_devices, assert_exact, id, import, now, options, pool_on};
use weir_base::BLOCK_BYTES;
use weir_dataset::{BookmarkId, DatasetError, Engine, Outcome, Volume, VolumeSpec};
use weir_device::MemoryDevice;
use weir_format::Compression;

const MEMORY_BYTES: u64 = 16 << 20;
/// Number of blocks of a volume: two levels of nodes, so that traversals of the trees encounter
/// shared subtrees.
const BLOCKS: u64 = 3 * 128;

struct Pool {
    disk: Arc<MemoryDevice>,
    engine: Arc<Engine>,
}

type Content = BTreeMap<u64, u8>;

impl Pool {
    fn new() -> Self {
        let disk = Arc::new(MemoryDevice::new("disk".to_owned(), 96 << 20));
        let engine = pool_on(&disk, MEMORY_BYTES);
        Self { disk, engine }
    }

    fn reopen(&mut self) {
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    fn make(&self, name: &str) -> Arc<Volume> {
        let size_bytes = BLOCKS * BLOCK_BYTES as u64;
        let spec = VolumeSpec { name: name.to_owned(), size_bytes, compression: Compression::Off };
        now(self.engine.create_volume(&spec)).unwrap();
        self.engine.volume(name).unwrap()
    }

    fn snap(&self, volume: &str, name: &str) {
        now(self.engine.create_snapshots(&[id(volume, name)])).unwrap();
    }

    /// Commits until all destroyed data is freed, and checks every counter.
    fn settle(&self) {
        for _ in 0..8 {
            now(self.engine.sync()).unwrap();
        }
        assert_exact(&self.engine);
    }

    fn used(&self, volume: &str) -> u64 {
        self.engine.volume(volume).unwrap().info().space.used
    }

    fn unique(&self, volume: &str, name: &str) -> u64 {
        let all = now(self.engine.snapshots(volume)).unwrap();
        all.into_iter().find(|s| s.name == name).unwrap().used_bytes
    }
}

fn write(volume: &Volume, content: &mut Content, blocks: impl Iterator<Item = u64>, fill: u8) {
    for block in blocks {
        let mut data = [fill; BLOCK_BYTES];
        data[..8].copy_from_slice(&block.to_le_bytes());
        now(volume.write(block * BLOCK_BYTES as u64, &data)).unwrap();
        content.insert(block, fill);
    }
}

fn trim(volume: &Volume, content: &mut Content, blocks: std::ops::Range<u64>) {
    let (start, count) = (blocks.start, blocks.end - blocks.start);
    now(volume.zero(start * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64)).unwrap();
    content.retain(|block, _| !blocks.contains(block));
}

fn content(volume: &Volume) -> Content {
    let mut content = Content::new();
    for block in 0..volume.size_bytes() / BLOCK_BYTES as u64 {
        let mut data = [0; BLOCK_BYTES];
        now(volume.read(block * BLOCK_BYTES as u64, &mut data)).unwrap();
        if data.iter().any(|byte| *byte != 0) {
            assert_eq!(u64::from_le_bytes(data[..8].try_into().unwrap()), block);
            content.insert(block, data[100]);
        }
    }
    content
}

fn shown(engine: &Engine, volume: &str, name: &str) -> Content {
    content(&engine.open_snapshot(&id(volume, name)).unwrap())
}

#[test]
fn destroyed_snapshot_frees_the_blocks_that_only_it_referenced() {
    let mut pool = Pool::new();
    let volume = pool.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..BLOCKS, 1);
    pool.snap("v", "a");
    let first = model.clone();
    write(&volume, &mut model, 100..200, 2);
    trim(&volume, &mut model, 0..50);
    pool.snap("v", "b");
    let second = model.clone();
    write(&volume, &mut model, (0..BLOCKS).step_by(7), 3);
    now(pool.engine.sync()).unwrap();
    drop(volume);
    pool.reopen();
    assert_eq!(shown(&pool.engine, "v", "a"), first);
    assert_eq!(shown(&pool.engine, "v", "b"), second);
    assert_eq!(content(&pool.engine.volume("v").unwrap()), model);
    assert_exact(&pool.engine);
    let before = pool.used("v");
    let alone = pool.unique("v", "a");
    // Between snapshots `a` and `b`, 150 blocks were overwritten or trimmed: only `a` references
    // them.
    assert!((150 * 4096..160 * 4096).contains(&alone), "{alone}");
    now(pool.engine.destroy_snapshots("v", &["a".to_owned()])).unwrap();
    pool.settle();
    assert_eq!(pool.used("v"), before - alone);
    assert_eq!(shown(&pool.engine, "v", "b"), second);
    let refused = now(pool.engine.destroy_volume("v", false)).unwrap_err();
    assert!(matches!(refused, DatasetError::InUse { .. }), "{refused}");
    now(pool.engine.destroy_volume("v", true)).unwrap();
    pool.settle();
    let left = |pool: &Pool| pool.engine.pool().space().live_bytes;
    assert!(left(&pool) < left(&Pool::new()) + 4096, "no block or node of it is left");
}

#[test]
fn middle_snapshot_frees_blocks_that_neither_neighbour_shares() {
    let pool = Pool::new();
    let volume = pool.make("v");
    let (mut model, mut kept) = (Content::new(), Vec::new());
    for round in 0..6_u8 {
        let stride = usize::from(round) + 1;
        write(&volume, &mut model, (u64::from(round)..BLOCKS).step_by(stride), round + 1);
        trim(&volume, &mut model, u64::from(round) * 20..u64::from(round) * 20 + 10);
        let name = format!("s{round}");
        pool.snap("v", &name);
        kept.push((name, model.clone()));
    }
    for gone in [2, 3, 0, 1] {
        let (name, _) = kept.remove(gone);
        let (before, alone) = (pool.used("v"), pool.unique("v", &name));
        now(pool.engine.destroy_snapshots("v", &[name])).unwrap();
        pool.settle();
        assert_eq!(pool.used("v"), before - alone);
        for (name, model) in &kept {
            assert_eq!(&shown(&pool.engine, "v", name), model, "{name}");
        }
    }
    let space = volume.info().space;
    assert_eq!(space.used, space.by_volume + space.by_snapshots);
}

#[test]
fn rollback_discards_later_changes_and_snapshots() {
    let mut pool = Pool::new();
    let volume = pool.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..200, 1);
    pool.snap("v", "a");
    let first = model.clone();
    write(&volume, &mut model, 100..300, 2);
    pool.snap("v", "b");
    write(&volume, &mut model, 0..20, 3);
    let refused = now(pool.engine.rollback(&id("v", "a"), false)).unwrap_err();
    assert!(matches!(refused, DatasetError::InUse { .. }), "{refused}");
    now(pool.engine.rollback(&id("v", "a"), true)).unwrap();
    assert_eq!(content(&volume), first);
    let mut model = first.clone();
    // Overwrite blocks of the snapshot while the data that the rollback dropped is still being
    // freed.
    write(&volume, &mut model, 90..110, 4);
    now(pool.engine.destroy_snapshots("v", &["a".to_owned()])).unwrap();
    pool.settle();
    drop(volume);
    pool.reopen();
    pool.settle();
    let volume = pool.engine.volume("v").unwrap();
    assert_eq!(content(&volume), model);
    let space = volume.info().space;
    assert_eq!((space.by_snapshots, space.used), (0, space.by_volume));
}

#[test]
fn clones_share_and_can_be_promoted() {
    let mut pool = Pool::new();
    let volume = pool.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..BLOCKS, 1);
    pool.snap("v", "a");
    let first = model.clone();
    write(&volume, &mut model, 0..100, 2);
    pool.snap("v", "b");
    let second = model.clone();
    let before = pool.engine.pool().space().live_bytes;
    now(pool.engine.clone_snapshot(&id("v", "a"), "c")).unwrap();
    assert!(pool.engine.pool().space().live_bytes < before + (64 << 10), "nothing is copied");
    let clone = pool.engine.volume("c").unwrap();
    let mut cloned = first.clone();
    assert_eq!(content(&clone), cloned);
    write(&clone, &mut cloned, 50..150, 3);
    pool.snap("c", "x");
    write(&clone, &mut cloned, 140..160, 4);
    let refused = now(pool.engine.destroy_snapshots("v", &["a".to_owned()])).unwrap_err();
    assert!(matches!(refused, DatasetError::InUse { .. }), "{refused}");
    let total = pool.used("v") + pool.used("c");
    now(pool.engine.promote("c")).unwrap();
    pool.settle();
    assert_eq!(shown(&pool.engine, "c", "a"), first);
    assert_eq!(shown(&pool.engine, "v", "b"), second);
    let names: Vec<_> =
        now(pool.engine.snapshots("c")).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a", "x"]);
    let now_used = pool.used("v") + pool.used("c");
    assert!(now_used.abs_diff(total) <= 256 << 10, "{now_used} {total}");
    drop((volume, clone));
    pool.reopen();
    now(pool.engine.destroy_volume("v", true)).unwrap();
    pool.settle();
    assert_eq!(content(&pool.engine.volume("c").unwrap()), cloned);
    assert_eq!(shown(&pool.engine, "c", "a"), first);
    now(pool.engine.rollback(&id("c", "x"), false)).unwrap();
    now(pool.engine.destroy_snapshots("c", &["a".to_owned()])).unwrap();
    pool.settle();
    let space = pool.engine.volume("c").unwrap().info().space;
    assert_eq!(space.used, space.by_volume + space.by_snapshots);
}

#[test]
fn open_or_held_snapshot_cannot_be_destroyed() {
    let pool = Pool::new();
    let volume = pool.make("v");
    write(&volume, &mut Content::new(), 0..10, 1);
    pool.snap("v", "a");
    let view = pool.engine.open_snapshot(&id("v", "a")).unwrap();
    let write = now(view.write(0, &[1; BLOCK_BYTES])).unwrap_err();
    assert!(matches!(write, DatasetError::ReadOnly { .. }), "{write}");
    let destroy = || now(pool.engine.destroy_snapshots("v", &["a".to_owned()]));
    assert!(matches!(destroy(), Err(DatasetError::InUse { .. })));
    drop(view);
    now(pool.engine.hold_snapshot(&id("v", "a"), "backup")).unwrap();
    assert!(matches!(destroy(), Err(DatasetError::InUse { .. })));
    now(pool.engine.release_snapshot(&id("v", "a"), "backup")).unwrap();
    destroy().unwrap();
    assert!(matches!(destroy(), Err(DatasetError::NoSnapshot { .. })));
    assert!(now(pool.engine.create_snapshots(&[id("v", "a"), id("w", "a")])).is_err());
    pool.settle();
}

#[test]
fn freed_by_predicts_the_space_that_a_destroy_frees() {
    let pool = Pool::new();
    let volume = pool.make("v");
    let mut model = Content::new();
    for (round, name) in (1..).zip(["a", "b", "c", "d"]) {
        write(&volume, &mut model, 0..90 * u64::from(round), round);
        pool.snap("v", name);
    }
    let names = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
    assert_eq!(pool.engine.snapshot_names("v").unwrap(), names(&["a", "b", "c", "d"]));
    let each: u64 = ["b", "c"].map(|name| pool.unique("v", name)).iter().sum();
    let together = now(pool.engine.freed_by("v", &names(&["b", "c"]))).unwrap();
    assert!(together >= each, "{together} {each}");
    let used = pool.used("v");
    now(pool.engine.destroy_snapshots("v", &names(&["b", "c"]))).unwrap();
    pool.settle();
    assert_eq!(pool.used("v"), used - together);
    let rest = now(pool.engine.freed_by("v", &names(&["a", "d"]))).unwrap();
    let space = pool.engine.dataset_space();
    assert_eq!(space.by_snapshots, rest);
    assert_eq!(space.by_volumes + space.by_snapshots, pool.used("v"));
    assert!(now(pool.engine.freed_by("v", &names(&["b"]))).is_err());
    now(pool.engine.clone_snapshot(&id("v", "a"), "w")).unwrap();
    now(pool.engine.rename_volume("v", "u")).unwrap();
    let clone = pool.engine.volume("w").unwrap();
    assert_eq!(pool.engine.origin_of(&clone), Some(id("u", "a")));
    assert_eq!(pool.engine.name_of(volume.dataset()), Some(("u".to_owned(), None)));
    let shown = pool.engine.open_snapshot(&id("u", "a")).unwrap();
    let called = Some(("u".to_owned(), Some("a".to_owned())));
    assert_eq!(pool.engine.name_of(shown.dataset()), called);
}

#[test]
fn holds_of_a_snapshot_are_limited() {
    let pool = Pool::new();
    pool.make("v");
    pool.snap("v", "s");
    let hold = |tag: u64| now(pool.engine.hold_snapshot(&id("v", "s"), &tag.to_string()));
    for tag in 0..16 {
        assert_eq!(hold(tag).unwrap(), Outcome::Changed);
    }
    assert!(matches!(hold(16), Err(DatasetError::TooMany { count: 16, what: "tags", .. })));
    assert_eq!(hold(0).unwrap(), Outcome::Unchanged);
    now(pool.engine.release_snapshot(&id("v", "s"), "0")).unwrap();
    assert_eq!(hold(16).unwrap(), Outcome::Changed);
}

#[test]
fn promotions_of_a_snapshot_chain_are_limited() {
    let pool = Pool::new();
    pool.make("0");
    let promote = |number: u64| {
        let (of, clone) = (number.to_string(), (number + 1).to_string());
        pool.snap(&of, &of);
        now(pool.engine.clone_snapshot(&id(&of, &of), &clone)).unwrap();
        now(pool.engine.promote(&clone))
    };
    for number in 0..64 {
        promote(number).unwrap();
    }
    let error = promote(64).unwrap_err();
    assert!(
        matches!(error, DatasetError::TooMany { count: 64, what: "promotions", .. }),
        "{error}"
    );
    assert_exact(&pool.engine);
}

#[test]
fn datasets_and_bookmarks_of_a_pool_are_limited_together() {
    let pool = Pool::new();
    pool.make("v");
    pool.snap("v", "a");
    let a = id("v", "a");
    let bookmark = |name: &str| now(pool.engine.create_bookmark(&a, name));
    bookmark("m").unwrap();
    pool.engine.set_datasets_max(3);
    let refused = |outcome: Result<Outcome, DatasetError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, DatasetError::TooMany { count: 3, .. }), "{error}");
    };
    let (name, compression) = ("w".to_owned(), Compression::Off);
    let spec = VolumeSpec { name, size_bytes: 1 << 20, compression };
    refused(now(pool.engine.create_volume(&spec)));
    refused(now(pool.engine.create_snapshots(&[id("v", "b")])));
    refused(now(pool.engine.clone_snapshot(&a, "w")));
    refused(now(pool.engine.copy_volume("v", None, "w")));
    refused(bookmark("n"));
    assert_eq!(bookmark("m").unwrap(), Outcome::Unchanged, "it is there");
    let m = BookmarkId { volume: "v".to_owned(), name: "m".to_owned() };
    now(pool.engine.destroy_bookmark(&m)).unwrap();
    now(pool.engine.create_snapshots(&[id("v", "b")])).unwrap();
    assert_exact(&pool.engine);
}
