//! Tests of the damage list: entries for data and metadata without a good copy on any disk, and the
//! removal of entries.
//!
//! bin/weir tests the printed form of the list. The simulator tests damage under load and crashes.

use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind, ObjectId, Txg};
use weir_block::IoBuf;
use weir_dataset::{DamagedData, Engine, Volume, VolumeSpec};
use weir_device::{Device, MemoryDevice};
use weir_format::{Compression, PoolPart, VdevKind};

use crate::common::{as_devices, find_shared_damage, id, import, now, options, pool_of, run_scans};

const MEMORY_BYTES: u64 = 16 << 20;
const DISK_BYTES: usize = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 40;

struct Pool {
    disks: Vec<Arc<MemoryDevice>>,
    engine: Arc<Engine>,
}

/// Returns the content of block `number` in its write `round`; unique on the disk.
fn content(number: u64, round: u64) -> Vec<u8> {
    let mut state = (number + 1000 * round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(BLOCK_BYTES)
    .collect()
}

impl Pool {
    /// Creates a pool of one vdev, with a volume `v` that has the content of the first round.
    fn new(disks: usize) -> Self {
        let disks: Vec<_> = (0..disks)
            .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES)))
            .collect();
        let kind = if disks.len() == 1 { VdevKind::Disk } else { VdevKind::Mirror };
        let engine = pool_of(kind, as_devices(&disks), &options(MEMORY_BYTES));
        let spec = VolumeSpec {
            name: "v".into(),
            size_bytes: BLOCKS * BLOCK,
            compression: Compression::Off,
        };
        now(engine.create_volume(&spec)).unwrap();
        let pool = Self { disks, engine };
        (0..BLOCKS).for_each(|number| pool.write("v", number, 1));
        now(pool.engine.sync()).unwrap();
        pool
    }

    /// Reopens the pool, so that its caches are empty.
    fn reopen(&mut self) {
        now(self.engine.sync()).unwrap();
        let disks = as_devices(&self.disks);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.engine.volume(name).unwrap()
    }

    fn write(&self, name: &str, number: u64, round: u64) {
        now(self.volume(name).write(number * BLOCK, &content(number, round))).unwrap();
    }

    /// Flips bytes of a stored block on every disk. A second call restores the bytes.
    fn flip(&self, number: u64, round: u64) {
        let wanted = content(number, round);
        for disk in &self.disks {
            let (done, image) = now(disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
            done.unwrap();
            // Search without the first bytes of the block, because an earlier call may have flipped
            // them.
            let at = (0..DISK_BYTES - BLOCK_BYTES)
                .step_by(64)
                .find(|at| image[at + 64..at + BLOCK_BYTES] == wanted[64..])
                .expect("it is stored as it is");
            disk.corrupt(at..at + 8, |byte| *byte ^= 0x55);
        }
    }

    /// Returns true if a block is readable.
    fn reads(volume: &Volume, number: u64) -> bool {
        let mut out = vec![0; BLOCK_BYTES];
        match now(volume.read(number * BLOCK, &mut out)) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                false
            }
        }
    }

    /// Returns, for each entry of the damage list, the volume, the first block, the number of
    /// blocks, and the versions that share the blocks.
    fn listed(&self) -> Vec<String> {
        let text = |data: DamagedData| {
            let DamagedData { volume, offset_bytes, len_bytes, in_volume, snapshots, .. } = data;
            let own = if in_volume { "itself" } else { "" };
            let (first, count) = (offset_bytes / BLOCK, len_bytes / BLOCK);
            format!("{volume} {first}+{count} {own}@{}", snapshots.join("@"))
        };
        self.engine.damage().data.into_iter().map(text).collect()
    }

    fn snap(&self, name: &str) {
        now(self.engine.create_snapshots(&[id("v", name)])).unwrap();
    }

    /// Runs a complete scrub and reopens the pool.
    fn scrub(&mut self) {
        self.engine.scrub_start().unwrap();
        run_scans(&self.engine);
        self.reopen();
    }

    /// Lets the engine find the volumes and snapshots that share the listed data.
    fn settle(&mut self) {
        find_shared_damage(&self.engine);
        self.reopen();
    }
}

