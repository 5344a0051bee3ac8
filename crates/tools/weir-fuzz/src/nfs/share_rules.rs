//! Fuzzes the rules of NFS shares, one rule on each line, and the rights of addresses under these
//! rules.
//!
//! Invariants:
//! - no panic; the error of a rule contains the rule;
//! - the text of a valid rule parses to the same rule;
//! - the rule with the fewest addresses decides about an address, in any order of the rules;
//! - no address is the name of a host or of a netgroup, and a name without a lookup grants nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use weir_nfs::limits::HOST_BYTES_MAX;
use weir_nfs::{Rule, RuleError, Rules};

/// Maximum number of rules of an input. Each check compares all rules with several addresses of
/// each rule.
const RULES_MAX: usize = 24;

/// Addresses of one family as numbers. `true` is IPv6.
type Addresses = (bool, RangeInclusive<u128>);

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines().take(RULES_MAX) {
        match line.parse::<Rule>() {
            Ok(rule) => {
                check_text(&rule);
                rules.push(rule);
            }
            Err(error) => assert!(error.to_string().contains(&format!("{line:?}")), "{error}"),
        }
    }
    let mut distinct: Vec<Rule> = Vec::new();
    for rule in &rules {
        if distinct.iter().all(|earlier| earlier.clients() != rule.clients()) {
            distinct.push(rule.clone());
        }
    }
    let is_distinct = distinct.len() == rules.len();
    match Rules::new(rules) {
        Ok(rules) => assert!(is_distinct && rules.iter().eq(&distinct)),
        Err(error) => assert!(!is_distinct && matches!(error, RuleError::Twice { .. })),
    }
    check_rights(distinct);
}

fn check_text(rule: &Rule) {
    let text = rule.to_string();
    assert_eq!(text.parse().as_ref(), Ok(rule), "{text}");
    assert!(text.starts_with(&format!("{}:", rule.clients())), "{text}");
    if let Some(name) = rule.name() {
        let name = name.to_string();
        assert!(name.len() <= HOST_BYTES_MAX, "{name}");
        // The resolver of Linux would use such a name as an address, without a lookup.
        assert!(name.parse::<IpAddr>().is_err(), "{name}");
        assert!(!name.contains(|c: char| c.is_whitespace() || c.is_control()), "{name}");
    }
}

/// Compares the rights of addresses with a search for the smallest range of addresses.
fn check_rights(mut distinct: Vec<Rule>) {
    let rules = Rules::new(distinct.clone()).expect("each rule has other clients");
    distinct.reverse();
    let reversed = Rules::new(distinct.clone()).expect("each rule has other clients");
    let without_name = distinct.iter().filter(|rule| rule.name().is_none());
    let ranges: Vec<_> = without_name.map(|rule| (addresses(rule), rule)).collect();
    for address in ranges.iter().flat_map(|(range, _)| samples(range.as_ref())) {
        let (family, number) = number(address.to_canonical());
        let size = |range: &Option<Addresses>| match range {
            None => Some(u128::MAX),
            Some((of, range)) if *of == family && range.contains(&number) => {
                // An IPv6 network of all addresses has 2^128, which is one more than `*` has here.
                Some((range.end() - range.start()).min(u128::MAX - 1))
            }
            Some(_) => None,
        };
        let matching = ranges.iter().filter_map(|(range, rule)| Some((size(range)?, rule)));
        let decides = matching.min_by_key(|(size, _)| *size).map(|(_, rule)| rule);
        for rules in [&rules, &reversed] {
            let clients = decides.map(|rule| rule.clients());
            assert_eq!(rules.clients_of(address), clients, "{address} of {distinct:?}");
            assert_eq!(rules.rights(address), decides.map(|rule| rule.rights), "{address}");
        }
    }
}

/// Addresses of a rule, from its text. `None`: all addresses.
fn addresses(rule: &Rule) -> Option<Addresses> {
    let clients = rule.clients();
    if clients == "*" {
        return None;
    }
    let (first, bits) = clients.split_once('/').expect("a network has a prefix length");
    let first = first.trim_matches(['[', ']']).parse().expect("a network has an address");
    let (family, first) = number(first);
    let address_bits = if family { 128 } else { 32 };
    let host_bits = address_bits - bits.parse::<u32>().expect("a prefix length");
    let others = u128::MAX.checked_shr(128 - host_bits).unwrap_or(0);
    Some((family, first..=first + others))
}

fn number(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, u32::from(address).into()),
        IpAddr::V6(address) => (true, address.into()),
    }
}

/// First and last address of a rule, and their neighbours. The addresses of IPv4 are also there in
/// the form of IPv6 sockets.
fn samples(range: Option<&Addresses>) -> Vec<IpAddr> {
    let Some((family, range)) = range else {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    };
    let (first, last) = (*range.start(), *range.end());
    let numbers = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
    let forms = numbers.into_iter().flat_map(|number| {
        if *family {
            return vec![IpAddr::from(Ipv6Addr::from(number))];
        }
        // The neighbours of the first and last address of IPv4 are the opposite ends.
        let address = Ipv4Addr::from(number as u32);
        vec![address.into(), address.to_ipv6_mapped().into()]
    });
    forms.collect()
}

/// Rules of each option, nested networks of both families, and rules with errors.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "*:ro\n10.0.0.0/8:rw\n10.1.0.0/16:ro,insecure\n10.1.0.7:rw,no_root_squash",
        "[fd00::]/8:ro,all_squash,anonuid=5,anongid=6\n[fd00::7]\n[::]/0:secure",
        "0.0.0.0/0:ro\n*:rw\n128.0.0.0/1\n0.0.0.0/32\n255.255.255.255:root_squash",
        "host.example.org:rw\n@admins:no_root_squash\n10.0.0.0/8:ro\nHOST.example.org\nlocalhost",
        "*.example.org\n10.1\n0x7f\n@\n@-a\na_b\nfd00::1:rw\nro\nRw\na..b\n-a:rw",
        "*:ro,rw\n*:\n10.0.0.1/8\n[fd00::1:rw\n10.0.0.0/8\n10.0.0.0/8:ro\n*:anonuid=x",
    ]
    .map(|rules| rules.as_bytes().to_vec())
    .to_vec()
}
