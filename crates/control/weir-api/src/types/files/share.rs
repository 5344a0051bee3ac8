//! Shares: directories of filesystems that clients mount over the network.
//!
//! weir-nfs has the rules of clients and the protocol.
//!
//! Invariant: protocol and name together identify a share.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use crate::Error;
use crate::access::Scope;
use crate::types::page::{self, paged};
use crate::types::request::{names_nothing_else, no_rules, outcome_and_no_other_name};
use crate::types::{Answer, Outcome, Page, Request};
use crate::wire::ApiError;

/// Maximum number of rules of a share. The server searches them at every call of a client.
pub const SHARE_RULES_MAX: usize = 256;

/// Maximum length of a rule. The longest rule has a host name of 253 bytes and all options.
const RULE_BYTES_MAX: usize = 384;

/// Number of addresses that the description of a name in rules lists.
pub const SHARE_ADDRESSES_SHOWN: usize = 16;

/// Maximum length of the path of a directory, as in NFS (MNTPATHLEN, RFC 1813 section 5.1.4).
const DIRECTORY_BYTES_MAX: usize = 1024;

/// Protocol of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShareProtocol {
    /// Network File System, version 3.
    Nfs,
}

impl ShareProtocol {
    /// Returns the name of the protocol in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nfs => "nfs",
        }
    }
}

/// Identity of a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareKey {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share.
    pub name: String,
}

/// Request to share a directory of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareCreate {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Full name of the filesystem, such as `tank/home`.
    pub filesystem: String,
    /// Directory of the filesystem that clients mount, such as `projects/a`; absent: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Name of the share; absent: the full name of the filesystem, and the directory behind it.
    /// Clients mount the path `/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Rules of clients, such as `10.0.0.0/8:ro` or `10.0.0.7:rw,no_root_squash`. A rule names an
    /// address, a network, a host (`host.example.org`), a netgroup (`@admins`), or all (`*`). The
    /// most exact rule decides, in this order. A client that no rule names may do nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Acknowledge changes of names and attributes before they are durable. A crash may then lose
    /// acknowledged changes of the last seconds.
    #[serde(default)]
    pub asynchronous: bool,
}

impl ShareCreate {
    /// Returns the identity of the share.
    pub fn key(&self) -> ShareKey {
        let default = || match &self.directory {
            Some(directory) => format!("{}/{directory}", self.filesystem),
            None => self.filesystem.clone(),
        };
        ShareKey { protocol: self.protocol, name: self.name.clone().unwrap_or_else(default) }
    }
}

fn check_rules(rules: &[String]) -> Result<(), Error> {
    let bad = |why| Err(Error::Field { field: "allow", why });
    if rules.len() > SHARE_RULES_MAX {
        return bad(format!("has at most {SHARE_RULES_MAX} rules"));
    }
    if rules.iter().any(|rule| rule.len() > RULE_BYTES_MAX) {
        return bad(format!("a rule has at most {RULE_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// Checks the name of a share: it is the path that clients mount, so a directory in it may have any
/// characters that paths on the command line of clients have.
fn check_name(name: &str) -> Result<(), Error> {
    check_path("name", name)
}

fn check_path(field: &'static str, path: &str) -> Result<(), Error> {
    let bad = |why: String| Err(Error::Field { field, why });
    if path.len() > DIRECTORY_BYTES_MAX {
        return bad(format!("has at most {DIRECTORY_BYTES_MAX} bytes"));
    }
    if path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return bad("has no empty part, no . and no .. between its slashes".to_owned());
    }
    if path.chars().any(char::is_control) {
        return bad("has no control characters".to_owned());
    }
    Ok(())
}

impl Request for ShareCreate {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.filesystem)?;
        if let Some(directory) = &self.directory {
            check_path("directory", directory)?;
        }
        check_rules(&self.allow)?;
        check_name(&self.key().name)
    }

    fn names(&self) -> Vec<&str> {
        // The name of the share may look like the name of another filesystem. Clients mount the
        // share by that name, so the scope must cover it too.
        std::iter::once(&self.filesystem).chain(&self.name).map(String::as_str).collect()
    }

    fn details(&self) -> String {
        format!("as {} for {}", self.key().name, rules_text(&self.allow))
    }
}

fn rules_text(rules: &[String]) -> String {
    if rules.is_empty() { "no client".to_owned() } else { rules.join(" ") }
}

/// Request that adds rules of clients to a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareAllow {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share; write `/` as `%2F`.
    pub name: String,
    /// Rules, such as `10.0.0.0/8:ro`. A rule replaces the rule with the same address, network or
    /// name.
    pub rules: Vec<String>,
}

/// Request that removes rules of clients from a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareDeny {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share; write `/` as `%2F`.
    pub name: String,
    /// Addresses, networks and names whose rules the server removes, as `share_show` shows them.
    pub clients: Vec<String>,
}

/// Request to delete a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareDelete {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share; write `/` as `%2F`.
    pub name: String,
    /// Delete the share although clients use it. They get stale handles.
    #[serde(default)]
    pub force: bool,
}

/// Request to show a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowShare {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share; write `/` as `%2F`.
    pub name: String,
}

