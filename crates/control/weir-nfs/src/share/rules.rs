//! Rules of a share: the option `--allow` of `weir share`.
//!
//! ```text
//! CLIENT[:OPTION[,OPTION]...]
//! OPTION: ro, rw; root_squash, no_root_squash, all_squash; insecure, secure;
//!         anonuid=NUMBER, anongid=NUMBER; manage_gids
//! ```
//!
//! `clients` has CLIENT. Options as in exports(5), and rpc.mountd(8) for `manage_gids`.
//!
//! Invariant: a client that no rule names may do nothing.

use std::cell::LazyCell;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use super::clients::{ClientName, Clients, NoClients, Precision};
use super::names::{Member, Names, Slot};

/// User and group of clients without an identity, with the usual number on Linux.
const ANONYMOUS: u32 = 65_534;

/// Users of a client that act as the anonymous user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// User 0 and group 0.
    Root,
    /// All users.
    All,
    /// No user: root of the client is the superuser.
    None,
}

/// Rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// True if the client may change files.
    pub writes: bool,
    /// Users that act as the anonymous user.
    pub squash: Squash,
    /// Anonymous user.
    pub anonymous_uid: u32,
    /// Anonymous group.
    pub anonymous_gid: u32,
    /// True if calls may come from ports above 1023, which any user of the client may open.
    pub insecure: bool,
    /// True if the server looks up the groups of a user and ignores the groups of the call.
    pub manage_gids: bool,
}

impl Default for Rights {
    fn default() -> Self {
        Self {
            writes: true,
            squash: Squash::Root,
            anonymous_uid: ANONYMOUS,
            anonymous_gid: ANONYMOUS,
            insecure: false,
            manage_gids: false,
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    clients: Clients,
    /// Rights of the clients.
    pub rights: Rights,
}

/// Rules of a share. [`Self::follow`] connects them with the addresses of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    rule: Rule,
    /// Addresses of the name, if the clients have one. `None` before [`Rules::follow`].
    slot: Option<Arc<Slot>>,
}

/// Two lists with the same rules are equal, whatever addresses their names have.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule
    }
}

impl Eq for Entry {}

/// Decision of the rules about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The client has these rights.
    Allowed(Rights),
    /// The server is still looking up a name that may decide about the client. The client must
    /// send its call again later.
    Waits,
    /// No rule names the client.
    Refused,
}

/// Error of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The part before the options names no clients.
    #[error(
        "rule {rule:?}: {client:?} names no clients: write *, 10.0.0.7, 10.0.0.0/8, [fd00::]/8, \
         host.example.org or @netgroup"
    )]
    Client {
        /// The rule.
        rule: String,
        /// The part before the options.
        client: String,
    },
    /// The host name has wildcards. They would need the name of each address, which the owner of
    /// the address chooses.
    #[error(
        "rule {rule:?}: {client:?} has wildcards, which host names in rules cannot have: write the \
         network of these hosts, such as 10.1.0.0/16, each host name, or a netgroup (@name)"
    )]
    Wildcard {
        /// The rule.
        rule: String,
        /// The part before the options.
        client: String,
    },
    /// An option has an unknown name or a wrong value.
    #[error(
        "rule {rule:?}: unknown option {option:?}: ro, rw, root_squash, no_root_squash, \
         all_squash, secure, insecure, anonuid=NUMBER, anongid=NUMBER, manage_gids"
    )]
    Option {
        /// The rule.
        rule: String,
        /// The option.
        option: String,
    },
    /// Two options of a rule contradict each other.
    #[error("rule {rule:?}: option {option:?} contradicts an earlier option")]
    Contradiction {
        /// The rule.
        rule: String,
        /// The later option.
        option: String,
    },
    /// Two rules are for the same clients.
    #[error("two rules for {clients}: remove one")]
    Twice {
        /// The clients.
        clients: String,
    },
}

impl Rule {
    /// The clients of the rule, as text.
    pub fn clients(&self) -> String {
        self.clients.to_string()
    }

    /// The name that the server must resolve, if the clients of the rule have one.
    pub fn name(&self) -> Option<&ClientName> {
        self.clients.name()
    }
}

