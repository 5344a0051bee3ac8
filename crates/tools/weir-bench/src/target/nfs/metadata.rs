//! Metadata operations of a lane.
//!
//! `lane` sends the calls and receives the replies.
//!
//! Spec: RFC 1813 section 3.3. Every change is durable when its reply arrives (section 4.8), so
//! that an operation that must be durable is the same call.
//!
//! Invariants: an operation has one call in flight, except the WRITE calls of a file that it
//! creates; the lane writes such a file with FILE_SYNC, because clients of NFS commit a file when
//! they close it.

use std::io;

use weir_nfs_client::Handle;
use weir_nfs_wire::nfs3::{
    AccessArgs, Args, CreateArgs, CreateHow, DirOpArgs, FileArgs, FileName, LookupResok,
    ReaddirArgs, ReaddirplusArgs, RenameArgs, Results, Sattr3, SetTime, SetattrArgs, StableHow,
    Verifier, access,
};

use super::lane::{NfsLane, Work};
use super::transfer::{Direction, Flush, Transfer};
use crate::target::error::TargetError;
use crate::target::metadata::{self, MetadataCall, MetadataOp};
use crate::target::parts::file_name;

/// Access mode of the files that a run creates.
const FILE_MODE: u32 = 0o644;

/// Access that ACCESS checks: to read and to write a file.
const READ_WRITE: u32 = access::READ | access::MODIFY | access::EXTEND;

/// A metadata operation that waits for a reply.
pub(super) struct Pending(MetadataCall);

/// A listing of a directory that waits for a reply.
pub(super) struct Listing {
    dir: Handle,
    is_plus: bool,
    cookie: u64,
    cookieverf: Verifier,
    /// Number of names so far, without `.` and `..`.
    names: u32,
    /// Number of names that the directory must have.
    expected: Option<u32>,
}

/// A call with the directory and the name of a file.
#[derive(Clone, Copy)]
enum ByName {
    Lookup,
    Remove,
    /// CREATE (GUARDED).
    Create,
}

/// Result of an operation: complete with a result, or waiting for another reply.
type Outcome = Result<Option<io::Result<()>>, TargetError>;

/// Checks a name that this program assigned.
fn name_of(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).expect("names of this program are shorter than 255 bytes")
}

impl NfsLane {
    /// Starts a metadata operation in a free slot.
    pub(super) fn begin_metadata(&mut self, slot: usize, op: &MetadataOp) {
        match self.start(slot, op.call) {
            Ok(work) => {
                self.work[slot] = Some(work);
                self.advance(slot);
            }
            Err(error) => self.refused.push((slot, error)),
        }
    }

    fn start(&mut self, slot: usize, call: MetadataCall) -> io::Result<Work> {
        let files = self.mount.files.len() as u32;
        let file = |file: u32| self.mount.files[file.min(files - 1) as usize];
        let root = self.mount.root;
        let list = |dir, is_plus, expected| Listing {
            dir,
            is_plus,
            cookie: 0,
            cookieverf: [0; 8],
            names: 0,
            expected,
        };
        match call {
            MetadataCall::Readdir => return Ok(self.list(slot, list(root, false, None))),
            MetadataCall::Readdirplus => return Ok(self.list(slot, list(root, true, None))),
            MetadataCall::List { directory, files } => {
                let dir = self.find(&directory.to_string())?;
                return Ok(self.list(slot, list(dir, false, Some(files))));
            }
            MetadataCall::Sync => return Ok(Work::Flush(Flush::new(self.uncommitted.files()))),
            MetadataCall::Getattr { file: index } => {
                let object = file(index);
                self.call(slot, 0, &Args::Getattr(FileArgs { object: object.wire() }));
            }
            MetadataCall::Fsstat => {
                self.call(slot, 0, &Args::Fsstat(FileArgs { object: root.wire() }));
            }
            MetadataCall::Access { file: index } => {
                let object = file(index);
                let args = AccessArgs { object: object.wire(), access: READ_WRITE };
                self.call(slot, 0, &Args::Access(args));
            }
            MetadataCall::Setattr { file: index } => {
                let object = file(index);
                let new_attributes = Sattr3 { mtime: SetTime::ServerTime, ..Sattr3::default() };
                let args = SetattrArgs { object: object.wire(), new_attributes, guard: None };
                self.call(slot, 0, &Args::Setattr(args));
            }
            MetadataCall::Lookup { file } => {
                let name = file_name(file);
                let place = DirOpArgs { dir: root.wire(), name: name_of(&name) };
                self.call(slot, 0, &Args::Lookup(place));
            }
            MetadataCall::Create { file, .. } => {
                self.at(slot, file, ByName::Create)?;
            }
            MetadataCall::Stat { file } => self.at(slot, file, ByName::Lookup)?,
            MetadataCall::Remove { file } => self.at(slot, file, ByName::Remove)?,
            MetadataCall::Rename { from, to } => {
                let (from, to) = (from.to_string(), to.to_string());
                let (source, destination) = (self.find_parent(&from)?, self.find_parent(&to)?);
                let place = |(dir, name)| DirOpArgs { dir, name };
                let from = place((source.0.wire(), name_of(source.1)));
                let to = place((destination.0.wire(), name_of(destination.1)));
                self.call(slot, 0, &Args::Rename(RenameArgs { from, to }));
            }
        }
        Ok(Work::Metadata(Pending(call)))
    }

