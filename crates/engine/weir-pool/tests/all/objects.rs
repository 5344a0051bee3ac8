//! A dataset with many objects in a pool, without an engine: random changes of small objects,
//! snapshots that are freed in small parts, and the cleaner, compared with a model.
//!
//! Invariant: memory devices complete at once, so that no future waits for another task.

use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{DatasetId, Guid, ObjectId, SystemClock, Txg};
use weir_block::{Block, BlockMut, Blocks};
use weir_device::{Device, MemoryDevice};
use weir_format::{
    BlockOwner, BlockPtr, Compression, ObjectSlot, PtrKind, SegmentClass, TreeRoot, VdevKind,
    VdevRole,
};
use weir_pool::{
    Change, CommitInput, CompressHistory, CreateOptions, DiffSpec, EarlierSnapshots, Objects,
    Place, PlantedBug, Pool, PoolOptions, Roots, SnapshotChain, Tree, TreeKind, VdevSpec, Version,
    WriteOut, create,
};

const ID: DatasetId = DatasetId(7);
const DISK_BYTES: usize = 48 << 20;

/// Polls a future to completion. A future that waits for another task fails the test.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    for _ in 0..1_000_000 {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
    panic!("nothing to wait for on memory devices");
}

/// Expected number in each block: by object, then by block.
type Model = BTreeMap<u64, BTreeMap<u64, u64>>;
/// Changes of a txg; `None` is a hole.
type Changes = BTreeMap<u64, BTreeMap<u64, Option<u64>>>;

struct Snapshot {
    version: Version,
    model: Model,
    is_destroyed: bool,
}

#[derive(Default)]
struct Dataset {
    txg: Txg,
    head: TreeRoot,
    model: Model,
    snapshots: Vec<Snapshot>,
    history: CompressHistory,
}

fn block_of(number: u64) -> Block {
    let mut block = BlockMut::zeroed();
    let (words, _) = block.as_chunks_mut::<8>();
    for (at, word) in (0..).zip(words) {
        *word = (number * 1_000_003 + at).to_le_bytes();
    }
    block.freeze()
}

fn new_pool() -> Pool {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
    let clock = Arc::new(SystemClock::default());
    let options = PoolOptions { cache_bytes: 4 << 20, clock, bug: PlantedBug::None };
    let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] };
    let sizes = CreateOptions {
        segment_bytes: Some(1 << 20),
        disk_bytes_min: Some(1 << 20),
        ..CreateOptions::default()
    };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    now(create("tank", &[vdev], sizes, &options, &mut guid)).unwrap()
}

impl Dataset {
    fn chain(&self) -> SnapshotChain {
        let head = Version { txg: Version::HEAD, root: self.head, freed_to: Place::START };
        let versions = self.snapshots.iter().map(|snapshot| snapshot.version).chain([head]);
        SnapshotChain {
            volume: ID,
            objects: Objects::Many,
            inherits: Txg(0),
            versions: versions.collect(),
        }
    }

    fn roots(&self) -> Roots {
        let mut roots = Roots::default();
        roots.add(self.chain(), [(Version::HEAD, ID)]);
        roots
    }

    fn past(&self, object: ObjectId) -> EarlierSnapshots {
        let newest = |back: usize| {
            let at = self.snapshots.len().checked_sub(back);
            at.map_or(Txg(0), |at| self.snapshots[at].version.txg)
        };
        EarlierSnapshots {
            held: self.chain().held_before(self.snapshots.len(), object),
            newest: newest(1),
            before_newest: newest(2),
            inherits: Txg(0),
            records: None,
        }
    }

    async fn store(
        &mut self,
        out: &mut WriteOut<'_>,
        (object, index): (ObjectId, u64),
        block: &Block,
    ) -> BlockPtr {
        let owner = BlockOwner { dataset: ID, object, level: 0, index };
        let (class, kind) = (SegmentClass::Data, PtrKind::Data);
        let record = Blocks::One(block.clone());
        let (compression, history) = (Compression::Lz4, &mut self.history);
        out.write_record(class, Some(owner), kind, &record, compression, history).await.unwrap()
    }

    async fn apply(
        &self,
        pool: &Pool,
        out: &mut WriteOut<'_>,
        object: ObjectId,
        root: TreeRoot,
        changes: &[Change],
    ) -> TreeRoot {
        let home = TreeKind::Object(ID, object);
        let end = changes.last().map_or(0, |change| change.start + change.count);
        let height = TreeRoot::height_for(end).max(root.height);
        let (root, _) = Tree::new(pool, root).grow(out, home, height).await.unwrap();
        let past = self.past(object);
        Tree::new(pool, root).apply(out, home, &past, changes).await.unwrap().0
    }

