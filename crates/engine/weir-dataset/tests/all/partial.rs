//! Logged writes to a part of a record that the import cannot read: replay keeps the logged blocks;
//! the other blocks are damage.
//!
//! The simulator tests power cuts; `records` tests records that are damaged in an open pool.

use std::sync::Arc;

use weir_base::RecordSize;
use weir_base::property::COMPRESSION;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::IoBuf;
use weir_dataset::{Engine, PropertyChange, SnapshotId, Volume, VolumeSize};
use weir_device::{Device, MemoryDevice};
use weir_format::{Compression, VdevKind};

use crate::common::{as_devices, assert_exact, import, now, options, pool_of, run_scans};
use crate::metadata_trees::drive;

const MEMORY_BYTES: u64 = 16 << 20;
const DISK_BYTES: usize = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Record size: four blocks.
const RECORD: u64 = 4 * BLOCK;
const RECORDS: u64 = 8;
/// Index of the damaged record.
const BAD: u64 = 5;

type Disk = Arc<MemoryDevice>;

struct Pool {
    disks: Vec<Disk>,
    engine: Arc<Engine>,
    model: Vec<u8>,
}

fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(len as usize)
    .collect()
}

fn open(disks: &[Disk]) -> Arc<Engine> {
    now(Engine::open(as_devices(disks), import(), &options(MEMORY_BYTES))).unwrap()
}

impl Pool {
    /// Creates a pool with a volume `v` of noise, stored uncompressed.
    fn new(disks: usize) -> Self {
        let disks: Vec<Disk> = (0..disks)
            .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES)))
            .collect();
        let kind = if disks.len() == 1 { VdevKind::Disk } else { VdevKind::Mirror };
        let engine = pool_of(kind, as_devices(&disks), &options(MEMORY_BYTES));
        let record = RecordSize::from_bytes(RECORD).unwrap();
        let size = VolumeSize { bytes: RECORDS * RECORD, record };
        let off = PropertyChange::set(COMPRESSION, Compression::Off);
        now(engine.create_volume_with("v", size, &[off])).unwrap();
        let model = noise(3, RECORDS * RECORD);
        now(engine.volume("v").unwrap().write(0, &model)).unwrap();
        now(engine.sync()).unwrap();
        Self { disks, engine, model }
    }

    fn volume(&self) -> Arc<Volume> {
        self.engine.volume("v").unwrap()
    }

    /// Writes blocks and makes them durable in the log.
    fn log(&mut self, block: u64, blocks: u64, fill: u8) {
        let data = vec![fill; (blocks * BLOCK) as usize];
        now(self.volume().write(block * BLOCK, &data)).unwrap();
        now(self.engine.flush(&self.volume())).unwrap();
        self.model[(block * BLOCK) as usize..][..data.len()].copy_from_slice(&data);
    }

    fn log_trim(&mut self, block: u64, blocks: u64) {
        now(self.volume().zero(block * BLOCK, blocks * BLOCK)).unwrap();
        now(self.engine.flush(&self.volume())).unwrap();
        self.model[(block * BLOCK) as usize..][..(blocks * BLOCK) as usize].fill(0);
    }

    /// Flips bytes of the damaged record on these disks. A second call restores the bytes.
    fn flip(disks: &[Disk]) {
        let old = noise(3, RECORDS * RECORD)[(BAD * RECORD) as usize..].to_vec();
        for disk in disks {
            let (done, image) = now(disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
            done.unwrap();
            let at = (0..DISK_BYTES - RECORD as usize)
                .step_by(64)
                .find(|at| image[at + 64..at + 4096] == old[64..4096])
                .expect("it is stored as it is");
            disk.corrupt(at..at + 8, |byte| *byte ^= 0x55);
        }
    }

    fn crash_and_open(&mut self, disks: &[Disk]) {
        self.engine = open(disks);
    }

    /// Reads each block of the damaged record: `Some(true)` for the expected content, `Some(false)`
    /// for other content, `None` for an error.
    fn found(&self) -> [Option<bool>; 4] {
        [0, 1, 2, 3].map(|part| {
            let at = BAD * RECORD + part * BLOCK;
            let mut out = vec![0; BLOCK_BYTES];
            match now(self.volume().read(at, &mut out)) {
                Ok(()) => Some(out == self.model[at as usize..][..BLOCK_BYTES]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                    None
                }
            }
        })
    }

    /// Checks the content of every block outside of the damaged record.
    fn assert_others(&self) {
        for record in (0..RECORDS).filter(|record| *record != BAD) {
            let mut out = vec![0; RECORD as usize];
            now(self.volume().read(record * RECORD, &mut out)).unwrap();
            assert!(out == self.model[(record * RECORD) as usize..][..RECORD as usize]);
        }
    }

    fn is_listed(&self) -> bool {
        let damage = self.engine.damage();
        assert_eq!((damage.parts, damage.more), (Vec::new(), 0));
        match &damage.data[..] {
            [] => false,
            [data] => {
                assert_eq!((data.offset_bytes, data.len_bytes), (BAD * RECORD, RECORD));
                true
            }
            more => panic!("{more:?}"),
        }
    }

    /// Runs a complete scrub and reopens the pool.
    fn scrub(&mut self) {
        self.engine.scrub_start().unwrap();
        run_scans(&self.engine);
        self.reopen();
    }

    fn reopen(&mut self) {
        now(self.engine.sync()).unwrap();
        self.engine = open(&self.disks);
    }

    fn assert_sound(&self) {
        now(self.engine.sync()).unwrap();
        assert_exact(&self.engine);
    }
}

