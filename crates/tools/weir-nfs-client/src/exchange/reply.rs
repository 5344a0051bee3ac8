//! Replies, and the decoder of the results of a call.
//!
//! `input` finds the records; `calls` assigns them to the calls.
//!
//! Invariant: a count of bytes in a reply never exceeds the count in its call.

use std::ops::Range;

use weir_nfs_wire::nfs3::{
    CommitResok, Nfs3Result, Nfsstat3, PostOpAttr, Procedure, ReadResok, Results, StableHow,
    Verifier, WccData, WriteResok,
};
use weir_oncrpc::{Decoder, Xdr, XdrError};

use super::request::Buffers;
use crate::error::NfsError;
use crate::refusal::Refusal;

/// Reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// READ succeeded.
    Read {
        /// Number of received bytes, at the start of the range; at most its length.
        bytes: u32,
        /// True if the read ended at the end of the file.
        eof: bool,
    },
    /// WRITE succeeded.
    Write {
        /// Number of bytes that the server wrote; at most the length of the range.
        bytes: u32,
        /// Stability of the data.
        committed: StableHow,
        /// Write verifier of the server.
        verifier: Verifier,
    },
    /// COMMIT succeeded.
    Commit {
        /// Write verifier of the server.
        verifier: Verifier,
    },
    /// Another procedure succeeded, or is no procedure of NFS.
    Other(Body),
    /// A procedure of NFS failed.
    Failed(Nfsstat3),
    /// The server refused the call in its RPC header.
    Refused(Refusal),
}

/// A completed call.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// Tag that the caller gave the call.
    pub tag: u64,
    /// Name of the procedure.
    pub name: &'static str,
    /// Reply of the server.
    pub reply: Reply,
}

/// Encoded results of a procedure that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    procedure: Option<Procedure>,
    bytes: Vec<u8>,
}

impl Body {
    /// Decodes the results of a procedure of NFS.
    ///
    /// # Errors
    /// The results are malformed, or the procedure belongs to another program.
    pub fn results(&self) -> Result<Results<'_>, NfsError> {
        let why = "the results of another program";
        let procedure = self.procedure.ok_or(NfsError::Protocol { why })?;
        let mut input = Decoder::new(&self.bytes);
        Results::decode(procedure, &mut input)
            .and_then(|results| input.finish().map(|()| results))
            .map_err(|source| NfsError::Reply { what: upper(procedure), source })
    }

    /// Encoded results, for programs other than NFS.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Type of the results of a call.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Read { slot: usize, range: Range<usize> },
    Write { bytes: usize },
    Nfs(Procedure),
    Other,
}

/// Decodes the results of a call.
pub(super) fn decode(
    kind: &Kind,
    results: &Decoder<'_>,
    buffers: &mut impl Buffers,
) -> Result<Reply, XdrError> {
    let other = |procedure| Reply::Other(Body { procedure, bytes: results.rest().to_vec() });
    let whole = results.rest();
    let checked = |bytes: u32, max: usize| match bytes as usize {
        bytes if bytes <= max => Ok(()),
        len => Err(XdrError::TooLong { len, max }),
    };
    Ok(match kind {
        Kind::Other => other(None),
        _ if let Some(status) = status(results)? => Reply::Failed(status),
        Kind::Read { slot, range } => {
            let ReadResok { count, eof, data, .. } = ok::<ReadResok<'_>, PostOpAttr>(whole)?;
            let (data, max) = (data.bytes(), range.len());
            checked(count, max)?;
            if data.len() != count as usize {
                return Err(XdrError::WrongCount { len: data.len(), count: count as usize });
            }
            let place = range.start..range.start + data.len();
            if let Some(place) = buffers.data_mut(*slot).get_mut(place) {
                place.copy_from_slice(data);
            }
            Reply::Read { bytes: count, eof }
        }
        Kind::Write { bytes } => {
            let WriteResok { count, committed, verifier, .. } = ok::<WriteResok, WccData>(whole)?;
            checked(count, *bytes)?;
            Reply::Write { bytes: count, committed, verifier }
        }
        Kind::Nfs(Procedure::Commit) => {
            Reply::Commit { verifier: ok::<CommitResok, WccData>(whole)?.verifier }
        }
        Kind::Nfs(procedure) => other(Some(*procedure)),
    })
}

/// Decodes the whole results of a successful procedure.
fn ok<'a, T: Xdr<'a>, F: Xdr<'a>>(bytes: &'a [u8]) -> Result<T, XdrError> {
    let unknown = XdrError::UnknownValue { name: "nfsstat3", value: 0 };
    Nfs3Result::<T, F>::decode_whole(bytes)?.map_err(|_| unknown)
}

/// Reads the status at the start of the results of a procedure. `None` means success (NFS3_OK).
fn status(results: &Decoder<'_>) -> Result<Option<Nfsstat3>, XdrError> {
    let mut input = results.clone();
    if input.clone().u32()? == 0 { Ok(None) } else { Nfsstat3::decode(&mut input).map(Some) }
}

/// Name of a procedure as the RFC writes it.
pub(super) const fn upper(procedure: Procedure) -> &'static str {
    match procedure {
        Procedure::Null => "NULL",
        Procedure::Getattr => "GETATTR",
        Procedure::Setattr => "SETATTR",
        Procedure::Lookup => "LOOKUP",
        Procedure::Access => "ACCESS",
        Procedure::Readlink => "READLINK",
        Procedure::Read => "READ",
        Procedure::Write => "WRITE",
        Procedure::Create => "CREATE",
        Procedure::Mkdir => "MKDIR",
        Procedure::Symlink => "SYMLINK",
        Procedure::Mknod => "MKNOD",
        Procedure::Remove => "REMOVE",
        Procedure::Rmdir => "RMDIR",
        Procedure::Rename => "RENAME",
        Procedure::Link => "LINK",
        Procedure::Readdir => "READDIR",
        Procedure::Readdirplus => "READDIRPLUS",
        Procedure::Fsstat => "FSSTAT",
        Procedure::Fsinfo => "FSINFO",
        Procedure::Pathconf => "PATHCONF",
        Procedure::Commit => "COMMIT",
    }
}
