//! Model test of send and receive: full and incremental streams over random histories,
//! interruptions at any byte, and refusals that leave no partial data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::common::{as_devices, assert_exact, committing, id, import, now, options, stream_of};
use weir_base::property::{COMPRESSION, QUOTA};
use weir_base::{BLOCK_BYTES, ErrorKind, Guid};
use weir_base::{ObjectId, RecordSize};
use weir_dataset::{
    DatasetError, Engine, Mark, PropertyChange, PropertyTarget, ReceiveSpec, Received, Receiver,
    SendFrom, SendSpec, Volume, VolumeSize, VolumeSpec,
};
use weir_device::MemoryDevice;
use weir_format::stream::ResumeToken;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, VdevSpec};

const MEMORY_BYTES: u64 = 24 << 20;
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Number of blocks of a volume: two levels of nodes, and more than one frame of a stream.
pub(crate) const BLOCKS: u64 = 5 * 128;
/// Number of blocks of the largest record in these tests. Volume sizes are multiples of this
/// number.
const RECORD_BLOCKS_MAX: u64 = 32;

/// User property with the address of the server that sent a volume or snapshot.
const FROM: &str = "weir:received-from";

/// A xorshift generator; the seed determines the whole test.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }

    fn range(&mut self, end: u64, most: u64) -> Range<u64> {
        let start = self.below(end);
        start..(start + 1 + self.below(most)).min(end)
    }
}

/// Fill number of each block that is not zeros.
pub(crate) type Content = BTreeMap<u64, u64>;

pub(crate) struct Pool {
    disk: Arc<MemoryDevice>,
    pub(crate) engine: Arc<Engine>,
}

impl Pool {
    pub(crate) fn new(name: &str, guids: u64) -> Self {
        Self::of_bytes(name, guids, 96 << 20)
    }

    fn of_bytes(name: &str, guids: u64, disk_bytes: usize) -> Self {
        let disk = Arc::new(MemoryDevice::new("disk".to_owned(), disk_bytes));
        let disks = as_devices(&[Arc::clone(&disk)]);
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut next = guids;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let (sizes, how) = (CreateOptions::default(), options(MEMORY_BYTES));
        let engine = now(Engine::create(name, &[vdev], sizes, &how, &mut guid)).unwrap();
        Self { disk, engine }
    }