const KNOWN: Option<bool> = Some(true);

// Regression: replay dropped a flushed write, because the leg with the only good copy of its record
// was missing. When the leg returned, a repair restored the record without the write, and the
// damage list was empty.
#[test]
fn flushed_part_survives_an_import_without_its_record() {
    let mut pool = Pool::new(2);
    pool.log(BAD * 4 + 1, 2, 7);
    Pool::flip(&pool.disks[..1]);
    let first = [Arc::clone(&pool.disks[0])];
    pool.crash_and_open(&first);
    assert_eq!(pool.found(), [None, KNOWN, KNOWN, None]);
    assert!(pool.is_listed(), "the rest is damage");
    pool.assert_others();
    pool.assert_sound();
    // The damage list is persisted with the record.
    pool.crash_and_open(&first);
    assert!(pool.is_listed());
    assert_eq!(pool.found(), [None, KNOWN, KNOWN, None]);

    // The other disk reconnects and has the lost blocks.
    pool.reopen();
    assert_eq!(pool.found(), [KNOWN; 4]);
    assert!(pool.is_listed(), "the record is still stored in parts");
    run_scans(&pool.engine);
    pool.reopen();
    assert!(!pool.is_listed(), "the resilver rewrote it");
    assert_eq!(pool.found(), [KNOWN; 4]);
    pool.assert_others();
    pool.assert_sound();
}

#[test]
fn flushed_trim_of_a_part_survives_and_old_bytes_do_not_return() {
    let mut pool = Pool::new(2);
    pool.log_trim(BAD * 4 + 2, 4);
    Pool::flip(&pool.disks[..1]);
    let first = [Arc::clone(&pool.disks[0])];
    pool.crash_and_open(&first);
    assert_eq!(pool.found(), [None, None, KNOWN, KNOWN]);
    pool.assert_others();
    pool.reopen();
    pool.scrub();
    assert_eq!(pool.found(), [KNOWN; 4]);
    pool.scrub();
    assert!(!pool.is_listed());
    pool.assert_sound();
}

