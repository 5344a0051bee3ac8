//! Properties, quotas and reservations: inheritance, the space limit of a volume, and the space
//! reserved for a volume in a full pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{as_devices, assert_exact, id, import, now, options, pool_on};
use futures_util::future::{Either, join_all, select};
use weir_base::property::{COMPRESSION, QUOTA, READ_ONLY, REFRESERVATION, RESERVATION};
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::{
    DatasetError, Engine, PropertyChange as Change, PropertyTarget as Target, Refreservation,
    Volume,
};
use weir_device::MemoryDevice;
use weir_format::Compression;

const MEMORY_BYTES: u64 = 16 << 20;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Space that a pool with reservations keeps free in addition to the reservations: half of the
/// reserve of 12 segments.
const BESIDE: u64 = 6 * MIB;

struct Pool {
    disk: Arc<MemoryDevice>,
    engine: Arc<Engine>,
    random: u64,
}

impl Pool {
    fn new() -> Self {
        let disk = Arc::new(MemoryDevice::new("disk".to_owned(), 128 << 20));
        let engine = pool_on(&disk, MEMORY_BYTES);
        Self { disk, engine, random: 1 }
    }

    fn reopen(&mut self) {
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    /// Runs a future concurrently with commits.
    fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let commits = self.engine.run(|_| std::future::pending());
        now(async {
            match select(std::pin::pin!(future), std::pin::pin!(commits)).await {
                Either::Left((done, _)) => done,
                Either::Right((ended, _)) => panic!("commits ended: {ended:?}"),
            }
        })
    }

    fn make(&self, name: &str, mib: u64, changes: &[Change]) -> Arc<Volume> {
        self.drive(self.engine.create_volume_with(name, (mib * MIB).into(), changes)).unwrap();
        self.engine.volume(name).unwrap()
    }

    fn set(&self, volume: &str, change: Change) -> Result<(), DatasetError> {
        let target = Target::Volume(volume.to_owned());
        self.drive(self.engine.change_properties(&[target], &[change])).map(drop)
    }

    /// Returns an incompressible block.
    fn noise(&mut self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        for word in block.as_chunks_mut::<8>().0 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            *word = self.random.to_le_bytes();
        }
        block
    }

    /// Writes blocks of noise in order until a write is refused. Returns the number of written
    /// blocks and the error.
    fn fill(&mut self, volume: &Volume, from: u64) -> (u64, DatasetError) {
        let mut at = from;
        loop {
            let block = self.noise();
            match self.drive(volume.write(at * BLOCK, &block)) {
                Ok(()) => at += 1,
                Err(error) => return (at - from, error),
            }
        }
    }

    fn write(&mut self, volume: &Volume, blocks: std::ops::Range<u64>) -> Result<(), DatasetError> {
        for at in blocks {
            let block = self.noise();
            self.drive(volume.write(at * BLOCK, &block))?;
        }
        Ok(())
    }

    fn sync(&self) {
        now(self.engine.sync()).unwrap();
    }

    fn snap(&self, volume: &str, name: &str) -> Result<(), DatasetError> {
        self.drive(self.engine.create_snapshots(&[id(volume, name)])).map(drop)
    }

    /// Commits until all destroyed data is freed, and checks every counter.
    fn settle(&self) {
        for _ in 0..64 {
            self.sync();
        }
        assert_exact(&self.engine);
    }
}

fn raw() -> Change {
    Change::set(COMPRESSION, Compression::Off)
}

/// Asserts that two sizes differ by at most 16 KiB, because the size of the metadata trees varies
/// with each commit.
#[track_caller]
fn near(found: u64, wanted: u64) {
    assert!(found.abs_diff(wanted) < 16 << 10, "{found}, not {wanted}");
}

fn used(volume: &Volume) -> u64 {
    volume.info().space.used
}

/// Regression: after a TRIM the trimmed blocks stayed in the snapshot, and the new nodes of the
/// volume exceeded the quota.
#[test]
fn trim_that_frees_no_space_stays_below_the_quota() {
    let mut pool = Pool::new();
    let volume = pool.make("v", 4, &[raw()]);
    pool.write(&volume, 0..600).unwrap();
    pool.snap("v", "old").unwrap();
    let quota = used(&volume) + 100;
    pool.set("v", Change::set(QUOTA, quota)).unwrap();
    for at in [5, 300, 599] {
        let error = pool.drive(volume.zero(at * BLOCK, BLOCK)).unwrap_err();
        assert!(matches!(error, DatasetError::Quota { .. }), "{error}");
    }
    pool.sync();
    assert!(used(&volume) <= quota, "{} of {quota}", used(&volume));
    // Without the snapshot, the trim frees space.
    pool.drive(pool.engine.destroy_snapshots("v", &["old".to_owned()])).unwrap();
    pool.settle();
    pool.drive(volume.zero(0, 300 * BLOCK)).unwrap();
    pool.settle();
    assert!(used(&volume) < quota / 10 * 6, "{} of {quota}", used(&volume));
}

