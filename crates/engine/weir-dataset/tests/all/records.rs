//! Records of several blocks: storage as one unit, reads for writes to a part of a record, and
//! damaged records.
//!
//! `model`, `send` and weir-sim test random histories.

use std::sync::Arc;

use weir_base::RecordSize;
use weir_base::property::{COMPRESSION, DEDUPE};
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::IoBuf;
use weir_dataset::{DatasetError, Engine, PropertyChange, SnapshotId, Volume, VolumeSize};
use weir_device::{Device, MemoryDevice};
use weir_format::Compression;

use crate::common::{as_devices, assert_exact, import, now, options, pool_on};

const MEMORY_BYTES: u64 = 16 << 20;
/// Memory of an engine that cannot cache the complete volume.
const SCARCE_BYTES: u64 = 512 << 10;
const DISK_BYTES: usize = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Record size: eight blocks, so that a segment of 1 MiB has enough records.
const RECORD: u64 = 32 << 10;
const RECORDS: u64 = 40;

fn disk() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new("disk", DISK_BYTES))
}

fn size_of(records: u64) -> VolumeSize {
    let record = RecordSize::from_bytes(RECORD).unwrap();
    VolumeSize { bytes: records * RECORD, record }
}

fn make(engine: &Engine, name: &str, changes: &[PropertyChange]) -> Arc<Volume> {
    now(engine.create_volume_with(name, size_of(RECORDS), changes)).unwrap();
    engine.volume(name).unwrap()
}

fn compressed(compression: Compression) -> PropertyChange {
    PropertyChange::set(COMPRESSION, compression)
}

/// Returns incompressible bytes, different for each seed.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(len as usize)
    .collect()
}

fn write(volume: &Volume, offset: u64, data: &[u8]) {
    now(volume.write(offset, data)).unwrap();
}

fn read(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    let mut data = vec![0; len as usize];
    now(volume.read(offset, &mut data)).unwrap();
    data
}

fn reopen(disk: &Arc<MemoryDevice>) -> Arc<Engine> {
    now(Engine::open(as_devices(&[Arc::clone(disk)]), import(), &options(MEMORY_BYTES))).unwrap()
}

fn sound(engine: &Engine) {
    now(engine.sync()).unwrap();
    assert_exact(engine);
}

/// Creates a pool with a volume `v` of noise, stored uncompressed.
fn filled() -> (Arc<MemoryDevice>, Arc<Engine>, Arc<Volume>, Vec<u8>) {
    let disk = disk();
    let engine = pool_on(&disk, MEMORY_BYTES);
    let volume = make(&engine, "v", &[compressed(Compression::Off)]);
    let model = noise(11, RECORDS * RECORD);
    write(&volume, 0, &model);
    now(engine.sync()).unwrap();
    (disk, engine, volume, model)
}