#[test]
fn lost_blocks_stay_listed_until_the_record_is_overwritten() {
    let mut pool = Pool::new(1);
    pool.log(BAD * 4 + 3, 3, 9);
    Pool::flip(&pool.disks);
    let disks = pool.disks.clone();
    pool.crash_and_open(&disks);
    for _ in 0..2 {
        assert_eq!(pool.found(), [None, None, None, KNOWN]);
        assert!(pool.is_listed());
        pool.assert_others();
        pool.scrub();
    }
    let status = now(pool.engine.verify(|_| ())).unwrap();
    assert_eq!(status.unrepaired, 0);
    assert!(pool.is_listed(), "weir check names it");
    pool.reopen();
    // A write that needs the lost blocks fails. A write of the complete record repairs it.
    let part = now(pool.volume().write(BAD * RECORD, &[1; BLOCK_BYTES])).unwrap_err();
    assert_eq!(part.kind(), ErrorKind::Data, "{part}");
    pool.log(BAD * 4, 4, 2);
    pool.reopen();
    assert_eq!(pool.found(), [KNOWN; 4]);
    assert!(!pool.is_listed());
    pool.scrub();
    pool.assert_sound();
}

#[test]
fn parts_that_make_up_a_record_leave_no_damage() {
    let mut pool = Pool::new(1);
    pool.log(BAD * 4 + 3, 1, 9);
    pool.log_trim(BAD * 4 + 1, 2);
    pool.log(BAD * 4 - 2, 3, 4);
    pool.log(BAD * 4 + 2, 1, 5);
    Pool::flip(&pool.disks);
    let disks = pool.disks.clone();
    pool.crash_and_open(&disks);
    assert_eq!(pool.found(), [KNOWN; 4]);
    pool.assert_others();
    pool.reopen();
    assert!(!pool.is_listed());
    pool.assert_sound();
}

#[test]
fn full_write_replaces_an_earlier_logged_part() {
    let mut pool = Pool::new(1);
    pool.log(BAD * 4 + 3, 1, 9);
    pool.log(BAD * 4 - 1, 6, 4);
    pool.log(BAD * 4, 1, 5);
    Pool::flip(&pool.disks);
    let disks = pool.disks.clone();
    pool.crash_and_open(&disks);
    assert_eq!(pool.found(), [KNOWN; 4]);
    pool.assert_others();
    pool.reopen();
    assert!(!pool.is_listed());
}

#[test]
fn snapshot_keeps_the_lost_blocks_on_the_damage_list() {
    let mut pool = Pool::new(1);
    pool.log(BAD * 4 + 1, 1, 9);
    Pool::flip(&pool.disks);
    let disks = pool.disks.clone();
    pool.crash_and_open(&disks);
    let id = SnapshotId::new("v", "s");
    now(pool.engine.create_snapshots(std::slice::from_ref(&id))).unwrap();
    pool.log(BAD * 4, 4, 2);
    pool.scrub();
    let damage = pool.engine.damage().data;
    assert_eq!(damage.len(), 1);
    assert!(!damage[0].in_volume && damage[0].snapshots == ["s"], "{damage:?}");
    let view = now(async { pool.engine.open_snapshot(&id) }).unwrap();
    let mut out = vec![0; BLOCK_BYTES];
    now(view.read(BAD * RECORD + BLOCK, &mut out)).unwrap();
    assert_eq!(out, [9; BLOCK_BYTES]);
    assert_eq!(now(view.read(BAD * RECORD, &mut out)).unwrap_err().kind(), ErrorKind::Data);
    pool.assert_sound();
}

/// Regression: a block clone shared the partial record only, and the source volume freed the record
/// that the partial record replaced.
#[test]
fn range_with_a_partial_record_is_cloned_after_it_is_rewritten() {
    let mut pool = Pool::new(2);
    pool.log(BAD * 4 + 1, 1, 9);
    Pool::flip(&pool.disks[..1]);
    let first = [Arc::clone(&pool.disks[0])];
    pool.crash_and_open(&first);
    let clone = |pool: &Pool, record: u64| {
        let (source, copy) = (pool.volume(), pool.engine.volume("copy").unwrap());
        let at = record * RECORD;
        drive(&pool.engine, pool.engine.clone_range(&source, at, &copy, at, RECORD))
    };
    let size =
        VolumeSize { bytes: RECORDS * RECORD, record: RecordSize::from_bytes(RECORD).unwrap() };
    now(pool.engine.create_volume_with("copy", size, &[])).unwrap();
    clone(&pool, BAD - 1).unwrap();
    assert_eq!(clone(&pool, BAD).unwrap_err().kind(), ErrorKind::Data);
    assert_eq!(now(pool.engine.copy_volume("v", None, "w")).unwrap_err().kind(), ErrorKind::Data);
    pool.reopen();
    run_scans(&pool.engine);
    pool.reopen();
    assert!(!pool.is_listed());
    clone(&pool, BAD).unwrap();
    let mut out = vec![0; RECORD as usize];
    now(pool.engine.volume("copy").unwrap().read(BAD * RECORD, &mut out)).unwrap();
    assert!(out == pool.model[(BAD * RECORD) as usize..][..RECORD as usize]);
    pool.assert_sound();
}

