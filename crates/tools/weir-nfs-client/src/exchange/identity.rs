//! Credential of the calls of a connection.
//!
//! `message::auth` of weir-oncrpc has its layout.
//!
//! Invariant: the encoded credential has at most 408 bytes, and every call has the same one.

use weir_block::OutBuf;
use weir_oncrpc::limits::MACHINE_NAME_BYTES_MAX;
use weir_oncrpc::message::{AuthSys, Gids, OpaqueAuth};
use weir_oncrpc::{Encoder, Opaque, Xdr as _, XdrError};

use crate::url::Url;

/// Encoded credential (opaque_auth) with which the calls of a connection identify their user.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    bytes: Vec<u8>,
    text: String,
}

impl Identity {
    /// No identity (AUTH_NONE).
    pub fn none() -> Self {
        let mut out = OutBuf::default();
        OpaqueAuth::NONE.encode(&mut Encoder::new(&mut out));
        Self { bytes: out.filled().to_vec(), text: "AUTH_NONE".to_owned() }
    }

    /// User, group and supplementary groups (AUTH_SYS, RFC 5531 appendix A). Only the first 255
    /// bytes of `machine` are sent.
    ///
    /// # Errors
    /// More than 16 supplementary groups.
    pub fn sys(uid: u32, gid: u32, gids: &[u32], machine: &str) -> Result<Self, XdrError> {
        let name = machine.as_bytes();
        let name = name.get(..name.len().min(MACHINE_NAME_BYTES_MAX)).unwrap_or_default();
        let credential = AuthSys {
            stamp: 0,
            machine_name: Opaque::new(name)?,
            uid,
            gid,
            gids: Gids::new(gids)?,
        };
        let mut out = OutBuf::default();
        credential.encode_opaque(&mut Encoder::new(&mut out));
        let text = format!("AUTH_SYS, uid {uid}, gid {gid}");
        Ok(Self { bytes: out.filled().to_vec(), text })
    }

    /// Identity of the calls for a URL: its uid and gid, or the effective uid and gid of
    /// this process.
    ///
    /// # Errors
    /// The URL has more than 16 supplementary groups.
    pub fn of(url: &Url) -> Result<Self, XdrError> {
        let uid = url.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let gid = url.gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
        let machine = rustix::system::uname();
        Self::sys(uid, gid, &url.gids, &machine.nodename().to_string_lossy())
    }

    /// Flavor, uid and gid, for reports.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Encoded credential.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
