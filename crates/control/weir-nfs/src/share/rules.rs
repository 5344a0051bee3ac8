//! Rules of a share: the option `--allow` of `weir share`.
//!
//! ```text
//! CLIENT[:OPTION[,OPTION]...]
//! CLIENT: *, an address or a network (10.0.0.0/8, [fd00::]/8)
//! OPTION: ro, rw; root_squash, no_root_squash, all_squash; insecure, secure;
//!         anonuid=NUMBER, anongid=NUMBER; manage_gids
//! ```
//!
//! Names as in exports(5), and rpc.mountd(8) for `manage_gids`. Default: `rw,root_squash,secure`.
//!
//! Invariant: a client that no rule names may do nothing.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use weir_net::Network;

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

/// Clients of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    All,
    Network(Network),
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    clients: Clients,
    /// Rights of the clients.
    pub rights: Rights,
}

/// Rules of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Error of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The part before the options is neither `*` nor an address or a network.
    #[error(
        "rule {rule:?}: {client:?} is no address or network: write *, 10.0.0.7, 10.0.0.0/8 or \
         [fd00::]/8"
    )]
    Client {
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
}

impl Clients {
    /// Precision with which the rule names an address: 0 for `*`, the length of the prefix plus 1
    /// for a network. So `0.0.0.0/0` is more precise than `*`. `None` if the address is not one of
    /// the clients.
    fn precision(self, address: IpAddr) -> Option<u8> {
        match self {
            Self::All => Some(0),
            Self::Network(network) => network.contains(address).then(|| network.bits() + 1),
        }
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Network(network) => {
                let text = network.to_string();
                match text.split_once('/') {
                    Some((address, bits)) if address.contains(':') => {
                        write!(f, "[{address}]/{bits}")
                    }
                    _ => f.write_str(&text),
                }
            }
        }
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
        let clients = match client {
            "*" => Clients::All,
            network => match network.parse() {
                Ok(network) => Clients::Network(network),
                Err(_) => return Err(RuleError::Client { rule, client: client.to_owned() }),
            },
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
        Ok(Self(rules))
    }

    /// Adds rules. A rule replaces the rule for the same clients.
    pub fn allow(&mut self, rules: Self) {
        for rule in rules.0 {
            match self.0.iter_mut().find(|old| old.clients == rule.clients) {
                Some(old) => *old = rule,
                None => self.0.push(rule),
            }
        }
    }

    /// Removes the rule for the clients of `rule`. Returns false if there is none.
    pub fn deny(&mut self, rule: &Rule) -> bool {
        let before = self.0.len();
        self.0.retain(|old| old.clients != rule.clients);
        self.0.len() < before
    }

    /// The rules, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Rights of a client, by the rule with the longest prefix; `*` is shorter than each prefix.
    /// `None` if no rule names the client.
    pub fn rights(&self, address: IpAddr) -> Option<Rights> {
        self.rule(address).map(|rule| rule.rights)
    }

    /// Clients of the rule that decides about a client, as text.
    pub fn clients_of(&self, address: IpAddr) -> Option<String> {
        self.rule(address).map(|rule| rule.clients.to_string())
    }

    fn rule(&self, address: IpAddr) -> Option<&Rule> {
        let address = address.to_canonical();
        let matching =
            self.0.iter().filter_map(|rule| Some((rule.clients.precision(address)?, rule)));
        matching.max_by_key(|(precision, _)| *precision).map(|(_, rule)| rule)
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
        for text in ["", "host.example", "10.0.0.0/33", "fd00::1:rw", "[fd00::1:rw", "**"] {
            assert!(matches!(text.parse::<Rule>(), Err(RuleError::Client { .. })), "{text}");
        }
        let twice = ["10.0.0.0/8:ro", "10.0.0.0/8:rw"].map(|text| text.parse().unwrap());
        assert!(matches!(Rules::new(twice.to_vec()), Err(RuleError::Twice { .. })));
    }
}
