//! Rules for names of pools, volumes, snapshots, bookmarks, exports and iSCSI targets.
//!
//! The code that owns a list of names checks whether a name is already in use.
//!
//! Invariants:
//! - a valid name is safe in a path, a URI and a terminal: it has only letters, digits and `_ . :
//!   -`;
//! - a pool's name is never a keyword of the layout grammar;
//! - `/` ends the name of a pool, and `@` or `#` the name of a dataset, so that a full name can be
//!   split in only one way;
//! - the command line and the server both check every rule with the functions of this file.

use crate::limits::NAME_BYTES_MAX;

/// Keywords of the layout grammar, which are invalid as pool names.
const RESERVED: [&str; 7] = ["cache", "dedup", "disk", "log", "mirror", "spare", "special"];

/// Prefixes of keywords of the layout grammar; no pool name may begin with them.
const RESERVED_PREFIXES: [&str; 2] = ["draid", "raidz"];

/// Maximum length of a hold tag: the space for a tag in the snapshot's directory entry.
pub const TAG_BYTES_MAX: usize = 64;

/// Maximum length of an iSCSI name (RFC 7143 4.2.7.1).
pub const ISCSI_BYTES_MAX: usize = 223;

/// Maximum length of an export name. The full name of a snapshot must fit, because exports are
/// usually named after their volume or snapshot.
const EXPORT_BYTES_MAX: usize = 3 * NAME_BYTES_MAX + 2;

/// A name breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad {what} name {name:?}: {why}")]
pub struct NameError {
    what: &'static str,
    name: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    #[error("it must start with a letter, not {0:?}")]
    FirstNotLetter(char),
    #[error("it must start with a letter or a digit, not {0:?}")]
    FirstNotAlphanumeric(char),
    #[error("the character {0:?} is not allowed; use letters, digits, '_', '.', ':' and '-'")]
    Character(char),
    #[error("{0:?} is a keyword of the pool layout")]
    Reserved(String),
    #[error("write the pool and the volume, such as tank/vm1")]
    NotTwoParts,
    #[error("write the volume and the name, such as {0}")]
    NoAt(&'static str),
    #[error("the character {0:?} is not allowed; use lower-case letters, digits, '.', ':' and '-'")]
    IscsiCharacter(char),
    #[error("write one such as iqn.2026-01.org.weir:vms, eui. or naa. with hexadecimal digits")]
    NotIscsi,
    #[error("a range has one '%', such as tank/vm1@monday%friday")]
    SeveralPercents,
}

/// Selection of snapshots of one volume, in the notation `@a`, `@a%b`, `@a%`, `@%b` or `@%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked<'a> {
    /// The snapshot with this name.
    One(&'a str),
    /// All snapshots from the first to the last one in order of age, both included. If the first or
    /// the last snapshot is `None`, the range is open at that end.
    Range(Option<&'a str>, Option<&'a str>),
}

/// Checks a pool's name.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn pool(name: &str) -> Result<(), NameError> {
    let bad = |why| NameError { what: "pool", name: name.to_owned(), why };
    part(name, char::is_ascii_alphabetic, Why::FirstNotLetter).map_err(bad)?;
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&lower.as_str()) {
        return Err(bad(Why::Reserved(lower)));
    }
    match RESERVED_PREFIXES.iter().find(|prefix| lower.starts_with(**prefix)) {
        Some(prefix) => Err(bad(Why::Reserved((*prefix).to_owned()))),
        None => Ok(()),
    }
}

/// Checks the full name of a volume. Splits it into the name of the pool and the name of the
/// volume.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn volume(name: &str) -> Result<(&str, &str), NameError> {
    let bad = |why| NameError { what: "volume", name: name.to_owned(), why };
    if name.is_empty() {
        return Err(bad(Why::Empty));
    }
    let (in_pool, own) = name.split_once('/').ok_or_else(|| bad(Why::NotTwoParts))?;
    pool(in_pool)?;
    part(own, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric).map_err(bad)?;
    Ok((in_pool, own))
}

/// Checks the full name of a snapshot. Splits it into the full name of the volume and the own name
/// of the snapshot.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn snapshot(name: &str) -> Result<(&str, &str), NameError> {
    let (of, own) = at(name, "tank/vm1@monday")?;
    volume(of)?;
    own_snapshot(name, own)?;
    Ok((of, own))
}

/// Checks the full name of a bookmark. Splits it into the full name of the volume and the own name
/// of the bookmark.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn bookmark(name: &str) -> Result<(&str, &str), NameError> {
    let bad = |why| NameError { what: "bookmark", name: name.to_owned(), why };
    let (of, own) = name.split_once('#').ok_or_else(|| bad(Why::NoAt("tank/vm1#monday")))?;
    volume(of)?;
    part(own, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric).map_err(bad)?;
    Ok((of, own))
}

