//! Planted bugs: deliberate faults of the engine, which prove that the tests detect them.
//!
//! Not here: faults that a user can switch on; the simulator alone sets a planted bug.
//!
//! Invariant: every other caller passes `PlantedBug::None`, which costs one comparison.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// No fault.
    #[default]
    None,
    /// The commit skips the flush before the uberblock.
    SkipCommitFlush,
    /// The intent log acknowledges a batch before it is durable.
    AckBeforeLogDurable,
    /// The pool reuses dead segments at once.
    ReuseAtOnce,
    /// Remap tables give an address 64 bytes before the block.
    RemapOffByOne,
    /// A changed remap table is evicted from RAM before a commit stores it.
    RemapTableLeavesEarly,
    /// The physical space of a cleaned segment is reused at once.
    FreeTooEarly,
    /// Reads do not verify block checksums.
    SkipChecksum,
    /// Log replay skips the last batch of the log.
    DropLastBatch,
    /// The parity of a raidz row is computed with the last data strip in place of the first.
    WrongParityStrip,
    /// A scrub rewrites the parity of a row while an import could still go back to a txg that
    /// references blocks of the row which are freed now.
    ParityAnewTooEarly,
    /// An import writes to the disks before it has claimed the pool.
    OpensUnclaimed,
    /// An import treats a leg that missed writes as up to date.
    StaleLegTrusted,
    /// An import treats a leg as up to date although the leg's newest uberblock is older than the
    /// pool's.
    OldLegTrusted,
    /// A vdev is removed while one of the last uberblocks still refers to segments on it.
    VdevLeavesEarly,
    /// The intent log moves to another vdev while replay still needs batches in the old log region.
    LogMovesEarly,
    /// A resilver skips a part of every segment.
    ResilverSkipsRange,
    /// Blocks born in the last txg of a snapshot are freed when the volume stops referencing them.
    HeldOffByOne,
    /// Blocks of a destroyed snapshot are freed although the next version refers to them.
    SharedFreed,
    /// The cleaner treats blocks that only snapshots refer to as dead.
    SnapshotsNotAsked,
    /// Destroyed snapshots are freed oldest first. The snapshot to which a rollback returned can
    /// then be freed before the blocks that the rollback dropped.
    OldestFreedFirst,
    /// A commit does not store the block index up to which a destroyed snapshot is freed, so the
    /// next txg frees its blocks again.
    FreedAgain,
    /// Dropping one reference lowers the reference count by two.
    ReferenceDroppedTwice,
    /// The cleaner checks only the first owner of a shared block.
    SharedNotAsked,
    /// The dedupe index keeps the entry of a freed block.
    HintOutlivesBlock,
    /// The dedupe index keeps the entry of a block without a good copy.
    HintOutlivesDamage,
    /// A send that resumes by token skips the first leaf after the interruption.
    ResumeSkips,
    /// An incremental send leaves out trimmed ranges.
    TrimsNotSent,
    /// Replay of a partial write fills the rest of the record with zeros.
    ReplayForgetsRest,
    /// Replay drops partial writes to unreadable records.
    ReplayDropsParts,
    /// A commit frees the record that a partial record replaces, although reads of the record's
    /// other blocks need it.
    ReplacedFreed,
    /// A read-modify-write uses old contents that it read before another txg was committed.
    RestOutlivesTxg,
    /// The quota does not count blocks that a block clone adds.
    ClonesNotCounted,
    /// Block clones of one txg are applied in request order, not sorted by block.
    ClonesUnsorted,
    /// A commit fails if it cannot read a tree node of a volume.
    DamageFailsCommit,
    /// A lost node is freed when damage markers replace it.
    LostNodeFreed,
    /// An import accepts disks whose history lacks the newest txg that the caller has seen.
    OldDisksTrusted,
    /// A disk joins an open pool although it has txgs that the pool lacks.
    DivergedDisksTrusted,
    /// The intent log acknowledges a batch that a leg missed, although no uberblock lists that leg
    /// as stale.
    UnlistedLegsIgnored,
    /// Unreadable metadata nodes are not rewritten from RAM.
    LostRootStays,
    /// An import abandons datasets and remap tables that it cannot read, without a request to do
    /// so.
    UnreadGivenUp,
    /// When the cleaner replaces a remap table, it drops the runs into segments whose entries are
    /// unreadable.
    RunsIntoUnreadDropped,
    /// A recount treats blocks as dead if it cannot check their owners.
    UnknownTakenForDead,
    /// A partial write joins the txg of a block clone that replaces the same record, and completes
    /// the record with its content from before the clone.
    PartsBesideClones,
    /// A write that begins within a block is split into several changes.
    WritesCut,
    /// A repair of a bad block writes the leg's bytes next to the block back without verifying
    /// them.
    NeighboursUnverified,
    /// The first commit in a pool of an older format leaves the labels in that format, and the
    /// first dataset with many objects sets no flag in the labels.
    LabelsKeepFormat,
    /// A log batch has namespace changes, but lacks earlier changes of the objects that they name.
    NamedNotLogged,
    /// The log drops all changes of an object that lost its last name, although a crash may leave
    /// an earlier namespace change that names the object.
    EndDropsNamed,
    /// The sync of an object without a name does not wait for the change that removed the name.
    EndNotSynced,
    /// A commit writes the slot of an object with the tree root of another object in its block.
    SlotHasNeighboursRoot,
    /// A commit replaces only the first record of a range of holes that reaches to the end of an
    /// object.
    TruncateLeavesTail,
    /// An object that reuses a number in the txg in which the old object was removed gets the
    /// records of the old object.
    ReusedSlotKeepsRecords,
    /// The removal of a large file does not add it to the list of inodes without a name.
    RemovedFileForgotten,
    /// The freeing of a part of a removed file does not reduce the file's number of blocks.
    FreedPartStillCounted,
    /// A change of the permission bits does not change the mask of the ACL.
    AclMaskKept,
    /// The removal of a file leaves the object with its extended attributes.
    AttributesLeaked,
    /// A change of the owner of a file leaves the usage with the old owner.
    UsageStaysAtOldOwner,
    /// A sync that needs several log batches returns after the first one.
    SyncEndsEarly,
    /// A stream leaves out the objects that became unused since its base.
    UnusedNotSent,
    /// The change number of an inode grows by one with each change, so a crash repeats numbers.
    ChangesRepeat,
    /// SEEK_DATA and SEEK_HOLE see only committed records.
    SeekIgnoresDirty,
    /// A record copy refers to the stored record although the open txg has replaced it.
    CopyIgnoresDirty,
    /// A case-insensitive filesystem hashes and compares names without folding.
    NamesNotFolded,
    /// A rename to another spelling of the same name changes nothing.
    OldSpellingKept,
    /// A server that was paused resumes writing without a check of its owner slot.
    OwnerNotChecked,
    /// The NFS server forgets the reply to a changing call, so a repeated call runs again.
    RepliesForgotten,
    /// The NFS server returns a remembered reply also to a call with another credential.
    CredentialIgnored,
    /// The verifier of unstable NFS writes stays the same after an import and after a rollback.
    VerifierStays,
    /// The NFS server acknowledges a WRITE as FILE_SYNC without a sync.
    FileSyncNotSynced,
}
