//! What the protocol asks of those who know which targets there are.
//!
//! Not here: the targets themselves (the glue), the table of sessions (`sessions`).
//!
//! Invariants:
//! - a [`Secret`] is never printed, and its memory is cleared when it goes;
//! - calls return without waiting: they run on the thread of a session.

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

/// Who wants to log in.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Name and ISID, as it says; in lower case.
    pub port: InitiatorPort,
    /// Where it comes from.
    pub peer: String,
    /// Whom its connections are counted for.
    pub key: PeerKey,
    /// The address that it reached.
    pub local: Address,
}

/// What an initiator must prove before it is let in.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Nothing.
    None,
    /// That it has a secret, and, with `target`, that it asks this side to prove one too.
    Chap {
        /// The initiator's.
        initiator: Credentials,
        /// This side's, for mutual CHAP.
        target: Option<Credentials>,
    },
    /// Nothing, or one of these secrets if the initiator offers CHAP first.
    Offered(Vec<(Credentials, Option<Credentials>)>),
    /// What cannot be proved. To the initiator it looks like CHAP with another secret.
    Never(Refusal),
}

/// Makes the nexus of a session once it is logged in, on the session's thread.
pub type OpenNexus = Box<dyn FnOnce(&InitiatorPort) -> Result<Box<dyn Nexus>, Refusal>>;

/// An initiator may log in to a target.
pub struct Admission {
    /// If it proves this.
    pub authentication: Authentication,
    /// What its commands will go to.
    pub open: OpenNexus,
}

/// Where a target answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port, as initiators can reach it.
    pub address: SocketAddr,
    /// Its group.
    pub group_tag: u16,
}

impl fmt::Display for Portal {
    /// As in TargetAddress (RFC 7143 13.8): IPv6 in brackets, without a zone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, port) = (self.address.ip().to_canonical(), self.address.port());
        match ip {
            std::net::IpAddr::V4(ip) => write!(f, "{ip}:{port},{}", self.group_tag),
            std::net::IpAddr::V6(ip) => write!(f, "[{ip}]:{port},{}", self.group_tag),
        }
    }
}

/// A target that an initiator may know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// Its iSCSI name.
    pub name: String,
    /// Where it answers.
    pub portals: Vec<Portal>,
}

/// The targets of a server.
pub trait Targets: Send + Sync + 'static {
    /// The living sessions of this server; the protocol enters and removes them.
    fn sessions(&self) -> &Arc<Sessions>;

    /// How long an initiator may be quiet before it is asked whether it is there, and then until
    /// it must have answered.
    fn quiet_limit(&self) -> Duration {
        QUIET_LIMIT
    }

    /// What an initiator must prove before it may ask which targets there are.
    ///
    /// # Errors
    /// It may not ask at all.
    fn admit_discovery(&self, applicant: &Applicant) -> Result<Authentication, Refusal>;

    /// Calls `show` with each target that it may know of, by name, until `show` returns false.
    /// Begins with the first name after `after`; the empty string is before all of them. It may
    /// know of targets that it may log in to without a secret, and of those whose secret it has
    /// `proven`. No copy of the list is made: it may have thousands of targets.
    fn discover(
        &self,
        applicant: &Applicant,
        proven: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    );

    /// The group of the portal that it reached; sessions can only span portals of one group.
    ///
    /// # Errors
    /// It reached none.
    fn portal_group_tag(&self, _: &Applicant) -> Result<u16, Refusal> {
        Ok(1)
    }

    /// Notes that an initiator at `address` gave a wrong answer to CHAP.
    fn guessed(&self, _address: &str) {}

    /// Whether it may log in to `target` (in lower case), and on which conditions.
    ///
    /// # Errors
    /// What it is told instead.
    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal>;
}
