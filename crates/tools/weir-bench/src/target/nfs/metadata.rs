//! Metadata operations of a lane that need one call at a time.
//!
//! `listing` has the listings; `lane` receives the replies.
//!
//! Spec: RFC 1813 section 3.3. Every change is durable when its reply arrives (section 4.8), so
//! that an operation that must be durable is the same call.
//!
//! Invariants: a call has its own copy of its arguments, so that the lane can send it again; the
//! lane writes a new file with FILE_SYNC, because clients of NFS commit a file when they close it.

use std::io;

use weir_nfs_client::Handle;
use weir_nfs_wire::nfs3::{
    AccessArgs, Args, CreateArgs, CreateHow, DirOpArgs, FileArgs, FileName, LookupResok, Nfstime3,
    RenameArgs, Results, Sattr3, SetTime, SetattrArgs, access,
};

use super::channel::Channel;
use super::mount::Mount;
use crate::target::metadata::{EXTRACTED_AT_S, FILE_MODE, MetadataCall};
use crate::target::parts::file_name;

/// Access that ACCESS checks: to read and to write a file.
const READ_WRITE: u32 = access::READ | access::MODIFY | access::EXTEND;

/// Directory and name of a file.
#[derive(Clone)]
struct Entry {
    dir: Handle,
    name: String,
}

impl Entry {
    /// Entry with a path below the root of the target.
    fn of(mount: &Mount, path: &str) -> io::Result<Self> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = mount.directory(parent).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { dir, name: name.to_owned() })
    }

    fn wire(&self) -> DirOpArgs<'_> {
        let name = FileName::new(self.name.as_bytes());
        let name = name.expect("names of this program are shorter than 255 bytes");
        DirOpArgs { dir: self.dir.wire(), name }
    }
}

/// A call with its arguments.
enum Call {
    Getattr(Handle),
    Fsstat(Handle),
    Access(Handle),
    /// SETATTR of the time of the last change.
    Setattr(Handle),
    /// SETATTR of the mode and the time of the last change of an extracted file.
    Extracted(Handle),
    Lookup(Entry),
    /// CREATE (GUARDED).
    Create(Entry),
    Remove(Entry),
    Rename(Entry, Entry),
}

/// A metadata operation that waits for a reply.
pub(super) struct Metadata {
    operation: MetadataCall,
    call: Call,
}

/// Next step of a metadata operation.
pub(super) enum Next {
    /// Send the call of [`Metadata::send`].
    Call,
    /// Write this many bytes of the buffer of the slot to the new file.
    Fill(Handle, u32),
    /// The operation is complete.
    End(io::Result<()>),
}

impl Metadata {
    /// Operation with its first call.
    ///
    /// # Errors
    /// The run did not create the directory of a file, or the operation is not one call at a time.
    pub(super) fn new(mount: &Mount, operation: MetadataCall) -> io::Result<Self> {
        let number = |file: u32| (file as usize).min(mount.files.len() - 1);
        let file = |file: u32| mount.files[number(file)];
        let entry = |path: &dyn ToString| Entry::of(mount, &path.to_string());
        let call = match operation {
            MetadataCall::Getattr { file: index } => Call::Getattr(file(index)),
            MetadataCall::Fsstat => Call::Fsstat(mount.next_root()),
            MetadataCall::Access { file: index } => Call::Access(file(index)),
            MetadataCall::Setattr { file: index } => Call::Setattr(file(index)),
            MetadataCall::Lookup { file } => {
                let dir = mount.root_of_file(number(file));
                Call::Lookup(Entry { dir, name: file_name(file) })
            }
            MetadataCall::Create { file, .. } | MetadataCall::Extract { file, .. } => {
                Call::Create(entry(&file)?)
            }
            MetadataCall::Stat { file } => Call::Lookup(entry(&file)?),
            MetadataCall::Remove { file } => Call::Remove(entry(&file)?),
            MetadataCall::Rename { from, to } => Call::Rename(entry(&from)?, entry(&to)?),
            MetadataCall::Readdir
            | MetadataCall::Readdirplus
            | MetadataCall::List { .. }
            | MetadataCall::ListPlus { .. }
            | MetadataCall::Sync => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { operation, call })
    }

