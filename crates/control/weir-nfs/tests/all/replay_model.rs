//! Expected state of a share after calls that each ran once.
//!
//! `replays` sends the calls. All of them are about names in two directories, and directories that
//! calls create stay empty.
//!
//! Invariant: the model predicts the status of each call, and the handle of an existing inode.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_nfs_wire::nfs3::{
    Args, CreateArgs, CreateHow, DirOpArgs, FileHandle, LinkArgs, MkdirArgs, Nfsstat3, RenameArgs,
    Sattr3, SetattrArgs, StableHow, WriteArgs,
};
use weir_oncrpc::Opaque;

/// Name of the second directory, which is in the root and which no call removes.
pub(crate) const SECOND: &str = "second";
/// Names of all calls: few, so that most calls are about names of earlier calls.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A directory and a name, as indexes of [`Model::directories`] and [`NAMES`].
pub(crate) type Place = (usize, usize);
/// Handle of the object that a call created or opened, or the status of the failed call.
pub(crate) type Outcome = Result<Option<Vec<u8>>, Nfsstat3>;

/// A call. Nodes are indexes of [`Model::nodes`].
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(Place, CreateHow),
    Mkdir(Place),
    Remove(Place),
    Rmdir(Place),
    Rename(Place, Place),
    Link(usize, Place),
    SetSize(usize, u64),
    Write(usize, u64, Vec<u8>),
}

/// An inode that a call created.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) handle: Vec<u8>,
    /// Content of a file; `None` for a directory.
    pub(crate) data: Option<Vec<u8>>,
    /// Number of names; 0 if the inode is gone.
    pub(crate) links: u32,
}

/// Expected state of the share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    pub(crate) directories: [Vec<u8>; 2],
    pub(crate) names: BTreeMap<Place, usize>,
    pub(crate) nodes: Vec<Node>,
}

impl Model {
    /// Chooses a call. `unique`: a number that no other call has.
    pub(crate) fn random_op(&self, rng: &mut Rng, unique: u64) -> Op {
        let mut place = || (rng.usize(..2), rng.usize(..NAMES.len()));
        let (one, two) = (place(), place());
        let kind = if self.nodes.is_empty() { rng.u32(..3) } else { rng.u32(..12) };
        // Half of the calls with a handle are about one of the newest inodes.
        let newest = if rng.bool() { self.nodes.len().saturating_sub(4) } else { 0 };
        let mut node = || rng.usize(newest..self.nodes.len());
        let mode = Some(0o644);
        match kind {
            0 => {
                let size = [None, Some(0), Some(5)][rng.usize(..3)];
                Op::Create(one, CreateHow::Unchecked(Sattr3 { mode, size, ..Sattr3::default() }))
            }
            1 => Op::Create(one, CreateHow::Guarded(Sattr3 { mode, ..Sattr3::default() })),
            2 => Op::Create(one, CreateHow::Exclusive(unique.to_le_bytes())),
            3 => Op::Mkdir(one),
            4 | 5 => Op::Remove(one),
            6 => Op::Rmdir(one),
            7 | 8 => Op::Rename(one, two),
            9 => Op::Link(node(), one),
            10 => Op::SetSize(node(), rng.u64(..100)),
            _ => Op::Write(node(), rng.u64(..100), vec![unique as u8; rng.usize(1..50)]),
        }
    }