    /// Reopens the pool without a commit, like after a crash.
    pub(crate) fn reopen(&mut self) {
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    pub(crate) fn make(&self, name: &str) -> Arc<Volume> {
        self.make_of(name, RecordSize::BLOCK)
    }

    fn make_of(&self, name: &str, record: RecordSize) -> Arc<Volume> {
        assert!(record.blocks() <= RECORD_BLOCKS_MAX);
        let size = VolumeSize { bytes: BLOCKS * BLOCK, record };
        let lz4 = PropertyChange::set(COMPRESSION, Compression::Lz4);
        now(self.engine.create_volume_with(name, size, &[lz4])).unwrap();
        self.engine.volume(name).unwrap()
    }

    pub(crate) fn snap(&self, volume: &str, name: &str) {
        now(self.engine.create_snapshots(&[id(volume, name)])).unwrap();
    }

    pub(crate) fn check(&self) {
        for _ in 0..8 {
            now(self.engine.sync()).unwrap();
        }
        assert_exact(&self.engine);
    }

    pub(crate) fn shown(&self, volume: &str, name: &str) -> Content {
        content(&self.engine.open_snapshot(&id(volume, name)).unwrap())
    }

    pub(crate) fn send(&self, spec: &SendSpec) -> Result<Vec<u8>, DatasetError> {
        stream_of(&self.engine, spec)
    }

    pub(crate) fn whole(&self, volume: &str, name: &str) -> Vec<u8> {
        self.send(&spec(volume, name)).unwrap()
    }

    fn since(&self, volume: &str, from: &str, name: &str) -> Vec<u8> {
        let from = Some(SendFrom::Snapshot(id(volume, from)));
        self.send(&SendSpec { from, ..spec(volume, name) }).unwrap()
    }

    pub(crate) fn receive(&self, volume: &str, bytes: &[u8]) -> Result<Received, DatasetError> {
        self.receive_with(volume, bytes, false)
    }

    fn receive_with(
        &self,
        volume: &str,
        bytes: &[u8],
        roll_back: bool,
    ) -> Result<Received, DatasetError> {
        let volume = volume.to_owned();
        self.receive_as(ReceiveSpec { volume, roll_back, dry_run: false, mark: None }, bytes)
    }

    /// Runs a dry-run receive and checks that it changes nothing.
    fn judge(&self, volume: &str, bytes: &[u8], roll_back: bool) -> Result<Received, DatasetError> {
        let before = self.look();
        let volume = volume.to_owned();
        let judged =
            self.receive_as(ReceiveSpec { volume, roll_back, dry_run: true, mark: None }, bytes);
        assert_eq!(self.look(), before, "a look changed something");
        judged
    }

    /// Returns the names, receive states, snapshots and contents of all volumes.
    fn look(&self) -> Vec<(String, Option<String>, Vec<String>, Content)> {
        let of = |volume: Arc<Volume>| {
            let name = volume.info().name;
            let snapshots = self.engine.snapshot_names(&name).unwrap();
            (name, volume.receiving(), snapshots, content(&volume))
        };
        self.engine.volumes().into_iter().map(of).collect()
    }

    /// Receives a stream from the server 192.0.2.`last`.
    fn receive_from(&self, last: u8, volume: &str, bytes: &[u8]) -> Result<Received, DatasetError> {
        let mark = Some(Mark { property: FROM.to_owned(), address: [192, 0, 2, last].into() });
        let volume = volume.to_owned();
        self.receive_as(ReceiveSpec { volume, roll_back: false, dry_run: false, mark }, bytes)
    }

    fn receive_as(&self, spec: ReceiveSpec, bytes: &[u8]) -> Result<Received, DatasetError> {
        let mut receiver = Receiver::new(Arc::clone(&self.engine), spec);
        for part in bytes.chunks(100_000) {
            now(receiver.push(part))?;
        }
        now(receiver.finish())
    }

    pub(crate) fn token(&self, volume: &str) -> ResumeToken {
        now(self.engine.receive_token(volume)).unwrap()
    }
}

pub(crate) fn spec(volume: &str, name: &str) -> SendSpec {
    SendSpec { snapshot: id(volume, name), from: None, resume: None }
}

pub(crate) fn write(volume: &Volume, content: &mut Content, blocks: Range<u64>, fill: u64) {
    for block in blocks {
        let mut data = [0; BLOCK_BYTES];
        let words = data.as_chunks_mut::<8>().0.iter_mut();
        // Every third fill is compressible.
        let mut rng = Rng(fill * 1000 + block + 1);
        for word in words.take(if fill.is_multiple_of(3) { 500 } else { 100 }) {
            *word = rng.below(u64::MAX).to_le_bytes();
        }
        data[..8].copy_from_slice(&block.to_le_bytes());
        data[8..16].copy_from_slice(&fill.to_le_bytes());
        now(volume.write(block * BLOCK, &data)).unwrap();
        content.insert(block, fill);
    }
}

pub(crate) fn trim(volume: &Volume, content: &mut Content, blocks: Range<u64>) {
    now(volume.zero(blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK)).unwrap();
    content.retain(|block, _| !blocks.contains(block));
}

pub(crate) fn content(volume: &Volume) -> Content {
    let mut content = Content::new();
    for block in 0..volume.size_bytes() / BLOCK {
        let mut data = [0; BLOCK_BYTES];
        now(volume.read(block * BLOCK, &mut data)).unwrap();
        if data.iter().any(|byte| *byte != 0) {
            assert_eq!(u64::from_le_bytes(data[..8].try_into().unwrap()), block);
            content.insert(block, u64::from_le_bytes(data[8..16].try_into().unwrap()));
        }
    }
    content
}

pub(crate) fn kind(error: &DatasetError) -> ErrorKind {
    error.kind()
}

/// Makes random changes to a volume.
fn change(rng: &mut Rng, pool: &Pool, content: &mut Content, fill: u64) {
    let volume = pool.engine.volume("v").unwrap();
    for n in 0..=rng.below(6) {
        let blocks = volume.size_bytes() / BLOCK;
        match rng.below(10) {
            0..6 => write(&volume, content, rng.range(blocks, 60), fill * 100 + n),
            6..8 => trim(&volume, content, rng.range(blocks, 20)),
            8 => trim(&volume, content, rng.range(blocks, 400)),
            _ => {
                let size =
                    (BLOCKS - 200 + rng.below(600)).next_multiple_of(RECORD_BLOCKS_MAX) * BLOCK;
                if size < volume.size_bytes() {
                    trim(&volume, content, size / BLOCK..blocks);
                }
                now(pool.engine.resize_volume("v", size)).unwrap();
            }
        }
    }
}

// Regression: `weir send -n -t` estimated the size of the whole stream instead of the part that
// remained.
#[test]
fn estimate_of_a_resumed_stream_covers_the_rest_only() {
    let source = Pool::new("tank", 0);
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..BLOCKS, 1);
    source.snap("v", "a");
    let estimate = |next_record: u64, to: u64| {
        let resume = (next_record > 0).then_some(ResumeToken {
            to,
            from: None,
            next_object: ObjectId::VOLUME,
            next_record,
        });
        let spec = SendSpec { snapshot: id("v", "a"), from: None, resume };
        let sending = source.engine.prepare_send(&spec).unwrap();
        (now(source.engine.estimate_send(&sending)).unwrap(), sending.begin().to)
    };
    let (all, to) = estimate(0, 0);
    let (half, _) = estimate(BLOCKS / 2, to);
    assert!((all * 4 / 10..all * 6 / 10).contains(&half), "{half} of {all}");
    assert_eq!(estimate(BLOCKS, to).0, 0);
}

