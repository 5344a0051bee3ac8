//! iSCSI targets with their logical units, allowed initiators and sessions.
//!
//! The protocol is in weir-iscsi.
//!
//! Invariants:
//! - the iSCSI name identifies a target. A name without `iqn.`, `eui.` or `naa.` is a short form:
//!   [`NAME_PREFIX`] is put in front of it;
//! - requests may contain secrets, responses never do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::replication::one_of;
use super::request::{names_nothing_else, no_rules, outcome_and_no_other_name};
use super::{Answer, Outcome, Page, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::token::SecretText;
use crate::wire::ApiError;

/// Prefix that is added to a short target name.
pub const NAME_PREFIX: &str = "iqn.2026-01.org.weir:";

/// Initiator name that matches all initiators.
pub const ANYBODY: &str = "*";

/// Largest logical unit number that fits in single-level addressing (SAM-5 4.7.7.4).
pub const LUN_MAX: u16 = 16383;

/// Expands a short target name. Returns full names in lower case, because names are compared in
/// lower case.
pub fn target_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let is_whole = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    if is_whole { name } else { format!("{NAME_PREFIX}{name}") }
}

fn check_initiator(name: &str) -> Result<(), Error> {
    if name == ANYBODY { Ok(()) } else { Ok(names::iscsi(name)?) }
}

fn check_known_initiator(name: &str) -> Result<(), Error> {
    if name == ANYBODY { Ok(()) } else { Ok(names::known_iscsi(name)?) }
}

/// Request to create a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetCreate {
    /// iSCSI name, such as `iqn.2026-01.org.weir:vms`.
    pub name: String,
}

impl Request for TargetCreate {
    fn check(&self) -> Result<(), Error> {
        Ok(names::iscsi(&self.name)?)
    }

    fn details(&self) -> String {
        self.name.clone()
    }
}

/// Request to show a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowTarget {
    /// iSCSI name of the target, such as `iqn.2026-01.org.weir:vms`.
    pub name: String,
}

impl Request for ShowTarget {
    fn check(&self) -> Result<(), Error> {
        Ok(names::known_iscsi(&self.name)?)
    }
}

/// Request to delete a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetDelete {
    /// iSCSI name of the target, such as `iqn.2026-01.org.weir:vms`.
    pub name: String,
    /// End the sessions of initiators.
    #[serde(default)]
    pub force: bool,
}

impl Request for TargetDelete {
    fn check(&self) -> Result<(), Error> {
        Ok(names::known_iscsi(&self.name)?)
    }

    fn details(&self) -> String {
        self.name.clone()
    }
}

/// Request to list all targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTargets {}

no_rules!(ListTargets);

/// CHAP name and secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChapAccount {
    /// CHAP name (`CHAP_N`): any text.
    pub user: String,
    /// CHAP secret of 12 to 255 bytes. Give either this field or `secret_file`. No call returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretText>,
    /// File on the server's machine with the secret; a newline at the end is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
}

/// Request to allow an initiator to log in to a target. It replaces an existing entry of this
/// initiator. Without `no_chap` it cannot replace an entry with CHAP by one without CHAP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorAllow {
    /// iSCSI name of the target.
    pub target: String,
    /// iSCSI name of the initiator; `*` for all initiators without an entry of their own.
    pub initiator: String,
    /// CHAP account with which the initiator must authenticate; absent: no authentication. If the
    /// initiator's existing entry has a CHAP account, a request without this field fails unless
    /// `no_chap` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<ChapAccount>,
    /// CHAP account with which the target authenticates; absent: the target does not authenticate.
    /// The initiator must request this authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<ChapAccount>,
    /// Removes the CHAP accounts of the initiator, which can then log in without authentication.
    #[serde(default, skip_serializing_if = "super::schedule::is_false")]
    pub no_chap: bool,
}

impl Request for InitiatorAllow {
    fn check(&self) -> Result<(), Error> {
        names::known_iscsi(&self.target)?;
        check_initiator(&self.initiator)?;
        if self.mutual.is_some() && self.chap.is_none() {
            return Err(Error::Field {
                field: "mutual",
                why: "needs chap: a target authenticates itself only to initiators that do"
                    .to_owned(),
            });
        }
        if self.no_chap && self.chap.is_some() {
            let why = "removes CHAP, and chap sets it; give one of both".to_owned();
            return Err(Error::Field { field: "no_chap", why });
        }
        for account in self.chap.iter().chain(&self.mutual) {
            if account.user.is_empty() || account.user.len() > names::ISCSI_BYTES_MAX {
                let why = format!("has 1 to {} bytes", names::ISCSI_BYTES_MAX);
                return Err(Error::Field { field: "user", why });
            }
            one_of("secret", account.secret.is_some(), account.secret_file.is_some())?;
        }
        Ok(())
    }

    fn details(&self) -> String {
        format!("{} {}", self.target, self.initiator)
    }
}

/// Request to deny an initiator further logins to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorDeny {
    /// iSCSI name of the target.
    pub target: String,
    /// iSCSI name of the initiator, or `*`.
    pub initiator: String,
}

impl Request for InitiatorDeny {
    fn check(&self) -> Result<(), Error> {
        names::known_iscsi(&self.target)?;
        check_known_initiator(&self.initiator)
    }

    fn details(&self) -> String {
        format!("{} {}", self.target, self.initiator)
    }
}