/// Request to show the statistics of a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowShareStatistics {
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Name of the share; write `/` as `%2F`.
    pub name: String,
}

/// Request to list all shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListShares {}

no_rules!(ListShares);

/// Implements [`Request`] for requests about one share, with the list that `$check` checks.
macro_rules! of_share {
    ($($request:ident, |$of:ident| $check:expr, $details:expr;)+) => {
        $(
            impl Request for $request {
                fn check(&self) -> Result<(), Error> {
                    let $of = self;
                    check_name(&$of.name)?;
                    $check
                }

                fn names(&self) -> Vec<&str> {
                    vec![&self.name]
                }

                fn details(&self) -> String {
                    let $of = self;
                    $details
                }
            }

            impl $request {
                /// Returns the identity of the share.
                pub fn key(&self) -> ShareKey {
                    ShareKey { protocol: self.protocol, name: self.name.clone() }
                }
            }
        )+
    };
}

of_share! {
    ShareAllow, |of| check_rules(&of.rules),
        format!("as {} for {}", of.name, rules_text(&of.rules));
    ShareDeny, |of| check_rules(&of.clients),
        format!("as {} for {}", of.name, of.clients.join(" "));
    ShareDelete, |of| { let _ = of; Ok(()) }, format!("as {}", of.name);
    ShowShare, |of| { let _ = of; Ok(()) }, format!("as {}", of.name);
    ShowShareStatistics, |of| { let _ = of; Ok(()) }, format!("as {}", of.name);
}

/// A client that uses a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareClient {
    /// Address of the client.
    pub address: String,
    /// Number of open connections of the client. They may use other shares too.
    pub connections: u32,
    /// Time since the last call of the client on this share.
    pub idle_seconds: u64,
    /// Calls of the client since the first one.
    pub calls: ShareCalls,
}

/// Statistics of the calls on a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareCalls {
    /// READ calls.
    pub reads: CallStatistics,
    /// WRITE and COMMIT calls.
    pub writes: CallStatistics,
    /// All other calls: names, attributes and lists of directories.
    pub metadata: CallStatistics,
    /// Bytes that READ calls returned.
    pub read_bytes: u64,
    /// Bytes that WRITE calls stored.
    pub written_bytes: u64,
    /// Calls that failed because of the server, such as I/O errors and a full pool.
    pub errors: u64,
}

/// Number and latency of calls. A percentile is 0 without calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallStatistics {
    /// Number of calls.
    pub calls: u64,
    /// Median of the time from the receipt of a call to its reply.
    pub p50_us: u64,
    /// 99th percentile of this time.
    pub p99_us: u64,
    /// 99.9th percentile of this time.
    pub p999_us: u64,
}

/// A share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// Name of the share. Clients mount the path `/NAME`.
    pub name: String,
    /// Protocol of the share.
    pub protocol: ShareProtocol,
    /// Full name of the filesystem.
    pub filesystem: String,
    /// Directory of the filesystem that clients mount; absent: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Rules of clients with all options. Empty: no client may use the share.
    pub allow: Vec<String>,
    /// True if changes of names and attributes are acknowledged before they are durable.
    pub asynchronous: bool,
    /// Reason why clients cannot use the share now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// Commands that mount the share on a Linux client at /mnt; empty if no address serves shares.
    pub mount: Vec<String>,
    /// Number of clients that use the share.
    pub clients: u32,
    /// Host names and netgroups in the rules, with their addresses. Empty in lists of shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<ShareName>,
}

names_nothing_else!(Share);

/// A host name or netgroup in the rules of a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareName {
    /// Host name, or netgroup, such as `@admins`.
    pub name: String,
    /// Number of addresses that the name has now. Without addresses, the rule names no client.
    pub address_count: u32,
    /// The first 16 addresses.
    pub addresses: Vec<String>,
    /// Time since the last lookup; absent before the first one has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Reason why some hosts of the name, or all of them, have no addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareList {
    /// The shares, by name.
    pub shares: Vec<Share>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for ShareList {
    const ENTRIES: Option<&'static str> = Some("shares");

    fn keep(&mut self, scope: &Scope) {
        self.shares.retain(|share| scope.covers(&share.filesystem));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(ShareList, shares: Share, |entry| &entry.name);

/// Response of a call that changes a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The share after the call.
    pub share: Share,
}

outcome_and_no_other_name!(ShareChange);

/// Statistics of a share since the server opened it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareStatistics {
    /// Name of the share.
    pub name: String,
    /// Calls of all clients.
    pub calls: ShareCalls,
    /// Calls whose user acted as the anonymous user (`root_squash`, `all_squash`).
    #[serde(default)]
    pub squashed: u64,
    /// Calls that the rules refused: no rule names the client, its port is above 1023, or its
    /// credential is not accepted. They are not part of `calls`.
    #[serde(default)]
    pub refused: u64,
    /// Calls with handles of removed files or snapshots.
    #[serde(default)]
    pub stale: u64,
    /// Clients, the most recent one first.
    pub clients: Vec<ShareClient>,
}

names_nothing_else!(ShareStatistics);