#[test]
fn interrupted_streams_of_random_histories_arrive_unchanged() {
    for seed in 1..=25 {
        let mut rng = Rng(seed * 7919);
        let source = Pool::new("tank", 0);
        let mut back = Pool::new("back", 1000);
        let record = RecordSize::from_shift((seed % 6) as u8).unwrap();
        source.make_of("v", record);
        let mut model = Content::new();
        let mut before: Vec<(String, Content)> = Vec::new();
        for round in 1..=5 {
            change(&mut rng, &source, &mut model, round);
            let name = format!("s{round}");
            source.snap("v", &name);
            let sent = before.last().filter(|_| rng.below(4) > 0).cloned();
            if sent.is_none() && round > 1 {
                // Receive a full stream into a new volume.
                let copy = format!("copy{round}");
                back.receive(&copy, &source.whole("v", &name)).unwrap();
                assert_eq!(back.shown(&copy, &name), model, "seed {seed} {name}");
            }
            let from = before.last().map(|(name, _)| SendFrom::Snapshot(id("v", name)));
            let mut how = SendSpec { from, ..spec("v", &name) };
            let mut cuts = rng.below(4);
            loop {
                let mut bytes = source.send(&how).unwrap();
                let cut = cuts > 0;
                cuts = cuts.saturating_sub(1);
                if cut {
                    bytes.truncate(rng.below(bytes.len() as u64) as usize);
                }
                match back.receive("w", &bytes) {
                    Ok(received) => {
                        assert!(!cut && received.snapshot == name);
                        break;
                    }
                    Err(DatasetError::CutOff { token, .. }) => {
                        assert!(cut, "seed {seed}");
                        how = SendSpec { from: None, resume: Some(token), ..how };
                    }
                    // The stream was cut before the end of its begin frame.
                    Err(DatasetError::Stream { error, .. }) => assert!(cut && error.is_cut()),
                    Err(other) => panic!("seed {seed}: {other}"),
                }
                if rng.below(2) == 0 {
                    back.reopen();
                    if back.engine.volume("w").is_ok_and(|w| w.receiving().is_some()) {
                        let token = back.token("w");
                        how = SendSpec { from: None, resume: Some(token), ..how };
                    }
                }
            }
            before.push((name, model.clone()));
            for (name, content) in &before {
                let digests = |pool: &Pool, volume: &str| {
                    now(pool.engine.digest(&id(volume, name), 0, u64::MAX)).unwrap()
                };
                assert_eq!(digests(&source, "v"), digests(&back, "w"), "seed {seed} {name}");
                assert_eq!(back.shown("w", name), *content, "seed {seed} {name}");
                assert_eq!(source.shown("v", name), *content, "seed {seed} {name}");
            }
            let volume = back.engine.volume("w").unwrap();
            assert_eq!(content(&volume), model, "seed {seed}");
            assert_eq!(volume.size_bytes(), source.engine.volume("v").unwrap().size_bytes());
            assert_eq!(volume.record_size(), record);
        }
        let guids = |pool: &Pool, volume: &str| -> Vec<(String, u64, u64)> {
            let all = now(pool.engine.snapshots(volume)).unwrap();
            all.into_iter().map(|s| (s.name, s.guid, s.created_unix_ms)).collect()
        };
        assert_eq!(guids(&source, "v"), guids(&back, "w"));
        source.check();
        back.check();
    }
}