/// Splits a rule into clients and options. The address of IPv6 is in brackets.
fn split(rule: &str) -> (&str, Option<&str>) {
    let address_end = if rule.starts_with('[') { rule.find(']').unwrap_or(0) } else { 0 };
    let colon = rule.get(address_end..).and_then(|rest| rest.find(':'));
    match colon.and_then(|colon| rule.split_at_checked(address_end + colon)) {
        Some((clients, options)) => (clients, options.get(1..)),
        None => (rule, None),
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let rule = text.to_owned();
        let (client, options) = split(text);
        if options.is_some_and(|options| options.contains(':')) {
            // An IPv6 address without brackets.
            return Err(RuleError::Client { client: rule.clone(), rule });
        }
        let clients = match Clients::parse(client) {
            Ok(clients) => clients,
            Err(no) => {
                let client = client.to_owned();
                return Err(match no {
                    NoClients::Wildcard => RuleError::Wildcard { rule, client },
                    NoClients::Other => RuleError::Client { rule, client },
                });
            }
        };
        let mut rights = Rights::default();
        let mut seen: Vec<&str> = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let number = || value.and_then(|value| value.parse::<u32>().ok());
            let kind = match (name, value.is_some()) {
                ("ro" | "rw", false) => {
                    rights.writes = name == "rw";
                    "writes"
                }
                ("root_squash", false) => {
                    rights.squash = Squash::Root;
                    "squash"
                }
                ("no_root_squash", false) => {
                    rights.squash = Squash::None;
                    "squash"
                }
                ("all_squash", false) => {
                    rights.squash = Squash::All;
                    "squash"
                }
                ("secure" | "insecure", false) => {
                    rights.insecure = name == "insecure";
                    "ports"
                }
                ("manage_gids", false) => {
                    rights.manage_gids = true;
                    "groups"
                }
                ("anonuid", true) if number().is_some() => {
                    rights.anonymous_uid = number().unwrap_or(ANONYMOUS);
                    "anonuid"
                }
                ("anongid", true) if number().is_some() => {
                    rights.anonymous_gid = number().unwrap_or(ANONYMOUS);
                    "anongid"
                }
                _ => return Err(RuleError::Option { rule, option: option.to_owned() }),
            };
            if seen.contains(&kind) {
                return Err(RuleError::Contradiction { rule, option: option.to_owned() });
            }
            seen.push(kind);
        }
        Ok(Self { clients, rights })
    }
}

/// Writes the options of the rule, also if they are the defaults of exports(5).
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rights { writes, squash, anonymous_uid, anonymous_gid, insecure, manage_gids } =
            self.rights;
        let writes = if writes { "rw" } else { "ro" };
        let squash = match squash {
            Squash::Root => "root_squash",
            Squash::All => "all_squash",
            Squash::None => "no_root_squash",
        };
        let ports = if insecure { "insecure" } else { "secure" };
        write!(f, "{}:{writes},{squash},{ports}", self.clients)?;
        if (anonymous_uid, anonymous_gid) != (ANONYMOUS, ANONYMOUS) {
            write!(f, ",anonuid={anonymous_uid},anongid={anonymous_gid}")?;
        }
        if manage_gids { f.write_str(",manage_gids") } else { Ok(()) }
    }
}

