//! Header of a call; `reply` has the header of the reply.
//!
//! ```text
//! u32 xid, u32 CALL = 0, u32 RPC version = 2, u32 program, u32 version, u32 procedure,
//! opaque_auth credential, opaque_auth verifier, arguments
//! ```
//!
//! Spec: RFC 5531 section 9 (call_body).
//!
//! Invariant: each error but an unanswerable one has the reply that the server sends.

use super::auth::{AuthStat, OpaqueAuth};
use super::message_type::{CALL, RPC_VERSION};
use super::reply::{Rejected, Reply, ReplyBody};
use crate::xdr::{Decoder, Encoder, Xdr, XdrError};

/// Header of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Transaction id: the reply repeats it.
    pub xid: u32,
    /// Number of the program, such as 100003 for NFS.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure.
    pub procedure: u32,
    /// Identity of the caller.
    pub credential: OpaqueAuth<'a>,
    /// Proof of the identity.
    pub verifier: OpaqueAuth<'a>,
}

/// Error of a call header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The record ends inside the header. If the record is complete, the server closes the
    /// connection, because it may have no transaction id to reply to.
    #[error("record ends inside the header of a call")]
    Truncated,
    /// The message is no call. The server closes the connection.
    #[error("message type {0} is not CALL")]
    NotCall(u32),
    /// The server denies the call with this reply, and the connection continues.
    #[error("call {xid:#x} is denied: {reason:?}")]
    Denied {
        /// Transaction id of the call.
        xid: u32,
        /// Reason: another version of RPC, or an oversized credential or verifier.
        reason: Rejected,
    },
}

impl CallError {
    /// Reply that the server sends. `None`: the server closes the connection.
    pub const fn reply(&self) -> Option<Reply<'static>> {
        match *self {
            Self::Truncated | Self::NotCall(_) => None,
            Self::Denied { xid, reason } => Some(Reply { xid, body: ReplyBody::Denied(reason) }),
        }
    }
}

impl From<XdrError> for CallError {
    fn from(_: XdrError) -> Self {
        // The fields that this conversion covers are plain numbers, which have no other error.
        Self::Truncated
    }
}

impl<'a> Call<'a> {
    /// Decodes the header at the start of a record, or of the received part of a record. The
    /// decoder of the result is at the arguments of the procedure.
    ///
    /// # Errors
    /// The header is malformed; [`CallError::reply`] has the reply of the server.
    pub fn decode(record: &'a [u8]) -> Result<(Self, Decoder<'a>), CallError> {
        let mut input = Decoder::new(record);
        let xid = input.u32()?;
        let message_type = input.u32()?;
        if message_type != CALL {
            return Err(CallError::NotCall(message_type));
        }
        if input.u32()? != RPC_VERSION {
            let reason = Rejected::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            return Err(CallError::Denied { xid, reason });
        }
        let (program, version, procedure) = (input.u32()?, input.u32()?, input.u32()?);
        let mut auth = |stat| {
            OpaqueAuth::decode(&mut input).map_err(|error| match error {
                XdrError::Truncated => CallError::Truncated,
                _ => CallError::Denied { xid, reason: Rejected::AuthError(stat) },
            })
        };
        let credential = auth(AuthStat::BadCred)?;
        let verifier = auth(AuthStat::BadVerf)?;
        Ok((Self { xid, program, version, procedure, credential, verifier }, input))
    }

    /// Appends the header. The arguments of the procedure follow it.
    pub fn encode(&self, out: &mut Encoder<'_>) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            out.u32(word);
        }
        self.credential.encode(out);
        self.verifier.encode(out);
    }
}