#[test]
fn refused_stream_leaves_no_partial_data() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..400, 1);
    source.snap("v", "a");
    let first = model.clone();
    let whole = source.whole("v", "a");
    let mut damaged = whole.clone();
    let at = whole.len() * 2 / 3;
    damaged[at] ^= 1;
    let error = back.receive("w", &damaged).unwrap_err();
    assert!(matches!(error, DatasetError::Stream { .. }) && kind(&error) == ErrorKind::Data);
    assert!(error.to_string().contains("frame"), "{error}");
    assert!(back.engine.volume("w").is_err(), "made for it, gone with it");
    back.receive("w", &whole).unwrap();
    write(&volume, &mut model, 100..350, 2);
    trim(&volume, &mut model, 0..90);
    source.snap("v", "b");
    let mut damaged = source.since("v", "a", "b");
    let at = damaged.len() - 40;
    damaged[at] ^= 1;
    back.receive("w", &damaged).unwrap_err();
    let received = back.engine.volume("w").unwrap();
    assert_eq!((content(&received), received.receiving()), (first, None));
    back.receive("w", &source.since("v", "a", "b")).unwrap();
    assert_eq!(content(&received), model);
    back.check();
}

#[test]
fn stream_is_refused_by_an_unsuitable_destination() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..200, 1);
    source.snap("v", "a");
    write(&volume, &mut model, 50..60, 2);
    source.snap("v", "b");
    let (whole, more) = (source.whole("v", "a"), source.since("v", "a", "b"));

    let error = back.receive("w", &more).unwrap_err();
    assert!(matches!(error, DatasetError::NoFrom { .. }), "nothing is there: {error}");
    back.make("w");
    let error = back.receive("w", &whole).unwrap_err();
    assert!(matches!(error, DatasetError::Taken { .. }), "{error}");
    let error = back.receive("w", &more).unwrap_err();
    assert!(matches!(error, DatasetError::NoFrom { .. }), "another volume: {error}");
    now(back.engine.destroy_volume("w", false)).unwrap();

    back.receive("w", &whole).unwrap();
    let error = back.receive("w", &whole).unwrap_err();
    assert!(matches!(error, DatasetError::SnapshotExists { .. }), "again: {error}");

    // A changed destination is refused, or rolled back on request.
    let received = back.engine.volume("w").unwrap();
    now(received.write(7 * BLOCK, &[9; BLOCK_BYTES])).unwrap();
    let error = back.receive("w", &more).unwrap_err();
    assert!(matches!(error, DatasetError::Changed { .. }), "{error}");
    // With `-F`, newer snapshots of the destination are destroyed.
    back.snap("w", "mine");
    let error = back.receive_with("w", &more, false).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Busy);
    back.receive_with("w", &more, true).unwrap();
    assert_eq!(content(&received), model);
    assert_eq!(back.engine.snapshot_names("w").unwrap(), ["a", "b"]);

    // Another snapshot of the destination already has the name of the sent snapshot.
    write(&volume, &mut model, 0..5, 3);
    source.snap("v", "c");
    back.snap("w", "c");
    let error = back.receive("w", &source.since("v", "b", "c")).unwrap_err();
    assert!(matches!(error, DatasetError::SnapshotClash { .. }), "{error}");
    // A newer snapshot with the same content does not prevent the receive.
    now(back.engine.rename_snapshot(&id("w", "c"), "mine")).unwrap();
    back.receive("w", &source.since("v", "b", "c")).unwrap();
    assert_eq!(content(&received), model);
    back.check();
}

