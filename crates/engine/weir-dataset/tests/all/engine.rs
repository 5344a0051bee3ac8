//! The engine on memory devices, as clients see it: across restarts and with damaged disks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{as_devices, import, now, options};
use weir_base::Guid;
use weir_base::limits::LOG_QUEUED_BYTES_MAX;
use weir_dataset::{Engine, Outcome, Volume, VolumeSpec};
use weir_device::MemoryDevice;
use weir_format::log::{ALIGN_BYTES, HEADER_BYTES};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, LegState, VdevSpec};

const MEMORY_BYTES: u64 = 64 << 20;

fn disks(count: usize) -> Vec<Arc<MemoryDevice>> {
    (0..count).map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), 64 << 20))).collect()
}

fn create(disks: &[Arc<MemoryDevice>]) -> Arc<Engine> {
    static GUID: AtomicU64 = AtomicU64::new(1);
    let kind = if disks.len() > 1 { VdevKind::Mirror } else { VdevKind::Disk };
    let vdev = VdevSpec { kind, role: VdevRole::Data, disks: as_devices(disks) };
    let mut guid = || Guid(GUID.fetch_add(1, Ordering::Relaxed));
    now(Engine::create(
        "tank",
        &[vdev],
        CreateOptions::default(),
        &options(MEMORY_BYTES),
        &mut guid,
    ))
    .unwrap()
}

fn reopen(disks: &[Arc<MemoryDevice>]) -> Arc<Engine> {
    now(Engine::open(as_devices(disks), import(), &options(MEMORY_BYTES))).unwrap()
}

fn volume(engine: &Engine, size_bytes: u64) -> Arc<Volume> {
    let spec = VolumeSpec { name: "v".to_owned(), size_bytes, compression: Compression::Lz4 };
    assert_eq!(now(engine.create_volume(&spec)).unwrap(), Outcome::Changed);
    assert_eq!(now(engine.create_volume(&spec)).unwrap(), Outcome::Unchanged);
    engine.volume("v").unwrap()
}

fn read(volume: &Volume, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    now(volume.read(offset, &mut out)).unwrap();
    out
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(len)
    .collect()
}

#[test]
fn flushed_write_survives_a_crash_and_an_unflushed_one_does_not() {
    let disks = disks(2);
    let engine = create(&disks);
    let v = volume(&engine, 16 << 20);
    now(v.write(4096, &noise(1, 8192))).unwrap();
    now(engine.flush(&v)).unwrap();
    now(v.write(0, &noise(2, 4096))).unwrap();
    drop((engine, v));
    let engine = reopen(&disks);
    let v = engine.volume("v").unwrap();
    assert_eq!(read(&v, 4096, 8192), noise(1, 8192));
    assert_eq!(read(&v, 0, 4096), vec![0; 4096]);
    assert!(now(engine.check_live_bytes()).unwrap().is_empty());
}

#[test]
fn committed_data_trim_and_odd_edges_read_back() {
    let disks = disks(1);
    let engine = create(&disks);
    let v = volume(&engine, 16 << 20);
    let data = noise(3, 3 << 20);
    now(v.write(1000, &data)).unwrap();
    now(engine.commit()).unwrap();
    now(v.zero(5000, 1 << 20)).unwrap();
    let mut expected = vec![0; 4 << 20];
    expected[1000..1000 + data.len()].copy_from_slice(&data);
    expected[5000..5000 + (1 << 20)].fill(0);
    assert_eq!(read(&v, 0, 4 << 20), expected);
    now(engine.commit()).unwrap();
    assert_eq!(read(&v, 0, 4 << 20), expected);
    drop((engine, v));
    let engine = reopen(&disks);
    let v = engine.volume("v").unwrap();
    assert_eq!(read(&v, 0, 4 << 20), expected);
    assert!(now(engine.check_live_bytes()).unwrap().is_empty());
}

