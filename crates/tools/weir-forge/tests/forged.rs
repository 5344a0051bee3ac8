//! Thousands of pools with valid checksums and invalid fields: import, `check`, `rescue` and
//! receive return an error or data, and never panic or hang.
//!
//! The tests of the other crates check the results.
//!
//! Invariant: no test is random; a failure names its seed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_forge::images::MIRROR_V8;
use weir_forge::{
    Disks, FILES, Forgery, Kind, Map, Rng, exercise, forge_stream, object_sample, open, receive,
    sample, streams_of,
};
use weir_format::VdevKind;

#[test]
fn sample_contains_every_kind_and_opens() {
    for kind in [VdevKind::Disk, VdevKind::Mirror, VdevKind::Raidz1] {
        let disks = sample(kind);
        let counts = Map::of(&disks).counts();
        let mut kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::Slots);
        assert!(kinds.all(|kind| counts.contains_key(kind)), "{kind:?}: {counts:?}");
        assert_eq!(exercise(&disks), 1, "{kind:?}");
    }
}

#[test]
fn sample_with_objects_contains_slots_summaries_damage_and_log_records() {
    let disks = object_sample();
    let map = Map::of(&disks);
    let records: Vec<u8> = map.contents(Kind::Directory).map(|record| record[8]).collect();
    for kind in [OBJECTS, OBJECTS_SNAPSHOT, OBJECTS_DAMAGE] {
        assert!(records.contains(&kind), "{kind}: {records:?}");
    }
    for kind in [Kind::Slots, Kind::Summary, Kind::LogBatch, Kind::Node] {
        assert!(map.counts().contains_key(&kind), "{kind:?}");
    }
    let engine = open(&disks, false).expect("the pool opens");
    assert_eq!(engine.damage().data.len(), 1);
    drop(engine);
    assert_eq!(exercise(&disks), 1);
}

/// Kinds of the directory entries of a dataset with many objects, its snapshots and its damage.
const OBJECTS: u8 = 20;
const OBJECTS_SNAPSHOT: u8 = 21;
const OBJECTS_DAMAGE: u8 = 22;

/// Time after which a forged pool counts as hanging; normally all operations on a pool take a few
/// milliseconds.
const HANGS_AFTER: Duration = Duration::from_mins(2);
/// Maximum resident memory of the tests. A wrong count in a forged pool must not make the engine
/// allocate that much memory.
const RESIDENT_MAX: u64 = 1 << 30;

/// Aborts the process and prints the seed if a forged pool hangs.
struct Watch(Arc<Mutex<Option<(u64, Instant)>>>);