/// Creates a pool in which replay stored a part of the damaged record, and overwrites every free
/// segment.
fn reused() -> Pool {
    let mut pool = Pool::new(2);
    Pool::flip(&pool.disks);
    pool.log(BAD * 4 + 1, 1, 7);
    pool.engine = open(&pool.disks);
    assert_eq!(pool.found(), [None, KNOWN, None, None]);
    // Trim all other records, so that the damaged record is the only live data of its segment.
    for record in (0..RECORDS).filter(|record| *record != BAD) {
        now(pool.volume().zero(record * RECORD, RECORD)).unwrap();
    }
    let off = PropertyChange::set(COMPRESSION, Compression::Off);
    let size = VolumeSize { bytes: 28 << 20, record: RecordSize::from_bytes(RECORD).unwrap() };
    now(pool.engine.create_volume_with("w", size, &[off])).unwrap();
    for mib in 0..200_u64 {
        let (volume, data) = (pool.engine.volume("w").unwrap(), noise(100 + mib, 1 << 20));
        drive(&pool.engine, volume.write((mib * 11 % 28) << 20, &data)).unwrap();
        now(pool.engine.sync()).unwrap();
    }
    pool
}

/// Regression: the record behind a partial record was freed at once, and new data overwrote it
/// before a disk with a good copy returned.
#[test]
fn lost_blocks_are_not_freed_until_the_record_is_rewritten() {
    let mut pool = reused();
    let disks = pool.disks.clone();
    Pool::flip(&disks);
    pool.crash_and_open(&disks);
    assert_eq!(pool.found(), [KNOWN; 4]);
    assert_eq!(now(pool.engine.check_live_bytes()).unwrap(), []);
    assert_eq!(now(pool.engine.check_references()).unwrap(), []);
    // A scan rewrites the record, and a recount frees the old copy.
    pool.scrub();
    assert_eq!(pool.found(), [KNOWN; 4]);
    assert!(!pool.is_listed());
}

/// Regression: if the node above the record was unreadable, the pool dropped the pointer to the
/// lost blocks.
#[test]
fn lost_blocks_below_an_unreadable_node_return_with_the_node() {
    for is_hole in [false, true] {
        let mut pool = Pool::new(1);
        let disks = pool.disks.clone();
        if is_hole {
            pool.log_trim(BAD * 4, 4);
            now(pool.engine.sync()).unwrap();
        }
        let node = now(pool.volume().disk_address(1, 0)).unwrap().unwrap();
        let place = node.offset as usize..node.offset as usize + node.len;
        let flip = || disks[0].corrupt(place.clone(), |byte| *byte = !*byte);
        pool.log(BAD * 4 + 2, 1, 9);
        flip();
        pool.crash_and_open(&disks);
        assert_eq!(pool.found(), [None, None, KNOWN, None]);
        // From here on only the partial record references the node.
        for record in (0..RECORDS).filter(|record| *record != BAD) {
            let data = noise(50 + record, RECORD);
            now(pool.volume().write(record * RECORD, &data)).unwrap();
            pool.model[(record * RECORD) as usize..][..RECORD as usize].copy_from_slice(&data);
        }
        pool.scrub();
        flip();
        pool.crash_and_open(&disks);
        assert_eq!(pool.found(), [KNOWN; 4], "hole: {is_hole}");
        pool.assert_others();
        pool.scrub();
        assert_eq!(pool.found(), [KNOWN; 4], "hole: {is_hole}");
        assert!(!pool.is_listed(), "hole: {is_hole}");
    }
}
