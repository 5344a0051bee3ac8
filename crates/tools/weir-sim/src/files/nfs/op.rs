//! Operations of NFS clients.
//!
//! `wire` encodes them as calls, `view` has the results that the model allows.
//!
//! Invariant: an operation changes the filesystem at most once, in one step.

use weir_format::files::FileType;
use weir_nfs_wire::nfs3::StableHow;

use crate::files::content::Inode;
use crate::files::names::{Place, draw};
use crate::rng::Rng;

/// Permission bits of new directories: all users may change them.
pub(super) const DIRECTORY_MODE: u32 = 0o777;
/// Permission bits of new files and special files.
pub(super) const FILE_MODE: u32 = 0o666;
/// Permission bits of symbolic links (RFC 1813 section 3.3.10 gives them no meaning).
pub(super) const LINK_MODE: u32 = 0o777;
/// Permission bits of a file with the verifier of an exclusive create.
pub(super) const EXCLUSIVE_MODE: u32 = 0o600;

/// Mode of a CREATE (RFC 1813 section 3.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// An existing file is no error. `true`: it becomes empty.
    Unchecked(bool),
    Guarded,
    /// A file with this verifier is the result of an earlier copy of the call.
    Exclusive(u64),
}

/// Bytes that a WRITE writes: `len` times `byte`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) byte: u8,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create(Place, How),
    Mkdir(Place),
    /// Creates a symbolic link whose target has this length in bytes.
    Symlink(Place, usize),
    Mknod(Place, FileType),
    Remove(Place),
    Rmdir(Place),
    Rename(Place, Place),
    Link(Inode, Place),
    SetMode(Inode, u32),
    SetSize(Inode, u64),
    Write(Inode, Written, StableHow),
    Commit(Inode),
    Read(Inode),
    Getattr(Inode),
    Lookup(Place),
    List(Inode),
}

/// Inodes and names among which a client chooses.
pub(super) struct Choices {
    /// Directories; never empty.
    pub(super) directories: Vec<Inode>,
    /// Inodes that are not directories; may be empty.
    pub(super) files: Vec<Inode>,
}

impl Choices {
    fn place(&self, rng: &mut Rng) -> Place {
        let name = draw(rng, false);
        (self.directories[rng.index(self.directories.len())], name)
    }

    /// Draws an operation. `unique`: a number that no other operation has.
    pub(super) fn draw(&self, rng: &mut Rng, unique: u64) -> Op {
        let place = self.place(rng);
        let file = (!self.files.is_empty()).then(|| self.files[rng.index(self.files.len().max(1))]);
        let Some(file) = file else { return Op::Create(place, How::Guarded) };
        let directory = place.0;
        let anything = if rng.below(4) == 0 { directory } else { file };
        match rng.below(48) {
            0..3 => Op::Create(place, How::Guarded),
            3..6 => Op::Create(place, How::Unchecked(rng.coin())),
            6..10 => Op::Create(place, How::Exclusive(unique)),
            10..12 => Op::Mkdir(place),
            12 => Op::Symlink(place, [3, 704, 705, 4095][rng.index(4)]),
            13 => Op::Mknod(place, [FileType::Fifo, FileType::Socket][rng.index(2)]),
            14..17 => Op::Remove(place),
            17 => Op::Rmdir(place),
            18..22 => Op::Rename(place, self.place(rng)),
            22..24 => Op::Link(anything, place),
            24 => Op::SetMode(anything, rng.below(0o1000) as u32),
            25 => Op::SetSize(anything, [0, 100, 5_000, 40_000][rng.index(4)]),
            26..38 => Op::Write(anything, Written::draw(rng), draw_stability(rng)),
            38..41 => Op::Commit(file),
            41..43 => Op::Read(file),
            43 => Op::Getattr(anything),
            44..46 => Op::Lookup(place),
            _ => Op::List(directory),
        }
    }
}

impl Written {
    fn draw(rng: &mut Rng) -> Self {
        let offset = [0, 700, 3_000, 4_096, 20_000][rng.index(5)];
        let len = [5, 600, 4_096, 30_000][rng.index(4)];
        Self { offset, len, byte: rng.below(250) as u8 }
    }
}

fn draw_stability(rng: &mut Rng) -> StableHow {
    match rng.below(6) {
        0..4 => StableHow::Unstable,
        4 => StableHow::DataSync,
        _ => StableHow::FileSync,
    }
}

impl Op {
    /// Inodes of the handles of the call.
    pub(super) fn handles(&self) -> (Inode, Option<Inode>) {
        match self {
            Self::Create((directory, _), _)
            | Self::Mkdir((directory, _))
            | Self::Symlink((directory, _), _)
            | Self::Mknod((directory, _), _)
            | Self::Remove((directory, _))
            | Self::Rmdir((directory, _))
            | Self::Lookup((directory, _)) => (*directory, None),
            Self::Rename((from, _), (to, _)) => (*from, Some(*to)),
            Self::Link(inode, (directory, _)) => (*inode, Some(*directory)),
            Self::SetMode(inode, _)
            | Self::SetSize(inode, _)
            | Self::Write(inode, ..)
            | Self::Commit(inode)
            | Self::Read(inode)
            | Self::Getattr(inode)
            | Self::List(inode) => (*inode, None),
        }
    }

    /// True if the duplicate request cache answers repetitions of the call.
    pub(super) fn is_changing(&self) -> bool {
        !matches!(
            self,
            Self::Commit(_) | Self::Read(_) | Self::Getattr(_) | Self::Lookup(_) | Self::List(_)
        )
    }

    /// Type of the inode that the operation creates.
    pub(super) fn creates(&self) -> Option<FileType> {
        match self {
            Self::Create(..) => Some(FileType::Regular),
            Self::Mkdir(_) => Some(FileType::Directory),
            Self::Symlink(..) => Some(FileType::SymbolicLink),
            Self::Mknod(_, file_type) => Some(*file_type),
            _ => None,
        }
    }
}
