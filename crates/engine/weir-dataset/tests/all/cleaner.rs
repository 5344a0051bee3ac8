//! The cleaner in the engine: clients overwrite volumes many times in a nearly full pool.
//!
//! weir-sim tests crashes and concurrency.
//!
//! Invariant: every block has the content of the last write to that block, before and after a
//! restart.

#![expect(clippy::print_stdout, reason = "measured figures are shown beside the verdict")]

use std::sync::Arc;
use std::task::Context;

use crate::common::{import, now, options};
use futures_util::task::noop_waker_ref;
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_cache::CacheClass;
use weir_dataset::{DatasetError, Engine, Volume, VolumeSpec};
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice};
use weir_format::{Compression, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, VdevSpec};

const MIB: f64 = (1 << 20) as f64;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Memory of the engine: small, so that a txg is a small part of the pool, as in production.
const MEMORY_BYTES: u64 = 8 << 20;

/// A pool with one volume, and the expected version of each block.
struct Bench {
    disk: Arc<MemoryDevice>,
    faults: Arc<Faults>,
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    versions: Vec<u64>,
    next: u64,
}

impl Bench {
    fn new(disk_bytes: u64, blocks_of_capacity: impl Fn(u64) -> u64) -> Self {
        let disk = Arc::new(MemoryDevice::new("disk", disk_bytes as usize));
        let sizes = CreateOptions {
            segment_bytes: Some(256 << 10),
            strip_bytes: Some(4096),
            log_bytes: Some(1 << 20),
            disk_bytes_min: Some(disk_bytes),
        };
        let faults = Arc::new(Faults::default());
        let disks = Self::devices(&disk, &faults);
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let options = options(MEMORY_BYTES);
        let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
        let capacity = engine.pool().space().total_bytes - engine.reserve_bytes();
        let blocks = blocks_of_capacity(capacity / BLOCK);
        let spec = VolumeSpec {
            name: "v".to_owned(),
            size_bytes: blocks * BLOCK,
            compression: Compression::Off,
        };
        now(engine.create_volume(&spec)).unwrap();
        let volume = engine.volume("v").unwrap();
        Self { disk, faults, engine, volume, versions: vec![0; blocks as usize], next: 1 }
    }

    fn devices(disk: &Arc<MemoryDevice>, faults: &Arc<Faults>) -> Vec<Arc<dyn Device>> {
        let behind = Arc::clone(disk) as Arc<dyn Device>;
        vec![Arc::new(FaultDevice::new(behind, Arc::clone(faults)))]
    }

    fn blocks(&self) -> u64 {
        self.versions.len() as u64
    }

    fn random(&mut self) -> u64 {
        self.next = self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.next >> 33) % self.blocks()
    }

    fn write(&mut self, block: u64) -> Result<(), DatasetError> {
        let version = self.versions[block as usize] + 1;
        let content = content(block, version);
        if !self.volume.try_write(block * BLOCK, &content)? {
            now(drive(&self.engine, self.volume.write(block * BLOCK, &content)))?;
        }
        self.versions[block as usize] = version;
        Ok(())
    }

    fn trim(&mut self, block: u64, count: u64) {
        now(drive(&self.engine, self.volume.zero(block * BLOCK, count * BLOCK))).unwrap();
        self.versions[block as usize..(block + count) as usize].fill(0);
    }

    /// Compares all blocks with the model, and checks all counters.
    fn check(&self) {
        self.check_blocks();
        assert!(now(self.engine.check_live_bytes()).unwrap().is_empty());
    }

    fn check_blocks(&self) {
        let mut out = [0; BLOCK_BYTES];
        for (block, version) in (0..).zip(&self.versions) {
            now(self.volume.read(block * BLOCK, &mut out)).unwrap();
            let wanted = if *version == 0 { [0; BLOCK_BYTES] } else { content(block, *version) };
            assert!(out == wanted, "block {block} is not version {version}");
        }
    }

    fn reopen(self) -> Self {
        let Self { disk, faults, engine, volume, versions, next } = self;
        // A flush of more data than the log queue holds waits for a commit, so run the committer
        // too.
        now(drive(&engine, engine.flush(&volume))).unwrap();
        drop((engine, volume));
        let devices = Self::devices(&disk, &faults);
        let how = import();
        let engine = now(Engine::open(devices, how, &options(MEMORY_BYTES))).unwrap();
        let volume = engine.volume("v").unwrap();
        Self { disk, faults, engine, volume, versions, next }
    }

    fn written(&self, class: SegmentClass) -> f64 {
        self.engine.pool().written_bytes(class) as f64
    }
}

