//! Model test of shared blocks: block clones, write-same and dedupe, mixed with writes, trims,
//! snapshots, clones, rollbacks, the cleaner and restarts.
//!
//! weir-sim tests crashes and concurrency.
//!
//! Invariant: at regular intervals every block of every volume and snapshot equals the model, and
//! every reference count, counter and account equals the result of a traversal of all trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{as_devices, assert_exact, id, import, now, options};
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine, Volume, VolumeSpec};
use weir_device::MemoryDevice;
use weir_format::{Compression, PtrKind, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, VdevSpec};

const MEMORY_BYTES: u64 = 4 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Number of blocks of a volume: three leaves, the last of which is partly filled.
const BLOCKS: usize = 300;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Content number of each block; 0 is a hole.
type Content = Vec<u32>;

struct Bench {
    disk: Arc<MemoryDevice>,
    engine: Arc<Engine>,
    volumes: BTreeMap<String, Content>,
    /// Content of each snapshot, by volume and snapshot name.
    snapshots: BTreeMap<(String, String), Content>,
    random: u64,
    next: u32,
}

fn block(content: u32) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    if content == 0 {
        return block;
    }
    if content.is_multiple_of(2) {
        block.fill(content as u8);
    } else {
        let mut state = u64::from(content);
        for byte in &mut block {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    block[..4].copy_from_slice(&content.to_le_bytes());
    block
}

/// Polls a future to completion and commits if it waits for a commit.
fn drive<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
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

fn read(volume: &Volume) -> Content {
    let mut bytes = vec![0; volume.size_bytes() as usize];
    now(volume.read(0, &mut bytes)).unwrap();
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    let content = |bytes: &[u8; BLOCK_BYTES]| {
        let content = u32::from_le_bytes(*bytes.first_chunk().unwrap());
        assert!(*bytes == block(content), "nobody wrote this");
        content
    };
    blocks.iter().map(content).collect()
}

impl Bench {
    fn new(seed: u64, disk_bytes: usize) -> Self {
        let disk = Arc::new(MemoryDevice::new("disk", disk_bytes));
        let sizes = CreateOptions {
            segment_bytes: Some(256 << 10),
            strip_bytes: Some(4096),
            log_bytes: Some(1 << 20),
            disk_bytes_min: Some(disk_bytes as u64),
        };
        let disks = as_devices(&[Arc::clone(&disk)]);
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let options = options(MEMORY_BYTES);
        let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
        let (volumes, snapshots) = (BTreeMap::new(), BTreeMap::new());
        let mut bench = Self { disk, engine, volumes, snapshots, random: seed, next: 2 };
        (0..3).for_each(|n| bench.make(NAMES[n]));
        bench
    }

    fn make(&mut self, name: &str) {
        let compression = if self.below(2) == 0 { Compression::Lz4 } else { Compression::Off };
        let size_bytes = BLOCKS as u64 * BLOCK;
        let spec = VolumeSpec { name: name.to_owned(), size_bytes, compression };
        now(self.engine.create_volume(&spec)).unwrap();
        self.volumes.insert(name.to_owned(), vec![0; BLOCKS]);
    }

    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.random >> 33) as usize % n
    }

    fn some_volume(&mut self) -> (String, Arc<Volume>) {
        let at = self.below(self.volumes.len());
        let name = self.volumes.keys().nth(at).unwrap().clone();
        let volume = self.engine.volume(&name).unwrap();
        (name, volume)
    }

    fn some_snapshot(&mut self) -> Option<(String, String)> {
        let at = self.below(self.snapshots.len().max(1));
        self.snapshots.keys().nth(at).cloned()
    }

    fn range(&mut self) -> (usize, usize) {
        let start = self.below(BLOCKS);
        (start, 1 + self.below((BLOCKS - start).min(90)))
    }

    /// Returns new content or, in half of the cases, content from a small set that repeats.
    fn content(&mut self) -> u32 {
        if self.below(2) == 0 {
            return 2 + self.below(60) as u32;
        }
        self.next += 1;
        self.next + 100
    }

    fn step(&mut self) {
        match self.below(40) {
            0..14 => self.write(),
            14..17 => self.trim(),
            17..24 => self.clone_range(),
            24..26 => self.write_same(),
            26..29 => self.snapshot(),
            29..31 => self.destroy_snapshot(),
            31 => self.roll_back(),
            32 => self.clone_snapshot(),
            33 => self.destroy_volume(),
            34 => self.promote(),
            35..37 => self.set_dedupe(),
            37 => self.reopen(),
            _ => now(self.engine.sync()).unwrap(),
        }
    }

    fn done(&self, done: Result<(), DatasetError>) -> bool {
        match done {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // A refused call must not change a part of its range: every call here changes its
                // whole range or nothing.
                now(self.engine.sync()).unwrap();
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self) {
        let (name, volume) = self.some_volume();
        let (start, count) = self.range();
        for at in start..start + count {
            let content = self.content();
            let done = drive(&self.engine, volume.write(at as u64 * BLOCK, &block(content)));
            if self.done(done) {
                self.volumes.get_mut(&name).unwrap()[at] = content;
            }
        }
    }

    fn trim(&mut self) {
        let (name, volume) = self.some_volume();
        let (start, count) = self.range();
        let zero = volume.zero(start as u64 * BLOCK, count as u64 * BLOCK);
        drive(&self.engine, zero).unwrap();
        self.volumes.get_mut(&name).unwrap()[start..start + count].fill(0);
    }

    fn write_same(&mut self) {
        let (name, volume) = self.some_volume();
        let ((start, count), content) = (self.range(), self.content());
        let (offset, len) = (start as u64 * BLOCK, count as u64 * BLOCK);
        let done =
            drive(&self.engine, self.engine.write_same(&volume, offset, len, &block(content)));
        if self.done(done) {
            self.volumes.get_mut(&name).unwrap()[start..start + count].fill(content);
        }
    }

    fn clone_range(&mut self) {
        let (to_name, destination) = self.some_volume();
        let (source, content) = match self.some_snapshot().filter(|_| self.random >> 40 & 1 == 0) {
            Some((volume, name)) => {
                let view = self.engine.open_snapshot(&id(&volume, &name)).unwrap();
                (view, self.snapshots[&(volume, name)].clone())
            }
            None => {
                let (name, volume) = self.some_volume();
                let content = self.volumes[&name].clone();
                (volume, content)
            }
        };
        let (from, count) = self.range();
        let to = self.below(BLOCKS - count + 1);
        let bytes = |blocks: usize| blocks as u64 * BLOCK;
        let (at, onto, len) = (bytes(from), bytes(to), bytes(count));
        let done = now(self.engine.clone_range(&source, at, &destination, onto, len));
        if self.done(done) {
            let model = self.volumes.get_mut(&to_name).unwrap();
            model[to..to + count].copy_from_slice(&content[from..from + count]);
        }
    }

    fn snapshot(&mut self) {
        let (volume, _) = self.some_volume();
        self.next += 1;
        let name = format!("s{}", self.next);
        now(self.engine.create_snapshots(&[id(&volume, &name)])).unwrap();
        self.snapshots.insert((volume.clone(), name), self.volumes[&volume].clone());
    }

    /// Returns false if the call was refused, for example because a clone depends on the object.
    fn unless_in_use<T>(done: Result<T, DatasetError>) -> bool {
        match done {
            Ok(_) => true,
            Err(DatasetError::InUse { .. } | DatasetError::Unfit { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn destroy_snapshot(&mut self) {
        let Some((volume, name)) = self.some_snapshot() else { return };
        let done = now(self.engine.destroy_snapshots(&volume, std::slice::from_ref(&name)));
        if Self::unless_in_use(done) {
            self.snapshots.remove(&(volume, name));
        }
    }

    fn names_of(&self, volume: &str) -> Vec<String> {
        self.engine.snapshot_names(volume).unwrap()
    }

    fn roll_back(&mut self) {
        let Some((volume, name)) = self.some_snapshot() else { return };
        if Self::unless_in_use(now(self.engine.rollback(&id(&volume, &name), true))) {
            let left = self.names_of(&volume);
            self.snapshots.retain(|(of, name), _| *of != volume || left.contains(name));
            let content = self.snapshots[&(volume.clone(), name)].clone();
            self.volumes.insert(volume, content);
        }
    }

    fn clone_snapshot(&mut self) {
        let Some((volume, name)) = self.some_snapshot() else { return };
        let Some(new) = NAMES.iter().find(|name| !self.volumes.contains_key(**name)) else {
            return;
        };
        now(self.engine.clone_snapshot(&id(&volume, &name), new)).unwrap();
        let content = self.snapshots[&(volume, name)].clone();
        self.volumes.insert((*new).to_owned(), content);
    }

    fn destroy_volume(&mut self) {
        if self.volumes.len() < 3 {
            return;
        }
        let (name, volume) = self.some_volume();
        drop(volume);
        if Self::unless_in_use(now(self.engine.destroy_volume(&name, true))) {
            self.volumes.remove(&name);
            self.snapshots.retain(|(of, _), _| *of != name);
            // The volume is created again, as by a client that reconnects later.
            if !self.volumes.contains_key("a") && self.below(2) == 0 {
                self.make("a");
            }
        }
    }

    fn promote(&mut self) {
        let (name, _) = self.some_volume();
        if Self::unless_in_use(now(self.engine.promote(&name))) {
            let all = std::mem::take(&mut self.snapshots);
            for volume in self.volumes.keys() {
                for snapshot in self.engine.snapshot_names(volume).unwrap() {
                    let (_, content) = all.iter().find(|((_, n), _)| *n == snapshot).unwrap();
                    self.snapshots.insert((volume.clone(), snapshot), content.clone());
                }
            }
        }
    }

    fn set_dedupe(&mut self) {
        let (name, _) = self.some_volume();
        let dedupe = self.below(4) > 0;
        now(self.engine.set_dedupe(&name, dedupe)).unwrap();
    }

    fn reopen(&mut self) {
        now(self.engine.sync()).unwrap();
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
        if self.below(2) == 0 {
            self.engine.pool().set_table_bytes(0);
        }
    }

    fn check(&self) {
        for (name, content) in &self.volumes {
            assert!(read(&self.engine.volume(name).unwrap()) == *content, "volume {name}");
        }
        for ((volume, name), content) in &self.snapshots {
            let view = self.engine.open_snapshot(&id(volume, name)).unwrap();
            assert!(read(&view) == *content, "{volume}@{name}");
        }
        now(self.engine.sync()).unwrap();
        assert_exact(&self.engine);
    }
}

#[test]
fn shared_blocks_live_until_their_last_reference_is_dropped() {
    let (mut shared, mut hits, mut moved) = (0, 0, 0);
    for seed in 1..=24 {
        // Even seeds use the smallest pool that fits, so that the cleaner works all the time.
        let mut bench = Bench::new(seed, if seed % 2 == 0 { 14 << 20 } else { 20 << 20 });
        for step in 0..260 {
            bench.step();
            if step % 20 == 19 {
                bench.check();
            }
            shared = shared.max(bench.engine.pool().space().saved_bytes);
        }
        moved += bench.engine.pool().written_bytes(SegmentClass::Clean);
        bench.reopen();
        bench.check();
        hits += bench.engine.pool().hint_figures().hits;
        moved += bench.engine.pool().written_bytes(SegmentClass::Clean);
        for volume in bench.volumes.keys().cloned().collect::<Vec<_>>() {
            while now(bench.engine.promote(&volume)).is_ok() {}
        }
        let names: Vec<String> = bench.volumes.keys().cloned().collect();
        for _ in 0..names.len() {
            for name in &names {
                // A volume with clones can be destroyed only after its clones.
                drop(now(bench.engine.destroy_volume(name, true)));
            }
        }
        for _ in 0..200 {
            now(bench.engine.sync()).unwrap();
        }
        assert_eq!(now(bench.engine.check_references()).unwrap(), Vec::new());
        assert_eq!(now(bench.engine.check_live_bytes()).unwrap(), Vec::new());
        assert!(bench.engine.volumes().is_empty(), "seed {seed}");
        let space = bench.engine.pool().space();
        assert_eq!(space.saved_bytes, 0, "seed {seed}");
        assert_eq!(bench.engine.pool().table_memory().reference_tables, 0, "seed {seed}");
    }
    assert!(shared > 100 * BLOCK, "{shared}");
    assert!(moved > 0 && hits < u64::MAX, "{moved} {hits}");
}

#[test]
fn block_clone_reads_and_writes_no_data() {
    let mut bench = Bench::new(7, 32 << 20);
    bench.make("big");
    let volume = bench.engine.volume("a").unwrap();
    let copy = bench.engine.volume("b").unwrap();
    let content: Content =
        (0..BLOCKS as u32).map(|n| if n % 7 == 0 { 0 } else { 1001 + 2 * n }).collect();
    for (at, content) in (0..).zip(&content) {
        drive(&bench.engine, volume.write(at * BLOCK, &block(*content))).unwrap();
        drive(&bench.engine, copy.write(at * BLOCK, &block(9))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    let written = |engine: &Engine| engine.pool().written_bytes(SegmentClass::Data);
    let before = (written(&bench.engine), bench.engine.pool().space().live_bytes);
    let data_read = bench.engine.pool().read_bytes(PtrKind::Data);
    let len = 200 * BLOCK;
    now(bench.engine.clone_range(&volume, 50 * BLOCK, &copy, 100 * BLOCK, len)).unwrap();
    assert_eq!(written(&bench.engine), before.0);
    assert_eq!(bench.engine.pool().read_bytes(PtrKind::Data), data_read);
    let mut wanted = vec![9; BLOCKS];
    wanted[100..300].copy_from_slice(&content[50..250]);
    assert!(read(&copy) == wanted);
    // The overwritten blocks are free, and the clone uses no space for data.
    assert!(bench.engine.pool().space().live_bytes < before.1);
    let shared = wanted[100..].iter().filter(|content| **content != 0).count() as u64;
    assert_eq!(bench.engine.pool().space().saved_bytes, shared * BLOCK);
    assert_eq!(copy.info().shared_bytes, shared * BLOCK);
    // Clone overlapping ranges of one volume, in both directions.
    now(bench.engine.clone_range(&copy, 0, &copy, 37 * BLOCK, len)).unwrap();
    let old = wanted.clone();
    wanted[37..237].copy_from_slice(&old[..200]);
    assert!(read(&copy) == wanted);
    now(bench.engine.clone_range(&copy, 90 * BLOCK, &copy, 11 * BLOCK, len)).unwrap();
    let old = wanted.clone();
    wanted[11..211].copy_from_slice(&old[90..290]);
    assert!(read(&copy) == wanted);
    assert_eq!(now(bench.engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(bench.engine.check_accounts()).unwrap(), Vec::new());

    for (from, to, len) in [(1, 0, BLOCK), (0, 512, BLOCK), (0, 0, 100)] {
        let refused = now(bench.engine.clone_range(&volume, from, &copy, to, len)).unwrap_err();
        assert!(matches!(refused, DatasetError::Unfit { .. }), "{refused}");
    }
    let all = BLOCKS as u64 * BLOCK;
    let refused = now(bench.engine.clone_range(&volume, BLOCK, &copy, 0, all)).unwrap_err();
    assert!(matches!(refused, DatasetError::OutOfRange { .. }), "{refused}");
    now(bench.engine.create_snapshots(&[id("a", "s")])).unwrap();
    let view = bench.engine.open_snapshot(&id("a", "s")).unwrap();
    let refused = now(bench.engine.clone_range(&copy, 0, &view, 0, BLOCK)).unwrap_err();
    assert!(matches!(refused, DatasetError::ReadOnly { .. }), "{refused}");
    let other = Bench::new(8, 32 << 20);
    let elsewhere = other.engine.volume("a").unwrap();
    let refused = now(bench.engine.clone_range(&elsewhere, 0, &copy, 0, BLOCK)).unwrap_err();
    assert!(matches!(refused, DatasetError::Unfit { .. }), "{refused}");
}

#[test]
fn dedupe_compares_uncached_blocks_on_disk() {
    let bench = Bench::new(10, 32 << 20);
    let (a, b) = (bench.engine.volume("a").unwrap(), bench.engine.volume("b").unwrap());
    for name in ["a", "b"] {
        now(bench.engine.set_dedupe(name, true)).unwrap();
    }
    // Some blocks compress, others do not.
    let content = |at: u64| 1001 + at as u32;
    let blocks = BLOCKS as u64;
    for at in 0..blocks {
        now(a.write(at * BLOCK, &block(content(at)))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    let pool = bench.engine.pool();
    pool.set_cache_bytes(0);
    // Set a small budget again, because the reference tables need memory.
    pool.set_cache_bytes(1 << 20);
    let (written, data_read) =
        (pool.written_bytes(SegmentClass::Data), pool.read_bytes(PtrKind::Data));
    for at in 0..blocks {
        now(b.write(at * BLOCK, &block(content(blocks - 1 - at)))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    assert_eq!(pool.written_bytes(SegmentClass::Data), written);
    assert!(pool.read_bytes(PtrKind::Data) > data_read, "nothing had left the cache");
    assert_eq!((pool.hint_figures().hits, pool.hint_figures().false_hits), (blocks, 0));
    assert_eq!(b.info().shared_bytes, b.info().stored_bytes);
    let wanted: Content = (0..blocks).map(|at| content(blocks - 1 - at)).collect();
    assert!(read(&b) == wanted);
    assert_eq!(now(bench.engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(bench.engine.check_live_bytes()).unwrap(), Vec::new());
}

#[test]
fn dedupe_and_write_same_store_equal_blocks_once() {
    let bench = Bench::new(9, 32 << 20);
    let (a, b) = (bench.engine.volume("a").unwrap(), bench.engine.volume("b").unwrap());
    for name in ["a", "b"] {
        now(bench.engine.set_dedupe(name, true)).unwrap();
    }
    let written = || bench.engine.pool().written_bytes(SegmentClass::Data);
    for at in 0..100 {
        now(a.write(at * BLOCK, &block(2 * at as u32 + 1001))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    let before = written();
    for at in 0..100 {
        now(b.write((200 - at) * BLOCK, &block(2 * at as u32 + 1001))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    assert_eq!(written(), before);
    assert_eq!(bench.engine.pool().hint_figures().hits, 100);
    assert_eq!(b.info().shared_bytes, b.info().stored_bytes);
    // Empty the cache, so that the pool compares the bytes on disk.
    bench.engine.pool().set_cache_bytes(0);
    bench.engine.pool().set_cache_bytes(1 << 20);
    // All changes are in one txg. The dedupe index drops the freed blocks.
    now(a.zero(0, 100 * BLOCK)).unwrap();
    now(b.zero(0, 300 * BLOCK)).unwrap();
    now(bench.engine.sync()).unwrap();
    assert_eq!(bench.engine.pool().hint_figures().used, 0);
    for at in 0..50 {
        now(b.write(at * BLOCK, &block(7))).unwrap();
    }
    now(bench.engine.sync()).unwrap();
    assert_eq!(bench.engine.pool().space().saved_bytes, 49 * BLOCK);
    let c = bench.engine.volume("c").unwrap();
    now(bench.engine.write_same(&c, 512, 40 * BLOCK, &block(11)[..512])).unwrap();
    now(bench.engine.sync()).unwrap();
    let mut bytes = vec![0; 42 * BLOCK_BYTES];
    now(c.read(0, &mut bytes)).unwrap();
    let inside = 512..512 + 40 * BLOCK_BYTES;
    assert!(bytes[inside.clone()].chunks(512).all(|part| *part == block(11)[..512]));
    assert!(bytes[..512].iter().chain(&bytes[inside.end..]).all(|byte| *byte == 0));
    assert_eq!(c.info().shared_bytes, 38 * c.info().stored_bytes / 41);
    now(bench.engine.write_same(&c, 0, 41 * BLOCK, &[0; 64])).unwrap();
    now(bench.engine.sync()).unwrap();
    assert_eq!((c.info().stored_bytes, c.info().shared_bytes), (0, 0));
    for pattern in [&[1; 3][..], &[1; 8192], &[]] {
        let refused = now(bench.engine.write_same(&c, 0, 3 * BLOCK, pattern)).unwrap_err();
        assert!(matches!(refused, DatasetError::Unfit { .. }), "{refused}");
    }
    assert_eq!(now(bench.engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(bench.engine.check_live_bytes()).unwrap(), Vec::new());
}
