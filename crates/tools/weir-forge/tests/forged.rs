//! Thousands of pools with right checksums and wrong fields: an import, `check`, `rescue` and a
//! receive answer with an error or with what is there, and never panic or run without end.
//!
//! Not here: what is answered where (the crates' own tests).
//!
//! Invariant: nothing here is random; a failure names its seed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_forge::{
    Disks, Forgery, Kind, Map, Rng, exercise, forge_stream, open, receive, sample, streams_of,
};
use weir_format::VdevKind;

#[test]
fn the_sample_has_something_of_every_kind_and_opens() {
    for kind in [VdevKind::Disk, VdevKind::Mirror, VdevKind::Raidz1] {
        let disks = sample(kind);
        let counts = Map::of(&disks).counts();
        assert!(Kind::ALL.iter().all(|kind| counts.contains_key(kind)), "{kind:?}: {counts:?}");
        assert_eq!(exercise(&disks), 1, "{kind:?}");
    }
}

/// An image after which a call still runs is a finding: it takes a few milliseconds.
const HANGS_AFTER: Duration = Duration::from_mins(2);
/// Resident memory of all of it, which a count on disk must not decide.
const RESIDENT_MAX: u64 = 1 << 30;

/// Ends the process, with the seed, where an image is not done with.
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

/// What panicked, each with the first seed that shows it.
#[derive(Default)]
struct Findings(BTreeMap<String, (u32, String)>);

