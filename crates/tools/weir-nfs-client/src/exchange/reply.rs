//! Decoder of complete records: replies to calls other than READ, and replies in fragments.
//!
//! `input` finds the records.
//!
//! Invariants: a record contains exactly one reply; a count of bytes in a reply never
//! exceeds the count in its call.

use weir_nfs_wire::nfs3::{
    CommitResok, Nfs3Result, PostOpAttr, Procedure, ReadResok, Results, WccData, WriteResok,
};
use weir_oncrpc::message::{self, AcceptStat, Rejected, ReplyBody};
use weir_oncrpc::{Decoder, Xdr, XdrError};

use super::{Buffers, Exchange, Kind, Refusal, Reply, status};
use crate::error::NfsError;

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

impl Exchange {
    /// Decodes a complete record.
    pub(super) fn take_record(
        &mut self,
        record: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<(), NfsError> {
        let malformed = |source| NfsError::Reply { what: "a call", source };
        let (header, results) = message::Reply::decode(record).map_err(malformed)?;
        let index = self.find(header.xid)?;
        let call = self.calls.get(index).and_then(Option::as_ref);
        let Some((name, kind)) = call.map(|call| (call.name, &call.kind)) else { return Ok(()) };
        let refusal = match header.body {
            ReplyBody::Accepted { stat: AcceptStat::Success, .. } => None,
            ReplyBody::Accepted { stat, .. } => Some(Refusal::Accept(stat)),
            ReplyBody::Denied(Rejected::AuthError(stat)) => Some(Refusal::Auth(stat)),
            ReplyBody::Denied(Rejected::RpcMismatch { low, high }) => {
                Some(Refusal::Version { low, high })
            }
        };
        let reply = match refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => {
                let decoded = decode(kind, &results, buffers);
                decoded.map_err(|source| NfsError::Reply { what: name, source })?
            }
        };
        self.end(index, reply);
        Ok(())
    }

    /// Records the reply to a call.
    pub(super) fn end(&mut self, index: usize, reply: Reply) {
        if let Some(call) = self.calls.get_mut(index).and_then(Option::as_mut) {
            call.reply = Some(reply);
        }
        self.finish(index);
    }
}

/// Decodes the results of a call.
fn decode(
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