    fn place(&self, (directory, name): Place) -> DirOpArgs<'_> {
        let name = Opaque::new(NAMES[name].as_bytes()).unwrap();
        DirOpArgs { dir: handle(&self.directories[directory]), name }
    }

    pub(crate) fn args<'a>(&'a self, op: &'a Op) -> Args<'a> {
        let attributes = Sattr3 { mode: Some(0o755), ..Sattr3::default() };
        let of = |node: &usize| handle(&self.nodes[*node].handle);
        match op {
            Op::Create(place, how) => {
                Args::Create(CreateArgs { place: self.place(*place), how: *how })
            }
            Op::Mkdir(place) => Args::Mkdir(MkdirArgs { place: self.place(*place), attributes }),
            Op::Remove(place) => Args::Remove(self.place(*place)),
            Op::Rmdir(place) => Args::Rmdir(self.place(*place)),
            Op::Rename(from, to) => {
                Args::Rename(RenameArgs { from: self.place(*from), to: self.place(*to) })
            }
            Op::Link(node, place) => {
                Args::Link(LinkArgs { file: of(node), link: self.place(*place) })
            }
            Op::SetSize(node, size) => {
                let new_attributes = Sattr3 { size: Some(*size), ..Sattr3::default() };
                Args::Setattr(SetattrArgs { object: of(node), new_attributes, guard: None })
            }
            Op::Write(node, offset, data) => Args::Write(WriteArgs {
                file: of(node),
                offset: *offset,
                count: data.len() as u32,
                stable: StableHow::FileSync,
                data: Opaque::new(data).unwrap(),
            }),
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        self.nodes[node].data.is_none()
    }

    fn add(&mut self, place: Place, data: Option<Vec<u8>>, created: Option<&[u8]>) -> Vec<u8> {
        let handle = created.unwrap_or_default().to_vec();
        assert!(self.nodes.iter().all(|node| node.handle != handle), "the inode is new");
        self.names.insert(place, self.nodes.len());
        self.nodes.push(Node { handle: handle.clone(), data, links: 1 });
        handle
    }

    fn unlink(&mut self, place: Place) {
        let node = self.names.remove(&place).expect("the name exists");
        self.nodes[node].links -= 1;
    }

    /// Applies a call. `created`: handle of the reply, which the model cannot predict for a new
    /// inode.
    pub(crate) fn apply(&mut self, op: &Op, created: Option<&[u8]>) -> Outcome {
        match *op {
            Op::Create(place, how) => self.create(place, how, created),
            Op::Mkdir(place) if self.names.contains_key(&place) => Err(Nfsstat3::Exist),
            Op::Mkdir(place) => Ok(Some(self.add(place, None, created))),
            Op::Remove(place) | Op::Rmdir(place) => {
                let node = *self.names.get(&place).ok_or(Nfsstat3::Noent)?;
                match (self.is_directory(node), matches!(op, Op::Rmdir(_))) {
                    (true, false) => return Err(Nfsstat3::Isdir),
                    (false, true) => return Err(Nfsstat3::Notdir),
                    _ => self.unlink(place),
                }
                Ok(None)
            }
            Op::Rename(from, to) => self.rename(from, to),
            Op::Link(node, place) => {
                if self.nodes[node].links == 0 {
                    return Err(Nfsstat3::Stale);
                }
                if self.names.contains_key(&place) {
                    return Err(Nfsstat3::Exist);
                }
                self.file(node, Nfsstat3::Perm)?;
                self.names.insert(place, node);
                self.nodes[node].links += 1;
                Ok(None)
            }
            Op::SetSize(node, size) => {
                self.file(node, Nfsstat3::Isdir)?.resize(size as usize, 0);
                Ok(None)
            }
            Op::Write(node, offset, ref bytes) => {
                let data = self.file(node, Nfsstat3::Inval)?;
                let (start, end) = (offset as usize, offset as usize + bytes.len());
                data.resize(data.len().max(end), 0);
                data[start..end].copy_from_slice(bytes);
                Ok(None)
            }
        }
    }

    /// Content of a file that exists. `of_directory`: status for a directory.
    fn file(&mut self, node: usize, of_directory: Nfsstat3) -> Result<&mut Vec<u8>, Nfsstat3> {
        let Node { data, links, .. } = &mut self.nodes[node];
        if *links == 0 {
            return Err(Nfsstat3::Stale);
        }
        data.as_mut().ok_or(of_directory)
    }

    fn create(&mut self, place: Place, how: CreateHow, created: Option<&[u8]>) -> Outcome {
        let size = match how {
            CreateHow::Unchecked(attributes) | CreateHow::Guarded(attributes) => attributes.size,
            CreateHow::Exclusive(_) => None,
        };
        let Some(node) = self.names.get(&place).copied() else {
            let data = vec![0; size.unwrap_or(0) as usize];
            return Ok(Some(self.add(place, Some(data), created)));
        };
        // Each exclusive call has its own verifier, so it never finds its own file.
        if !matches!(how, CreateHow::Unchecked(_)) {
            return Err(Nfsstat3::Exist);
        }
        let Node { data, handle, .. } = &mut self.nodes[node];
        let data = data.as_mut().ok_or(Nfsstat3::Isdir)?;
        data.resize(size.map_or(data.len(), |size| size as usize), 0);
        Ok(Some(handle.clone()))
    }

    fn rename(&mut self, from: Place, to: Place) -> Outcome {
        let moved = *self.names.get(&from).ok_or(Nfsstat3::Noent)?;
        if let Some(replaced) = self.names.get(&to).copied() {
            if replaced == moved {
                return Ok(None);
            }
            match (self.is_directory(moved), self.is_directory(replaced)) {
                (true, false) => return Err(Nfsstat3::Notdir),
                (false, true) => return Err(Nfsstat3::Isdir),
                _ => self.unlink(to),
            }
        }
        self.names.remove(&from);
        self.names.insert(to, moved);
        Ok(None)
    }
}

pub(crate) fn handle(bytes: &[u8]) -> FileHandle<'_> {
    Opaque::new(bytes).unwrap()
}