/// Checks and splits `POOL@NAME`, which selects the snapshot `NAME` of each volume of a pool.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn pool_snapshot(name: &str) -> Result<(&str, &str), NameError> {
    let (of, own) = at(name, "tank@monday")?;
    pool(of)?;
    own_snapshot(name, own)?;
    Ok((of, own))
}

/// Checks a list of snapshots of one volume, such as `tank/vm1@a,c%e`. Splits the list into the
/// full name of the volume and the selected snapshots.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn snapshots(name: &str) -> Result<(&str, Vec<Picked<'_>>), NameError> {
    let (of, list) = at(name, "tank/vm1@monday")?;
    volume(of)?;
    let end = |own: &'_ str| if own.is_empty() { Ok(()) } else { own_snapshot(name, own) };
    let picked = |text| match str::split_once(text, '%') {
        None => own_snapshot(name, text).map(|()| Picked::One(text)),
        Some((_, last)) if last.contains('%') => Err(bad_snapshot(name, Why::SeveralPercents)),
        Some((first, last)) => {
            end(first).and_then(|()| end(last))?;
            let given = |own: &'_ str| !own.is_empty();
            Ok(Picked::Range(Some(first).filter(|f| given(f)), Some(last).filter(|l| given(l))))
        }
    };
    let picked: Result<_, NameError> = list.split(',').map(picked).collect();
    Ok((of, picked?))
}

/// Checks the full name of a volume or snapshot. Splits it into the full name of the volume and the
/// own name of the snapshot, if there is one.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn dataset(name: &str) -> Result<(&str, Option<&str>), NameError> {
    if name.contains('@') {
        return snapshot(name).map(|(of, own)| (of, Some(own)));
    }
    volume(name).map(|_| (name, None))
}

/// Kind of an object that has properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyOf {
    /// A pool.
    Pool,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
}

impl PropertyOf {
    /// Name of this kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Checks the full name of a pool, volume or snapshot, and returns the kind of the object.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn property_of(name: &str) -> Result<PropertyOf, NameError> {
    if name.contains('@') {
        return snapshot(name).map(|_| PropertyOf::Snapshot);
    }
    if name.contains('/') {
        return volume(name).map(|_| PropertyOf::Volume);
    }
    pool(name).map(|()| PropertyOf::Pool)
}

/// Checks a hold tag.
///
/// # Errors
/// The first rule that the tag breaks, with the offending character.
pub fn tag(tag: &str) -> Result<(), NameError> {
    let bad = |why| NameError { what: "tag", name: tag.to_owned(), why };
    part(tag, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric).map_err(bad)?;
    if tag.len() > TAG_BYTES_MAX { Err(bad(Why::TooLong(TAG_BYTES_MAX))) } else { Ok(()) }
}

/// Checks the name of an export: own names of volumes, joined by `/`, and optionally `@` and the
/// own name of a snapshot.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn export(name: &str) -> Result<(), NameError> {
    let bad = |why| NameError { what: "export", name: name.to_owned(), why };
    if name.len() > EXPORT_BYTES_MAX {
        return Err(bad(Why::TooLong(EXPORT_BYTES_MAX)));
    }
    let (of, own) = name.split_once('@').map_or((name, None), |(of, own)| (of, Some(own)));
    of.split('/')
        .chain(own)
        .try_for_each(|own| part(own, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric))
        .map_err(bad)
}

/// Checks a new iSCSI name of a target or an initiator (RFC 7143 4.2.7): `iqn.` with a month and a
/// domain, `eui.` or `naa.`, in lower case.
///
/// # Errors
/// The first rule that the name breaks, with the offending character.
pub fn iscsi(name: &str) -> Result<(), NameError> {
    known_iscsi(name)?;
    match name.strip_prefix("iqn.") {
        Some(rest) if !is_dated(rest) => {
            Err(NameError { what: "iSCSI", name: name.to_owned(), why: Why::NotIscsi })
        }
        _ => Ok(()),
    }
}

