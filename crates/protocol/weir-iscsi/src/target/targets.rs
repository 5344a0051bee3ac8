//! Interface between the protocol and the server's configuration of targets.
//!
//! The server implements it; the session table is in `session_table`.
//!
//! Invariants:
//! - a [`Secret`] is never printed, and its memory is cleared on drop;
//! - the calls do not block: they run on the thread of a session.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_iscsi_wire::Credentials;
use weir_net::{Address, PeerKey};
use weir_scsi::{InitiatorPort, Nexus};

use crate::limits::QUIET_LIMIT;
use crate::target::denial::Refusal;
use crate::target::session_table::Sessions;

/// Initiator that wants to log in.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Name and ISID that the initiator claims; the name in lower case.
    pub port: InitiatorPort,
    /// Address of the initiator.
    pub peer: String,
    /// Key under which the connections of the initiator are counted for the limits of each peer.
    pub key: PeerKey,
    /// Local address of the connection.
    pub local: Address,
}

/// Authentication that an initiator needs for its login.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// No authentication.
    None,
    /// CHAP. With `target`, the initiator must also request mutual CHAP.
    Chap {
        /// Name and secret of the initiator.
        initiator: Credentials,
        /// Name and secret of the target, for mutual CHAP.
        target: Option<Credentials>,
    },
    /// No authentication is required. An initiator that offers CHAP first must prove one of these
    /// secrets.
    Offered(Vec<(Credentials, Option<Credentials>)>),
    /// Login that always fails. To the initiator it looks like CHAP with a wrong secret.
    Never(Refusal),
}

/// Creates the nexus of a session after the login, on the session's thread.
pub type OpenNexus = Box<dyn FnOnce(&InitiatorPort) -> Result<Box<dyn Nexus>, Refusal>>;

/// Permission to log in to a target.
pub struct Admission {
    /// Authentication that the initiator needs.
    pub authentication: Authentication,
    /// Creates the nexus that runs the session's commands.
    pub open: OpenNexus,
}

/// Portal of a target (RFC 7143): address, port and portal group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port, as initiators reach them.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group_tag: u16,
}

impl fmt::Display for Portal {
    /// Format of TargetAddress (RFC 7143 13.8): IPv6 in brackets, without a zone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, port) = (self.address.ip().to_canonical(), self.address.port());
        match ip {
            std::net::IpAddr::V4(ip) => write!(f, "{ip}:{port},{}", self.group_tag),
            std::net::IpAddr::V6(ip) => write!(f, "[{ip}]:{port},{}", self.group_tag),
        }
    }
}

/// Target in a discovery response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// iSCSI name of the target.
    pub name: String,
    /// Portals of the target.
    pub portals: Vec<Portal>,
}

/// Targets of a server.
pub trait Targets: Send + Sync + 'static {
    /// Active sessions of this server; the protocol enters and removes them.
    fn sessions(&self) -> &Arc<Sessions>;

    /// Time without a complete PDU after which the target sends a NOP-In. The response to the
    /// NOP-In has the same time limit.
    fn quiet_limit(&self) -> Duration {
        QUIET_LIMIT
    }

    /// Authentication that an initiator needs for a discovery session.
    ///
    /// # Errors
    /// The initiator may not run discovery.
    fn admit_discovery(&self, applicant: &Applicant) -> Result<Authentication, Refusal>;

    /// Calls `show` for each target that the initiator may know of, in the order of their names,
    /// until `show` returns false. Starts with the first name after `after`; the empty string
    /// precedes all names. The initiator may know of targets that need no secret, and of targets
    /// whose secret it has `proven`. The list is not copied: it can have thousands of targets.
    fn discover(
        &self,
        applicant: &Applicant,
        proven: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    );

    /// Tag of the portal group that the initiator reached; a session can only span portals of one
    /// group.
    ///
    /// # Errors
    /// The connection reached no portal.
    fn portal_group_tag(&self, _: &Applicant) -> Result<u16, Refusal> {
        Ok(1)
    }

    /// Records that an initiator at `address` gave a wrong CHAP response.
    fn guessed(&self, _address: &str) {}

    /// Whether the initiator may log in to `target` (in lower case), and with which authentication.
    ///
    /// # Errors
    /// Reason for the refusal.
    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal>;
}
