//! Faults the engine can be told to have, so that the tests can prove they would notice.
//!
//! Not here: anything a user can reach; only the simulator sets one.
//!
//! Invariant: `PlantedBug::None` is what every other caller passes, and costs one compare.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// No fault.
    #[default]
    None,
    /// The flush before the uberblock is left out.
    SkipCommitFlush,
    /// A log batch is written without waiting for it to be durable.
    AckBeforeLogDurable,
    /// Dead segments are reused at once.
    ReuseAtOnce,
    /// Remap tables lead 64 bytes beside the block.
    RemapOffByOne,
    /// A remap table that changed leaves RAM before it is stored.
    RemapTableLeavesEarly,
    /// The place of a cleaned segment is reused at once.
    FreeTooEarly,
    /// A block's checksum is not compared on read.
    SkipChecksum,
    /// Replay leaves the last batch out.
    DropLastBatch,
    /// Parity of a raidz row is computed with its last data strip in place of the first.
    WrongParityStrip,
    /// A scrub makes parity anew while what was freed may still come back.
    ParityAnewTooEarly,
    /// An opening writes before it is the newest of the pool.
    OpensUnclaimed,
    /// An import takes a leg that missed writes for one that did not.
    StaleLegTrusted,
    /// An import takes a leg for up to date whose own uberblocks end earlier than the pool's.
    OldLegTrusted,
    /// A vdev leaves while the last uberblocks need what stood on it.
    VdevLeavesEarly,
    /// The log moves though batches in its old place are needed.
    LogMovesEarly,
    /// A resilver leaves out a part of every segment.
    ResilverSkipsRange,
    /// What was born in the last txg of a snapshot is freed with its last place in the volume.
    HeldOffByOne,
    /// A destroyed snapshot's blocks are freed though the next version has them too.
    SharedFreed,
    /// What only snapshots lead to does not count as alive.
    SnapshotsNotAsked,
    /// The snapshot a volume was rolled back to may go before what the rollback left behind.
    OldestFreedFirst,
    /// How far a destroyed snapshot is freed is forgotten.
    FreedAgain,
    /// A reference that goes is counted twice.
    ReferenceDroppedTwice,
    /// Whether a shared block is alive is asked of its first owner alone.
    SharedNotAsked,
    /// Dedupe still finds a freed block by its content.
    HintOutlivesBlock,
    /// Dedupe still finds a block without a good copy by its content.
    HintOutlivesDamage,
    /// A stream that goes on by a token leaves out the first leaf behind the cut.
    ResumeSkips,
    /// A difference between two snapshots leaves out what was trimmed.
    TrimsNotSent,
    /// The rest of a record of which a part is replayed is taken for zeros.
    ReplayForgetsRest,
    /// Replay drops logged parts of records that cannot be read.
    ReplayDropsParts,
    /// A commit frees the record that a partial record replaces.
    ReplacedFreed,
    /// What the rest of a record was before another txg is taken for what it is.
    RestOutlivesTxg,
    /// What a range clone brings does not count for the quota.
    ClonesNotCounted,
    /// Range clones of one txg are applied in the order in which they were asked for.
    ClonesUnsorted,
    /// A commit that cannot read a tree node of a volume fails.
    DamageFailsCommit,
    /// A lost node is freed when damage markers take its place.
    LostNodeFreed,
    /// Import opens disks whose history lacks the newest txg that the caller has seen.
    OldDisksTrusted,
    /// Unreadable nodes of the pool's own trees are not rewritten from RAM.
    LostRootStays,
    /// An import gives up datasets and remap tables that it cannot read.
    UnreadGivenUp,
    /// A recount takes blocks whose owners cannot be asked for dead.
    UnknownTakenForDead,
    /// A change of a part of a record joins the txg of a clone, with the rest as it was before.
    PartsBesideClones,
    /// A write that begins or ends within a block is several changes.
    WritesCut,
    /// A repair writes back a leg's unverified bytes for the neighbours of a bad block.
    NeighboursUnverified,
    /// A server that was paused writes on without reading its owner slot.
    OwnerNotChecked,
}