/// Checks an iSCSI name that is already in use. Earlier versions accepted any text after `iqn.`.
///
/// # Errors
/// Like [`iscsi`].
pub fn known_iscsi(name: &str) -> Result<(), NameError> {
    let bad = |why| NameError { what: "iSCSI", name: name.to_owned(), why };
    if name.len() > ISCSI_BYTES_MAX {
        return Err(bad(Why::TooLong(ISCSI_BYTES_MAX)));
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".:-".contains(c);
    if let Some(wrong) = name.chars().find(|c| !allowed(*c)) {
        return Err(bad(Why::IscsiCharacter(wrong)));
    }
    let is_hexadecimal = |digits: &str| digits.chars().all(|c| c.is_ascii_hexdigit());
    let fits = match name.split_at_checked(4) {
        Some(("iqn.", rest)) => rest.len() > 1,
        Some(("eui.", rest)) => rest.len() == 16 && is_hexadecimal(rest),
        Some(("naa.", rest)) => matches!(rest.len(), 16 | 32) && is_hexadecimal(rest),
        _ => false,
    };
    if fits { Ok(()) } else { Err(bad(Why::NotIscsi)) }
}

/// True if `rest`, the part of an iqn name after its prefix, begins with a month such as `2026-01`,
/// a dot and a domain (RFC 7143 4.2.7.3).
fn is_dated(rest: &str) -> bool {
    let Some((month, domain)) = rest.split_once('.') else { return false };
    let digits = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    let is_month = month.split_once('-').is_some_and(|(year, month)| {
        digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
    });
    is_month && domain.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn bad_snapshot(name: &str, why: Why) -> NameError {
    NameError { what: "snapshot", name: name.to_owned(), why }
}

/// Splits the name of a snapshot at its `@`; a name without `@` is an error.
fn at<'a>(name: &'a str, such_as: &'static str) -> Result<(&'a str, &'a str), NameError> {
    name.split_once('@').ok_or_else(|| bad_snapshot(name, Why::NoAt(such_as)))
}

/// Checks the own name of a snapshot, which is a part of the full name `name`.
fn own_snapshot(name: &str, own: &str) -> Result<(), NameError> {
    part(own, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric)
        .map_err(|why| bad_snapshot(name, why))
}

fn part(name: &str, first_ok: fn(&char) -> bool, first_bad: fn(char) -> Why) -> Result<(), Why> {
    let first = name.chars().next().ok_or(Why::Empty)?;
    if name.len() > NAME_BYTES_MAX {
        return Err(Why::TooLong(NAME_BYTES_MAX));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    // A character that is invalid in every position gets this error even if it is the first one.
    if let Some(wrong) = name.chars().find(|c| !allowed(*c)) {
        return Err(Why::Character(wrong));
    }
    if first_ok(&first) { Ok(()) } else { Err(first_bad(first)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_are_accepted() {
        for name in ["tank", "T2", "a", "my-pool_1.b:c", "logs", "mirrored"] {
            assert_eq!(pool(name), Ok(()), "{name}");
        }
        assert_eq!(volume("tank/vm1"), Ok(("tank", "vm1")));
        assert_eq!(volume("tank/0"), Ok(("tank", "0")));
        for name in ["tank/vm1", "vm1", "a/b/c", "0", "tank/vm1@monday"] {
            assert_eq!(export(name), Ok(()), "{name}");
        }
        let longest = "a".repeat(NAME_BYTES_MAX);
        assert_eq!(export(&format!("{longest}/{longest}@{longest}")), Ok(()));
        assert_eq!(snapshot("tank/vm1@1.a:b_c-d"), Ok(("tank/vm1", "1.a:b_c-d")));
        assert_eq!(bookmark("tank/vm1#1.a:b_c-d"), Ok(("tank/vm1", "1.a:b_c-d")));
        assert_eq!(pool_snapshot("tank@monday"), Ok(("tank", "monday")));
        assert_eq!(dataset("tank/vm1"), Ok(("tank/vm1", None)));
        assert_eq!(dataset("tank/vm1@a"), Ok(("tank/vm1", Some("a"))));
        assert_eq!(tag(&"t".repeat(TAG_BYTES_MAX)), Ok(()));
        assert_eq!(pool(&"a".repeat(NAME_BYTES_MAX)), Ok(()));
    }

    #[test]
    fn iscsi_names_have_one_of_three_formats() {
        for name in ["iqn.2026-01.org.weir:vms", "eui.02004567a425678d", "naa.52004567ba64678d"] {
            assert_eq!(iscsi(name), Ok(()), "{name}");
        }
        let long = format!("iqn.2026-01.{}", "a".repeat(ISCSI_BYTES_MAX));
        let bad = ["", "vms", "iqn.", "eui.0", "naa.5200", "iqn.A", "iqn.a b", "iqn.a*", &long];
        // These names have an invalid month or no domain.
        let undated = [
            "iqn.2026-13.org.weir:vms",
            "iqn.2026-00.org.weir:vms",
            "iqn.2026-1.org.weir:vms",
            "iqn.26-01.org.weir:vms",
            "iqn.2026-01",
            "iqn.2026-01.",
            "iqn.2026-01.:vms",
            "iqn.org.weir:vms",
        ];
        for name in bad.into_iter().chain(undated) {
            let error = iscsi(name).expect_err(name).to_string();
            assert!(error.starts_with("bad iSCSI name"), "{error}");
            assert_eq!(known_iscsi(name).is_ok(), undated.contains(&name), "{name}");
        }
    }

    #[test]
    fn error_of_a_pool_volume_or_export_name_states_the_rule() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for (name, part) in [
            ("", "empty"),
            ("1tank", "'1'"),
            ("-f", "'-'"),
            ("ta nk", "' '"),
            ("tank/vm", "'/'"),
            ("tänk", "'ä'"),
            ("a\u{1b}[2J", "'\\u{1b}'"),
            ("mirror", "layout"),
            ("RAIDZ9", "layout"),
            ("draid", "layout"),
            (long.as_str(), "200 bytes"),
        ] {
            let error = pool(name).expect_err(name).to_string();
            assert!(error.contains(part) && error.starts_with("bad pool name"), "{error}");
        }
        for (name, part) in [
            ("", "empty"),
            ("tank", "tank/vm1"),
            ("tank/", "empty"),
            ("/vm", "bad pool name"),
            ("tank/.", "'.'"),
            ("tank/..", "'.'"),
            ("tank/a/b", "'/'"),
            ("tank/a@b", "'@'"),
            ("mirror/a", "layout"),
        ] {
            let error = volume(name).expect_err(name).to_string();
            assert!(error.contains(part), "{error}");
        }
        for name in ["", "a//b", "/a", "a/", "a/../b", "a b", "a@", "@a", "a@b@c", "a@b/c", &long] {
            let error = export(name).expect_err(name).to_string();
            assert!(error.starts_with("bad export name"), "{error}");
        }
    }

    #[test]
    fn error_of_a_snapshot_or_bookmark_name_states_the_rule() {
        let long = format!("tank/a@{}", "s".repeat(NAME_BYTES_MAX + 1));
        for (name, part) in [
            ("", "tank/vm1@monday"),
            ("tank/vm1", "tank/vm1@monday"),
            ("tank@a", "bad volume name \"tank\""),
            ("tank/vm1@", "empty"),
            ("@a", "bad volume name \"\""),
            ("tank/vm1@-a", "'-'"),
            ("tank/vm1@a@b", "'@'"),
            ("tank/vm1@a/b", "'/'"),
            ("tank/vm1@a%b", "'%'"),
            (long.as_str(), "200 bytes"),
        ] {
            let error = snapshot(name).expect_err(name).to_string();
            assert!(error.contains(part), "{error}");
        }
        for (name, part) in [
            ("tank/vm1@a", "tank/vm1#monday"),
            ("tank/vm1#", "empty"),
            ("tank/vm1#-a", "'-'"),
            ("tank/vm1#a#b", "'#'"),
            ("tank/vm1#a@b", "'@'"),
            ("tank#a", "bad volume name \"tank\""),
            ("tank/vm1@a#b", "bad volume name"),
        ] {
            let error = bookmark(name).expect_err(name).to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = pool_snapshot("tank/vm1@a").expect_err("a volume").to_string();
        assert!(error.contains("bad pool name"), "{error}");
        let error = tag(&"t".repeat(TAG_BYTES_MAX + 1)).expect_err("too long").to_string();
        assert!(error.contains("bad tag name") && error.contains("64 bytes"), "{error}");
        assert!(tag("").is_err() && tag("a b").is_err());
    }

    #[test]
    fn snapshot_lists_and_ranges_are_split() {
        use Picked::{One, Range};
        let picked = |list| snapshots(list).expect(list).1;
        assert_eq!(picked("tank/v@a"), [One("a")]);
        assert_eq!(picked("tank/v@a%b"), [Range(Some("a"), Some("b"))]);
        assert_eq!(picked("tank/v@a%"), [Range(Some("a"), None)]);
        assert_eq!(picked("tank/v@%b"), [Range(None, Some("b"))]);
        assert_eq!(picked("tank/v@%"), [Range(None, None)]);
        assert_eq!(picked("tank/v@a,c%d,e"), [One("a"), Range(Some("c"), Some("d")), One("e")]);
        for (name, part) in [
            ("tank/v@", "empty"),
            ("tank/v@a,", "empty"),
            ("tank/v@a%b%c", "one '%'"),
            ("tank/v@a%-b", "'-'"),
            ("tank/v", "tank/vm1@monday"),
            ("tank@a%b", "bad volume name"),
        ] {
            let error = snapshots(name).expect_err(name).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
