//! Small files that a client creates, reads and removes as a whole, such as lock files.
//!
//! `client` has the other calls.
//!
//! Spec: RFC 1813 sections 3.3.6 (READ), 3.3.7 (WRITE), 3.3.8 (CREATE) and 3.3.12 (REMOVE).
//!
//! Invariant: a file has at most [`SMALL_FILE_BYTES_MAX`], so that one READ or WRITE is enough.

use weir_nfs_wire::nfs3::{
    Args, CreateArgs, CreateHow, Nfsstat3, ReadArgs, Results, Sattr3, StableHow, WriteArgs,
};
use weir_oncrpc::Opaque;

use crate::client::{Client, place};
use crate::error::NfsError;
use crate::exchange::Reply;
use crate::handle::Handle;
use crate::limits::SMALL_FILE_BYTES_MAX;

impl Client {
    /// CREATE (GUARDED) with mode 0644, and a FILE_SYNC WRITE of `content`, which has at most 512
    /// bytes ([`SMALL_FILE_BYTES_MAX`]). Returns false if the name exists already.
    ///
    /// # Errors
    /// A call failed. If the WRITE failed, the file exists and is empty.
    pub fn create_file(
        &mut self,
        dir: &Handle,
        name: &str,
        content: &[u8],
    ) -> Result<bool, NfsError> {
        let attributes = Sattr3 { mode: Some(0o644), ..Sattr3::default() };
        let how = CreateHow::Guarded(attributes);
        let args = Args::Create(CreateArgs { place: place(dir, name)?, how });
        let made = self.run("CREATE", &args, |results| match results {
            Results::Create(Ok(made)) => Some(made.object.map(|object| Handle::new(&object))),
            _ => None,
        });
        let file = match made {
            Err(NfsError::Failed { status: Nfsstat3::Exist, .. }) => return Ok(false),
            made => match made? {
                Some(file) => file,
                None => self.must_exist(dir, name)?,
            },
        };
        let content = content.get(..SMALL_FILE_BYTES_MAX).unwrap_or(content);
        let too_long = |source| NfsError::Reply { what: "WRITE", source };
        let args = Args::Write(WriteArgs {
            file: file.wire(),
            offset: 0,
            count: content.len() as u32,
            stable: StableHow::FileSync,
            data: Opaque::new(content).map_err(too_long)?,
        });
        match self.call(&args)? {
            Reply::Write { bytes, .. } if bytes as usize == content.len() => Ok(true),
            Reply::Write { .. } => {
                Err(NfsError::Protocol { why: "WRITE: a short reply for a few bytes" })
            }
            Reply::Failed(status) => {
                Err(NfsError::Failed { what: "WRITE", status, unreserved_port: None })
            }
            _ => Err(NfsError::Protocol { why: "results of another procedure" }),
        }
    }

    /// The first 512 bytes ([`SMALL_FILE_BYTES_MAX`]) of a file; `None` if the name does not exist.
    ///
    /// # Errors
    /// A call failed.
    pub fn read_file(&mut self, dir: &Handle, name: &str) -> Result<Option<Vec<u8>>, NfsError> {
        let Some(found) = self.lookup(dir, name)? else { return Ok(None) };
        let (file, count) = (found.handle.wire(), SMALL_FILE_BYTES_MAX as u32);
        let read = self.run("READ", &Args::Read(ReadArgs { file, offset: 0, count }), |results| {
            let Results::Read(Ok(read)) = results else { return None };
            let data = read.data.bytes();
            Some(data.get(..SMALL_FILE_BYTES_MAX).unwrap_or(data).to_vec())
        });
        match read {
            // Another client removed the file after the LOOKUP.
            Err(NfsError::Failed { status: Nfsstat3::Stale | Nfsstat3::Noent, .. }) => Ok(None),
            read => read.map(Some),
        }
    }

    /// REMOVE; a missing name is no error.
    ///
    /// # Errors
    /// The call failed for another reason.
    pub fn remove_file(&mut self, dir: &Handle, name: &str) -> Result<(), NfsError> {
        match self.run("REMOVE", &Args::Remove(place(dir, name)?), |_| Some(())) {
            Err(NfsError::Failed { status: Nfsstat3::Noent, .. }) => Ok(()),
            removed => removed,
        }
    }
}