#[test]
fn lost_data_is_listed_over_restarts_until_it_is_overwritten() {
    // Regression: the status reported "applications are unaffected" while clients got EIO, and a
    // restart lost all knowledge of the damage.
    for disks in [1, 2] {
        let mut pool = Pool::new(disks);
        pool.flip(3, 1);
        pool.flip(4, 1);
        pool.flip(9, 1);
        pool.reopen();
        assert!(pool.engine.damage().data.is_empty(), "nothing met it yet");
        let volume = pool.volume("v");
        assert!(!Pool::reads(&volume, 3) && !Pool::reads(&volume, 4) && !Pool::reads(&volume, 9));
        assert!(Pool::reads(&volume, 5));
        let all = ["v 3+2 itself@", "v 9+1 itself@"];
        assert_eq!(pool.listed(), all);
        pool.reopen();
        assert_eq!(pool.listed(), all, "after a restart");
        pool.write("v", 3, 2);
        now(pool.engine.sync()).unwrap();
        assert_eq!(pool.listed(), ["v 4+1 itself@", "v 9+1 itself@"]);
        now(pool.volume("v").zero(4 * BLOCK, 6 * BLOCK)).unwrap();
        now(pool.engine.sync()).unwrap();
        assert!(pool.listed().is_empty());
        pool.reopen();
        assert!(pool.listed().is_empty(), "after a restart");
        assert!(!pool.engine.pool().had_damage());
    }
}

#[test]
fn repeated_read_errors_cause_no_further_commits() {
    let mut pool = Pool::new(1);
    pool.flip(3, 1);
    pool.reopen();
    let volume = pool.volume("v");
    let txg = || pool.engine.pool().committed_txg();
    let healthy = txg();
    now(pool.engine.commit()).unwrap();
    assert_eq!(txg(), healthy, "a pool without damage stores nothing");
    assert!(!Pool::reads(&volume, 3));
    now(pool.engine.commit()).unwrap();
    let stored = txg();
    assert_eq!(stored.0, healthy.0 + 1);
    for _ in 0..100 {
        assert!(!Pool::reads(&volume, 3));
        now(pool.engine.commit()).unwrap();
    }
    assert_eq!(txg(), stored);
}

#[test]
fn snapshots_that_share_lost_data_keep_it_on_the_list() {
    let mut pool = Pool::new(2);
    pool.snap("monday");
    pool.write("v", 8, 2);
    pool.snap("tuesday");
    pool.flip(3, 1);
    pool.flip(8, 1);
    pool.reopen();
    // Reads of the oldest snapshot find the damage. The other versions share the first of the two
    // blocks.
    let monday = now(async { pool.engine.open_snapshot(&id("v", "monday")) }).unwrap();
    assert!(!Pool::reads(&monday, 3) && !Pool::reads(&monday, 8));
    drop(monday);
    pool.settle();
    assert_eq!(pool.listed(), ["v 3+1 itself@monday@tuesday", "v 8+1 @monday"]);
    pool.snap("wednesday");
    assert_eq!(pool.listed()[0], "v 3+1 itself@monday@tuesday@wednesday");
    pool.write("v", 3, 2);
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed()[0], "v 3+1 @monday@tuesday@wednesday");
    now(pool.engine.rename_volume("v", "w")).unwrap();
    pool.reopen();
    assert_eq!(pool.listed()[0], "w 3+1 @monday@tuesday@wednesday");
    now(pool.engine.rename_volume("w", "v")).unwrap();
    now(pool.engine.destroy_snapshots("v", &["monday".to_owned()])).unwrap();
    assert_eq!(pool.listed(), ["v 3+1 @tuesday@wednesday"]);
    let rest = ["tuesday".to_owned(), "wednesday".to_owned()];
    now(pool.engine.destroy_snapshots("v", &rest)).unwrap();
    assert!(pool.listed().is_empty());
    pool.settle();
    assert!(!pool.engine.pool().has_damage(), "nor on disk");
}

#[test]
fn rollback_updates_the_damage_list() {
    let mut pool = Pool::new(2);
    pool.snap("monday");
    pool.write("v", 3, 2);
    now(pool.engine.sync()).unwrap();
    pool.flip(3, 1);
    pool.write("v", 8, 2);
    now(pool.engine.sync()).unwrap();
    pool.flip(8, 2);
    pool.reopen();
    let monday = pool.engine.open_snapshot(&id("v", "monday")).unwrap();
    assert!(!Pool::reads(&monday, 3) && !Pool::reads(&pool.volume("v"), 8));
    drop(monday);
    assert_eq!(pool.listed(), ["v 3+1 @monday", "v 8+1 itself@"]);
    now(pool.engine.rollback(&id("v", "monday"), true)).unwrap();
    assert_eq!(pool.listed(), ["v 3+1 itself@monday"]);
    pool.settle();
    assert_eq!(pool.listed(), ["v 3+1 itself@monday"]);
}

