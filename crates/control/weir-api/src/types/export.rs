//! Exports: volumes and snapshots that clients of a block protocol may connect to.
//!
//! Each protocol has its own crate.
//!
//! Invariant: protocol and name together identify an export.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::request::{names_nothing_else, no_rules, outcome_and_no_other_name};
use super::{Answer, Outcome, Page, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::wire::ApiError;

/// Protocol of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Network Block Device.
    Nbd,
}

impl Protocol {
    /// Returns the name of the protocol in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
        }
    }
}

/// Identity of an export.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportKey {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Name by which clients open the export.
    pub name: String,
}

impl ExportKey {
    fn check(&self) -> Result<(), Error> {
        Ok(names::export(&self.name)?)
    }
}

/// Request to export a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportCreate {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Full name of the volume or snapshot, such as `tank/vm1` or `tank/vm1@monday`.
    pub volume: String,
    /// Name by which clients open the export; absent: the full name of the volume or snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Refuse writes. An export of a snapshot always refuses writes.
    #[serde(default)]
    pub read_only: bool,
    /// Addresses and networks (`10.0.0.7`, `10.0.0.0/24`) of the clients that may open the export
    /// over TCP. Empty: every client address that the server accepts. Clients on unix sockets may
    /// always open it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

impl ExportCreate {
    /// Returns the identity of the export.
    pub fn key(&self) -> ExportKey {
        let name = self.name.clone().unwrap_or_else(|| self.volume.clone());
        ExportKey { protocol: self.protocol, name }
    }
}

impl Request for ExportCreate {
    fn check(&self) -> Result<(), Error> {
        names::dataset(&self.volume)?;
        check_allow(&self.allow)?;
        self.key().check()
    }

    fn names(&self) -> Vec<&str> {
        // The name of the export may look like the name of a volume. Clients open the export by
        // that name, so the scope must cover it too.
        std::iter::once(&self.volume).chain(&self.name).map(String::as_str).collect()
    }

    fn details(&self) -> String {
        let (name, allow) = (self.key().name, self.allow.join(","));
        if allow.is_empty() { format!("as {name}") } else { format!("as {name} for {allow}") }
    }
}

/// Request to change the allowed addresses of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSet {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Name of the export; write `/` as `%2F`.
    pub name: String,
    /// Addresses and networks of the clients (`10.0.0.7`, `10.0.0.0/24`) that may open the export;
    /// replaces the previous list. Empty: every client address that the server accepts.
    pub allow: Vec<String>,
}

impl Request for ExportSet {
    fn check(&self) -> Result<(), Error> {
        check_allow(&self.allow)?;
        self.key().check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let allow = if self.allow.is_empty() { "any".to_owned() } else { self.allow.join(",") };
        format!("as {} for {allow}", self.name)
    }
}

impl ExportSet {
    /// Returns the identity of the export.
    pub fn key(&self) -> ExportKey {
        ExportKey { protocol: self.protocol, name: self.name.clone() }
    }
}

/// Request to delete an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportDelete {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Name of the export; write `/` as `%2F`.
    pub name: String,
    /// Disconnect the clients of the export.
    #[serde(default)]
    pub force: bool,
}

impl Request for ExportDelete {
    fn check(&self) -> Result<(), Error> {
        self.key().check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        format!("as {}", self.name)
    }
}

impl ExportDelete {
    /// Returns the identity of the export.
    pub fn key(&self) -> ExportKey {
        ExportKey { protocol: self.protocol, name: self.name.clone() }
    }
}

/// Request to show an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowExport {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Name of the export; write `/` as `%2F`.
    pub name: String,
}

impl Request for ShowExport {
    fn check(&self) -> Result<(), Error> {
        self.key().check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

impl ShowExport {
    /// Returns the identity of the export.
    pub fn key(&self) -> ExportKey {
        ExportKey { protocol: self.protocol, name: self.name.clone() }
    }
}

/// Request to list all exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListExports {}

no_rules!(ListExports);

/// Maximum number of addresses of an export. The server searches them at every NBD handshake.
const ALLOW_MAX: usize = 256;

fn check_allow(allow: &[String]) -> Result<(), Error> {
    if allow.len() > ALLOW_MAX {
        let why = format!("has at most {ALLOW_MAX} entries");
        return Err(Error::Field { field: "allow", why });
    }
    Ok(())
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Name by which clients open the export.
    pub name: String,
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Full name of the volume or snapshot.
    pub volume: String,
    /// True if the server refuses writes.
    pub read_only: bool,
    /// Addresses and networks of the clients that may open the export over TCP. Empty: every client
    /// address that the server accepts.
    pub allow: Vec<String>,
    /// URIs for clients, such as `nbd://127.0.0.1/tank/vm1`.
    pub uris: Vec<String>,
    /// Number of connected clients.
    pub connections: u32,
}

names_nothing_else!(Export);

/// Exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportList {
    /// The exports, by name.
    pub exports: Vec<Export>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for ExportList {
    const ENTRIES: Option<&'static str> = Some("exports");

    fn keep(&mut self, scope: &Scope) {
        self.exports.retain(|export| scope.covers(&export.volume));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(ExportList, exports: Export, |entry| &entry.name);

/// Response of the call that creates an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The export after the call.
    pub export: Export,
}

outcome_and_no_other_name!(ExportChange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_export_are_limited() {
        let export = |count: usize| ExportCreate {
            protocol: Protocol::Nbd,
            volume: "tank/vm1".into(),
            name: None,
            read_only: false,
            allow: vec!["10.0.0.7".into(); count],
        };
        let set = |count| ExportSet {
            protocol: Protocol::Nbd,
            name: "tank/vm1".into(),
            allow: export(count).allow,
        };
        export(256).check().expect("as many as may be");
        set(256).check().expect("as many as may be");
        for refused in [export(257).check(), set(257).check()] {
            assert!(matches!(refused, Err(Error::Field { field: "allow", .. })), "{refused:?}");
        }
    }
}
