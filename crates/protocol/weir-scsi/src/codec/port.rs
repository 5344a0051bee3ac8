//! The two ends of a nexus by name: initiator ports and target ports.
//!
//! Nexuses are in `dispatch::target`. The transport authenticates initiators.
//!
//! Spec: SPC-4 7.6.4.6 and RFC 7143 4.4.1 for names of initiator ports.
//!
//! Invariant: an initiator port, formatted as text, equals the name that persistent reservations
//! store.

use std::fmt;

/// Initiator session identifier (ISID): the part of a session's identity that the initiator
/// chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isid(pub [u8; 6]);

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// SCSI initiator port: an initiator with one ISID. Formatted as text, it is `name,i,0x<ISID>` in
/// lower case, with the ISID in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitiatorPort {
    /// The initiator's iSCSI name: `iqn.`, `eui.` or `naa.`, at most 223 bytes.
    pub name: String,
    /// ISID of the session.
    pub isid: Isid,
}

impl fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},i,0x{}", self.name.to_ascii_lowercase(), self.isid)
    }
}

/// A target port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Relative target port identifier, from 1.
    pub relative: u16,
    /// SCSI target port name, such as `iqn...,t,0x0001`.
    pub name: String,
    /// Target port group of this port.
    pub group: u16,
}