#[test]
fn unset_properties_are_inherited_and_set_ones_persist() {
    let mut pool = Pool::new();
    let volume = pool.make("a", 8, &[]);
    let own = pool.make("b", 8, &[Change::set(COMPRESSION, Compression::Auto)]);
    assert_eq!(volume.info().compression, Compression::Lz4);
    let changes = [
        Change::set(COMPRESSION, Compression::Off),
        Change::User("my:note".into(), Some("of the pool".into())),
    ];
    pool.drive(pool.engine.change_properties(&[Target::Pool], &changes)).unwrap();
    assert_eq!(volume.info().compression, Compression::Off, "at once");
    assert_eq!(own.info().compression, Compression::Auto, "its own");
    pool.drive(volume.write(0, &vec![7; 64 << 10])).unwrap();
    pool.sync();
    assert_eq!(volume.info().stored_bytes, 64 << 10, "as the pool says");
    pool.snap("a", "s").unwrap();
    let targets = [Target::Volume("a".into()), Target::Snapshot(id("a", "s"))];
    let note = |text: &str| Change::User("my:note".into(), Some(text.into()));
    pool.drive(pool.engine.change_properties(&targets[1..], &[note("of s")])).unwrap();
    pool.set("b", Change::set(QUOTA, 7 << 20)).unwrap();
    pool.reopen();
    let of = |pool: &Pool, target: &Target| {
        let found = pool.engine.properties(target).unwrap();
        found.user("my:note").map(|(value, at)| (value.to_owned(), at))
    };
    assert_eq!(of(&pool, &Target::Pool), Some(("of the pool".into(), 0)));
    assert_eq!(of(&pool, &targets[0]), Some(("of the pool".into(), 2)));
    assert_eq!(of(&pool, &targets[1]), Some(("of s".into(), 0)));
    assert_eq!(pool.engine.volume("a").unwrap().info().compression, Compression::Off);
    let b = pool.engine.properties(&Target::Volume("b".into())).unwrap().own;
    assert_eq!((b.get(COMPRESSION), b.quota_bytes()), (Some(Compression::Auto), 7 << 20));
    pool.drive(pool.engine.change_properties(&targets, &[note("both")])).unwrap();
    assert_eq!(of(&pool, &targets[0]), Some(("both".into(), 0)));
    let inherit = [Change::User("my:note".into(), None), Change::unset(COMPRESSION)];
    pool.drive(pool.engine.change_properties(&targets, &inherit[..1])).unwrap();
    assert_eq!(of(&pool, &targets[1]), Some(("of the pool".into(), 2)));
    pool.set("b", Change::unset(COMPRESSION)).unwrap();
    pool.drive(pool.engine.change_properties(&[Target::Pool], &inherit)).unwrap();
    pool.reopen();
    assert_eq!(of(&pool, &targets[1]), None);
    assert_eq!(pool.engine.volume("b").unwrap().info().compression, Compression::Lz4);
    pool.settle();
}