#[test]
fn dry_run_returns_the_result_of_the_receive() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..200, 1);
    source.snap("v", "a");
    write(&volume, &mut model, 50..60, 2);
    source.snap("v", "b");
    let (whole, more) = (source.whole("v", "a"), source.since("v", "a", "b"));
    let same = |volume: &str, bytes: &[u8], roll_back| {
        let judged = back.judge(volume, bytes, roll_back);
        let done = back.receive_with(volume, bytes, roll_back);
        match (judged, done) {
            (Ok(judged), Ok(done)) => {
                assert_eq!(judged, done);
                Some(done)
            }
            (Err(judged), Err(done)) => {
                assert_eq!(judged.to_string(), done.to_string());
                None
            }
            (judged, done) => panic!("{judged:?} and then {done:?}"),
        }
    };
    assert_eq!(same("w", &more, false), None, "nothing is there");
    let made = same("w", &whole, false).unwrap();
    assert!(made.is_new && !made.rolled_back && made.counts.records == 200);
    assert_eq!(same("w", &whole, false), None, "it is there");
    // The dry run also detects damage near the end, and a truncated stream.
    let mut bad = more.clone();
    let at = bad.len() - 10;
    bad[at] ^= 1;
    let error = back.judge("w", &bad, false).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Data, "{error}");
    for end in [0, 10, more.len() / 2, more.len() - 1] {
        let error = back.judge("w", &more[..end], false).unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Data, "{error}");
    }
    let received = back.engine.volume("w").unwrap();
    write(&received, &mut Content::new(), 7..8, 9);
    assert_eq!(same("w", &more, false), None, "it was changed");
    let brought = same("w", &more, true).unwrap();
    assert!(!brought.is_new && brought.rolled_back && brought.counts.records == 10);
    assert_eq!(content(&received), model);
    // A dry run accepts the whole stream after an interrupted receive, and the receive can resume.
    trim(&volume, &mut model, 0..30);
    write(&volume, &mut model, 300..400, 3);
    source.snap("v", "c");
    let more = source.since("v", "b", "c");
    let error = back.receive("w", &more[..more.len() - 1]).unwrap_err();
    assert!(matches!(error, DatasetError::CutOff { .. }), "{error}");
    assert_eq!(back.judge("w", &more, false).unwrap().counts.records, 100);
    assert!(same("w", &more, false).is_some());
    assert_eq!(content(&received), model);
    back.check();
}

#[test]
fn volume_cannot_be_changed_while_it_receives() {
    let (source, mut back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..200, 1);
    source.snap("v", "a");
    let first = model.clone();
    back.receive("w", &source.whole("v", "a")).unwrap();
    write(&volume, &mut model, 0..640, 2);
    source.snap("v", "b");
    let more = source.since("v", "a", "b");
    let error = back.receive("w", &more[..more.len() / 2]).unwrap_err();
    assert!(matches!(error, DatasetError::CutOff { .. }), "{error}");
    back.reopen();
    let engine = Arc::clone(&back.engine);
    let received = engine.volume("w").unwrap();
    assert_eq!(received.receiving().as_deref(), Some("b"));
    let busy = |done: Result<(), DatasetError>| {
        let error = done.unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Busy, "{error}");
    };
    busy(now(received.write(0, &[1; BLOCK_BYTES])));
    busy(now(received.write(5, &[1; 10])));
    busy(now(received.zero(0, BLOCK)));
    busy(now(engine.resize_volume("w", 2 * BLOCK)).map(drop));
    busy(now(engine.create_snapshots(&[id("w", "mine")])).map(drop));
    busy(now(engine.destroy_snapshots("w", &["a".to_owned()])).map(drop));
    busy(now(engine.rollback(&id("w", "a"), true)).map(drop));
    busy(back.receive("w", &source.whole("v", "a")).map(drop));
    assert_eq!(back.shown("w", "a"), first);
    // A token is valid only for its own stream, and a stream with a gap is refused.
    let token = back.token("w");
    assert!(token.next_record > 0);
    let ahead = ResumeToken { next_record: token.next_record + 1, ..token };
    let bytes = source.send(&SendSpec { resume: Some(ahead), ..spec("v", "b") }).unwrap();
    let error = back.receive("w", &bytes).unwrap_err();
    assert!(error.to_string().contains("--token"), "{error}");
    let other = source.send(&SendSpec { resume: Some(token), ..spec("v", "a") });
    assert_eq!(kind(&other.unwrap_err()), ErrorKind::Invalid);

    now(engine.abort_receive("w")).unwrap();
    assert_eq!((content(&received), received.receiving()), (first, None));
    assert_eq!(kind(&now(engine.abort_receive("w")).unwrap_err()), ErrorKind::Invalid);
    back.check();
    back.receive("w", &more).unwrap();
    assert_eq!(content(&received), model);
    back.check();
}