#[test]
fn mirror_repairs_and_counts_bad_copies() {
    let disks = disks(2);
    let engine = create(&disks);
    let v = volume(&engine, 16 << 20);
    let data = noise(4, 4 << 20);
    now(v.write(0, &data)).unwrap();
    now(engine.commit()).unwrap();
    drop((engine, v));
    // Damage all bytes after the first 2 MiB of one leg, including label B.
    disks[0].corrupt(2 << 20..64 << 20, |byte| *byte ^= 0x5a);
    // A read repairs the bad copies that it reads. Reads alternate between the legs, so a few
    // passes over the volume read all copies.
    let mut errors = Vec::new();
    while errors.last() != Some(&0) || errors.iter().rev().nth(1) != Some(&0) {
        let engine = reopen(&disks);
        let v = engine.volume("v").unwrap();
        assert_eq!(read(&v, 0, data.len()), data);
        assert!(now(engine.check_live_bytes()).unwrap().is_empty());
        errors.push(engine.pool().status().vdevs[0].legs[0].checksum_errors);
        assert!(errors.len() < 20, "never healed: {errors:?}");
    }
    assert!(errors[0] > 0, "{errors:?}");
    let engine = reopen(&disks[1..]);
    assert_eq!(read(&engine.volume("v").unwrap(), 0, data.len()), data);
    assert_eq!(engine.pool().status().vdevs[0].legs[0].state, LegState::Missing);
}

#[test]
fn full_pool_stays_open_and_trim_frees_space() {
    let disks = disks(1);
    let engine = create(&disks);
    let v = volume(&engine, 1 << 30);
    let mut written = 0;
    let full = loop {
        match now(drive(&engine, v.write(written, &noise(written, 1 << 20)))) {
            Ok(()) => written += 1 << 20,
            Err(error) => break error,
        }
        assert!(written < 64 << 20, "more was stored than the disk holds");
    };
    assert_eq!(full.kind(), weir_base::ErrorKind::NoSpace, "{full}");
    assert!(written > 30 << 20, "{written}");
    assert_eq!(read(&v, written - (1 << 20), 1 << 20), noise(written - (1 << 20), 1 << 20));
    now(drive(&engine, v.zero(0, 1 << 30))).unwrap();
    now(drive(&engine, v.write(0, &noise(9, 20 << 20)))).unwrap();
    assert_eq!(read(&v, 0, 20 << 20), noise(9, 20 << 20));
    now(engine.destroy_volume("v", false)).unwrap();
    assert!(engine.volume("v").is_err());
    for _ in 0..8 {
        now(engine.commit()).unwrap();
    }
    assert!(now(engine.check_live_bytes()).unwrap().is_empty());
    assert!(engine.pool().space().live_bytes < 1 << 20, "{:?}", engine.pool().space());
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

#[test]
fn volumes_are_resized_but_never_cut() {
    let disks = disks(1);
    let engine = create(&disks);
    let v = volume(&engine, 1 << 20);
    now(v.write(8192, &noise(5, 4096))).unwrap();
    let error = now(engine.resize_volume("v", 8192)).unwrap_err().to_string();
    assert!(error.contains("holds data up to 12KiB"), "{error}");
    now(engine.resize_volume("v", 12_288)).unwrap();
    assert!(now(v.write(12_288, &[1])).is_err());
    now(engine.resize_volume("v", 16 << 40)).unwrap();
    now(v.write((16 << 40) - 4096, &noise(6, 4096))).unwrap();
    now(engine.commit()).unwrap();
    drop((engine, v));
    let v = reopen(&disks).volume("v").unwrap();
    assert_eq!(read(&v, (16 << 40) - 4096, 4096), noise(6, 4096));
    assert_eq!(read(&v, 8192, 4096), noise(5, 4096));
    let extents = now(v.extents(0, 16 << 40, 100)).unwrap();
    assert_eq!(extents.iter().map(|e| e.hole).collect::<Vec<_>>(), [true, false, true, false]);
    assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), 16 << 40);
}