#[test]
fn clone_inherits_compression_but_no_limits() {
    let pool = Pool::new();
    let zstd = Compression::all().last().unwrap();
    let limits = [
        Change::set(COMPRESSION, zstd),
        Change::set(QUOTA, 16 << 20),
        Change::set(READ_ONLY, true),
    ];
    pool.make("a", 8, &limits);
    pool.snap("a", "s").unwrap();
    pool.set("a", Change::unset(COMPRESSION)).unwrap();
    pool.drive(pool.engine.clone_snapshot(&id("a", "s"), "c")).unwrap();
    let own = pool.engine.properties(&Target::Volume("c".into())).unwrap().own;
    assert_eq!(own, zstd.into());
    let error = pool.drive(pool.engine.volume("a").unwrap().write(0, &[1; 4096])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    pool.drive(pool.engine.volume("c").unwrap().write(0, &[1; 4096])).unwrap();
    pool.drive(pool.engine.copy_volume("a", Some("s"), "copy")).unwrap();
    let own = pool.engine.properties(&Target::Volume("copy".into())).unwrap().own;
    assert_eq!(
        (own.quota_bytes(), own.get(READ_ONLY)),
        (0, None),
        "as of a clone: no limit is copied"
    );
}

#[test]
fn read_only_refuses_writes_and_is_inherited_from_the_pool() {
    let pool = Pool::new();
    let volume = pool.make("a", 8, &[]);
    let set = |value: Option<bool>| {
        let change = value.map_or(Change::unset(READ_ONLY), |value| Change::set(READ_ONLY, value));
        let change = [change];
        pool.drive(pool.engine.change_properties(&[Target::Pool], &change)).unwrap();
    };
    pool.drive(volume.write(0, &[1; 8192])).unwrap();
    set(Some(true));
    assert!(volume.is_read_only());
    let refused = |done: Result<(), DatasetError>| done.unwrap_err().kind() == ErrorKind::ReadOnly;
    assert!(refused(pool.drive(volume.write(0, &[1; 4096]))));
    assert!(refused(pool.drive(volume.write(1, &[1; 5]))));
    assert!(refused(pool.drive(volume.zero(0, 4096))));
    pool.drive(pool.engine.copy_volume("a", None, "copy")).unwrap();
    assert!(pool.engine.volume("copy").unwrap().is_read_only());
    pool.set("a", Change::set(READ_ONLY, false)).unwrap();
    pool.drive(volume.write(0, &[2; 4096])).unwrap();
    pool.set("a", Change::unset(READ_ONLY)).unwrap();
    assert!(refused(pool.drive(volume.write(0, &[1; 4096]))));
    set(None);
    pool.drive(volume.write(0, &[3; 4096])).unwrap();
}

#[test]
fn writes_stop_at_the_quota_and_trim_allows_more() {
    let mut pool = Pool::new();
    let quota = 8 * MIB;
    let volume = pool.make("a", 32, &[raw(), Change::set(QUOTA, quota)]);
    let other = pool.make("b", 32, &[raw()]);
    let (blocks, error) = pool.fill(&volume, 0);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("tank/a") && error.to_string().contains("8MiB"), "{error}");
    pool.sync();
    assert!(used(&volume) <= quota, "{}", used(&volume));
    assert!(used(&volume) + 64 * 1024 > quota, "{} after {blocks}", used(&volume));
    pool.write(&other, 0..64).unwrap();
    pool.drive(volume.zero(0, 2 * MIB)).unwrap();
    pool.write(&volume, 4096..4096 + 400).unwrap();
    let (_, error) = pool.fill(&volume, 4096 + 400);
    assert!(matches!(error, DatasetError::Quota { .. }), "{error}");
    pool.sync();
    assert!(used(&volume) <= quota, "{}", used(&volume));
    pool.set("a", Change::set(QUOTA, quota + MIB)).unwrap();
    pool.write(&volume, 6000..6100).unwrap();
    pool.set("a", Change::set(QUOTA, 0)).unwrap();
    pool.write(&volume, 6100..6700).unwrap();
    pool.settle();
}

#[test]
fn quota_counts_compressed_sizes() {
    let pool = Pool::new();
    let volume = pool.make("a", 32, &[Change::set(QUOTA, 2 * MIB)]);
    for at in 0..32 {
        pool.drive(volume.write(at * MIB, &vec![at as u8 + 1; 1 << 20])).unwrap();
    }
    pool.sync();
    assert!(used(&volume) <= 2 * MIB, "{}", used(&volume));
    // This write succeeds, although its worst-case cost exceeds the available space.
    let blocks = weir_block::Block::copies_of(&vec![[9; BLOCK_BYTES]; 4096]);
    pool.drive(volume.write_blocks(0, blocks)).unwrap();
}