#[test]
fn clones_and_copies_of_lost_data_are_listed_too() {
    let mut pool = Pool::new(2);
    pool.snap("monday");
    now(pool.engine.clone_snapshot(&id("v", "monday"), "c")).unwrap();
    pool.write("c", 8, 2);
    pool.flip(3, 1);
    pool.flip(8, 1);
    pool.reopen();
    assert!(!Pool::reads(&pool.volume("v"), 3) && !Pool::reads(&pool.volume("v"), 8));
    pool.settle();
    let all = ["c 3+1 itself@", "v 3+1 itself@monday", "v 8+1 itself@monday"];
    assert_eq!(pool.listed(), all);
    now(pool.engine.copy_volume("v", None, "d")).unwrap();
    assert!(pool.listed().contains(&"d 3+1 itself@".to_owned()), "{:?}", pool.listed());
    now(pool.engine.destroy_volume("d", false)).unwrap();
    assert_eq!(pool.listed(), all);
    now(pool.engine.promote("c")).unwrap();
    pool.settle();
    let promoted = ["c 3+1 itself@monday", "c 8+1 @monday", "v 3+1 itself@", "v 8+1 itself@"];
    assert_eq!(pool.listed(), promoted);
    now(pool.engine.destroy_volume("v", false)).unwrap();
    assert_eq!(pool.listed(), ["c 3+1 itself@monday", "c 8+1 @monday"]);
}

#[test]
fn scrub_lists_lost_data_and_removes_restored_data() {
    for disks in [1, 2] {
        let mut pool = Pool::new(disks);
        pool.snap("monday");
        pool.flip(3, 1);
        pool.reopen();
        pool.scrub();
        assert_eq!(pool.listed(), ["v 3+1 itself@monday"], "no client met it");
        pool.scrub();
        assert_eq!(pool.listed(), ["v 3+1 itself@monday"], "it is there still");
        // Restore the block, as if a disk with a good copy had reconnected.
        pool.flip(3, 1);
        pool.reopen();
        assert!(Pool::reads(&pool.volume("v"), 3));
        assert_eq!(pool.listed(), ["v 3+1 itself@monday"], "a read of a part proves too little");
        pool.scrub();
        assert!(pool.listed().is_empty());
    }
}

// Regression: a scrub searched only for the newest damaged version of a record. The damage list
// kept the record for all older versions, including snapshots in which it was readable.
#[test]
fn scrub_removes_intact_snapshots_between_damaged_ones() {
    let mut pool = Pool::new(2);
    for round in 1..=4 {
        pool.write("v", 5, round);
        if round < 4 {
            pool.snap(&format!("s{round}"));
        }
    }
    now(pool.engine.sync()).unwrap();
    [2, 4].iter().for_each(|round| pool.flip(5, *round));
    pool.reopen();
    let volume = pool.volume("v");
    // Lists a record as damaged in all versions, as if the versions shared a lost node.
    let tree = (volume.dataset(), ObjectId::VOLUME);
    pool.engine.pool().note_damage(tree, 4..6, Txg(1), Txg(u64::MAX));
    assert_eq!(pool.listed(), ["v 4+2 itself@s1@s2@s3"]);
    pool.scrub();
    assert_eq!(pool.listed(), ["v 5+1 @s2", "v 5+1 itself@"]);
    pool.flip(5, 2);
    pool.scrub();
    assert_eq!(pool.listed(), ["v 5+1 itself@"]);
}

#[test]
fn shared_lost_block_is_listed_at_every_offset() {
    let mut pool = Pool::new(2);
    let volume = pool.volume("v");
    now(pool.engine.clone_range(&volume, 3 * BLOCK, &volume, 20 * BLOCK, BLOCK)).unwrap();
    drop(volume);
    pool.flip(3, 1);
    pool.reopen();
    pool.scrub();
    assert_eq!(pool.listed(), ["v 3+1 itself@", "v 20+1 itself@"]);
}

#[test]
fn listed_metadata_stays_until_a_scrub_finds_no_damage() {
    let mut pool = Pool::new(2);
    pool.engine.pool().note_damaged_part(PoolPart::IntentLog, 7);
    pool.reopen();
    let parts = pool.engine.damage().parts;
    assert_eq!(
        parts.iter().map(|p| (p.part, p.number)).collect::<Vec<_>>(),
        [(PoolPart::IntentLog, 7)]
    );
    pool.scrub();
    assert!(pool.engine.damage().parts.is_empty());
}
