//! Credentials and verifiers.
//!
//! `call` and `reply` contain the messages in which they are sent.
//!
//! Spec: RFC 5531 sections 8.2, 9 and 10; appendix A (AUTH_SYS).
//!
//! Invariant: a credential that decodes consumes the whole body of its [`OpaqueAuth`].

use crate::limits::{AUTH_BODY_BYTES_MAX, GIDS_MAX, MACHINE_NAME_BYTES_MAX};
use crate::xdr::{Decoder, Encoder, Opaque, Xdr, XdrError};

/// Numbers of authentication flavors (RFC 5531 section 8.2).
pub mod flavor {
    /// No authentication.
    pub const AUTH_NONE: u32 = 0;
    /// User and group ids of the client, not verified. Also called AUTH_UNIX.
    pub const AUTH_SYS: u32 = 1;
    /// Shorthand for an earlier AUTH_SYS credential; servers need not offer it.
    pub const AUTH_SHORT: u32 = 2;
    /// GSS-API (RFC 2203).
    pub const RPCSEC_GSS: u32 = 6;
}

crate::xdr_struct! {
    /// Authentication data of a message (opaque_auth): a flavor and its undecoded body.
    #[derive(Copy)]
    pub struct OpaqueAuth<'a> {
        /// Number of the flavor ([`flavor`]).
        pub flavor: u32,
        /// Body of at most 400 bytes.
        pub body: Opaque<'a, AUTH_BODY_BYTES_MAX>,
    }
}

crate::xdr_enum! {
    /// Reason of an authentication error (auth_stat). AUTH_OK is no error and has no value.
    pub enum AuthStat {
        /// AUTH_BADCRED: the credential is malformed.
        BadCred = 1,
        /// AUTH_REJECTEDCRED: the client must begin a new session.
        RejectedCred = 2,
        /// AUTH_BADVERF: the verifier is malformed.
        BadVerf = 3,
        /// AUTH_REJECTEDVERF: the verifier expired or was replayed.
        RejectedVerf = 4,
        /// AUTH_TOOWEAK: the server requires a stronger flavor.
        TooWeak = 5,
        /// AUTH_INVALIDRESP: the client received an invalid verifier in a response.
        InvalidResp = 6,
        /// AUTH_FAILED: unknown reason.
        Failed = 7,
        /// AUTH_KERB_GENERIC: Kerberos error (deprecated).
        KerbGeneric = 8,
        /// AUTH_TIMEEXPIRE: the credential expired (deprecated).
        TimeExpire = 9,
        /// AUTH_TKT_FILE: problem with the ticket file (deprecated).
        TktFile = 10,
        /// AUTH_DECODE: the authenticator is undecodable (deprecated).
        Decode = 11,
        /// AUTH_NET_ADDR: wrong network address in the ticket (deprecated).
        NetAddr = 12,
        /// RPCSEC_GSS_CREDPROBLEM: no credentials for the user.
        GssCredProblem = 13,
        /// RPCSEC_GSS_CTXPROBLEM: problem with the security context.
        GssCtxProblem = 14,
    }
}

/// Supplementary groups of an AUTH_SYS credential: at most 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gids {
    ids: [u32; GIDS_MAX],
    len: usize,
}

impl Gids {
    /// Creates a list for encoding.
    ///
    /// # Errors
    /// [`XdrError::TooLong`] if there are more than 16 groups.
    pub fn new(gids: &[u32]) -> Result<Self, XdrError> {
        let mut ids = [0; GIDS_MAX];
        let too_long = XdrError::TooLong { len: gids.len(), max: GIDS_MAX };
        ids.get_mut(..gids.len()).ok_or(too_long)?.copy_from_slice(gids);
        Ok(Self { ids, len: gids.len() })
    }

    /// Group ids, in the order of the credential.
    pub fn as_slice(&self) -> &[u32] {
        self.ids.get(..self.len).unwrap_or_default()
    }
}

impl Xdr<'_> for Gids {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let len = input.length(GIDS_MAX)?;
        let mut ids = [0; GIDS_MAX];
        for id in ids.iter_mut().take(len) {
            *id = input.u32()?;
        }
        Ok(Self { ids, len })
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.len as u32);
        self.as_slice().iter().for_each(|id| out.u32(*id));
    }
}

crate::xdr_struct! {
    /// AUTH_SYS credential (authsys_parms, RFC 5531 appendix A). The server cannot verify it.
    #[derive(Copy)]
    pub struct AuthSys<'a> {
        /// Arbitrary number of the client.
        pub stamp: u32,
        /// Name of the client's machine.
        pub machine_name: Opaque<'a, MACHINE_NAME_BYTES_MAX>,
        /// User id of the caller.
        pub uid: u32,
        /// Primary group id of the caller.
        pub gid: u32,
        /// Supplementary groups of the caller.
        pub gids: Gids,
    }
}

/// Decoded credential of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE. The RFC leaves its body undefined, so the body is ignored.
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
    /// RPCSEC_GSS. This crate does not decode it; a server without it replies AUTH_BADCRED, as
    /// Linux does for flavors that it does not support.
    RpcsecGss,
    /// Flavor that this crate does not know, such as AUTH_SHORT. The server replies AUTH_BADCRED.
    Unknown(u32),
}

impl<'a> OpaqueAuth<'a> {
    /// AUTH_NONE with an empty body.
    pub const NONE: OpaqueAuth<'static> =
        OpaqueAuth { flavor: flavor::AUTH_NONE, body: Opaque::EMPTY };

    /// Decodes a credential.
    ///
    /// # Errors
    /// [`AuthStat::BadCred`], for the reply of the server: the body of an AUTH_SYS credential is
    /// malformed, has trailing bytes or more than 16 groups.
    pub fn credential(&self) -> Result<Credential<'a>, AuthStat> {
        match self.flavor {
            flavor::AUTH_NONE => Ok(Credential::None),
            flavor::AUTH_SYS => AuthSys::decode_whole(self.body.bytes())
                .map(Credential::Sys)
                .map_err(|_| AuthStat::BadCred),
            flavor::RPCSEC_GSS => Ok(Credential::RpcsecGss),
            other => Ok(Credential::Unknown(other)),
        }
    }
}

impl AuthSys<'_> {
    /// Appends the credential as an [`OpaqueAuth`] of the flavor AUTH_SYS. Its body has at most 340
    /// bytes.
    pub fn encode_opaque(&self, out: &mut Encoder<'_>) {
        out.u32(flavor::AUTH_SYS);
        let at = out.len();
        out.u32(0);
        self.encode(out);
        let len = (out.len() - at - 4) as u32;
        out.rewrite(at, |out| out.u32(len));
    }
}
