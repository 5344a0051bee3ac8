//! Header of a reply; `call` has the header of the call.
//!
//! ```text
//! u32 xid, u32 REPLY = 1, u32 reply_stat
//!   MSG_ACCEPTED = 0: opaque_auth verifier, u32 accept_stat, PROG_MISMATCH: u32 low, u32 high
//!   MSG_DENIED = 1:   u32 reject_stat, RPC_MISMATCH: u32 low, u32 high; AUTH_ERROR: u32 auth_stat
//! ```
//!
//! Spec: RFC 5531 section 9 (reply_body).
//!
//! Invariant: after an accepted call with SUCCESS the results follow, otherwise nothing.

use super::auth::{AuthStat, OpaqueAuth};
use super::message_type::REPLY;
use crate::xdr::{Decoder, Encoder, Xdr, XdrError};

/// Reply of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction id of the call.
    pub xid: u32,
    /// Outcome of the call.
    pub body: ReplyBody<'a>,
}

/// Outcome of a call (reply_body).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// The server accepted the credential.
    Accepted {
        /// Verifier of the server.
        verifier: OpaqueAuth<'a>,
        /// Outcome; the results follow [`AcceptStat::Success`].
        stat: AcceptStat,
    },
    /// The server did not process the call.
    Denied(Rejected),
}

/// Outcome of an accepted call (accept_stat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptStat {
    /// SUCCESS: the procedure ran; its results follow.
    Success,
    /// PROG_UNAVAIL: the server does not offer the program.
    ProgUnavail,
    /// PROG_MISMATCH: the server offers the program in other versions.
    ProgMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no such procedure.
    ProcUnavail,
    /// GARBAGE_ARGS: the server cannot decode the arguments.
    GarbageArgs,
    /// SYSTEM_ERR: the server cannot run the procedure, for example without memory.
    SystemErr,
}

/// Reason of a denied call (rejected_reply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// RPC_MISMATCH: the server offers other versions of RPC.
    RpcMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// AUTH_ERROR: the server does not accept the credential or verifier.
    AuthError(AuthStat),
}

impl<'a> Reply<'a> {
    /// Reply with an AUTH_NONE verifier, as servers send it for AUTH_NONE and AUTH_SYS.
    pub const fn accepted(xid: u32, stat: AcceptStat) -> Self {
        Self { xid, body: ReplyBody::Accepted { verifier: OpaqueAuth::NONE, stat } }
    }

    /// Reply to a call with a credential or verifier that the server does not accept.
    pub const fn auth_error(xid: u32, stat: AuthStat) -> Self {
        Self { xid, body: ReplyBody::Denied(Rejected::AuthError(stat)) }
    }

    /// Decodes the header at the start of a record. The decoder of the result is at the results of
    /// the procedure, which follow [`AcceptStat::Success`].
    ///
    /// # Errors
    /// The header is malformed, or the message is no reply.
    pub fn decode(record: &'a [u8]) -> Result<(Self, Decoder<'a>), XdrError> {
        let mut input = Decoder::new(record);
        let xid = input.u32()?;
        match input.u32()? {
            REPLY => Ok((Self { xid, body: ReplyBody::decode(&mut input)? }, input)),
            value => Err(XdrError::UnknownValue { name: "REPLY", value }),
        }
    }

    /// Appends the header. The results follow [`AcceptStat::Success`].
    pub fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.xid);
        out.u32(REPLY);
        self.body.encode(out);
    }
}

impl<'a> Xdr<'a> for ReplyBody<'a> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::Accepted {
                verifier: OpaqueAuth::decode(input)?,
                stat: AcceptStat::decode(input)?,
            }),
            1 => Ok(Self::Denied(Rejected::decode(input)?)),
            value => Err(XdrError::UnknownValue { name: "reply_stat", value }),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Accepted { verifier, stat } => {
                out.u32(0);
                verifier.encode(out);
                stat.encode(out);
            }
            Self::Denied(rejected) => {
                out.u32(1);
                rejected.encode(out);
            }
        }
    }
}

impl Xdr<'_> for AcceptStat {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(match input.u32()? {
            0 => Self::Success,
            1 => Self::ProgUnavail,
            2 => Self::ProgMismatch { low: input.u32()?, high: input.u32()? },
            3 => Self::ProcUnavail,
            4 => Self::GarbageArgs,
            5 => Self::SystemErr,
            value => return Err(XdrError::UnknownValue { name: "accept_stat", value }),
        })
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match *self {
            Self::Success => out.u32(0),
            Self::ProgUnavail => out.u32(1),
            Self::ProgMismatch { low, high } => [2, low, high].into_iter().for_each(|w| out.u32(w)),
            Self::ProcUnavail => out.u32(3),
            Self::GarbageArgs => out.u32(4),
            Self::SystemErr => out.u32(5),
        }
    }
}

impl Xdr<'_> for Rejected {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::RpcMismatch { low: input.u32()?, high: input.u32()? }),
            1 => AuthStat::decode(input).map(Self::AuthError),
            value => Err(XdrError::UnknownValue { name: "reject_stat", value }),
        }
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match *self {
            Self::RpcMismatch { low, high } => [0, low, high].into_iter().for_each(|w| out.u32(w)),
            Self::AuthError(stat) => [1, stat as u32].into_iter().for_each(|w| out.u32(w)),
        }
    }
}