    /// Submits a call with the directory and the name of a file that the run creates.
    fn at(&mut self, slot: usize, file: metadata::FileName, call: ByName) -> io::Result<()> {
        let path = file.to_string();
        let (dir, name) = self.find_parent(&path)?;
        let place = DirOpArgs { dir: dir.wire(), name: name_of(name) };
        let args = match call {
            ByName::Lookup => Args::Lookup(place),
            ByName::Remove => Args::Remove(place),
            ByName::Create => {
                let attributes = Sattr3 { mode: Some(FILE_MODE), ..Sattr3::default() };
                Args::Create(CreateArgs { place, how: CreateHow::Guarded(attributes) })
            }
        };
        self.call(slot, 0, &args);
        Ok(())
    }

    /// Handle of the directory of a path, and the last component.
    fn find_parent<'p>(&self, path: &'p str) -> io::Result<(Handle, &'p str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(parent)?, name))
    }

    /// Handle of a directory that the run created.
    fn find(&self, path: &str) -> io::Result<Handle> {
        self.mount.directory(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Submits the next call of a listing.
    fn list(&mut self, slot: usize, listing: Listing) -> Work {
        let Listing { dir, cookie, cookieverf, .. } = listing;
        let (dir, bytes) = (dir.wire(), self.mount.directory_bytes);
        if listing.is_plus {
            // The names of a full reply need less than half of its length.
            let (dircount, maxcount) = (bytes / 2, bytes);
            let args = ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount };
            self.call(slot, 0, &Args::Readdirplus(args));
        } else {
            let args = ReaddirArgs { dir, cookie, cookieverf, count: bytes };
            self.call(slot, 0, &Args::Readdir(args));
        }
        Work::Listing(listing)
    }

    /// Processes the results of a call that succeeded.
    pub(super) fn continue_metadata(&mut self, slot: usize, results: &Results<'_>) -> Outcome {
        match self.work[slot].take() {
            Some(Work::Metadata(Pending(call))) => {
                self.work[slot] = Some(Work::Metadata(Pending(call)));
                self.continue_call(slot, call, results)
            }
            Some(Work::Listing(listing)) => self.continue_listing(slot, listing, results),
            _ => Err(self.unexpected()),
        }
    }

    fn continue_call(&mut self, slot: usize, call: MetadataCall, results: &Results<'_>) -> Outcome {
        let ok = Ok(Some(Ok(())));
        match (call, results) {
            (MetadataCall::Access { .. }, Results::Access(Ok(granted))) => {
                if granted.access & READ_WRITE == READ_WRITE {
                    return ok;
                }
                let why = "ACCESS: the server does not grant reading and writing";
                Ok(Some(Err(io::Error::new(io::ErrorKind::PermissionDenied, why))))
            }
            (
                MetadataCall::Stat { .. },
                Results::Lookup(Ok(LookupResok { attributes: None, object, .. })),
            ) => {
                // The server does not return the attributes with the handle.
                self.call(slot, 0, &Args::Getattr(FileArgs { object: *object }));
                Ok(None)
            }
            (MetadataCall::Create { file, bytes }, Results::Create(Ok(made))) => {
                match made.object {
                    _ if bytes == 0 => ok,
                    Some(object) => Ok(self.fill(slot, Handle::new(&object), bytes)),
                    None => match self.at(slot, file, ByName::Lookup) {
                        Ok(()) => Ok(None),
                        Err(error) => Ok(Some(Err(error))),
                    },
                }
            }
            (MetadataCall::Create { bytes, .. }, Results::Lookup(Ok(found))) => {
                Ok(self.fill(slot, Handle::new(&found.object), bytes))
            }
            (
                MetadataCall::Getattr { .. }
                | MetadataCall::Lookup { .. }
                | MetadataCall::Setattr { .. }
                | MetadataCall::Fsstat
                | MetadataCall::Stat { .. }
                | MetadataCall::Remove { .. }
                | MetadataCall::Rename { .. },
                _,
            ) => ok,
            _ => Err(self.unexpected()),
        }
    }

    /// Writes the content of a new file.
    fn fill(&mut self, slot: usize, handle: Handle, bytes: u32) -> Option<io::Result<()>> {
        let direction = Direction::Write(StableHow::FileSync);
        let lengths = (bytes, self.mount.write_bytes);
        self.work[slot] = Some(Work::Transfer(Transfer::new(direction, handle, None, 0, lengths)));
        self.advance(slot);
        None
    }

    fn continue_listing(
        &mut self,
        slot: usize,
        mut listing: Listing,
        results: &Results<'_>,
    ) -> Outcome {
        let is_dot = |name: &FileName<'_>| [&b"."[..], b".."].contains(&name.bytes());
        let (names, last, eof) = match results {
            Results::Readdir(Ok(page)) => {
                listing.cookieverf = page.cookieverf;
                let entries = &page.entries.0;
                let names = entries.iter().filter(|entry| !is_dot(&entry.name)).count();
                (names, entries.last().map(|entry| entry.cookie), page.eof)
            }
            Results::Readdirplus(Ok(page)) => {
                listing.cookieverf = page.cookieverf;
                let entries = &page.entries.0;
                let names = entries.iter().filter(|entry| !is_dot(&entry.name)).count();
                (names, entries.last().map(|entry| entry.cookie), page.eof)
            }
            _ => return Err(self.unexpected()),
        };
        listing.names = listing.names.saturating_add(names as u32);
        if eof {
            let found = listing.names;
            return Ok(Some(match listing.expected {
                Some(files) if files != found => Err(io::Error::other(format!(
                    "the directory lists {found} files instead of {files}"
                ))),
                _ => Ok(()),
            }));
        }
        let Some(last) = last else {
            let why = "READDIR: an empty reply before the end of the directory";
            return Ok(Some(Err(io::Error::other(why))));
        };
        listing.cookie = last;
        let work = self.list(slot, listing);
        self.work[slot] = Some(work);
        Ok(None)
    }
}