// Regression: a server with the peer secret began to send to an unused name, and later changed a
// volume that users had created with that name. The server also used the users' snapshots as
// origins of its clones.
#[test]
fn stream_changes_only_volumes_that_its_server_created() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let (volume, mut content) = (source.make("v"), Content::new());
    source.snap("v", "a");
    write(&volume, &mut content, 3..9, 7);
    source.snap("v", "b");
    let (whole, rest) = (source.whole("v", "a"), source.since("v", "a", "b"));
    let refused = |done: Result<Received, DatasetError>, name: &str| {
        let error = done.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        assert!(error.to_string().ends_with(&format!("192.0.2.1 {name}")), "{error}");
    };
    back.receive("people", &whole).unwrap();
    refused(back.receive_from(1, "people", &rest), "back/people");
    back.receive("half", &whole[..whole.len() - 40]).unwrap_err();
    refused(back.receive_from(1, "half", &whole), "back/half");
    // The clone's origin `people@a` was received by a user, so a server may not receive a clone of
    // it.
    now(source.engine.clone_snapshot(&id("v", "a"), "c")).unwrap();
    source.snap("c", "new");
    let from = Some(SendFrom::Snapshot(id("v", "a")));
    let clone = source.send(&SendSpec { from, ..spec("c", "new") }).unwrap();
    refused(back.receive_from(1, "c", &clone), "back/people@a");

    // The server updates its own volume. A server at another address may not update the volume
    // until users change the property.
    back.receive_from(1, "own", &whole).unwrap();
    let error = back.receive_from(2, "own", &rest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    back.receive_from(1, "own", &rest).unwrap();
    back.receive_from(1, "c", &clone).unwrap();
    let target = PropertyTarget::Volume("own".to_owned());
    let both = PropertyChange::User(FROM.to_owned(), Some("192.0.2.9, 192.0.2.2".to_owned()));
    now(back.engine.change_properties(&[target], &[both])).unwrap();
    source.snap("v", "d");
    let rest = source.since("v", "b", "d");
    refused(back.receive_from(1, "own", &rest), "back/own");
    back.receive_from(2, "own", &rest).unwrap();
    back.check();
}

#[test]
fn incremental_stream_of_a_clone_creates_a_clone() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 1000));
    let volume = source.make("v");
    let mut model = Content::new();
    write(&volume, &mut model, 0..600, 1);
    source.snap("v", "a");
    now(source.engine.clone_snapshot(&id("v", "a"), "c")).unwrap();
    let clone = source.engine.volume("c").unwrap();
    let mut cloned = model.clone();
    write(&clone, &mut cloned, 10..20, 2);
    trim(&clone, &mut cloned, 200..300);
    source.snap("c", "x");
    let from = Some(SendFrom::Snapshot(id("v", "a")));
    let bytes = source.send(&SendSpec { from, ..spec("c", "x") }).unwrap();
    assert!(bytes.len() < 100_000, "{}", bytes.len());
    back.receive("v", &source.whole("v", "a")).unwrap();
    let error = back.receive("c", &bytes[..bytes.len() - 1]).unwrap_err();
    assert!(matches!(error, DatasetError::CutOff { .. }), "{error}");
    assert_eq!(kind(&now(back.engine.destroy_volume("v", true)).unwrap_err()), ErrorKind::Busy);
    now(back.engine.abort_receive("c")).unwrap();
    assert!(back.engine.volume("c").is_err());
    back.receive("c", &bytes).unwrap();
    assert_eq!(back.shown("c", "x"), cloned);
    let received = back.engine.volume("c").unwrap();
    assert_eq!(back.engine.origin_of(&received), Some(id("v", "a")));
    // An unrelated snapshot cannot be the base of a stream.
    source.snap("v", "b");
    let from = Some(SendFrom::Snapshot(id("v", "b")));
    let error = source.send(&SendSpec { from, ..spec("c", "x") }).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Invalid, "{error}");
    let from = Some(SendFrom::Snapshot(id("v", "b")));
    let error = source.send(&SendSpec { from, ..spec("v", "a") }).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Invalid, "{error}");
    back.check();
    source.check();
}

