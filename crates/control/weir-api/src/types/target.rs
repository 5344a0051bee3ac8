//! iSCSI targets: what initiators log in to, who may, and the logical units that they find there.
//!
//! Not here: the protocol.
//!
//! Invariants:
//! - a target is known by its iSCSI name; a name without `iqn.`, `eui.` or `naa.` is short for one
//!   under [`NAME_PREFIX`];
//! - a secret may come in, and never goes out.

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

/// What stands before a short name of a target.
pub const NAME_PREFIX: &str = "iqn.2026-01.org.weir:";

/// In the place of an initiator's name: all of them.
pub const ANYBODY: &str = "*";

/// Largest logical unit number: what one level of addressing has room for (SAM-5 4.7.7.4).
pub const LUN_MAX: u16 = 16383;

/// The whole name of a target, from a short one or itself; names are compared in lower case.
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

/// A target to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetCreate {
    /// Its iSCSI name, such as `iqn.2026-01.org.weir:vms`.
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

/// The target to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowTarget {
    /// iSCSI name of the target.
    pub name: String,
}

impl Request for ShowTarget {
    fn check(&self) -> Result<(), Error> {
        Ok(names::known_iscsi(&self.name)?)
    }
}

/// A target to be deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetDelete {
    /// iSCSI name of the target.
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

/// All targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTargets {}

no_rules!(ListTargets);

/// A name and its secret, as CHAP wants them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChapAccount {
    /// CHAP_N: any text.
    pub user: String,
    /// The secret: 12 to 255 bytes; this, or `secret_file`. No call shows it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretText>,
    /// File on the server's machine that holds the secret, a newline at the end not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
}

/// Lets an initiator log in to a target; again: on other conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorAllow {
    /// The target.
    pub target: String,
    /// The initiator's iSCSI name; `*` for any that no other entry names.
    pub initiator: String,
    /// What it must prove; nothing unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<ChapAccount>,
    /// What the target proves to it; it must ask for that then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<ChapAccount>,
}

impl Request for InitiatorAllow {
    fn check(&self) -> Result<(), Error> {
        names::known_iscsi(&self.target)?;
        check_initiator(&self.initiator)?;
        if self.mutual.is_some() && self.chap.is_none() {
            return Err(Error::Field {
                field: "mutual",
                why: "the target proves itself only to initiators that do".to_owned(),
            });
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

/// An initiator that may log in to a target no longer.
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

/// A logical unit to be shown at a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunAdd {
    /// The target.
    pub target: String,
    /// Full name of the volume or snapshot.
    pub volume: String,
    /// Its number there; the lowest that is free unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// Bytes of its logical blocks, 512 or 4096; what other targets show, or 512, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// Whether writes may be answered before they are durable, until initiators synchronize; as at
    /// other targets, or not, unless given. An initiator that goes on with its session after this
    /// server was killed is then told that writes are synchronized which were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    /// Whether it may be used by clients of another protocol at the same time. They must know of
    /// each other: nothing keeps their writes apart.
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

/// A logical unit to be removed from a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunRemove {
    /// iSCSI name of the target.
    pub target: String,
    /// Logical unit number.
    pub number: u16,
    /// Also while initiators are logged in.
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

/// What initiators did with a logical unit, since it is shown by this run of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunCounters {
    /// READ commands.
    pub reads: u64,
    /// WRITE commands.
    pub writes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes that were given back by UNMAP and WRITE SAME.
    pub unmapped_bytes: u64,
    /// Bytes filled by WRITE SAME otherwise.
    pub zeroed_bytes: u64,
    /// Bytes copied by EXTENDED COPY.
    pub cloned_bytes: u64,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of its own in JSON")]
pub struct TargetLun {
    /// Its number.
    pub number: u16,
    /// Full name of the volume or snapshot.
    pub volume: String,
    /// Whether it is there: its pool is open.
    pub is_available: bool,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether writes are answered before they are durable.
    pub write_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether clients of another protocol may use it as well.
    pub shared: bool,
    /// How initiators know it again, through every path: 32 hexadecimal digits.
    pub naa: String,
    /// Initiators that hold registrations of persistent reservations.
    pub registrations: u32,
    /// What was done with it.
    pub counters: LunCounters,
}

/// Who may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetInitiator {
    /// Name, or `*`.
    pub initiator: String,
    /// CHAP_N of what it must prove; nothing without.
    pub chap_user: Option<String>,
    /// CHAP_N of what the target proves.
    pub mutual_user: Option<String>,
}

/// A session with a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetSession {
    /// The initiator's name.
    pub initiator: String,
    /// Its part of the session's identity: 12 hexadecimal digits.
    pub isid: String,
    /// Where it comes from.
    pub address: String,
    /// When it logged in, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Whether it proved itself by CHAP.
    pub chap: bool,
    /// Whether headers carry checksums.
    pub header_digest: bool,
    /// Whether data does.
    pub data_digest: bool,
    /// Commands answered.
    pub commands: u64,
    /// Bytes sent to it.
    pub read_bytes: u64,
    /// Bytes it sent.
    pub written_bytes: u64,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Where it answers: `ADDRESS:PORT,GROUP`.
    pub portals: Vec<String>,
    /// Its logical units, by number.
    pub luns: Vec<TargetLun>,
    /// Who may log in; nobody without an entry.
    pub initiators: Vec<TargetInitiator>,
    /// Who is logged in.
    pub sessions: Vec<TargetSession>,
}

// The server authorizes each call for it.
names_nothing_else!(Target);

impl Target {
    /// Whether it may be shown. The initiators of its logical units share it, so that all of these
    /// must be in the scope.
    pub fn is_in(&self, scope: &Scope) -> bool {
        let mut volumes = self.luns.iter().map(|lun| &lun.volume);
        scope.is_all() || (!self.luns.is_empty() && volumes.all(|name| scope.covers(name)))
    }
}

/// Targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// By name.
    pub targets: Vec<Target>,
    /// Where the list continues: `after` of the call for the next entries. Absent at its end.
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

/// The answer of a call that changes a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The target as it is now.
    pub target: Target,
}

// The calls are refused to every scope.
outcome_and_no_other_name!(TargetChange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_become_whole_ones() {
        assert_eq!(target_name("VMs"), "iqn.2026-01.org.weir:vms");
        for whole in ["iqn.1991-05.com.microsoft:host", "eui.02004567a425678d"] {
            assert_eq!(target_name(whole), whole);
        }
        // A wrong name was taken for a short one.
        let bad = TargetCreate { name: target_name("iqn.2026-13.org.example:vms") };
        assert_eq!(bad.name, "iqn.2026-13.org.example:vms");
        assert!(bad.check().is_err());
        assert!(ShowTarget { name: bad.name }.check().is_ok(), "an older one can be deleted");
    }
}
