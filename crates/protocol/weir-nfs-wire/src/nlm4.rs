//! NLM version 4 of a server without locks: it refuses each request, so that clients fail at once.
//!
//! The arguments of FREE_ALL have no cookie. All others begin with a cookie, which the result
//! repeats; the rest of the arguments needs no decoding. The table omits the procedures with the
//! suffix MSG or RES, whose results are calls to the client: the server replies PROC_UNAVAIL.
//!
//! Spec: RFC 1813 section 6.
//!
//! Invariant: every result says NLM4_DENIED_NOLOCKS.

use weir_oncrpc::{Decoder, Encoder, Opaque, Xdr, XdrError};

use crate::limits::NETOBJ_BYTES_MAX;
use crate::procedure::procedures;

/// Number of the program (NLM_PROG).
pub const PROGRAM: u32 = 100_021;

/// Version of the program for NFSv3 (NLM4_VERS).
pub const VERSION: u32 = 4;

/// NLM4_DENIED_NOLOCKS: the server has no resources for locks (nlm4_stats).
const DENIED_NOLOCKS: u32 = 2;

/// Opaque identifier of a client (netobj).
pub type Netobj<'a> = Opaque<'a, NETOBJ_BYTES_MAX>;

procedures! {
    /// Procedures with a result.
    pub enum Procedure {
        /// NLMPROC4_NULL: no operation.
        Null = 0, "null", Reads;
        /// NLMPROC4_TEST: test for a conflicting lock.
        Test = 1, "test", Reads;
        /// NLMPROC4_LOCK: set a lock.
        Lock = 2, "lock", Reads;
        /// NLMPROC4_CANCEL: cancel a blocked lock request.
        Cancel = 3, "cancel", Reads;
        /// NLMPROC4_UNLOCK: remove a lock.
        Unlock = 4, "unlock", Reads;
        /// NLMPROC4_GRANTED: call back from a server that granted a blocked request.
        Granted = 5, "granted", Reads;
        /// NLMPROC4_SHARE: set a share reservation.
        Share = 20, "share", Reads;
        /// NLMPROC4_UNSHARE: remove a share reservation.
        Unshare = 21, "unshare", Reads;
        /// NLMPROC4_NM_LOCK: set a lock without monitoring of the client.
        NmLock = 22, "nm_lock", Reads;
        /// NLMPROC4_FREE_ALL: remove all locks of a client that restarted.
        FreeAll = 23, "free_all", Reads;
    }
}

/// Result of a procedure of a server without locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// `void`: result of NULL and FREE_ALL.
    Void,
    /// NLM4_DENIED_NOLOCKS with the cookie of the request: nlm4_res, and nlm4_testres without a
    /// holder.
    Denied(Netobj<'a>),
    /// The same with the sequence number 0 (nlm4_shareres).
    DeniedShare(Netobj<'a>),
}

impl<'a> Refusal<'a> {
    /// Decodes the cookie of a request and returns the result.
    ///
    /// # Errors
    /// The arguments contain no cookie. The server replies GARBAGE_ARGS.
    pub fn of(procedure: Procedure, input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match procedure {
            Procedure::Null | Procedure::FreeAll => Ok(Self::Void),
            Procedure::Share | Procedure::Unshare => Netobj::decode(input).map(Self::DeniedShare),
            Procedure::Test
            | Procedure::Lock
            | Procedure::Cancel
            | Procedure::Unlock
            | Procedure::Granted
            | Procedure::NmLock => Netobj::decode(input).map(Self::Denied),
        }
    }

    /// Appends the result.
    pub fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Void => {}
            Self::Denied(cookie) => {
                cookie.encode(out);
                out.u32(DENIED_NOLOCKS);
            }
            Self::DeniedShare(cookie) => {
                cookie.encode(out);
                out.u32(DENIED_NOLOCKS);
                out.u32(0);
            }
        }
    }
}