/// Returns incompressible bytes, unique for each block and version.
fn content(block: u64, version: u64) -> [u8; BLOCK_BYTES] {
    let mut state = block << 32 | version;
    let mut out = [0; BLOCK_BYTES];
    for word in out.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x9e37_79b9_7f4a_7c15);
        *word = (state ^ state >> 31).to_le_bytes();
    }
    out
}

/// Runs a client call concurrently with the engine's own loop.
async fn drive<T>(engine: &Engine, call: impl Future<Output = T>) -> T {
    let never = |_| std::future::pending::<()>();
    let run = std::pin::pin!(engine.run(never));
    let call = std::pin::pin!(call);
    match futures_util::future::select(call, run).await {
        futures_util::future::Either::Left((done, _)) => done,
        futures_util::future::Either::Right((ended, _)) => panic!("the engine ended: {ended:?}"),
    }
}

/// Returns the write amplification of a FIFO cleaner for the live fraction `v`: 1 / (1 - u) where v
/// = (u - 1) / ln u.
fn model(v: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let u = f64::midpoint(low, high);
        if (u - 1.0) / u.ln() < v { low = u } else { high = u }
    }
    1.0 / (1.0 - low)
}

#[test]
fn write_amplification_model_matches_the_design() {
    for (v, amplification) in [(0.7, 1.9), (0.8, 2.7), (0.9, 5.2), (0.95, 10.2)] {
        assert!((model(v) / amplification - 1.0).abs() < 0.03, "{v}: {}", model(v));
    }
}

/// Fills a volume to `percent` of the usable capacity and overwrites random blocks of it.
fn overwrite_uniformly(percent: u64) {
    // Tree nodes and their old versions occupy about 2 %.
    let mut bench = Bench::new(96 << 20, |capacity| capacity * percent / 102);
    for block in 0..bench.blocks() {
        bench.write(block).unwrap();
    }
    for _ in 0..2 * bench.blocks() {
        let block = bench.random();
        bench.write(block).unwrap();
    }
    let classes = [SegmentClass::Data, SegmentClass::Meta, SegmentClass::Clean];
    let before = classes.map(|class| bench.written(class));
    for _ in 0..3 * bench.blocks() {
        let block = bench.random();
        bench.write(block).unwrap();
    }
    let after = classes.map(|class| bench.written(class));
    let [data, meta, clean] = [0, 1, 2].map(|class| after[class] - before[class]);
    let amplification = (data + meta + clean) / (data + meta);
    let space = bench.engine.pool().space();
    let capacity = space.total_bytes - bench.engine.reserve_bytes();
    let live = space.live_bytes as f64 / capacity as f64;
    println!(
        "{percent} % live ({live:.3} measured): write amplification {amplification:.2} (nodes \
         count as written), model {:.2}; MiB: data {:.0}, nodes {:.0}, moved {:.0}; remap tables \
         {} bytes",
        model(live),
        data / MIB,
        meta / MIB,
        clean / MIB,
        bench.engine.pool().status().remap_bytes,
    );
    assert!(clean > 0.0, "nothing was cleaned");
    assert!(amplification <= 1.15 * model(live), "{amplification}");
    bench.check();
    bench.reopen().check();
}

#[test]
fn random_overwrites_at_80_percent_stay_correct() {
    overwrite_uniformly(80);
}

#[test]
fn random_overwrites_at_90_percent_stay_correct() {
    overwrite_uniformly(90);
}

