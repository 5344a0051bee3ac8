//! Rules for the names of pools, volumes and exports.
//!
//! Not here: whether a name is taken; whoever owns the list knows.
//!
//! Invariants:
//! - a name that passes is safe in a path, a URI and a terminal: letters, digits and `_ . : -`;
//! - a pool cannot be called like a word of the layout grammar;
//! - every rule is checked by the command line and again by the server, through this file.

use crate::limits::NAME_BYTES_MAX;

/// Words of the layout grammar, which a pool may not be called.
const RESERVED: [&str; 7] = ["cache", "dedup", "disk", "log", "mirror", "spare", "special"];

/// Beginnings of words of the layout grammar, which a pool may not begin with.
const RESERVED_PREFIXES: [&str; 2] = ["draid", "raidz"];

/// Why a name is refused.
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
    #[error("{0:?} is a word of the pool layout")]
    Reserved(String),
    #[error("write the pool and the volume, such as tank/vm1")]
    NotTwoParts,
}

/// Checks a pool's name.
///
/// # Errors
/// The first rule the name breaks, with the character that breaks it.
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

/// Checks a volume's full name and splits it into the pool's name and the volume's own.
///
/// # Errors
/// The first rule the name breaks, with the character that breaks it.
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

/// Checks an export's name: parts that each could be a volume's own name, joined by `/`.
///
/// # Errors
/// The first rule the name breaks, with the character that breaks it.
pub fn export(name: &str) -> Result<(), NameError> {
    // A volume's full name is the usual export name, so it must fit.
    let bytes_max = 2 * NAME_BYTES_MAX + 1;
    let bad = |why| NameError { what: "export", name: name.to_owned(), why };
    if name.len() > bytes_max {
        return Err(bad(Why::TooLong(bytes_max)));
    }
    name.split('/')
        .try_for_each(|own| part(own, char::is_ascii_alphanumeric, Why::FirstNotAlphanumeric))
        .map_err(bad)
}

fn part(name: &str, first_ok: fn(&char) -> bool, first_bad: fn(char) -> Why) -> Result<(), Why> {
    let first = name.chars().next().ok_or(Why::Empty)?;
    if name.len() > NAME_BYTES_MAX {
        return Err(Why::TooLong(NAME_BYTES_MAX));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    // A first character that is nowhere allowed is reported as such: that is the nearer mistake.
    if let Some(wrong) = name.chars().find(|c| !allowed(*c)) {
        return Err(Why::Character(wrong));
    }
    if first_ok(&first) { Ok(()) } else { Err(first_bad(first)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_usual_names() {
        for name in ["tank", "T2", "a", "my-pool_1.b:c", "logs", "mirrored"] {
            assert_eq!(pool(name), Ok(()), "{name}");
        }
        assert_eq!(volume("tank/vm1"), Ok(("tank", "vm1")));
        assert_eq!(volume("tank/0"), Ok(("tank", "0")));
        for name in ["tank/vm1", "vm1", "a/b/c", "0"] {
            assert_eq!(export(name), Ok(()), "{name}");
        }
        assert_eq!(pool(&"a".repeat(NAME_BYTES_MAX)), Ok(()));
    }

    #[test]
    fn names_the_broken_rule() {
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
        for name in ["", "a//b", "/a", "a/", "a/../b", "a b", &format!("{long}/{long}")] {
            let error = export(name).expect_err(name).to_string();
            assert!(error.starts_with("bad export name"), "{error}");
        }
    }
}