#[test]
fn snapshots_count_towards_the_quota_until_they_are_destroyed() {
    let mut pool = Pool::new();
    let volume = pool.make("a", 16, &[raw(), Change::set(QUOTA, 8 * MIB)]);
    pool.write(&volume, 0..1200).unwrap();
    pool.snap("a", "s").unwrap();
    let (_, error) = pool.fill(&volume, 0);
    assert!(matches!(error, DatasetError::Quota { .. }), "{error}");
    pool.sync();
    assert!(used(&volume) <= 8 * MIB);
    pool.drive(pool.engine.destroy_snapshots("a", &["s".to_owned()])).unwrap();
    // The pool does not refuse the write: the write waits for the space that is being freed.
    pool.write(&volume, 0..1200).unwrap();
    pool.settle();
    let error = pool.set("a", Change::set(QUOTA, 4 * MIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("used"), "{error}");
    pool.set("a", Change::set(QUOTA, used(&volume))).unwrap();
}

#[test]
fn pool_quota_limits_all_volumes() {
    let mut pool = Pool::new();
    let volume = pool.make("a", 64, &[raw()]);
    pool.write(&volume, 0..256).unwrap();
    let set = |pool: &Pool, mib: u64| {
        let change = [Change::set(QUOTA, mib * MIB)];
        pool.drive(pool.engine.change_properties(&[Target::Pool], &change))
    };
    assert!(matches!(set(&pool, 1), Err(DatasetError::Limit { .. })));
    set(&pool, 10).unwrap();
    let (_, error) = pool.fill(&volume, 256);
    assert!(error.to_string().contains("quota of 10MiB"), "{error}");
    pool.sync();
    assert!(pool.engine.pool().space().live_bytes <= 10 * MIB);
    assert!(pool.engine.available_bytes() < 64 << 10, "{}", pool.engine.available_bytes());
    set(&pool, 0).unwrap();
    pool.write(&volume, 8000..9000).unwrap();
}

#[test]
fn reservation_is_usable_in_a_pool_that_other_volumes_fill() {
    let mut pool = Pool::new();
    let kept = pool.make("kept", 64, &[raw(), Change::set(RESERVATION, 20 * MIB)]);
    let other = pool.make("other", 128, &[raw()]);
    let (_, error) = pool.fill(&other, 0);
    assert!(matches!(error, DatasetError::Full { .. }), "{error}");
    assert!(pool.engine.available_bytes() < MIB / 8, "{}", pool.engine.available_bytes());
    pool.sync();
    assert!(kept.available_bytes() >= 20 * MIB, "{}", kept.available_bytes());
    // The blocks use all of the reservation except the part for nodes: each 128 blocks need a leaf
    // of one block.
    let blocks = 20 * MIB / BLOCK * 128 / 129 - 2;
    pool.write(&kept, 0..blocks).unwrap();
    pool.sync();
    assert!(used(&kept) <= 20 * MIB && used(&kept) > 19 * MIB, "{}", used(&kept));
    // Overwriting the volume repeatedly needs no additional space.
    for _ in 0..2 {
        pool.write(&kept, 0..blocks).unwrap();
    }
    let (blocks, error) = pool.fill(&other, 30_000);
    assert!(blocks < 8 && matches!(error, DatasetError::Full { .. }), "{blocks} {error}");
    pool.reopen();
    let (other, kept) = (pool.engine.volume("other").unwrap(), pool.engine.volume("kept").unwrap());
    pool.write(&kept, 0..100).unwrap();
    let (blocks, error) = pool.fill(&other, 30_000);
    assert!(blocks < 32 && matches!(error, DatasetError::Full { .. }), "{blocks} {error}");
    drop(kept);
    pool.drive(pool.engine.destroy_volume("kept", false)).unwrap();
    pool.write(&other, 30_100..32_000).unwrap();
    pool.settle();
}

#[test]
fn reservation_above_the_available_space_is_refused() {
    let mut pool = Pool::new();
    let volume = pool.make("a", 32, &[]);
    let room = pool.engine.available_bytes();
    let error = pool.set("a", Change::set(RESERVATION, room + MIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(pool.engine.available_bytes(), room, "nothing is kept back by a refusal");
    pool.set("a", Change::set(RESERVATION, room / 2)).unwrap();
    near(pool.engine.available_bytes(), room - room / 2 - BESIDE);
    near(volume.available_bytes(), room - BESIDE);
    let b = pool.make("b", 32, &[]);
    let error = pool.set("b", Change::set(RESERVATION, room / 2 + MIB)).unwrap_err();
    assert!(matches!(error, DatasetError::CannotReserve { .. }), "{error}");
    let error = pool.drive(pool.engine.create_volume_with(
        "c",
        MIB.into(),
        &[Change::set(RESERVATION, room)],
    ));
    assert!(matches!(error, Err(DatasetError::CannotReserve { .. })), "{error:?}");
    assert!(pool.engine.volume("c").is_err());
    pool.set("b", Change::set(QUOTA, 4 * MIB)).unwrap();
    for change in
        [Change::set(RESERVATION, 5 * MIB), Change::set(REFRESERVATION, Refreservation::Auto)]
    {
        let error = pool.set("b", change).unwrap_err();
        assert!(matches!(error, DatasetError::Limit { .. }), "{error}");
    }
    let error =
        pool.set("b", Change::set(REFRESERVATION, Refreservation::Bytes(34 * MIB))).unwrap_err();
    assert!(matches!(error, DatasetError::Limit { .. }), "{error}");
    pool.write(&b, 0..16).unwrap();
    pool.reopen();
    pool.sync();
    let left = pool.engine.available_bytes();
    let wanted = room - room / 2 - BESIDE;
    assert!(left <= wanted && left + MIB > wanted, "{left} of {room}");
}

#[test]
fn thick_volume_is_writable_in_a_full_pool() {
    let mut pool = Pool::new();
    let room = pool.engine.available_bytes();
    let auto = Change::set(REFRESERVATION, Refreservation::Auto);
    let thick = pool.make("thick", 16, &[raw(), auto]);
    let reserved = 16 * MIB + 33 * BLOCK;
    near(room - pool.engine.available_bytes(), reserved + BESIDE);
    assert_eq!(thick.info().space.by_refreservation, reserved);
    pool.write(&thick, 0..2048).unwrap();
    pool.sync();
    let space = thick.info().space;
    assert_eq!(space.by_refreservation + space.written, reserved);
    pool.snap("thick", "s").unwrap();
    assert_eq!(thick.info().space.by_refreservation, reserved, "all of it anew");
    let other = pool.make("other", 128, &[raw()]);
    let (_, error) = pool.fill(&other, 0);
    assert!(matches!(error, DatasetError::Full { .. }), "{error}");
    pool.write(&thick, 0..4096).unwrap();
    pool.write(&thick, 1000..3000).unwrap();
    pool.sync();
    let error = pool.snap("thick", "t").unwrap_err();
    assert!(matches!(error, DatasetError::CannotReserve { .. }), "{error}");
    pool.write(&thick, 0..4096).unwrap();
    pool.snap("other", "u").unwrap();
    pool.drive(pool.engine.destroy_snapshots("thick", &["s".to_owned()])).unwrap();
    for _ in 0..64 {
        pool.sync();
    }
    pool.write(&thick, 0..4096).unwrap();
    pool.settle();
}

#[test]
fn refreservation_follows_a_resize_of_a_thick_volume() {
    let pool = Pool::new();
    let room = pool.engine.available_bytes();
    pool.make("thick", 16, &[Change::set(REFRESERVATION, Refreservation::Auto)]);
    pool.drive(pool.engine.resize_volume("thick", 32 * MIB)).unwrap();
    near(room - pool.engine.available_bytes(), 32 * MIB + 65 * BLOCK + BESIDE);
    let error = pool.drive(pool.engine.resize_volume("thick", room / MIB * MIB)).unwrap_err();
    assert!(matches!(error, DatasetError::CannotReserve { .. }), "{error}");
    assert_eq!(pool.engine.volume("thick").unwrap().size_bytes(), 32 * MIB);
    pool.drive(pool.engine.resize_volume("thick", 4 * MIB)).unwrap();
    near(room - pool.engine.available_bytes(), 4 * MIB + 9 * BLOCK + BESIDE);
}

#[test]
fn rollback_in_a_full_pool_keeps_the_refreservation() {
    let mut pool = Pool::new();
    let auto = Change::set(REFRESERVATION, Refreservation::Auto);
    let thick = pool.make("thick", 8, &[raw(), auto]);
    pool.write(&thick, 0..1024).unwrap();
    pool.snap("thick", "s").unwrap();
    pool.write(&thick, 0..2048).unwrap();
    let other = pool.make("other", 128, &[raw()]);
    let (_, error) = pool.fill(&other, 0);
    assert!(matches!(error, DatasetError::Full { .. }), "{error}");
    pool.drive(pool.engine.rollback(&id("thick", "s"), false)).unwrap();
    pool.write(&thick, 0..2048).unwrap();
    pool.settle();
    let (blocks, _) = pool.fill(&other, 30_000);
    assert!(blocks < 32, "{blocks}: what was left behind was not others' to take");
}

#[test]
fn promotion_that_exceeds_a_limit_is_refused() {
    let mut pool = Pool::new();
    let volume = pool.make("a", 16, &[raw()]);
    pool.write(&volume, 0..2048).unwrap();
    pool.snap("a", "s").unwrap();
    pool.drive(pool.engine.clone_snapshot(&id("a", "s"), "c")).unwrap();
    pool.set("c", Change::set(QUOTA, 4 * MIB)).unwrap();
    let error = pool.drive(pool.engine.promote("c")).unwrap_err();
    assert!(matches!(&error, DatasetError::Quota { name, .. } if name == "tank/c"), "{error}");
    pool.set("c", Change::set(QUOTA, 0)).unwrap();
    let room = pool.engine.available_bytes();
    pool.set("a", Change::set(RESERVATION, room)).unwrap();
    let error = pool.drive(pool.engine.promote("c")).unwrap_err();
    assert!(
        matches!(&error, DatasetError::CannotReserve { name, .. } if name == "tank/a"),
        "{error}"
    );
    pool.set("a", Change::set(RESERVATION, 9 * MIB)).unwrap();
    pool.drive(pool.engine.promote("c")).unwrap();
    let kept = room - pool.engine.available_bytes() - BESIDE;
    assert!((8 * MIB..10 * MIB).contains(&kept), "{kept}: the snapshot went with the clone");
    pool.settle();
}

#[test]
fn invalid_property_changes_are_refused_as_a_whole() {
    let pool = Pool::new();
    pool.make("a", 8, &[]);
    pool.snap("a", "s").unwrap();
    let change = |target: Target, changes: &[Change]| {
        pool.drive(pool.engine.change_properties(&[target], changes)).unwrap_err()
    };
    let volume = || Target::Volume("a".into());
    let note = |name: &str, bytes: usize| Change::User(name.into(), Some("x".repeat(bytes)));
    for (target, wrong) in [
        (Target::Snapshot(id("a", "s")), Change::set(QUOTA, 1 << 30)),
        (Target::Snapshot(id("a", "s")), Change::unset(COMPRESSION)),
        (Target::Pool, Change::set(RESERVATION, MIB)),
        (volume(), note("a:b", 1025)),
        (volume(), note(&"n".repeat(129), 1)),
        (volume(), Change::set(RESERVATION, u64::MAX)),
    ] {
        let error = change(target.clone(), &[note("my:own", 3), wrong]);
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NoSpace), "{error}");
        assert_eq!(pool.engine.properties(&target).unwrap().own.user.len(), 0, "{error}");
    }
    let error = change(volume(), &[note("a:a", 1000), note("a:b", 1000)]);
    assert!(error.to_string().contains("1536"), "{error}");
    let many: Vec<Change> = (0..33).map(|n| note(&format!("m:{n}"), 1)).collect();
    assert!(matches!(change(volume(), &many), DatasetError::TooMany { .. }));
    assert!(matches!(
        change(Target::Volume("no".into()), &many[..1]),
        DatasetError::NotFound { .. }
    ));
    let no = Target::Snapshot(id("a", "no"));
    assert!(matches!(change(no, &many[..1]), DatasetError::NoSnapshot { .. }));
    // If the change of the last target is refused, the change of the first is undone.
    let both = [volume(), Target::Pool];
    let wrong = pool.drive(pool.engine.change_properties(&both, &[Change::set(QUOTA, 1)]));
    assert!(matches!(wrong, Err(DatasetError::Limit { .. })), "{wrong:?}");
    assert_eq!(pool.engine.properties(&volume()).unwrap().own.quota_bytes(), 0);
}

#[test]
fn dirty_data_stays_within_its_part_of_the_memory() {
    const MEMORY_BYTES: u64 = 1 << 20;
    let disk = Arc::new(MemoryDevice::new("disk".to_owned(), 128 << 20));
    let engine = pool_on(&disk, MEMORY_BYTES);
    let pool = Pool { disk, engine, random: 1 };
    let volumes = ["a", "b"].map(|name| pool.make(name, 16, &[raw()]));
    let most = AtomicU64::new(0);
    let writer = async |number: u64| {
        let volume = &volumes[number as usize % 2];
        for round in 0..16 {
            volume.write((number * 16 + round) * 4 * BLOCK, &[7; 4 * BLOCK_BYTES]).await.unwrap();
            most.fetch_max(pool.engine.dirty_bytes(), Ordering::Relaxed);
        }
    };
    pool.drive(join_all((0..32).map(writer)));
    let most = most.into_inner();
    assert!(most <= MEMORY_BYTES * 42 / 100, "{most} bytes");
    assert!(most > MEMORY_BYTES / 3, "{most} bytes: the writes did not wait for the limit");
}
