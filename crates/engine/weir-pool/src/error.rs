//! What can go wrong in a pool.
//!
//! Not here: errors of volumes and names (weir-dataset).
//!
//! Invariant: a variant names the pool, disk or vdev it is about, and its text says what to do
//! where that is not obvious from the kind.

use std::fmt;
use std::sync::Arc;

use weir_base::{ErrorKind, Guid, Txg, VsegId};
use weir_device::DeviceError;
use weir_format::FormatError;

/// Where a block is stored, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Vdev, by place in the label.
    pub vdev: u16,
    /// Byte offset in its segment area.
    pub offset: u64,
}

impl fmt::Display for BlockPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vdev {} byte {}", self.vdev, self.offset)
    }
}

/// A pool could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A disk said no.
    #[error(transparent)]
    Device(#[from] Arc<DeviceError>),
    /// Structures on disk are damaged on every leg.
    #[error(
        "pool {pool}: {what}{} is damaged on every disk that should hold it: {source}",
        .place.map_or_else(String::new, |place| format!(" at {place}"))
    )]
    Structure {
        /// Pool.
        pool: String,
        /// Which structure.
        what: &'static str,
        /// Where it is stored, if that is known.
        place: Option<BlockPlace>,
        /// How.
        source: FormatError,
    },
    /// A block is damaged beyond what the redundancy brings back.
    #[error(
        "pool {pool}: block at vdev {vdev} byte {offset} fails its checksum, and no other copy or \
         parity makes it right"
    )]
    Damaged {
        /// Pool.
        pool: String,
        /// Vdev.
        vdev: u16,
        /// Byte offset in the vdev.
        offset: u64,
    },
    /// Too few legs of a vdev can be read or written.
    #[error("pool {pool}: vdev {vdev} has too few working disks left")]
    VdevLost {
        /// Pool.
        pool: String,
        /// Vdev.
        vdev: u16,
    },
    /// The pool stopped to keep acknowledged data safe.
    #[error(
        "pool {pool} is suspended: {why}. What was flushed is safe; repair the disks, then export \
         and import the pool"
    )]
    Poisoned {
        /// Pool.
        pool: String,
        /// First failure.
        why: String,
    },
    /// No free segment is left for a commit.
    #[error("pool {pool} is out of space")]
    OutOfSpace {
        /// Pool.
        pool: String,
    },
    /// A segment that a pointer names does not exist.
    #[error("pool {pool}: a block pointer leads to segment {vseg}, which does not exist")]
    NoSegment {
        /// Pool.
        pool: String,
        /// Segment.
        vseg: VsegId,
    },
    /// A block is in a segment whose entry of the segment table was lost.
    #[error(
        "pool {pool}: a block is in segment {vseg}, and the part of the segment table that says \
         where that is cannot be read from any disk"
    )]
    SegmentLost {
        /// Pool.
        pool: String,
        /// Segment.
        vseg: VsegId,
    },
    /// A block may belong to a dataset whose record was lost.
    #[error("pool {pool}: a block may belong to dataset {dataset}, whose record was lost")]
    OwnerLost {
        /// Pool.
        pool: String,
        /// Number of the dataset that wrote it.
        dataset: u64,
    },
    /// A segment's remap or reference table was lost.
    #[error("pool {pool}: the {what} of segment {vseg} cannot be read from any disk")]
    TableLost {
        /// Pool.
        pool: String,
        /// Which table.
        what: &'static str,
        /// Segment.
        vseg: VsegId,
    },
    /// A block belongs to the lost part of a partial record.
    #[error(
        "pool {pool}: a part of this record is lost: the record could not be read when a write to \
         the rest of it was replayed from the intent log"
    )]
    PartLost {
        /// Pool.
        pool: String,
    },
    /// A block that is to be shared has as many references as can be counted.
    #[error("pool {pool}: a block is shared too often to be shared again; write it anew")]
    TooManyReferences {
        /// Pool.
        pool: String,
    },
    /// A disk is smaller than a pool needs.
    #[error("{path}: {bytes} bytes is too small; a disk needs at least {min} bytes")]
    TooSmall {
        /// Disk.
        path: String,
        /// Its length.
        bytes: u64,
        /// Least length.
        min: u64,
    },
    /// A disk belongs to a pool already.
    #[error("{path} is part of pool {pool:?}; use --force to overwrite it")]
    InPool {
        /// Disk.
        path: String,
        /// Pool name on its label.
        pool: String,
    },
    /// A disk was written by a newer or an older Weir.
    #[error("{path}: {source}")]
    OtherFormat {
        /// Disk.
        path: String,
        /// Which version.
        source: FormatError,
    },
    /// None of the disks carries a label.
    #[error("no Weir pool on {paths}")]
    NoPool {
        /// Disks looked at.
        paths: String,
    },
    /// Disks of different pools were given.
    #[error("{path} belongs to pool {found}, not to {wanted}")]
    OtherPool {
        /// Disk.
        path: String,
        /// Guid found.
        found: Guid,
        /// Guid wanted.
        wanted: Guid,
    },
    /// A vdev has too few disks.
    #[error("pool {pool} cannot be opened: missing {missing}")]
    MissingDisks {
        /// Pool.
        pool: String,
        /// Disks that a vdev lacks, of which it needs one at least.
        missing: String,
    },
    /// A vdev has only legs that missed writes.
    #[error(
        "pool {pool} cannot be opened: the disks that are there missed writes, and {missing} with \
         the rest is not there. Attach it"
    )]
    StaleDisks {
        /// Pool.
        pool: String,
        /// Disks that hold everything.
        missing: String,
    },
    /// Parts of the pool's own trees cannot be read, and missing disks may have them.
    #[error(
        "pool {pool} cannot be opened without loss: {what} cannot be read from the disks that are \
         there, and {missing} may have them. Attach these disks, or force the import to give up \
         what is lost"
    )]
    LossWhileMissing {
        /// Pool.
        pool: String,
        /// What would be given up.
        what: String,
        /// Disks that are not there, or not in use.
        missing: String,
    },
    /// The top of the dataset directory cannot be read.
    #[error(
        "pool {pool} cannot be opened: the top node of its dataset directory, with the \
         pointers to all volumes and snapshots, cannot be read from any disk ({source}). \
         Nothing was written. Check disks and cables, then import again: weir pool import {pool}. \
         weir pool import --force {pool} opens the pool without its volumes and keeps \
         their space, so that a later import finds them if the node can be read"
    )]
    DirectoryLost {
        /// Pool.
        pool: String,
        /// Why.
        source: Box<Self>,
    },
    /// The intent log has flushed writes to datasets whose records cannot be read.
    #[error(
        "pool {pool} cannot be opened: the intent log has flushed writes to datasets whose records \
         cannot be read from any disk (numbers {datasets}). Nothing was written. Check disks and \
         cables, then import again: weir pool import {pool}. weir pool import --force {pool} opens \
         the pool and gives these writes up"
    )]
    LoggedForLost {
        /// Pool.
        pool: String,
        /// Numbers of the datasets.
        datasets: String,
    },
    /// A vdev has only legs that missed writes, and none is away that has them.
    #[error(
        "pool {pool} cannot be opened: {disks}, and no other disk has what was written since. If \
         an old copy was put back, attach the disk itself. weir pool import --force opens the \
         pool with what these disks hold; reads of what they miss fail"
    )]
    OldDisks {
        /// Pool.
        pool: String,
        /// Each with the txg it holds and that of the pool.
        disks: String,
    },
    /// A newer txg of the pool was committed.
    #[error(
        "pool {pool} cannot be opened: these disks hold it as of txg {found}, {age} before txg \
         {seen}, which {by}. Attach the disks that have the rest. weir pool import \
         --force opens the pool as of txg {found} and gives up what was written since"
    )]
    OlderThanSeen {
        /// Pool.
        pool: String,
        /// Newest txg on the disks.
        found: Txg,
        /// Newest txg that the server has seen.
        seen: Txg,
        /// Time between the two, for people.
        age: String,
        /// Subject and verb of the clause: who names the newer txg.
        by: Box<str>,
    },
    /// More uberblocks are damaged than a power cut tears.
    #[error(
        "pool {pool} cannot be opened: the {damaged} uberblocks after txg {found} are damaged in \
         every copy, and a power cut damages one. weir pool import --force opens the pool as of \
         txg {found} and gives up what was written since"
    )]
    NewestDamaged {
        /// Pool.
        pool: String,
        /// Newest txg on the disks.
        found: Txg,
        /// Damaged uberblocks in a row.
        damaged: usize,
    },
    /// Another server has the pool open.
    #[error(
        "pool {pool} is in use by host {host} (pid {pid}), which wrote to its disks {seconds} s \
         ago. Export it there: weir pool export {pool}. Only if that server cannot be reached: \
         weir pool import --force {pool} makes that server stop using the pool, and what it has \
         not flushed is lost"
    )]
    InUse {
        /// Pool.
        pool: String,
        /// The owner's machine.
        host: String,
        /// The owner's process.
        pid: u32,
        /// Since its last sign of life, by the clocks of both machines.
        seconds: u64,
    },
    /// Another server took the pool.
    #[error("pool {pool} was taken by host {host} (pid {pid}): it is not used here any more")]
    TakenOver {
        /// Pool.
        pool: String,
        /// The new owner's machine.
        host: String,
        /// The new owner's process.
        pid: u32,
    },
    /// Disks that were written without each other.
    #[error(
        "pool {pool} cannot be opened: {diverged} went on without the other disks, which went on \
         to txg {newest} without them. Import with the disks of one side only and replace the \
         others, or force the import to keep txg {newest} and overwrite {diverged}"
    )]
    Diverged {
        /// Pool.
        pool: String,
        /// Disks that are no part of the history of the newest ones, and their txgs.
        diverged: String,
        /// Newest txg of the others.
        newest: Txg,
    },
    /// The intent log is on disks that are not there.
    #[error(
        "pool {pool} cannot be opened: its log disks are missing ({missing}), and what was flushed \
         last may be on them alone. Forcing the import gives that up"
    )]
    LogMissing {
        /// Pool.
        pool: String,
        /// The log vdev's disks.
        missing: String,
    },
    /// What a vdev holds does not fit on the others.
    #[error(
        "pool {pool}: {vdev} cannot be removed: the other vdevs have room for {room_bytes} bytes, \
         and {live_bytes} are in use"
    )]
    NoRoomElsewhere {
        /// Pool.
        pool: String,
        /// Vdev.
        vdev: String,
        /// Room for data on the others.
        room_bytes: u64,
        /// Live data of the pool.
        live_bytes: u64,
    },
    /// A disk that is named is none of the pool's.
    #[error("pool {pool} has no disk {disk}")]
    NoSuchDisk {
        /// Pool.
        pool: String,
        /// As it was named.
        disk: String,
    },
    /// Redundancy needs a disk.
    #[error("{}", needed(pool, disk, vdev, *needs))]
    OnlyCopy {
        /// Pool.
        pool: String,
        /// Disk.
        disk: String,
        /// Its vdev, as people call it.
        vdev: String,
        /// Disks that hold everything from which the vdev can be read.
        needs: usize,
    },
    /// A good disk would leave before its successor has everything.
    #[error(
        "the disk that {disk} is to replace in pool {pool} is good, and both cannot be in its vdev \
         at a time: it would leave before {disk} has everything"
    )]
    StillGood {
        /// Pool.
        pool: String,
        /// The new disk.
        disk: String,
    },
    /// A scan cannot be changed that way now.
    #[error("pool {pool}: {why}")]
    Scan {
        /// Pool.
        pool: String,
        /// Why.
        why: &'static str,
    },
    /// No uberblock leads to readable roots.
    #[error(
        "pool {pool}: the newest uberblock (txg {newest}) leads to damaged data{}. An older one \
         may work, without what was written after it: import with --force to try",
        .why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    )]
    NoUberblock {
        /// Pool.
        pool: String,
        /// Newest seen.
        newest: Txg,
        /// Why it cannot be used; `None` where no disk has any.
        why: Option<Box<Self>>,
    },
    /// Log records that may have been acknowledged cannot be read on any leg.
    #[error(
        "pool {pool}: intent log batch {batch} is damaged on every leg: it was written whole, and \
         importing would lose the flushed writes in it and after it. Add disks of the pool, or use \
         --force to import without them"
    )]
    LogDamaged {
        /// Pool.
        pool: String,
        /// Batch.
        batch: u64,
    },
    /// The layout asked for cannot be.
    #[error("{why}")]
    Layout {
        /// Why.
        why: String,
    },
}

