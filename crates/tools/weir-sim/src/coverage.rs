//! What scenarios met: proof that the rare paths are run at all.
//!
//! Not here: whether the engine did right (check).
//!
//! Invariants:
//! - counting decides nothing: a run is the same whether anybody looks or not;
//! - counts belong to the thread, as a scenario does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Lines of what the engine said that are kept.
const LINES_MAX: usize = 200;

/// Something a scenario met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// A client was told that the pool is full, and went on.
    NoSpace,
    /// The root stream was rewritten to get rid of old root segments.
    RootRewrite,
    /// A volume was made under load.
    VolumeCreated,
    /// A volume was destroyed under load.
    VolumeDestroyed,
    /// A volume grew under load.
    VolumeGrown,
    /// A volume shrank under load.
    VolumeShrunk,
    /// A shrink was refused because data was in the way.
    ShrinkRefused,
    /// A snapshot was taken under load.
    SnapshotTaken,
    /// A snapshot was refused: it would have taken what a volume was promised.
    SnapshotRefused,
    /// A snapshot was destroyed.
    SnapshotDestroyed,
    /// A volume was made from a snapshot.
    VolumeCloned,
    /// A volume became what it was at a snapshot.
    RolledBack,
    /// A clone took over its origin.
    Promoted,
    /// A range was made a clone of another.
    RangeCloned,
    /// Several ranges of a volume were made clones at the same time.
    RangesTogether,
    /// A volume was written while a range of it was made a clone.
    WrittenBesideClone,
    /// A difference between two snapshots was sent.
    DifferenceSent,
    /// A stream was received into another volume.
    StreamReceived,
    /// A stream was cut before anything of its volume was there.
    StreamCut,
    /// A stream went on behind its first record.
    StreamResumed,
    /// A stream that was cut was given up.
    StreamGivenUp,
    /// A volume with records of several blocks was made.
    RecordsOfSeveral,
    /// A block was found to be there already.
    Deduped,
    /// Something stayed because a clone came from it.
    OriginKept,
    /// A recovery found something that was partly freed.
    PartlyFreed,
    /// Records of the intent log were replayed.
    LogReplayed,
    /// The log ring began at its start again.
    LogWrapped,
    /// A flush found the log full and waited for a commit.
    LogFull,
    /// A log queue grew so long that it was given up for a commit.
    QueueOverflow,
    /// Dead segments were old enough to be used again.
    SegmentsReleased,
    /// Segments were cleaned: what lives of them moved.
    SegmentsCleaned,
    /// A segment could not be cleaned.
    CleaningRefused,
    /// A bad copy was repaired from a good one.
    Healed,
    /// A block of a raidz vdev was computed from the other disks.
    Reconstructed,
    /// A disk took another's place.
    LegReplaced,
    /// A leg failed and was not used any more.
    LegFaulted,
    /// The pool was suspended.
    Suspended,
    /// A recovery found a leg that missed writes.
    LegStale,
    /// A recovery found a leg in an earlier state than its last one.
    OldLeg,
    /// After [`Self::OldLeg`], the leg was online and the other legs were removed.
    OldLegAlone,
    /// All disks were in an earlier state, and the import knew a newer txg.
    OldDisksRefused,
    /// A recovery ran without one leg.
    LegAbsent,
    /// A recovery was itself cut.
    RecoveryCut,
    /// Clients continued after a recovery, and the power was cut again.
    SecondGeneration,
    /// A pool on one disk that lied was refused, or a block of it could not be read.
    DamageDetected,
    /// A scrub saw everything.
    ScrubDone,
    /// A stale leg was made up to date.
    ResilverDone,
    /// A resilver could not make its leg up to date, and left it stale.
    ResilverFailed,
    /// A leg was taken out of use by a person.
    LegOffline,
    /// A leg was brought back while the pool was in use.
    LegBack,
    /// A vdev joined the pool.
    VdevAdded,
    /// A vdev began to leave.
    VdevLeaving,
    /// A vdev that was leaving stays.
    VdevStays,
    /// A vdev was empty, and left.
    VdevRemoved,
    /// The intent log moved to another vdev.
    LogMoved,
    /// A scan's root was older than its segments; it took a newer one.
    ScanOutlived,
}

impl Met {
    /// Every kind.
    pub const ALL: [Self; 56] = [
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
        Self::ScanOutlived,
    ];

    /// What the engine says when it does this.
    fn of_message(message: &str) -> Option<Self> {
        Some(match message {
            "log replayed" => Self::LogReplayed,
            "freed a part of what was destroyed" => Self::PartlyFreed,
            "log ring wraps" => Self::LogWrapped,
            "log full" => Self::LogFull,
            "log queue given up" => Self::QueueOverflow,
            "dead segments released" => Self::SegmentsReleased,
            "segments cleaned" => Self::SegmentsCleaned,
            "segment cannot be cleaned" => Self::CleaningRefused,
            "bad copy repaired" => Self::Healed,
            "row reconstructed" => Self::Reconstructed,
            "disk replaced" => Self::LegReplaced,
            "disk faulted: it is not used any more" => Self::LegFaulted,
            "pool suspended" => Self::Suspended,
            "scrub done" => Self::ScrubDone,
            "resilver done" => Self::ResilverDone,
            "resilver not complete: the disk stays stale" => Self::ResilverFailed,
            "disk taken offline" => Self::LegOffline,
            "disk in use again" => Self::LegBack,
            "vdev added" => Self::VdevAdded,
            "vdev is leaving" => Self::VdevLeaving,
            "vdev stays" => Self::VdevStays,
            "vdev removed" => Self::VdevRemoved,
            "intent log moved" => Self::LogMoved,
            "scan takes a newer root" => Self::ScanOutlived,
            _ => return None,
        })
    }
}

/// How often each [`Met`] was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Met::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Met::ALL.len()])
    }
}

impl Coverage {
    /// The count of one.
    pub fn count(&self, met: Met) -> u64 {
        self.0[met as usize]
    }

    /// Adds one for each that another coverage met at all.
    pub fn add_met(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += u64::from(count > 0));
    }
}

thread_local! {
    static COUNTS: RefCell<Coverage> = RefCell::default();
    /// What the engine said last, while somebody wants to know.
    static SAID: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Keeps what the engine says in this thread from now on, the last lines of it.
pub fn listen() {
    SAID.set(Some(VecDeque::new()));
}

/// What the engine said last, if [`listen`] was called.
pub fn said() -> Vec<String> {
    SAID.take().into_iter().flatten().collect()
}

/// Counts one.
pub(crate) fn note(met: Met) {
    COUNTS.with_borrow_mut(|counts| counts.0[met as usize] += 1);
}

/// Runs `scenario` and returns its coverage. Calls nest: an outer one counts nothing of an inner.
pub(crate) fn covered<T>(scenario: impl FnOnce() -> T) -> (T, Coverage) {
    let outer = COUNTS.take();
    let done = tracing::subscriber::with_default(Listener, scenario);
    (done, COUNTS.replace(outer))
}

/// Counts what the engine says.
struct Listener;

struct Message(Option<Met>);

/// One event as a line.
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
            self.0 = Met::of_message(&format!("{value:?}"));
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
