//! Interface between the iSCSI protocol and the server's configuration of targets.
//!
//! The server implements [`Targets`]; the session table is in `session_table`.
//!
//! Invariants:
//! - a [`Secret`] is never printed, and its memory is zeroed on drop;
//! - the calls do not block, because they run on the thread of a session.

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
    /// Name and ISID that the initiator claims, before any authentication. The name is in lower
    /// case.
    pub port: InitiatorPort,
    /// Address of the initiator.
    pub peer: String,
    /// Key of the peer. The limits for each peer count all connections with the same key.
    pub key: PeerKey,
    /// Local address at which the connection arrived.
    pub local: Address,
}

/// Authentication that the target requires for a login.
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
    /// CHAP is optional. An initiator that offers CHAP as its first choice must prove one of these
    /// secrets.
    Offered(Vec<(Credentials, Option<Credentials>)>),
    /// The login always fails. To the initiator it looks like CHAP with a wrong secret.
    Never(Refusal),
}

/// Function that creates the nexus of a session after the login, on the session's thread.
pub type OpenNexus = Box<dyn FnOnce(&InitiatorPort) -> Result<Box<dyn Nexus>, Refusal>>;

/// Permission to log in to a target.
pub struct Admission {
    /// Authentication that the target requires for the login.
    pub authentication: Authentication,
    /// Function that creates the nexus that runs the session's commands.
    pub open: OpenNexus,
}

/// Portal of a target (RFC 7143): address, port and portal group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// IP address and TCP port under which initiators reach the portal.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group_tag: u16,
}

impl fmt::Display for Portal {
    /// Formats the portal as a TargetAddress (RFC 7143 13.8): IPv6 in brackets, without a zone.
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
    /// Active sessions of this server. The iSCSI protocol enters and removes them.
    fn sessions(&self) -> &Arc<Sessions>;

    /// Time without a complete PDU after which the target sends a NOP-In. The initiator must
    /// respond to the NOP-In within the same time.
    fn quiet_limit(&self) -> Duration {
        QUIET_LIMIT
    }

    /// Authentication that the target requires for a discovery session.
    ///
    /// # Errors
    /// The initiator may not run discovery.
    fn admit_discovery(&self, applicant: &Applicant) -> Result<Authentication, Refusal>;

    /// Calls `show` for each target that the initiator may know of, in the order of their names,
    /// until `show` returns false. Starts with the first name after `after`; the empty string
    /// precedes all names. The initiator may know of targets that need no secret, and of targets
    /// whose secret it has `proven`. The targets are shown one by one, because a server can have
    /// thousands of them.
    fn discover(
        &self,
        applicant: &Applicant,
        proven: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    );

    /// Tag of the portal group at which the initiator connected. All portals of a session are in
    /// one portal group.
    ///
    /// # Errors
    /// No portal has the address at which the connection arrived.
    fn portal_group_tag(&self, _: &Applicant) -> Result<u16, Refusal> {
        Ok(1)
    }

    /// Reports that an initiator at `address` gave a wrong CHAP response.
    fn guessed(&self, _address: &str) {}

    /// Decides whether the initiator may log in to `target` (a name in lower case), and with which
    /// authentication.
    ///
    /// # Errors
    /// Reason for which the target refuses the login.
    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal>;
}
