//! Coverage counters: show that scenarios reach the rare paths.
//!
//! The module `check` verifies the results.
//!
//! Invariants:
//! - counters never influence a run: a seed replays identically with or without them;
//! - counters are thread-local, because a scenario runs on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Maximum number of log lines of the engine that a thread keeps.
const LINES_MAX: usize = 200;

/// Coverage point: an event that a scenario can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoveragePoint {
    /// A client's write failed because the pool was full, and the client continued.
    NoSpace,
    /// A commit rewrote the metadata trees, so that their old segments became free.
    RootRewrite,
    /// A volume was created under load.
    VolumeCreated,
    /// A volume was destroyed under load.
    VolumeDestroyed,
    /// A volume grew under load.
    VolumeGrown,
    /// A volume shrank under load.
    VolumeShrunk,
    /// A shrink was refused because the volume holds data beyond the new size.
    ShrinkRefused,
    /// A snapshot was taken under load.
    SnapshotTaken,
    /// A snapshot was refused because it would have used space reserved for a volume.
    SnapshotRefused,
    /// A snapshot was destroyed.
    SnapshotDestroyed,
    /// A volume was cloned from a snapshot.
    VolumeCloned,
    /// A volume was rolled back to a snapshot.
    RolledBack,
    /// A clone was promoted in place of its origin.
    Promoted,
    /// A range of blocks was cloned to another range.
    RangeCloned,
    /// Several ranges of a volume were cloned concurrently.
    RangesTogether,
    /// A volume was written while a range was cloned into it.
    WrittenBesideClone,
    /// An incremental stream between two snapshots was sent.
    DifferenceSent,
    /// A stream was received completely into another volume.
    StreamReceived,
    /// A stream was interrupted before its first record arrived, and was sent from the beginning.
    StreamCut,
    /// An interrupted stream was resumed after its first record.
    StreamResumed,
    /// An interrupted receive was aborted.
    StreamGivenUp,
    /// A stream was resumed after a power cut had interrupted it.
    StreamOutlivedCut,
    /// A volume with records of several blocks was created.
    RecordsOfSeveral,
    /// Dedupe found a block that the pool already holds.
    Deduped,
    /// A volume or snapshot was not destroyed because a clone depends on it.
    OriginKept,
    /// A recovery found a partly freed dataset.
    PartlyFreed,
    /// Records of the intent log were replayed.
    LogReplayed,
    /// The log ring wrapped to its start.
    LogWrapped,
    /// A flush found the log full and waited for a commit.
    LogFull,
    /// The log queue of a volume exceeded its size limit: the volume dropped the queue, and the
    /// next flush waited for a commit.
    QueueOverflow,
    /// Dead segments became old enough to be reused.
    SegmentsReleased,
    /// The cleaner moved the live blocks of segments.
    SegmentsCleaned,
    /// The cleaner could not clean a segment.
    CleaningRefused,
    /// The pool repaired a bad copy from a good copy.
    Healed,
    /// The pool reconstructed a block of a raidz vdev from the other disks.
    Reconstructed,
    /// A disk was replaced.
    LegReplaced,
    /// The pool faulted a leg and stopped using it.
    LegFaulted,
    /// The pool was suspended.
    Suspended,
    /// A recovery found a leg that lacks writes.
    LegStale,
    /// A recovery found a leg whose disk was restored to an earlier state.
    OldLeg,
    /// The leg of [`Self::OldLeg`] came online, and the pool was opened without the other legs.
    OldLegAlone,
    /// An import that knew a newer txg had to refuse disks in an earlier state.
    OldDisksRefused,
    /// An open pool refused a disk that had been imported alone.
    DivergedDiskRefused,
    /// A recovery ran without one leg.
    LegAbsent,
    /// The power was cut during a recovery.
    RecoveryCut,
    /// Clients continued after a recovery, and the power was cut again.
    SecondGeneration,
    /// A pool on a single faulty disk could not be imported, or a block of the pool was unreadable.
    DamageDetected,
    /// A scrub finished.
    ScrubDone,
    /// A resilver brought a stale leg up to date.
    ResilverDone,
    /// A resilver failed and left its leg stale.
    ResilverFailed,
    /// An operator took a leg offline.
    LegOffline,
    /// A leg was brought online while the pool was open.
    LegBack,
    /// A vdev was added.
    VdevAdded,
    /// The evacuation of a vdev began.
    VdevLeaving,
    /// The removal of a vdev was cancelled.
    VdevStays,
    /// A vdev was empty and was removed.
    VdevRemoved,
    /// The intent log moved to another vdev.
    LogMoved,
    /// Changes of a dataset with many objects were synced.
    ObjectsSynced,
    /// A log record of a dataset with many objects was replayed.
    ObjectsReplayed,
    /// A recovery found that a dataset with many objects lost changes made after its last sync.
    ObjectsCut,
    /// A stream was received completely into another dataset with many objects.
    ObjectsReceived,
    /// An incremental stream between two snapshots of objects was sent.
    ObjectsDifferenceSent,
    /// As [`Self::StreamCut`], for a stream of objects.
    ObjectsStreamCut,
    /// As [`Self::StreamResumed`], for a stream of objects.
    ObjectsStreamResumed,
    /// As [`Self::StreamGivenUp`], for a stream of objects.
    ObjectsStreamGivenUp,
    /// As [`Self::StreamOutlivedCut`], for a stream of objects.
    ObjectsStreamOutlivedCut,
    /// A clone of a dataset with many objects was promoted.
    ObjectsPromoted,
    /// The pool freed a segment that a scan still had to read, so the scan took a newer root.
    ScanOutlived,
}