impl Findings {
    /// Runs a piece of work; `None` if it panics.
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

/// Bytes that the process holds at most.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// Takes every step with many forged pools; `IMAGES=20000 SEED=1` runs more of them.
fn answers_on(kind: VdevKind) {
    let (images, first) = (number("IMAGES", 700), number("SEED", 1));
    let disks = sample(kind);
    let map = Map::of(&disks);
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
fn wrong_fields_on_a_disk_are_answered() {
    answers_on(VdevKind::Disk);
}

#[test]
fn wrong_fields_on_a_mirror_are_answered() {
    answers_on(VdevKind::Mirror);
}

#[test]
fn wrong_fields_on_raidz_are_answered() {
    answers_on(VdevKind::Raidz1);
}

/// Frames with right checksums and wrong fields, out of order, left out or twice.
#[test]
fn forged_streams_are_received_or_refused() {
    let (streams, first) = (number("IMAGES", 700) / 3, number("SEED", 1));
    let disks = sample(VdevKind::Disk);
    let sound = streams_of(&disks);
    let (mut found, watch) = (Findings::default(), Watch::new());
    let mut taken = 0;
    for seed in first..first + streams {
        watch.begin(seed);
        let mut rng = Rng::new(seed);
        let mut streams = sound.clone();
        let at = rng.below(streams.len());
        streams[at] = forge_stream(&streams[at], &mut rng);
        taken += found.run(|| format!("seed {seed}"), || receive(&disks, &streams)).unwrap_or(0);
    }
    assert!(found.0.is_empty(), "{:#?}", found.0);
    assert!(taken > 0, "sound streams before a forged one are received");
}

/// A node that is at 128 places, and its own node too, makes a walk of 128 to the height of the
/// tree: checks never ended, and kept what they found in memory.
#[test]
fn tree_that_leads_to_one_node_again_and_again_is_walked_in_bounded_time() {
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

/// Opens the sample with one field changed.
fn opened_with(kind: Kind, n: usize, at: usize, bytes: &[u8]) -> Result<Vec<String>, String> {
    let engine = open(&forged(kind, &[n], at, bytes), false).map_err(|error| error.to_string())?;
    Ok(engine.volumes().iter().map(|volume| volume.info().name).collect())
}

/// As [`opened_with`], for a record of the directory: the volumes that are left. An import that
/// would drop logged writes to the dataset of the record is refused without force.
fn left_without_record(n: usize, at: usize, bytes: &[u8]) -> Vec<String> {
    let refused = match opened_with(Kind::Directory, n, at, bytes) {
        Ok(left) => return left,
        Err(error) => error,
    };
    assert!(refused.contains("flushed writes to datasets"), "{refused}");
    let engine = open(&forged(Kind::Directory, &[n], at, bytes), true).expect("the pool opens");
    engine.volumes().iter().map(|volume| volume.info().name).collect()
}

/// The sample with bytes put into some structures of a kind.
fn forged(kind: Kind, some: &[usize], at: usize, bytes: &[u8]) -> Disks {
    let mut disks: Disks = sample(VdevKind::Disk);
    let mut forgery = Forgery::new(&Map::of(&disks));
    some.iter().for_each(|n| forgery.put(kind, *n, at, bytes));
    assert!(forgery.seal(&mut disks), "it fits its place");
    disks
}

/// Takes every step with a pool in which a field is wrong in one structure of a kind, for each
/// structure in turn; how many of them opened.
fn answered(kind: Kind, at: usize, bytes: &[u8]) -> u32 {
    let count = Map::of(&sample(VdevKind::Disk)).counts()[&kind];
    let watch = Watch::new();
    let exercised = (0..count).map(|n| {
        watch.begin(n as u64);
        exercise(&forged(kind, &[n], at, bytes))
    });
    exercised.sum()
}

/// Offsets in a segment's entry.
const LIVE_BYTES: usize = 24;
const FILL_BYTES: usize = 28;
const SUMMARY_AT: usize = 48;
/// Offsets in a dataset's record.
const SIZE_BYTES: usize = 10;
const ROOT_BIRTH: usize = 35 + 8;
const BORN_UNITS: usize = 100;
const FREED_TO: usize = 108;

/// A counter lower than what lives of its segment: "freed twice" (segments.rs).
#[test]
fn segment_that_counts_less_than_it_holds_frees_no_more_than_it_counts() {
    for entry in 0..64 {
        let disks = forged(Kind::SegmentTable, &[0], entry * 64 + LIVE_BYTES, &[64, 0, 0, 0]);
        exercise(&disks);
    }
}

/// A block born after the newest txg was freed (write_out.rs).
#[test]
fn pointer_from_the_future_is_not_freed() {
    assert!(answered(Kind::Node, 8, &[0xff; 5]) > 0);
    assert!(answered(Kind::Directory, ROOT_BIRTH, &[0xff; 5]) > 0);
}

/// The place of the next log batch was added up beyond 64 bits (intent_log.rs).
#[test]
fn log_place_beyond_the_log_is_refused() {
    for at in [36, 46, 54] {
        let error = opened_with(Kind::Uberblock, 0, at, &[0xff; 8]).unwrap_err();
        assert!(error.contains("uberblock: field log_"), "{error}");
        answered(Kind::Uberblock, at, &[0xff; 8]);
    }
}

/// Disks were read at places that no sector begins at (file.rs).
#[test]
fn places_between_sectors_are_refused() {
    for field in [FILL_BYTES, SUMMARY_AT, 22] {
        for entry in 0..64 {
            exercise(&forged(Kind::SegmentTable, &[0], entry * 64 + field, &[3, 1]));
        }
    }
    answered(Kind::Uberblock, 54, &[1, 2]);
}

/// The txg after the newest one overflowed (units.rs).
#[test]
fn txg_without_a_next_one_is_refused() {
    let error = opened_with(Kind::Uberblock, 0, 20, &[0xff; 8]).unwrap_err();
    assert!(error.contains("uberblock: field txg"), "{error}");
    answered(Kind::Uberblock, 20, &[0xff; 8]);
    answered(Kind::Bootstrap, 8, &[0xff; 8]);
}

/// A volume larger than any, and one freed up to beyond its end (volume.rs).
#[test]
fn volume_of_an_impossible_size_costs_itself_alone() {
    let records = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    let left = |n| left_without_record(n, SIZE_BYTES, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    assert!((0..records).all(|n| left(n).len() >= 3));
    answered(Kind::Directory, SIZE_BYTES, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    answered(Kind::Directory, FREED_TO, &[0xff; 8]);
}

/// The sum of what snapshots have for themselves overflowed (snapshot.rs).
#[test]
fn counters_of_datasets_may_hold_anything() {
    let count = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    for counter in (68..=BORN_UNITS).step_by(8) {
        let all: Vec<usize> = (1..count).collect();
        assert_eq!(exercise(&forged(Kind::Directory, &all, counter, &[0xff; 8])), 1);
    }
}

/// Bytes of an account were counted beyond 64 bits (check.rs).
#[test]
fn saved_bytes_may_hold_anything() {
    assert_eq!(answered(Kind::Bootstrap, 164, &[0xff; 8]), 1);
}

/// Two clones, each of a snapshot of the other: looking for the origin of either never ended.
#[test]
fn clone_that_descends_from_itself_goes_on_as_one_without_origin() {
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

/// One wrong field in one dataset's record closed the whole pool.
#[test]
fn record_with_a_wrong_field_costs_its_dataset_and_no_other() {
    let records = Map::of(&sample(VdevKind::Disk)).counts()[&Kind::Directory];
    let mut lost = 0;
    for n in 0..records {
        lost += 4 - left_without_record(n, ROOT_BIRTH, &[0xff; 5]).len();
    }
    assert_eq!(lost, 4, "each volume by its own record alone");
}

/// An error said that something is damaged, and neither what nor where.
#[test]
fn errors_name_the_block_and_the_field() {
    let error = opened_with(Kind::Bootstrap, 0, 16, &[0xff; 8]).unwrap_err();
    assert!(error.contains("bootstrap table at vdev 0 byte "), "{error}");
    assert!(error.contains("field next_vseg"), "{error}");
}