/// Damages bytes behind the start of `stored`, which is on the disk uncompressed.
fn damage(disk: &MemoryDevice, stored: &[u8]) {
    const PACK_BYTES: usize = 64;
    let (done, image) = now(disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
    done.unwrap();
    let found = image.chunks(PACK_BYTES).position(|unit| unit == &stored[..PACK_BYTES]);
    let at = found.expect("it is on the disk") * PACK_BYTES + 5000;
    disk.corrupt(at..at + 10, |byte| *byte ^= 0x55);
}

#[test]
fn record_is_compressed_as_a_whole_and_has_one_pointer() {
    let engine = pool_on(&disk(), MEMORY_BYTES);
    let large = make(&engine, "large", &[compressed(Compression::Lz4)]);
    now(engine.create_volume_with("small", (RECORDS * RECORD).into(), &[])).unwrap();
    let small = engine.volume("small").unwrap();
    // Each block is noise, and the blocks of a record differ only in a number. The compressor finds
    // this repetition only if it sees more than one block.
    let block = noise(1, BLOCK);
    for volume in [&large, &small] {
        for at in 0..RECORDS * RECORD / BLOCK {
            let mut block = block.clone();
            block[..8].copy_from_slice(&at.to_le_bytes());
            write(volume, at * BLOCK, &block);
        }
    }
    now(engine.sync()).unwrap();
    let (large, small) = (large.info(), small.info());
    assert_eq!((large.used_bytes, small.used_bytes), (RECORDS * RECORD, RECORDS * RECORD));
    assert_eq!(small.stored_bytes, small.used_bytes, "a block alone does not compress");
    assert!(large.stored_bytes * 6 < large.used_bytes, "{large:?}");
    let nodes = |info: &weir_dataset::VolumeInfo| info.space.by_volume - info.stored_bytes;
    assert!(nodes(&large) * 4 < nodes(&small), "one leaf instead of three: {large:?} {small:?}");
    sound(&engine);
}

#[test]
fn parts_of_records_are_written_read_and_trimmed() {
    let (disk, engine, volume, mut model) = filled();
    // The changes are a sector, blocks across a record boundary, and a trim that splits records at
    // both ends.
    for (offset, len) in [(RECORD + 512, 512), (3 * RECORD - BLOCK, 3 * BLOCK), (5, 70_000)] {
        let data = noise(offset, len);
        write(&volume, offset, &data);
        model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
    }
    let (start, end) = (10 * RECORD + BLOCK, 14 * RECORD + 2 * BLOCK);
    now(volume.zero(start, end - start)).unwrap();
    model[start as usize..end as usize].fill(0);
    assert!(read(&volume, 0, RECORDS * RECORD) == model, "before a commit");
    now(engine.flush(&volume)).unwrap();
    // There was no commit: the log has parts of records, and the import reads the other parts from
    // disk.
    drop((engine, volume));
    let engine = reopen(&disk);
    let volume = engine.volume("v").unwrap();
    assert!(read(&volume, 0, RECORDS * RECORD) == model, "after a replay");
    assert_eq!(volume.info().used_bytes, (RECORDS - 3) * RECORD, "whole records are holes");
    // Trimming a part of a hole stores nothing.
    now(volume.zero(12 * RECORD + BLOCK, BLOCK)).unwrap();
    now(engine.sync()).unwrap();
    assert_eq!(volume.info().used_bytes, (RECORDS - 3) * RECORD);
    sound(&engine);
}

#[test]
fn invalid_record_sizes_are_refused_with_the_allowed_ones() {
    let engine = pool_on(&disk(), MEMORY_BYTES);
    let refused = |size: VolumeSize| now(engine.create_volume_with("v", size, &[])).unwrap_err();
    let error = refused(VolumeSize { bytes: 3 * BLOCK, ..size_of(1) });
    assert!(error.to_string().contains("not a multiple of the record size"), "{error}");
    let error = refused(VolumeSize { bytes: 4 << 20, record: RecordSize::MAX });
    assert!(matches!(error, DatasetError::Unfit { .. }), "{error}");
    assert!(error.to_string().contains("at most 128KiB"), "{error}");
    make(&engine, "v", &[]);
    let error = now(engine.resize_volume("v", RECORD + BLOCK)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let other = VolumeSize { record: RecordSize::BLOCK, ..size_of(RECORDS) };
    let error = now(engine.create_volume_with("v", other, &[])).unwrap_err();
    assert!(matches!(error, DatasetError::Exists { .. }), "{error}");
}

#[test]
fn clones_copies_and_block_clones_share_records() {
    let engine = pool_on(&disk(), MEMORY_BYTES);
    let volume = make(&engine, "v", &[compressed(Compression::Off)]);
    let model = noise(3, RECORDS * RECORD);
    write(&volume, 0, &model);
    let monday = SnapshotId::new("v", "monday");
    now(engine.create_snapshots(std::slice::from_ref(&monday))).unwrap();
    now(engine.clone_snapshot(&monday, "clone")).unwrap();
    now(engine.copy_volume("v", None, "copy")).unwrap();
    let (clone, copy) = (engine.volume("clone").unwrap(), engine.volume("copy").unwrap());
    assert_eq!((clone.record_size(), copy.record_size()), (size_of(1).record, size_of(1).record));
    let other = make(&engine, "other", &[]);
    let before = engine.pool().space().live_bytes;
    now(engine.clone_range(&volume, RECORD, &other, 5 * RECORD, 4 * RECORD)).unwrap();
    let grown = engine.pool().space().live_bytes - before;
    assert!(grown < RECORD, "nothing but nodes: {grown}");
    assert!(read(&other, 5 * RECORD, 4 * RECORD) == model[RECORD as usize..5 * RECORD as usize]);
    // A write to a part of a shared record changes one volume only.
    write(&other, 6 * RECORD + BLOCK, &[9; BLOCK_BYTES]);
    write(&clone, 100, &[8; 100]);
    now(engine.sync()).unwrap();
    assert!(read(&volume, 0, RECORDS * RECORD) == model);
    assert!(read(&copy, 0, RECORDS * RECORD) == model);
    assert_eq!(read(&other, 6 * RECORD + BLOCK, 1), [9]);

    now(engine.create_volume_with("blocks", (RECORDS * RECORD).into(), &[])).unwrap();
    let blocks = engine.volume("blocks").unwrap();
    for (from, to, len) in [(BLOCK, 0, RECORD), (0, BLOCK, RECORD), (0, 0, BLOCK)] {
        let error = now(engine.clone_range(&volume, from, &other, to, len)).unwrap_err();
        assert!(error.to_string().contains("whole records of 32KiB"), "{error}");
    }
    let error = now(engine.clone_range(&volume, 0, &blocks, 0, RECORD)).unwrap_err();
    assert!(
        error.to_string().contains("records of 4KiB, and the source has records of 32KiB"),
        "{error}"
    );
    sound(&engine);
}

#[test]
fn dedupe_and_write_same_store_equal_records_once() {
    let engine = pool_on(&disk(), MEMORY_BYTES);
    let dedupe = [compressed(Compression::Off), PropertyChange::set(DEDUPE, true)];
    let volume = make(&engine, "v", &dedupe);
    let one = noise(5, RECORD);
    write(&volume, 0, &one);
    now(engine.sync()).unwrap();
    for at in 1..10 {
        write(&volume, at * RECORD, &one);
    }
    // Dedupe compares complete records, so it does not find equal blocks at another offset in a
    // record.
    write(&volume, 20 * RECORD + BLOCK, &one[..(RECORD - BLOCK) as usize]);
    now(engine.sync()).unwrap();
    let info = volume.info();
    assert_eq!((info.stored_bytes, info.shared_bytes), (11 * RECORD, 9 * RECORD));
    // The pattern fills eight records: one record is stored, and the other seven reference it.
    now(engine.write_same(&volume, 30 * RECORD, 8 * RECORD, &[3; 512])).unwrap();
    now(engine.sync()).unwrap();
    let info = volume.info();
    assert_eq!((info.stored_bytes, info.shared_bytes), (19 * RECORD, 16 * RECORD));
    assert!(read(&volume, 9 * RECORD, RECORD) == one);
    assert!(read(&volume, 30 * RECORD, 8 * RECORD).iter().all(|byte| *byte == 3));
    sound(&engine);
}

#[test]
fn damaged_record_fails_only_writes_to_a_part_of_it() {
    let (disk, engine, volume, model) = filled();
    drop((engine, volume));
    damage(&disk, &model[(4 * RECORD) as usize..]);
    let engine = reopen(&disk);
    let volume = engine.volume("v").unwrap();
    let data = |error: DatasetError| assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    data(now(volume.write(4 * RECORD, &[1; BLOCK_BYTES])).unwrap_err());
    data(now(volume.write(4 * RECORD + 100, &[1; 100])).unwrap_err());
    data(now(volume.zero(4 * RECORD + BLOCK, BLOCK)).unwrap_err());
    data(now(volume.read(4 * RECORD, &mut [0; BLOCK_BYTES])).unwrap_err());
    // Writes to other records succeed, and the damage does not affect the commit.
    write(&volume, 5 * RECORD, &[1; BLOCK_BYTES]);
    now(engine.sync()).unwrap();
    // A write of the complete record repairs it.
    write(&volume, 4 * RECORD, &model[..RECORD as usize]);
    assert!(read(&volume, 4 * RECORD, RECORD) == model[..RECORD as usize]);
    write(&volume, 4 * RECORD + BLOCK, &[1; BLOCK_BYTES]);
    sound(&engine);
}

#[test]
fn import_succeeds_if_a_record_with_a_logged_write_is_damaged() {
    let (disk, engine, volume, model) = filled();
    // Write across two records, one of which is then damaged.
    write(&volume, 8 * RECORD - BLOCK, &[1; 2 * BLOCK_BYTES]);
    now(engine.flush(&volume)).unwrap();
    drop((engine, volume));
    damage(&disk, &model[(7 * RECORD) as usize..]);
    let engine = reopen(&disk);
    let volume = engine.volume("v").unwrap();
    let error = now(volume.read(7 * RECORD, &mut [0; BLOCK_BYTES])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "not made up: {error}");
    assert_eq!(read(&volume, 8 * RECORD, BLOCK), [1; BLOCK_BYTES], "the other one has it");
    sound(&engine);
}

/// If the engine loaded the two records that a write splits one after the other, each record would
/// evict the other from the dirty-data budget, and the write would never finish.
#[test]
fn write_across_two_records_may_exceed_the_dirty_budget() {
    let disk = Arc::new(MemoryDevice::new("disk", 256 << 20));
    let engine = pool_on(&disk, 1 << 20);
    let record = RecordSize::from_bytes(128 << 10).unwrap();
    let size = VolumeSize { bytes: 64 << 20, record };
    now(engine.create_volume_with("v", size, &[compressed(Compression::Off)])).unwrap();
    let volume = engine.volume("v").unwrap();
    let mut model = noise(17, 1 << 20);
    write(&volume, 0, &model);
    now(engine.sync()).unwrap();
    let mut random = 1_u64;
    for step in 0..200_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let start = (random >> 40) % ((1 << 20) - 70_000);
        let end = start + 1 + (random >> 20) % 70_000;
        let (from, to) = (start as usize, end as usize);
        if step % 5 == 0 {
            now(beside_commits(&engine, volume.zero(start, end - start))).unwrap();
            model[from..to].fill(0);
        } else {
            let data = noise(step, end - start);
            now(beside_commits(&engine, volume.write(start, &data))).unwrap();
            model[from..to].copy_from_slice(&data);
        }
    }
    assert!(read(&volume, 0, 1 << 20) == model);
    sound(&engine);
}

/// Runs `work` concurrently with repeated commits.
async fn beside_commits<T>(engine: &Engine, work: impl Future<Output = T>) -> T {
    let commits = async {
        loop {
            engine.commit().await.unwrap();
            futures_util::pending!();
        }
    };
    let (work, commits) = (std::pin::pin!(work), std::pin::pin!(commits));
    match futures_util::future::select(work, commits).await {
        futures_util::future::Either::Left((done, _)) => done,
        futures_util::future::Either::Right((never, _)) => never,
    }
}

/// Regression: a read began inside a record, continued with cached blocks and reached the same
/// record again. The simulator found this once in 268,769 recoveries (seed 2574).
#[test]
fn cloned_record_reads_correctly_with_any_cached_part() {
    const DISTINCT: u64 = 12;
    let disk = disk();
    let engine = pool_on(&disk, MEMORY_BYTES);
    let volume = make(&engine, "v", &[compressed(Compression::Off)]);
    let mut model = noise(13, DISTINCT * RECORD);
    write(&volume, 0, &model);
    now(engine.sync()).unwrap();
    let mut seed = 1_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    for to in DISTINCT..RECORDS {
        let from = below(DISTINCT);
        now(engine.clone_range(&volume, from * RECORD, &volume, to * RECORD, RECORD)).unwrap();
        model.extend_from_within((from * RECORD) as usize..((from + 1) * RECORD) as usize);
    }
    drop((volume, engine));
    // The cache is empty at first and never large enough for all records.
    let how = options(SCARCE_BYTES);
    let engine = now(Engine::open(as_devices(&[Arc::clone(&disk)]), import(), &how)).unwrap();
    let volume = engine.volume("v").unwrap();
    let blocks = RECORDS * RECORD / BLOCK;
    for _ in 0..20_000 {
        let first = below(blocks);
        let count = 1 + below(24.min(blocks - first));
        let (at, len) = (first * BLOCK, count * BLOCK);
        assert!(read(&volume, at, len) == model[at as usize..(at + len) as usize], "{first}");
    }
}