/// Request to add a logical unit to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunAdd {
    /// iSCSI name of the target.
    pub target: String,
    /// Full name of the volume or snapshot.
    pub volume: String,
    /// Logical unit number; absent: the lowest free number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// Logical block size, 512 or 4096. Absent: the block size of the volume at other targets, or
    /// 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// True if the server may acknowledge writes before they are durable, until the initiator
    /// synchronizes the cache. Absent: the setting that the volume has at other targets, or false.
    /// If the server is killed and an initiator continues its session afterwards, its next
    /// synchronization succeeds although earlier writes may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    /// True if clients of another protocol may use the volume at the same time. The clients must
    /// coordinate their writes, because the server does not order them.
    #[serde(default)]
    pub shared: bool,
}

impl Request for LunAdd {
    fn check(&self) -> Result<(), Error> {
        names::known_iscsi(&self.target)?;
        names::dataset(&self.volume)?;
        if self.number.is_some_and(|number| number > LUN_MAX) {
            let why = format!("is at most {LUN_MAX}");
            return Err(Error::Field { field: "number", why });
        }
        if self.block_bytes.is_some_and(|bytes| !matches!(bytes, 512 | 4096)) {
            return Err(Error::Field { field: "block_bytes", why: "is 512 or 4096".to_owned() });
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.volume]
    }

    fn details(&self) -> String {
        format!("to {}", self.target)
    }
}

/// Request to remove a logical unit from a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunRemove {
    /// iSCSI name of the target.
    pub target: String,
    /// Logical unit number.
    pub number: u16,
    /// Remove the logical unit even if initiators are logged in.
    #[serde(default)]
    pub force: bool,
}

impl Request for LunRemove {
    fn check(&self) -> Result<(), Error> {
        Ok(names::known_iscsi(&self.target)?)
    }

    fn details(&self) -> String {
        format!("{} {}", self.target, self.number)
    }
}

/// Counters of a logical unit, since the server started to export it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunCounters {
    /// Number of READ commands.
    pub reads: u64,
    /// Number of WRITE commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes deallocated by UNMAP and WRITE SAME.
    pub unmapped_bytes: u64,
    /// Bytes written by WRITE SAME commands that do not deallocate.
    pub zeroed_bytes: u64,
    /// Bytes copied by EXTENDED COPY.
    pub cloned_bytes: u64,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of its own in JSON")]
pub struct TargetLun {
    /// Logical unit number.
    pub number: u16,
    /// Full name of the volume or snapshot.
    pub volume: String,
    /// True if the volume is available, which requires that its pool is open.
    pub is_available: bool,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_bytes: u32,
    /// True if writes may be acknowledged before they are durable.
    pub write_cache: bool,
    /// True if the server refuses writes.
    pub read_only: bool,
    /// True if clients of another protocol may use the volume at the same time.
    pub shared: bool,
    /// NAA identifier of 32 hexadecimal digits, the same on every path.
    pub naa: String,
    /// Number of initiators with registrations for persistent reservations.
    pub registrations: u32,
    /// Counters of the logical unit.
    pub counters: LunCounters,
}

/// An initiator that may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetInitiator {
    /// iSCSI name, or `*`.
    pub initiator: String,
    /// `CHAP_N` of the initiator's account; absent: no authentication.
    pub chap_user: Option<String>,
    /// `CHAP_N` of the target's account; absent: the target does not authenticate.
    pub mutual_user: Option<String>,
}

/// A session of an initiator with a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetSession {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// ISID, the initiator's part of the session identifier: 12 hexadecimal digits.
    pub isid: String,
    /// Network address of the initiator.
    pub address: String,
    /// Login time, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// True if the initiator authenticated by CHAP.
    pub chap: bool,
    /// True if headers carry digests.
    pub header_digest: bool,
    /// True if data carries digests.
    pub data_digest: bool,
    /// Number of completed commands.
    pub commands: u64,
    /// Bytes sent to the initiator.
    pub read_bytes: u64,
    /// Data bytes of the initiator's successful commands.
    pub written_bytes: u64,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// Portals: `ADDRESS:PORT,GROUP`.
    pub portals: Vec<String>,
    /// The logical units, by number.
    pub luns: Vec<TargetLun>,
    /// The initiators that may log in; if empty, none may.
    pub initiators: Vec<TargetInitiator>,
    /// The current sessions.
    pub sessions: Vec<TargetSession>,
}

// The server authorizes each call that returns a target, so the response needs no filter.
names_nothing_else!(Target);

impl Target {
    /// True if a caller with this scope may see the target. The initiators of the target have
    /// access to all its logical units, so the scope must cover the volumes of all of them.
    pub fn is_in(&self, scope: &Scope) -> bool {
        let mut volumes = self.luns.iter().map(|lun| &lun.volume);
        scope.is_all() || (!self.luns.is_empty() && volumes.all(|name| scope.covers(name)))
    }
}

/// Targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// The targets, by name.
    pub targets: Vec<Target>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for TargetList {
    const ENTRIES: Option<&'static str> = Some("targets");

    fn keep(&mut self, scope: &Scope) {
        self.targets.retain(|target| target.is_in(scope));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(TargetList, targets: Target, |entry| &entry.name);

/// Response of a call that changes a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The target after the call.
    pub target: Target,
}

// A caller with a scope may not change targets.
outcome_and_no_other_name!(TargetChange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_target_names_get_the_prefix() {
        assert_eq!(target_name("VMs"), "iqn.2026-01.org.weir:vms");
        for whole in ["iqn.1991-05.com.microsoft:host", "eui.02004567a425678d"] {
            assert_eq!(target_name(whole), whole);
        }
        // Regression: a full name with an invalid date was treated as a short name and got the
        // prefix.
        let bad = TargetCreate { name: target_name("iqn.2026-13.org.example:vms") };
        assert_eq!(bad.name, "iqn.2026-13.org.example:vms");
        assert!(bad.check().is_err());
        assert!(ShowTarget { name: bad.name }.check().is_ok(), "an older one can be deleted");
    }
}