#[test]
fn remap_tables_stay_within_the_memory_budget() {
    const SMALL_BYTES: u64 = 2 << 20;
    /// Maximum size of the remap tables: an eighth of the 40 % of memory that are for caches.
    const TABLES_MAX: u64 = SMALL_BYTES / 20;
    let mut bench = Bench::new(96 << 20, |capacity| capacity * 80 / 102);
    for block in 0..bench.blocks() {
        bench.write(block).unwrap();
    }
    bench.engine.set_memory(SMALL_BYTES);
    let mut stored = 0;
    for _ in 0..24 {
        for _ in 0..bench.blocks() / 8 {
            let block = bench.random();
            bench.write(block).unwrap();
        }
        now(bench.engine.sync()).unwrap();
        let pool = bench.engine.pool();
        let tables = pool.table_memory();
        let cached = [CacheClass::Node, CacheClass::Data].map(|class| pool.cache().stats(class));
        let cached: u64 = cached.iter().map(|stats| stats.bytes).sum();
        let held = cached + tables.segment_bytes + tables.remap_list_bytes + tables.remap_bytes;
        // Dirty data may use another 45 % of the memory, which leaves 55 % for caches and tables.
        assert!(held <= SMALL_BYTES * 55 / 100, "{cached} cached, {tables:?}");
        assert!(tables.remap_bytes <= TABLES_MAX, "{tables:?}");
        assert_eq!(tables.remap_bytes, pool.status().remap_bytes);
        stored = tables.remap_stored_bytes;
    }
    assert!(stored > TABLES_MAX * 5 / 4, "the budget was never needed: {stored} bytes of tables");
    bench.check();
    bench.reopen().check();
}

/// Regression: a commit freed the last block of a cleaned segment in memory and dropped its remap
/// table, while clients still read the previous tree. Reads concurrent with a large block clone
/// failed with EIO.
#[test]
fn moved_blocks_are_readable_until_the_new_tree_is_published() {
    let mut bench = Bench::new(32 << 20, |capacity| capacity * 70 / 102);
    for block in 0..bench.blocks() {
        bench.write(block).unwrap();
    }
    for _ in 0..2 * bench.blocks() {
        let block = bench.random();
        bench.write(block).unwrap();
    }
    let size_bytes = bench.blocks() * BLOCK;
    let [holes, other] = ["holes", "other"].map(|name| {
        let (name, compression) = (name.to_owned(), Compression::Off);
        let spec = VolumeSpec { name: name.clone(), size_bytes, compression };
        now(bench.engine.create_volume(&spec)).unwrap();
        bench.engine.volume(&name).unwrap()
    });
    now(bench.engine.sync()).unwrap();
    assert!(bench.engine.pool().status().remap_bytes > 0, "nothing was cleaned");
    // The commit of the clone waits for this write before it publishes the new tree.
    now(drive(&bench.engine, other.write(0, &content(0, 1)))).unwrap();
    let clone = bench.engine.clone_range(&holes, 0, &bench.volume, 0, size_bytes);
    let mut clone = std::pin::pin!(clone);
    bench.faults.freeze_op(DeviceOp::Write);
    let mut context = Context::from_waker(noop_waker_ref());
    for _ in 0..1000 {
        assert!(clone.as_mut().poll(&mut context).is_pending(), "its commit cannot end");
    }
    bench.check_blocks();
    bench.faults.clear();
    now(clone).unwrap();
    bench.versions.fill(0);
    bench.check();
}

#[test]
fn full_pool_returns_no_space_and_trim_frees_space() {
    // The total of the writes is larger than the pool.
    let mut bench = Bench::new(32 << 20, |capacity| capacity * 2);
    let mut written = 0;
    let full = loop {
        match bench.write(written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    println!("full after {written} of {} blocks", bench.blocks() / 2);
    assert!(written * 100 >= bench.blocks() / 2 * 90, "full too early: {written}");
    bench.check();
    let used = written * 90 / 100;
    for cycle in 0..24 {
        let from = used / 24 * cycle;
        bench.trim(0, from);
        bench.trim(from, bench.blocks() - from);
        for block in 0..used {
            bench.write(block).unwrap();
        }
        for _ in 0..used / 4 {
            let block = bench.random() % used;
            bench.write(block).unwrap();
        }
        if cycle % 6 == 5 {
            bench = bench.reopen();
            bench.check();
        }
    }
    now(bench.engine.destroy_volume("v", false)).unwrap();
    // Commit many times, because each txg frees a part of the volume only.
    for _ in 0..100 {
        now(bench.engine.commit()).unwrap();
    }
    assert!(bench.engine.pool().space().live_bytes < 1 << 20);
}