    /// Writes the changes of a txg. Returns the new root of the object table.
    async fn write(&mut self, pool: &Pool, out: &mut WriteOut<'_>, changes: &Changes) -> TreeRoot {
        let mut slots = BTreeMap::<u64, BlockMut>::new();
        for (object, blocks) in changes {
            let object = ObjectId(*object);
            let root = pool.object_root(self.head, object).await.unwrap();
            let mut new = Vec::new();
            for (index, number) in blocks {
                let ptr = match number {
                    Some(number) => self.store(out, (object, *index), &block_of(*number)).await,
                    None if *index >= root.blocks() => continue,
                    None => BlockPtr::HOLE,
                };
                new.push(Change::one(*index, ptr));
            }
            let mut root = self.apply(pool, out, object, root, &new).await;
            if root.ptr.is_hole() {
                root = TreeRoot::EMPTY;
            }
            let at = ObjectSlot::block_of(object);
            let block = match slots.entry(at) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let ptr = Tree::new(pool, self.head).lookup(at).await.unwrap();
                    let block = if ptr.is_hole() {
                        BlockMut::zeroed()
                    } else {
                        let mut block = BlockMut::zeroed();
                        block.copy_from_slice(&pool.read_block(&ptr).await.unwrap()[..]);
                        block
                    };
                    new.insert(block)
                }
            };
            let mut slot = ObjectSlot { root, ..ObjectSlot::default() };
            if !root.ptr.is_hole() {
                slot.body.fill(object.0 as u8);
            }
            slot.write(block, object);
        }
        let mut table = Vec::new();
        for (index, block) in slots {
            let block = block.freeze();
            let ptr = if block.iter().all(|byte| *byte == 0) {
                BlockPtr::HOLE
            } else {
                self.store(out, (ObjectId::TABLE, index), &block).await
            };
            table.push(Change::one(index, ptr));
        }
        self.apply(pool, out, ObjectId::TABLE, self.head, &table).await
    }

    /// Frees at most `most` blocks and nodes of the destroyed snapshots.
    async fn free_some(&mut self, pool: &Pool, out: &mut WriteOut<'_>, mut most: usize) {
        while most > 0 {
            let partly = self.snapshots.iter().position(|s| s.version.freed_to > Place::START);
            let newest = self.snapshots.iter().rposition(|snapshot| snapshot.is_destroyed);
            let Some(at) = partly.or(newest) else { return };
            let chain = self.chain();
            let (version, next) = (chain.versions[at], chain.versions[at + 1]);
            let before = at.checked_sub(1).map_or(Txg(0), |at| chain.versions[at].txg);
            let what = DiffSpec {
                other: Some(next.root),
                from: version.freed_to,
                ..DiffSpec::of_tree(Objects::Many, version.root, None, before)
            };
            let mut diff = pool.unshared(what);
            let mut position = version.freed_to;
            while most > 0 {
                let found = diff.next().await.unwrap();
                assert!(diff.position() > position || found.is_empty());
                position = diff.position();
                if found.is_empty() {
                    break;
                }
                found.iter().for_each(|found| out.free(&found.ptr));
                most = most.saturating_sub(found.len());
            }
            assert!(!diff.leaves_something());
            out.free_all_unread().await.unwrap();
            if position == Place::END {
                self.snapshots.remove(at);
            } else {
                self.snapshots[at].version.freed_to = position;
            }
        }
    }

    /// Commits a txg with changes. If `takes` is true, takes a snapshot of the result.
    fn commit(&mut self, pool: &Pool, changes: &Changes, takes: bool, frees: usize) {
        now(async {
            let txg = self.txg.next();
            let mut out = pool.begin_write_out(txg);
            self.head = self.write(pool, &mut out, changes).await;
            for (object, blocks) in changes {
                let model = self.model.entry(*object).or_default();
                for (block, number) in blocks {
                    match number {
                        Some(number) => model.insert(*block, *number),
                        None => model.remove(block),
                    };
                }
            }
            self.model.retain(|_, blocks| !blocks.is_empty());
            if takes {
                let version = Version { txg, root: self.head, freed_to: Place::START };
                let model = self.model.clone();
                self.snapshots.push(Snapshot { version, model, is_destroyed: false });
            }
            out.finish().await.unwrap();
            self.free_some(pool, &mut out, frees).await;
            pool.clean(&mut out, &self.roots(), true).await.unwrap();
            let (datasets, next_dataset) = pool.datasets();
            let all = pool.root_is_stale();
            let input = CommitInput { datasets, next_dataset, all, keeps_unread: false };
            pool.commit(out, input).await.unwrap();
            self.txg = txg;
        });
    }

    /// Compares every version with its model, and the counters of the pool with the trees.
    fn check(&self, pool: &Pool) {
        now(async {
            let active = self.snapshots.iter().filter(|snapshot| !snapshot.is_destroyed);
            let active = active.map(|snapshot| (snapshot.version.root, &snapshot.model));
            for (root, model) in active.chain([(self.head, &self.model)]) {
                check_version(pool, root, model).await;
            }
            let roots = self.roots();
            assert_eq!(pool.check_live_bytes(&roots).await.unwrap(), []);
            assert_eq!(pool.check_places(&roots).await.unwrap(), None);
        });
    }
}