    /// Rest of the operation after the content of the new file is written; `None` if the operation
    /// is complete.
    pub(super) fn filled(mut self, handle: Handle) -> Option<Self> {
        let is_extract = matches!(self.operation, MetadataCall::Extract { .. });
        self.call = Call::Extracted(handle);
        is_extract.then_some(self)
    }

    /// Submits the present call.
    pub(super) fn send(&self, channel: &mut Channel, slot: usize) {
        let args = match &self.call {
            Call::Getattr(object) => Args::Getattr(FileArgs { object: object.wire() }),
            Call::Fsstat(object) => Args::Fsstat(FileArgs { object: object.wire() }),
            Call::Access(object) => {
                Args::Access(AccessArgs { object: object.wire(), access: READ_WRITE })
            }
            Call::Setattr(object) => {
                let new_attributes = Sattr3 { mtime: SetTime::ServerTime, ..Sattr3::default() };
                Args::Setattr(SetattrArgs { object: object.wire(), new_attributes, guard: None })
            }
            Call::Extracted(object) => {
                let mtime = SetTime::ClientTime(Nfstime3 { seconds: EXTRACTED_AT_S, nanos: 0 });
                let new_attributes = Sattr3 { mode: Some(FILE_MODE), mtime, ..Sattr3::default() };
                Args::Setattr(SetattrArgs { object: object.wire(), new_attributes, guard: None })
            }
            Call::Lookup(entry) => Args::Lookup(entry.wire()),
            Call::Create(entry) => {
                let attributes = Sattr3 { mode: Some(FILE_MODE), ..Sattr3::default() };
                let how = CreateHow::Guarded(attributes);
                Args::Create(CreateArgs { place: entry.wire(), how })
            }
            Call::Remove(entry) => Args::Remove(entry.wire()),
            Call::Rename(from, to) => Args::Rename(RenameArgs { from: from.wire(), to: to.wire() }),
        };
        channel.call(slot, 0, &args);
    }

    /// Processes the results of a call that succeeded.
    pub(super) fn take(&mut self, results: &Results<'_>) -> Next {
        let is_extract = matches!(self.operation, MetadataCall::Extract { .. });
        match (self.operation, results) {
            (MetadataCall::Access { .. }, Results::Access(Ok(granted)))
                if granted.access & READ_WRITE != READ_WRITE =>
            {
                let why = "ACCESS: the server does not grant reading and writing";
                Next::End(Err(io::Error::new(io::ErrorKind::PermissionDenied, why)))
            }
            (
                MetadataCall::Stat { .. },
                Results::Lookup(Ok(LookupResok { attributes: None, object, .. })),
            ) => {
                // The server does not return the attributes with the handle.
                self.call = Call::Getattr(Handle::new(object));
                Next::Call
            }
            (
                MetadataCall::Create { bytes, .. } | MetadataCall::Extract { bytes, .. },
                Results::Create(Ok(made)),
            ) if bytes > 0 || is_extract => match (made.object, &self.call) {
                (Some(object), _) => self.fill(Handle::new(&object), bytes),
                (None, Call::Create(entry)) => {
                    self.call = Call::Lookup(entry.clone());
                    Next::Call
                }
                (None, _) => Next::End(Err(io::Error::other("CREATE: no handle"))),
            },
            (
                MetadataCall::Create { bytes, .. } | MetadataCall::Extract { bytes, .. },
                Results::Lookup(Ok(found)),
            ) => self.fill(Handle::new(&found.object), bytes),
            _ => Next::End(Ok(())),
        }
    }

    /// Next step after the creation of a file of `bytes` bytes.
    fn fill(&mut self, handle: Handle, bytes: u32) -> Next {
        if bytes > 0 {
            return Next::Fill(handle, bytes);
        }
        self.call = Call::Extracted(handle);
        Next::Call
    }
}