/// Regression: a batch with a damaged header on one leg was skipped on the other leg too, because
/// replay tried only the first plausible header. A flushed write was lost without an error.
#[test]
fn damaged_log_batch_is_replayed_from_the_other_leg() {
    const LOG: std::ops::Range<usize> = 1 << 20..9 << 20;
    /// Offsets of the damaged bytes: in the first record, and in the fields `pool`, `batch`,
    /// `batch_bytes` and `raw_bytes` of the header. The change in `batch_bytes` makes another
    /// plausible length.
    const DAMAGED: [usize; 5] = [HEADER_BYTES, 8, 24, 33, 40];
    for (leg, byte) in (0..2).flat_map(|leg| DAMAGED.map(|byte| (leg, byte))) {
        let disks = disks(2);
        let engine = create(&disks);
        let v = volume(&engine, 16 << 20);
        now(v.write(0, &noise(1, 4096))).unwrap();
        now(engine.flush(&v)).unwrap();
        drop((engine, v));
        for batch in LOG.step_by(ALIGN_BYTES) {
            disks[leg].corrupt(batch + byte..batch + byte + 1, |byte| *byte ^= 0x10);
        }
        let engine = reopen(&disks);
        let read = read(&engine.volume("v").unwrap(), 0, 4096);
        assert_eq!(read, noise(1, 4096), "leg {leg}, byte {byte}");
    }
}

#[test]
fn write_does_not_change_a_block_that_a_reader_holds() {
    let disks = disks(2);
    let engine = create(&disks);
    let volume = volume(&engine, 16 << 20);
    let fill = |byte: u8| vec![byte; 64 << 10];
    // The writes exceed the limit of the log queue. From then on writes change dirty blocks in
    // place.
    for _ in 0..=LOG_QUEUED_BYTES_MAX / (64 << 10) {
        assert!(volume.try_write(0, &fill(1)).unwrap());
    }
    let mut held = Vec::new();
    assert!(volume.try_share(0, 64 << 10, &mut held).unwrap());
    assert!(volume.try_write(0, &fill(2)).unwrap());
    assert!(held.iter().all(|block| block[..] == [1; 4096]));
    held.clear();
    assert!(volume.try_write(0, &fill(3)).unwrap());
    assert_eq!(read(&volume, 0, 64 << 10), fill(3));
    now(engine.commit()).unwrap();
    drop(engine);
    let engine = reopen(&disks);
    assert_eq!(read(&engine.volume("v").unwrap(), 0, 64 << 10), fill(3));
}

/// Returns random letters without repetitions. LZ4 compresses these letters little; the entropy
/// coding of zstd compresses them well.
fn letters(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).into_iter().map(|byte| b'a' + byte % 12).collect()
}

#[test]
fn blocks_of_every_compression_read_back_with_a_correct_ratio() {
    const PART: usize = 256 << 10;
    let disks = disks(1);
    let engine = create(&disks);
    let v = volume(&engine, 16 << 20);
    let mut expected = Vec::new();
    let mut stored = Vec::new();
    for (n, compression) in Compression::all().enumerate() {
        now(engine.set_compression("v", compression)).unwrap();
        let part = letters(n as u64, PART);
        now(v.write(expected.len() as u64, &part)).unwrap();
        now(engine.commit()).unwrap();
        expected.extend(part);
        stored.push((compression, v.info().stored_bytes));
    }
    let took = |at: usize| stored[at].1 - if at == 0 { 0 } else { stored[at - 1].1 };
    for (at, (compression, _)) in stored.iter().enumerate() {
        match compression {
            Compression::Off => assert_eq!(took(at), PART as u64),
            Compression::Zstd(_) => assert!(took(at) < PART as u64 * 6 / 10, "{}", took(at)),
            Compression::Lz4 | Compression::Auto => assert!(took(at) <= PART as u64),
        }
    }
    drop((engine, v));
    let engine = reopen(&disks);
    let v = engine.volume("v").unwrap();
    assert_eq!(v.info().compression, stored.last().unwrap().0);
    assert_eq!(v.info().stored_bytes, stored.last().unwrap().1);
    assert_eq!(v.info().used_bytes, expected.len() as u64);
    assert_eq!(read(&v, 0, expected.len()), expected);
    assert!(now(engine.check_live_bytes()).unwrap().is_empty());
}