impl CoveragePoint {
    /// All coverage points.
    pub const ALL: [Self; 68] = [
        Self::NoSpace,
        Self::RootRewrite,
        Self::VolumeCreated,
        Self::VolumeDestroyed,
        Self::VolumeGrown,
        Self::VolumeShrunk,
        Self::ShrinkRefused,
        Self::SnapshotTaken,
        Self::SnapshotRefused,
        Self::SnapshotDestroyed,
        Self::VolumeCloned,
        Self::RolledBack,
        Self::Promoted,
        Self::RangeCloned,
        Self::RangesTogether,
        Self::WrittenBesideClone,
        Self::DifferenceSent,
        Self::StreamReceived,
        Self::StreamCut,
        Self::StreamResumed,
        Self::StreamGivenUp,
        Self::StreamOutlivedCut,
        Self::RecordsOfSeveral,
        Self::Deduped,
        Self::OriginKept,
        Self::PartlyFreed,
        Self::LogReplayed,
        Self::LogWrapped,
        Self::LogFull,
        Self::QueueOverflow,
        Self::SegmentsReleased,
        Self::SegmentsCleaned,
        Self::CleaningRefused,
        Self::Healed,
        Self::Reconstructed,
        Self::LegReplaced,
        Self::LegFaulted,
        Self::Suspended,
        Self::LegStale,
        Self::OldLeg,
        Self::OldLegAlone,
        Self::OldDisksRefused,
        Self::DivergedDiskRefused,
        Self::LegAbsent,
        Self::RecoveryCut,
        Self::SecondGeneration,
        Self::DamageDetected,
        Self::ScrubDone,
        Self::ResilverDone,
        Self::ResilverFailed,
        Self::LegOffline,
        Self::LegBack,
        Self::VdevAdded,
        Self::VdevLeaving,
        Self::VdevStays,
        Self::VdevRemoved,
        Self::LogMoved,
        Self::ObjectsSynced,
        Self::ObjectsReplayed,
        Self::ObjectsCut,
        Self::ObjectsReceived,
        Self::ObjectsDifferenceSent,
        Self::ObjectsStreamCut,
        Self::ObjectsStreamResumed,
        Self::ObjectsStreamGivenUp,
        Self::ObjectsStreamOutlivedCut,
        Self::ObjectsPromoted,
        Self::ScanOutlived,
    ];

    /// Coverage point that a log message of the engine marks.
    fn of_message(message: &str) -> Option<Self> {
        Some(match message {
            "log replayed" => Self::LogReplayed,
            "freed a part of a destroyed dataset" => Self::PartlyFreed,
            "log ring wraps" => Self::LogWrapped,
            "log full" => Self::LogFull,
            "log queue dropped" => Self::QueueOverflow,
            "dead segments released" => Self::SegmentsReleased,
            "segments cleaned" => Self::SegmentsCleaned,
            "segment cannot be cleaned" => Self::CleaningRefused,
            "bad copy repaired" => Self::Healed,
            "row reconstructed" => Self::Reconstructed,
            "disk replaced" => Self::LegReplaced,
            "disk faulted: I/O to it is stopped" => Self::LegFaulted,
            "pool suspended" => Self::Suspended,
            "scrub done" => Self::ScrubDone,
            "resilver done" => Self::ResilverDone,
            "resilver not complete: the disk stays stale" => Self::ResilverFailed,
            "disk taken offline" => Self::LegOffline,
            "disk is online again" => Self::LegBack,
            "vdev added" => Self::VdevAdded,
            "vdev is evacuating" => Self::VdevLeaving,
            "vdev removal cancelled" => Self::VdevStays,
            "vdev removed" => Self::VdevRemoved,
            "intent log moved" => Self::LogMoved,
            "scan takes a newer root" => Self::ScanOutlived,
            _ => return None,
        })
    }
}

/// Number of times that each coverage point ([`CoveragePoint`]) was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; CoveragePoint::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; CoveragePoint::ALL.len()])
    }
}

impl Coverage {
    /// Count of one coverage point.
    pub fn count(&self, met: CoveragePoint) -> u64 {
        self.0[met as usize]
    }

    /// Adds 1 to each coverage point that `other` reached.
    pub fn add_met(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += u64::from(count > 0));
    }
}

thread_local! {
    static COUNTS: RefCell<Coverage> = RefCell::default();
    /// Last log lines of the engine on this thread, if [`listen`] was called.
    static SAID: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Starts to keep the last log lines of the engine on this thread.
pub fn listen() {
    SAID.set(Some(VecDeque::new()));
}

/// Returns the kept log lines and stops keeping them; empty without [`listen`].
pub fn said() -> Vec<String> {
    SAID.take().into_iter().flatten().collect()
}

/// Counts one event.
pub(crate) fn note(met: CoveragePoint) {
    COUNTS.with_borrow_mut(|counts| counts.0[met as usize] += 1);
}

/// Runs `scenario` and returns its coverage. If such calls are nested, the coverage of the outer
/// call excludes the counts of the inner call.
pub(crate) fn covered<T>(scenario: impl FnOnce() -> T) -> (T, Coverage) {
    let outer = COUNTS.take();
    let done = tracing::subscriber::with_default(Listener, scenario);
    (done, COUNTS.replace(outer))
}

/// Subscriber that counts the log messages of the engine.
struct Listener;

struct Message(Option<CoveragePoint>);

/// Text of one log event.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        text.expect("a string takes every line");
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = CoveragePoint::of_message(&format!("{value:?}"));
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("weir_")
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(None);
        event.record(&mut message);
        message.0.into_iter().for_each(note);
        SAID.with_borrow_mut(|said| {
            let Some(said) = said else { return };
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            said.push_back(line.0);
            if said.len() > LINES_MAX {
                said.pop_front();
            }
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