async fn check_version(pool: &Pool, table: TreeRoot, model: &Model) {
    let mut objects = Vec::new();
    let mut found = |at, _| {
        objects.extend(ObjectSlot::objects_in(at));
        true
    };
    Tree::new(pool, table).scan(0..table.blocks(), &mut found).await.unwrap();
    let mut content = Model::new();
    for object in objects {
        let root = pool.object_root(table, object).await.unwrap();
        let mut ptrs = Vec::new();
        let mut found = |at, ptr| {
            ptrs.push((at, ptr));
            true
        };
        Tree::new(pool, root).scan(0..root.blocks(), &mut found).await.unwrap();
        for (at, ptr) in ptrs {
            let block = pool.read_block(&ptr).await.unwrap();
            let number = model.get(&object.0).and_then(|blocks| blocks.get(&at));
            let number = *number.unwrap_or_else(|| panic!("{object} has no block {at}"));
            assert!(block[..] == block_of(number)[..], "block {at} of {object}");
            content.entry(object.0).or_default().insert(at, number);
        }
    }
    assert!(content == *model);
}

/// Random changes: small objects, some objects with more than one leaf, deleted objects.
fn random_changes(numbers: &mut Rng, model: &Model, next: &mut u64) -> Changes {
    let mut changes = Changes::new();
    for _ in 0..numbers.u64(..40) {
        let most = if numbers.u64(..8) == 0 { 100_000 } else { 600 };
        let object = 1 + numbers.u64(..most);
        let of = changes.entry(object).or_default();
        if numbers.u64(..4) == 0 {
            let known = model.get(&object).into_iter().flatten();
            of.extend(known.map(|(block, _)| (*block, None)));
            continue;
        }
        let first = if numbers.u64(..10) == 0 { numbers.u64(..20_000) } else { 0 };
        for block in first..first + 1 + numbers.u64(..4) {
            *next += 1;
            of.insert(block, (numbers.u64(..6) > 0).then_some(*next));
        }
    }
    changes
}

#[test]
fn objects_with_snapshots_match_a_model() {
    let mut cleaned = 0;
    for seed in 0..3 {
        let (mut numbers, mut next) = (Rng::with_seed(seed), 0);
        let pool = new_pool();
        let mut dataset = Dataset { txg: pool.committed_txg(), ..Dataset::default() };
        for step in 0..200 {
            let changes = random_changes(&mut numbers, &dataset.model, &mut next);
            let takes = numbers.u64(..6) == 0 && dataset.snapshots.len() < 8;
            if numbers.u64(..5) == 0 && !dataset.snapshots.is_empty() {
                let at = numbers.u64(..dataset.snapshots.len() as u64) as usize;
                dataset.snapshots[at].is_destroyed = true;
            }
            let frees = if numbers.u64(..3) == 0 { 200 } else { numbers.u64(..12) as usize };
            dataset.commit(&pool, &changes, takes, frees);
            if step % 10 == 0 {
                dataset.check(&pool);
            }
        }
        cleaned += pool.cleaner_status().total.moved_bytes;
        let holes = |blocks: &BTreeMap<u64, u64>| blocks.keys().map(|at| (*at, None)).collect();
        let all = dataset.model.iter().map(|(object, blocks)| (*object, holes(blocks)));
        let all: Changes = all.collect();
        dataset.snapshots.iter_mut().for_each(|snapshot| snapshot.is_destroyed = true);
        dataset.commit(&pool, &all, false, usize::MAX);
        assert!(dataset.snapshots.is_empty() && dataset.head.ptr.is_hole());
        dataset.check(&pool);
    }
    assert!(cleaned > 1 << 20, "the cleaner moved {cleaned} bytes");
}