impl Rules {
    /// Creates the rules of a share.
    ///
    /// # Errors
    /// `Twice` if two rules are for the same clients.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleError> {
        for (at, rule) in rules.iter().enumerate() {
            if rules.iter().take(at).any(|earlier| earlier.clients == rule.clients) {
                return Err(RuleError::Twice { clients: rule.clients.to_string() });
            }
        }
        let entry = |rule| Entry { rule, slot: None };
        Ok(Self(rules.into_iter().map(entry).collect()))
    }

    /// Adds rules. A rule replaces the rule for the same clients.
    pub fn allow(&mut self, rules: Self) {
        for new in rules.0 {
            match self.0.iter_mut().find(|old| old.rule.clients == new.rule.clients) {
                Some(old) => *old = new,
                None => self.0.push(new),
            }
        }
    }

    /// Removes the rule for the clients of `rule`. Returns false if there is none.
    pub fn deny(&mut self, rule: &Rule) -> bool {
        let before = self.0.len();
        self.0.retain(|old| old.rule.clients != rule.clients);
        self.0.len() < before
    }

    /// The rules, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().map(|entry| &entry.rule)
    }

    /// The names that the server must resolve.
    pub fn names(&self) -> impl Iterator<Item = &ClientName> {
        self.iter().filter_map(Rule::name)
    }

    /// Resolves the names of the rules from now on, until the rules are dropped.
    pub(crate) fn follow(&mut self, names: &Names) {
        for entry in &mut self.0 {
            if let (Some(name), None) = (entry.rule.clients.name(), &entry.slot) {
                entry.slot = names.follow(name);
            }
        }
    }

    /// Rights of a client, by the rule that names it most exactly: an address, then a host name, a
    /// netgroup, the network with the longest prefix, `*`. Of two names, the first decides. `None`
    /// if no rule names the client, or not yet.
    pub fn rights(&self, address: IpAddr) -> Option<Rights> {
        self.deciding(address).0.map(|rule| rule.rights)
    }

    /// Clients of the rule that decides about a client, as text.
    pub fn clients_of(&self, address: IpAddr) -> Option<String> {
        self.deciding(address).0.map(Rule::clients)
    }

    /// Decides about a client.
    pub fn decide(&self, address: IpAddr) -> Decision {
        match self.deciding(address) {
            (_, true) => Decision::Waits,
            (Some(rule), false) => Decision::Allowed(rule.rights),
            (None, false) => Decision::Refused,
        }
    }

    /// The rule that names a client most exactly, and true if a name without addresses may name the
    /// client instead.
    fn deciding(&self, address: IpAddr) -> (Option<&Rule>, bool) {
        let address = address.to_canonical();
        let mut found: Option<(Precision, &Rule)> = None;
        let (mut unknown, mut perhaps) = (None, false);
        // Most shares have no names, and each call of a client is decided here.
        let now = LazyCell::new(Instant::now);
        for Entry { rule, slot } in &self.0 {
            let precision = match (rule.clients.name(), slot) {
                (None, _) => rule.clients.precision(address),
                (Some(_), None) => None,
                (Some(name), Some(slot)) => match slot.has(address, *now) {
                    Member::Yes => Some(name.precision()),
                    Member::No => None,
                    Member::Unknown => {
                        unknown = unknown.max(Some(name.precision()));
                        None
                    }
                    Member::Perhaps => {
                        perhaps = true;
                        None
                    }
                },
            };
            let Some(precision) = precision else { continue };
            if found.is_none_or(|(other, _)| precision > other) {
                found = Some((precision, rule));
            }
        }
        let best = found.map(|(precision, _)| precision);
        // The first lookup takes milliseconds, so all clients that it may concern wait for it.
        // After a failure, only clients without another rule wait.
        let waits = unknown > best || perhaps && best.is_none();
        (found.map(|(_, rule)| rule), waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Rules {
        let parsed: Result<Vec<Rule>, _> = texts.iter().map(|text| text.parse()).collect();
        Rules::new(parsed.unwrap()).unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn rule_without_options_squashes_root_and_demands_a_reserved_port() {
        let rule: Rule = "10.0.0.7".parse().unwrap();
        assert_eq!(rule.to_string(), "10.0.0.7/32:rw,root_squash,secure");
        assert_eq!(rule.rights, Rights::default());
    }

    #[test]
    fn printed_rule_parses_to_the_same_rule() {
        let texts = [
            "*:ro",
            "10.0.0.0/8:rw,no_root_squash,insecure",
            "[fd00::]/8:ro,all_squash,anonuid=5,anongid=6",
            "[fd00::7]",
            "*:manage_gids,ro",
            "Host.example.org:ro",
            "@admins:no_root_squash",
        ];
        for text in texts {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn groups_of_the_server_are_used_only_with_manage_gids() {
        let rule: Rule = "10.0.0.7:manage_gids".parse().unwrap();
        assert_eq!(rule.to_string(), "10.0.0.7/32:rw,root_squash,secure,manage_gids");
        assert_eq!(rule.rights, Rights { manage_gids: true, ..Rights::default() });
        assert!(matches!("*:manage_gids=1".parse::<Rule>(), Err(RuleError::Option { .. })));
        let twice = "*:manage_gids,manage_gids".parse::<Rule>();
        assert!(matches!(twice, Err(RuleError::Contradiction { .. })));
    }

    #[test]
    fn most_exact_rule_decides() {
        let rules = rules(&["*:ro", "10.0.0.0/8:rw", "10.1.0.0/16:ro,insecure", "10.1.0.7:rw"]);
        let of = |text| {
            let rights = rules.rights(address(text)).unwrap();
            (rights.writes, rights.insecure)
        };
        assert_eq!(of("192.0.2.1"), (false, false));
        assert_eq!(of("10.2.0.1"), (true, false));
        assert_eq!(of("10.1.0.1"), (false, true));
        assert_eq!(of("10.1.0.7"), (true, false));
        assert_eq!(of("::ffff:10.1.0.7"), (true, false), "IPv4 over an IPv6 socket");
    }

    #[test]
    fn network_of_a_whole_family_precedes_the_rule_for_all_clients() {
        for texts in [["0.0.0.0/0:ro", "*:rw"], ["*:rw", "0.0.0.0/0:ro"]] {
            let rules = rules(&texts);
            let writes = |text| rules.rights(address(text)).map(|rights| rights.writes);
            assert_eq!(writes("10.0.0.1"), Some(false), "{texts:?}");
            assert_eq!(writes("fd00::1"), Some(true), "{texts:?}");
        }
    }

    #[test]
    fn allowed_rule_replaces_the_rule_for_the_same_clients() {
        let mut changed = rules(&["10.0.0.0/8", "*:ro"]);
        changed.allow(rules(&["10.0.0.0/8:ro", "10.1.0.0/16"]));
        assert_eq!(changed, rules(&["10.0.0.0/8:ro", "*:ro", "10.1.0.0/16"]));
        assert!(changed.deny(&"*:rw".parse().unwrap()) && !changed.deny(&"*".parse().unwrap()));
        assert_eq!(changed, rules(&["10.0.0.0/8:ro", "10.1.0.0/16"]));
    }

    #[test]
    fn client_that_no_rule_names_has_no_rights() {
        let rules = rules(&["10.0.0.0/8", "[fd00::]/8"]);
        assert_eq!(rules.rights(address("192.0.2.1")), None);
        assert_eq!(rules.rights(address("2001:db8::1")), None);
        assert!(rules.rights(address("fd12::1")).is_some());
        assert_eq!(Rules::default().rights(address("10.0.0.1")), None);
    }

    #[test]
    fn unknown_and_contradicting_options_are_rejected() {
        for text in
            ["10.0.0.1:rx", "10.0.0.1:", "10.0.0.1:rw,", "*:anonuid=x", "*:ro=1", "*:secure,"]
        {
            assert!(matches!(text.parse::<Rule>(), Err(RuleError::Option { .. })), "{text}");
        }
        for text in ["*:ro,rw", "*:root_squash,all_squash", "*:secure,insecure"] {
            let error = text.parse::<Rule>();
            assert!(matches!(error, Err(RuleError::Contradiction { .. })), "{text}");
        }
        for text in ["", "10.0.0.0/33", "fd00::1:rw", "fd00:1::7", "[fd00::1:rw", "ro", "10.1"] {
            assert!(matches!(text.parse::<Rule>(), Err(RuleError::Client { .. })), "{text}");
        }
        let wildcard = "*.example.org:rw".parse::<Rule>().unwrap_err();
        assert!(matches!(wildcard, RuleError::Wildcard { .. }));
        assert!(wildcard.to_string().contains("10.1.0.0/16"), "{wildcard}");
        let twice = ["10.0.0.0/8:ro", "10.0.0.0/8:rw"].map(|text| text.parse().unwrap());
        assert!(matches!(Rules::new(twice.to_vec()), Err(RuleError::Twice { .. })));
    }
}