/// Says why a vdev cannot do without a disk.
fn needed(pool: &str, disk: &str, vdev: &str, needs: usize) -> String {
    match needs {
        1 => format!("{disk} is the only disk of {vdev} in pool {pool} that holds everything"),
        _ => format!(
            "{disk} is needed: {vdev} of pool {pool} works on {needs} disks that hold everything, \
             and without it has fewer"
        ),
    }
}

impl PoolError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => error.kind(),
            Self::Structure { .. }
            | Self::Damaged { .. }
            | Self::NoSegment { .. }
            | Self::SegmentLost { .. }
            | Self::TableLost { .. }
            | Self::OwnerLost { .. }
            | Self::PartLost { .. }
            | Self::NoUberblock { .. }
            | Self::NewestDamaged { .. }
            | Self::DirectoryLost { .. }
            | Self::LoggedForLost { .. }
            | Self::LogDamaged { .. } => ErrorKind::Data,
            Self::VdevLost { .. }
            | Self::MissingDisks { .. }
            | Self::StaleDisks { .. }
            | Self::OldDisks { .. }
            | Self::OlderThanSeen { .. }
            | Self::TakenOver { .. }
            | Self::LogMissing { .. }
            | Self::LossWhileMissing { .. }
            | Self::Diverged { .. } => ErrorKind::Unavailable,
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::OutOfSpace { .. } | Self::NoRoomElsewhere { .. } => ErrorKind::NoSpace,
            Self::TooSmall { .. }
            | Self::TooManyReferences { .. }
            | Self::OtherFormat { .. }
            | Self::OtherPool { .. }
            | Self::Layout { .. } => ErrorKind::Invalid,
            Self::InPool { .. } => ErrorKind::Exists,
            Self::NoPool { .. } | Self::NoSuchDisk { .. } => ErrorKind::NotFound,
            Self::OnlyCopy { .. }
            | Self::StillGood { .. }
            | Self::Scan { .. }
            | Self::InUse { .. } => ErrorKind::Busy,
        }
    }
}