#[test]
fn incremental_stream_is_little_larger_than_the_changes() {
    let source = Pool::new("tank", 0);
    let volume = source.make("v");
    let mut model = Content::new();
    // The content is incompressible.
    write(&volume, &mut model, 0..BLOCKS, 3);
    source.snap("v", "a");
    source.snap("v", "b");
    assert!(source.since("v", "a", "b").len() < 300, "nothing changed");
    write(&volume, &mut model, 64..70, 6);
    source.snap("v", "c");
    let bytes = source.since("v", "a", "c").len();
    assert!((6 * BLOCK_BYTES - 3000..6 * BLOCK_BYTES + 600).contains(&bytes), "{bytes}");
}

#[test]
fn receive_without_space_keeps_its_progress_until_aborted() {
    let source = Pool::new("tank", 0);
    let back = Pool::of_bytes("back", 1000, 64 << 20);
    let size_bytes = 64 << 20;
    let spec = VolumeSpec { name: "v".to_owned(), size_bytes, compression: Compression::Off };
    now(source.engine.create_volume(&spec)).unwrap();
    let volume = source.engine.volume("v").unwrap();
    for at in 0..12_000 {
        let mut data = [0; BLOCK_BYTES];
        let mut rng = Rng(at + 1);
        data.as_chunks_mut::<8>().0.iter_mut().for_each(|w| *w = rng.below(u64::MAX).to_le_bytes());
        committing(&source.engine, volume.write(at * BLOCK, &data)).unwrap();
    }
    source.snap("v", "a");
    let bytes = source.whole("v", "a");
    let into = ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
    let mut receiver = Receiver::new(Arc::clone(&back.engine), into);
    let mut told = None;
    for part in bytes.chunks(1 << 20) {
        if let Err(error) = committing(&back.engine, receiver.push(part)) {
            told = Some(error);
            break;
        }
    }
    drop(receiver);
    assert_eq!(kind(&told.expect("no room for it")), ErrorKind::NoSpace);
    assert!(back.token("w").next_record > 1000);
    now(back.engine.abort_receive("w")).unwrap();
    assert!(back.engine.volume("w").is_err());
    back.check();
}

/// Trimmed blocks stay in the previous snapshot, and the new nodes count towards the quota.
#[test]
fn received_trims_stay_below_the_quota() {
    let (source, back) = (Pool::new("tank", 0), Pool::new("back", 100));
    let volume = source.make("v");
    let mut content = Content::new();
    write(&volume, &mut content, 0..BLOCKS, 1);
    source.snap("v", "a");
    for block in [5, 300, 599] {
        trim(&volume, &mut content, block..block + 1);
    }
    source.snap("v", "b");
    back.receive("w", &source.whole("v", "a")).unwrap();
    let used = || back.engine.volume("w").unwrap().info().space.used;
    let quota = used() + 100;
    let target = PropertyTarget::Volume("w".to_owned());
    let changes = [PropertyChange::set(QUOTA, quota)];
    now(back.engine.change_properties(&[target], &changes)).unwrap();
    let difference = source.since("v", "a", "b");
    let error = committing(&back.engine, async {
        let spec =
            ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
        let mut receiver = Receiver::new(Arc::clone(&back.engine), spec);
        receiver.push(&difference).await
    });
    assert!(matches!(error, Err(DatasetError::Quota { .. })), "{error:?}");
    back.check();
    assert!(used() <= quota, "{} of {quota}", used());
}