impl Watch {
    fn new() -> Self {
        let now: Arc<Mutex<Option<(u64, Instant)>>> = Arc::default();
        let watched = Arc::downgrade(&now);
        std::thread::spawn(move || {
            while let Some(now) = watched.upgrade() {
                let late = now.lock().expect("no panic under it");
                if let Some((seed, _)) = late.filter(|(_, since)| since.elapsed() > HANGS_AFTER) {
                    eprintln!("seed {seed}: a call on a forged pool does not end");
                    std::process::abort();
                }
                drop(late);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Self(now)
    }

    fn begin(&self, seed: u64) {
        *self.0.lock().expect("no panic under it") = Some((seed, Instant::now()));
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Panic messages, each with the first seed that causes it.
#[derive(Default)]
struct Findings(BTreeMap<String, (u32, String)>);

impl Findings {
    /// Runs `work`; returns `None` if it panics.
    fn run<T>(&mut self, what: impl Fn() -> String, work: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => Some(done),
            Err(payload) => {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                let text: String = text.unwrap_or_default().chars().take(60).collect();
                self.0.entry(text).or_insert_with(|| (0, what())).0 += 1;
                None
            }
        }
    }
}

/// Peak resident memory of the process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// Exercises `images` forged pools. The environment variables IMAGES and SEED choose another number
/// of pools and another first seed.
fn answers_on(disks: &Disks, images: u64) {
    let (images, first) = (number("IMAGES", images), number("SEED", 1));
    let map = Map::of(disks);
    let (mut found, watch) = (Findings::default(), Watch::new());
    let (mut opened, mut sealed) = (0, 0);
    for seed in first..first + images {
        watch.begin(seed);
        let mut rng = Rng::new(seed);
        let mut forgery = Forgery::new(&map);
        let forged: Vec<_> = (0..=(rng.below(3) / 2)).map(|_| forgery.forge(&mut rng)).collect();
        let mut disks = disks.clone();
        if !forgery.seal(&mut disks) {
            continue;
        }
        sealed += 1;
        let what = || format!("seed {seed}: {forged:x?}");
        opened += found.run(what, || exercise(&disks)).unwrap_or_default();
    }
    assert!(found.0.is_empty(), "of {sealed} images, {opened} opened: {:#?}", found.0);
    assert!(sealed > images / 2 && opened > 0, "{sealed} of {images} images, {opened} opened");
    assert!(resident_bytes() < RESIDENT_MAX, "{} bytes", resident_bytes());
}

#[test]
fn invalid_fields_on_a_disk_cause_no_panic_or_hang() {
    answers_on(&sample(VdevKind::Disk), 700);
}

#[test]
fn invalid_fields_on_a_mirror_cause_no_panic_or_hang() {
    answers_on(&sample(VdevKind::Mirror), 700);
}

#[test]
fn invalid_fields_on_raidz_cause_no_panic_or_hang() {
    answers_on(&sample(VdevKind::Raidz1), 700);
}

#[test]
fn invalid_fields_in_a_pool_with_objects_cause_no_panic_or_hang() {
    answers_on(&object_sample(), 500);
}

#[test]
fn invalid_fields_in_a_pool_of_format_8_cause_no_panic_or_hang() {
    answers_on(&Disks::of_images(MIRROR_V8), 200);
}

/// Streams of frames with valid checksums and invalid fields; frames are out of order, missing or
/// duplicated.
#[test]
fn forged_streams_are_received_or_refused() {
    answers_to_streams(&sample(VdevKind::Disk), "plain", 700);
}

#[test]
fn forged_streams_of_objects_are_received_or_refused() {
    answers_to_streams(&object_sample(), FILES, 300);
}

fn answers_to_streams(disks: &Disks, volume: &str, images: u64) {
    let (streams, first) = (number("IMAGES", images) / 3, number("SEED", 1));
    let sound = streams_of(disks, volume);
    let (mut found, watch) = (Findings::default(), Watch::new());
    let mut taken = 0;
    for seed in first..first + streams {
        watch.begin(seed);
        let mut rng = Rng::new(seed);
        let mut streams = sound.clone();
        let at = rng.below(streams.len());
        streams[at] = forge_stream(&streams[at], &mut rng);
        taken += found.run(|| format!("seed {seed}"), || receive(disks, &streams)).unwrap_or(0);
    }
    assert!(found.0.is_empty(), "{:#?}", found.0);
    assert!(taken > 0, "sound streams before a forged one are received");
}

/// Regression: in a tree whose nodes hold 128 pointers to one child, a walk takes 128 ^ height
/// steps. Checks did not end, and collected findings in memory without limit.
#[test]
fn walk_of_a_tree_with_repeated_nodes_is_bounded() {
    let mut disks = sample(VdevKind::Disk);
    let map = Map::of(&disks);
    let watch = Watch::new();
    watch.begin(0);
    let mut forgery = Forgery::new(&map);
    assert!(forgery.fill_nodes() > 3, "inner nodes of a tree of several levels");
    assert!(forgery.seal(&mut disks), "it fits its place");
    assert_eq!(exercise(&disks), 1);
    assert!(resident_bytes() < RESIDENT_MAX, "{} bytes", resident_bytes());
}

/// Opens the sample with one changed field and returns its volumes.
fn opened_with(kind: Kind, n: usize, at: usize, bytes: &[u8]) -> Result<Vec<String>, String> {
    let engine = open(&forged(kind, &[n], at, bytes), false).map_err(|error| error.to_string())?;
    Ok(engine.volumes().iter().map(|volume| volume.info().name).collect())
}

/// Like [`opened_with`], for a directory entry: returns the volumes that remain. If the intent log
/// has writes to the dataset of this entry, an import would drop them, so it requires force.
fn left_without_record(n: usize, at: usize, bytes: &[u8]) -> Vec<String> {
    let refused = match opened_with(Kind::Directory, n, at, bytes) {
        Ok(left) => return left,
        Err(error) => error,
    };
    assert!(refused.contains("flushed writes to datasets"), "{refused}");
    let engine = open(&forged(Kind::Directory, &[n], at, bytes), true).expect("the pool opens");
    engine.volumes().iter().map(|volume| volume.info().name).collect()
}

/// Returns the sample with bytes overwritten in some structures of a kind.
fn forged(kind: Kind, some: &[usize], at: usize, bytes: &[u8]) -> Disks {
    forged_if_it_fits(kind, some, at, bytes).expect("it fits its place")
}

/// As [`forged`]; `None` if a changed structure compresses too badly to fit its address.
fn forged_if_it_fits(kind: Kind, some: &[usize], at: usize, bytes: &[u8]) -> Option<Disks> {
    let mut disks: Disks = sample(VdevKind::Disk);
    let mut forgery = Forgery::new(&Map::of(&disks));
    some.iter().for_each(|n| forgery.put(kind, *n, at, bytes));
    forgery.seal(&mut disks).then_some(disks)
}

/// Exercises the sample with a wrong field in one structure of a kind, once for each structure of
/// this kind. Skips a structure that with the wrong field needs more space than the sample has at
/// its address. Returns the number of pools that opened.
fn answered(kind: Kind, at: usize, bytes: &[u8]) -> u32 {
    let count = Map::of(&sample(VdevKind::Disk)).counts()[&kind];
    let watch = Watch::new();
    let forged = (0..count).filter_map(|n| {
        watch.begin(n as u64);
        forged_if_it_fits(kind, &[n], at, bytes)
    });
    forged.map(|disks| exercise(&disks)).sum()
}

/// Offsets of fields in a segment entry.
const LIVE_BYTES: usize = 24;
const FILL_BYTES: usize = 28;
const SUMMARY_AT: usize = 48;
/// Offsets of fields in the tree of a dataset record.
const SIZE_BYTES: usize = 0;
const ROOT_BIRTH: usize = 9 + 8;
const USED_BLOCKS: usize = 42;
const BORN_UNITS: usize = 74;
const FREED_TO: usize = 82;

/// Regression: if the live counter of a segment was lower than the bytes of its live blocks,
/// freeing these blocks caused the panic "freed twice" (segments.rs).
#[test]
fn segment_with_a_too_low_live_counter_does_not_underflow() {
    for entry in 0..64 {
        let disks = forged(Kind::SegmentTable, &[0], entry * 64 + LIVE_BYTES, &[64, 0, 0, 0]);
        exercise(&disks);
    }
}

/// Regression: the pool freed a block whose pointer had a birth txg after the newest txg. No txg of
/// this pool wrote such a pointer (write_out.rs).
#[test]
fn pointer_with_a_future_birth_txg_is_not_freed() {
    assert!(answered(Kind::Node, 8, &[0xff; 5]) > 0);
    assert!(answered(Kind::Directory, ROOT_BIRTH, &[0xff; 5]) > 0);
}

/// Regression: with a wrong log offset or log length in the uberblock, the computed offset of the
/// next log batch overflowed 64 bits (intent_log.rs).
#[test]
fn log_offset_beyond_the_log_is_refused() {
    for at in [36, 46, 54] {
        let error = opened_with(Kind::Uberblock, 0, at, &[0xff; 8]).unwrap_err();
        assert!(error.contains("uberblock: field log_"), "{error}");
        answered(Kind::Uberblock, at, &[0xff; 8]);
    }
}

/// Regression: with a wrong fill or summary offset in the segment table, the engine read disks at
/// offsets that are no multiple of the sector size (file.rs).
#[test]
fn offsets_between_sectors_are_refused() {
    for field in [FILL_BYTES, SUMMARY_AT, 22] {
        for entry in 0..64 {
            exercise(&forged(Kind::SegmentTable, &[0], entry * 64 + field, &[3, 1]));
        }
    }
    answered(Kind::Uberblock, 54, &[1, 2]);
}

/// Regression: an uberblock with the largest txg number was accepted, and the number of the next
/// txg overflowed (units.rs).
#[test]
fn largest_txg_is_refused() {
    let error = opened_with(Kind::Uberblock, 0, 20, &[0xff; 8]).unwrap_err();
    assert!(error.contains("uberblock: field txg"), "{error}");
    answered(Kind::Uberblock, 20, &[0xff; 8]);
    answered(Kind::Bootstrap, 8, &[0xff; 8]);
}

/// Regression: the engine accepted a volume that was larger than the maximum, and a directory entry
/// that listed a destroyed volume as freed up to a block beyond its end (volume.rs).
#[test]
fn volume_of_impossible_size_affects_no_other_volume() {
    let records = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    let left = |n| left_without_record(n, SIZE_BYTES, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    assert!((0..records).all(|n| left(n).len() >= 3));
    answered(Kind::Directory, SIZE_BYTES, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    answered(Kind::Directory, FREED_TO, &[0xff; 8]);
}

/// Regression: with wrong counters in directory entries, the sum of the space that each snapshot
/// alone references overflowed (snapshot.rs).
#[test]
fn arbitrary_dataset_counters_cause_no_overflow() {
    let count = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    for counter in (USED_BLOCKS..=BORN_UNITS).step_by(8) {
        let all: Vec<usize> = (1..count).collect();
        assert_eq!(exercise(&forged(Kind::Directory, &all, counter, &[0xff; 8])), 1);
    }
}

/// Regression: with a wrong counter of the bytes that sharing saves, a sum overflowed 64 bits
/// (check.rs).
#[test]
fn arbitrary_saved_bytes_cause_no_overflow() {
    assert_eq!(answered(Kind::Bootstrap, 164, &[0xff; 8]), 1);
}

/// Regression: with two clones, each of a snapshot of the other, the search for their origin never
/// ended.
#[test]
fn clone_that_descends_from_itself_opens_without_origin() {
    let mut disks = sample(VdevKind::Disk);
    let mut forgery = Forgery::new(&Map::of(&disks));
    assert!(forgery.turn_origin(), "the sample has a clone");
    assert!(forgery.seal(&mut disks), "it fits its place");
    let engine = open(&disks, false).expect("the pool opens");
    assert_eq!(engine.volumes().len(), 4, "no volume is lost");
    drop(engine);
    let watch = Watch::new();
    watch.begin(0);
    assert_eq!(exercise(&disks), 1);
}

/// Regression: one wrong field in one dataset record prevented the import of the whole pool.
#[test]
fn record_with_a_wrong_field_affects_only_its_dataset() {
    let records = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    let mut lost = 0;
    for n in 0..records {
        lost += 4 - left_without_record(n, ROOT_BIRTH, &[0xff; 5]).len();
    }
    assert_eq!(lost, 4, "each volume by its own record alone");
}

/// Regression: an error reported damage without the kind and the address of the damaged block.
#[test]
fn errors_name_the_block_and_the_field() {
    let error = opened_with(Kind::Bootstrap, 0, 16, &[0xff; 8]).unwrap_err();
    assert!(error.contains("bootstrap table at vdev 0 byte "), "{error}");
    assert!(error.contains("field next_vseg"), "{error}");
}
