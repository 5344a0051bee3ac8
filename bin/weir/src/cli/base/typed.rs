//! The command line as the user typed it, and changes to it: the commands that errors suggest.
//!
//! Not here: errors of the grammar (`hints`), completion of a command with placeholders
//! (`complete`).
//!
//! Invariants:
//! - a suggested command keeps all words of the user, except the wrong one and the options that
//!   skip a question or a check;
//! - a suggested command can be pasted into a shell.

use weir_api::ApiError;

use crate::cli::base::grammar::parses;
use crate::cli::base::{grammar, output};

/// Options that skip a question or a check. A suggested command never contains these options, so
/// the user must decide again about each.
const SKIPS: [&str; 4] = ["-y", "--yes", "-f", "--force"];

/// Verbs that remove data, objects or access rights.
const REMOVALS: [&str; 8] =
    ["destroy", "delete", "remove", "revoke", "clear", "cancel", "rollback", "deny"];

/// Returns the words of the command line of this process, without the name of the program.
pub(crate) fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the typed command line after the change that `change` makes.
pub(crate) fn rewritten(change: impl FnOnce(Vec<String>) -> Vec<String>) -> String {
    shown(&[], &without_skips(change(words())))
}

/// Returns the typed command line with `right` in place of the name `wrong`. The name may be a
/// whole word, the part of a word before `/`, `@`, `#` or `=`, the part after `=`, or a part
/// between commas. Returns `None` if no word contains this name.
pub(crate) fn line_with(wrong: &str, right: &str) -> Option<String> {
    replaced(&words(), wrong, right)
}

fn replaced(words: &[String], wrong: &str, right: &str) -> Option<String> {
    let mut is_found = false;
    let line: Vec<String> = words
        .iter()
        .map(|word| {
            let fixed = replaced_word(word, wrong, right);
            is_found |= fixed.is_some();
            fixed.unwrap_or_else(|| word.clone())
        })
        .collect();
    is_found.then(|| shown(&[], &without_skips(line)))
}

fn replaced_word(word: &str, wrong: &str, right: &str) -> Option<String> {
    if let Some(rest) = word.strip_prefix(wrong)
        && (rest.is_empty() || rest.starts_with(['/', '@', '#', '=']))
    {
        return Some(format!("{right}{rest}"));
    }
    if let Some(start) = word.strip_suffix(wrong).filter(|start| start.ends_with('=')) {
        return Some(format!("{start}{right}"));
    }
    let parts: Vec<&str> = word.split(',').collect();
    let fixed = parts.iter().map(|part| if *part == wrong { right } else { part });
    parts.contains(&wrong).then(|| fixed.collect::<Vec<_>>().join(","))
}

/// Returns the typed command line with `right` in place of `wrong` in the values of the short
/// options `options`; `None` if no such value contains this name.
pub(crate) fn line_with_value(options: &[&str], wrong: &str, right: &str) -> Option<String> {
    replaced_value(words(), options, wrong, right)
}

fn replaced_value(
    mut words: Vec<String>,
    options: &[&str],
    wrong: &str,
    right: &str,
) -> Option<String> {
    let (mut is_found, mut is_value) = (false, false);
    for word in &mut words {
        let option = options.iter().find(|option| word.starts_with(**option) && !is_value);
        let (option, value) = word.split_at(option.map_or(0, |option| option.len()));
        let has_value = is_value || !option.is_empty();
        is_value = !option.is_empty() && value.is_empty();
        let parts = value.split(',').filter(|_| has_value).map(str::trim);
        let parts: Vec<&str> = parts.collect();
        if parts.contains(&wrong) {
            let fixed = parts.iter().map(|part| if *part == wrong { right } else { part });
            *word = format!("{option}{}", fixed.collect::<Vec<_>>().join(","));
            is_found = true;
        }
    }
    is_found.then(|| shown(&[], &words))
}

/// Returns the error with `line` as its action. Keeps its own action if `line` is `None`.
pub(crate) fn with_line(error: ApiError, line: Option<String>) -> ApiError {
    match line {
        Some(line) => error.with_action(line),
        None => error,
    }
}

/// Returns the typed command line without the word `wrong`.
pub(crate) fn line_without(wrong: &str) -> String {
    rewritten(|words| words.into_iter().filter(|word| word != wrong).collect())
}

/// Returns the typed command line with the words `one` and `other` exchanged; `None` if the line
/// lacks one of these words.
pub(crate) fn swapped(one: &str, other: &str) -> Option<String> {
    let mut words = words();
    let at = |wanted: &str| words.iter().position(|word| word == wanted);
    let (first, second) = (at(one)?, at(other)?);
    words.swap(first, second);
    Some(shown(&[], &without_skips(words)))
}

/// Returns the typed command line with the word `moved` in front of the word `before`.
pub(crate) fn moved(moved: &str, before: &str) -> Option<String> {
    let mut words = words();
    let from = words.iter().rposition(|word| word == moved)?;
    let word = words.remove(from);
    let to = words.iter().position(|word| word == before)?;
    words.insert(to, word);
    Some(shown(&[], &without_skips(words)))
}

/// Returns the typed command line with the noun `other` in place of `noun`; `None` if that noun
/// does not have the verb.
pub(crate) fn line_of(noun: &str, other: &str) -> Option<String> {
    let grammar = grammar::grammar()?;
    let mut words = words();
    let at = words.iter().position(|word| word == noun)?;
    other.clone_into(&mut words[at]);
    let words = without_skips(words);
    parses(&grammar, &words).then(|| shown(&[], &words))
}

/// True if the verb of the typed command removes data, an object or access rights.
pub(crate) fn is_removal() -> bool {
    removes(&grammar::split_options(&words()).1)
}

/// True if the verb of `command` removes data, an object or access rights.
pub(crate) fn removes(command: &[String]) -> bool {
    command.iter().take(2).any(|word| REMOVALS.contains(&word.as_str()))
}

/// Returns the words without the options that skip a question or a check.
pub(crate) fn without_skips(words: Vec<String>) -> Vec<String> {
    words.into_iter().filter(|word| !SKIPS.contains(&word.as_str())).collect()
}

/// Finds the missing object in the message of an error. Returns its noun and its name.
pub(crate) fn missing(message: &str) -> Option<(&str, &str)> {
    let (object, rest) = message.split_once(" does not exist")?;
    let (noun, name) = object.split_once(' ').filter(|_| rest.is_empty())?;
    Some((noun, name.trim_matches('"')))
}

/// Returns the known word that the user probably misspelled as `word`: it differs from `word` only
/// in case, or else it is clearly nearer to `word` than all other known words.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let distance = |known: &str| {
        let known = known.to_lowercase();
        let shared = shared(&lower, &known);
        let (own, other) = (&lower[shared..], &known[shared..]);
        let limit = match own.len() {
            0 | 1 => 0,
            2..=4 => 1,
            _ => 2,
        };
        Some(strsim::osa_distance(own, other)).filter(|distance| *distance <= limit)
    };
    let mut found: Vec<(usize, &str)> =
        known.filter_map(|known| Some((distance(known)?, known))).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [(_, only)] => Some(only),
        [(near, first), (next, _), ..] if near < next => Some(first),
        _ => None,
    }
}

/// Returns the length of the start that two names share, up to and including a separator: `tank/`,
/// `tank/vm1@`.
fn shared(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let mut start = one.as_bytes()[..same].iter();
    start.rposition(|byte| b"/@#:".contains(byte)).map_or(0, |at| at + 1)
}

/// Formats a command as text that can be pasted into a shell.
pub(crate) fn shown(options: &[String], command: &[String]) -> String {
    let quoted = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,#".contains(c);
        let word = output::clean(word);
        if !word.is_empty() && word.chars().all(plain) && !word.starts_with('#') {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words: Vec<String> = options.iter().chain(command).map(quoted).collect();
    format!("weir {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_replaced_in_the_typed_line() {
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (typed, wrong, right, corrected) in [
            ("pool scrub tnk", "tnk", "tank", Some("weir pool scrub tank")),
            ("volume destroy tnk/vm1 --yes", "tnk", "tank", Some("weir volume destroy tank/vm1")),
            (
                "snapshot create tank/vn1@a",
                "tank/vn1",
                "tank/vm1",
                Some("weir snapshot create tank/vm1@a"),
            ),
            (
                "set compresion=zstd tank",
                "compresion",
                "compression",
                Some("weir set compression=zstd tank"),
            ),
            ("set size=1,5G a/b", "1,5G", "1.5G", Some("weir set size=1.5G a/b")),
            ("get used,quata tank", "quata", "quota", Some("weir get used,quota tank")),
            ("pool scrub tankx", "tank", "pool", None),
        ] {
            assert_eq!(replaced(&line(typed), wrong, right).as_deref(), corrected, "{typed}");
        }
        assert_eq!(missing("pool \"tnk\" does not exist"), Some(("pool", "tnk")));
        assert_eq!(missing("volume tank/a does not exist"), Some(("volume", "tank/a")));
        assert_eq!(missing("pool x does not exist on the readable disks"), None);
    }

    #[test]
    fn value_of_an_option_is_replaced_in_the_typed_line() {
        for (typed, corrected) in [
            ("pool list -o used", Some("weir pool list -o alloc")),
            ("pool list -o name,used -H", Some("weir pool list -o name,alloc -H")),
            ("volume list used -sused", Some("weir volume list used -salloc")),
            ("pool list used -H", None),
        ] {
            let words = typed.split(' ').map(str::to_owned).collect();
            let line = replaced_value(words, &["-o", "-s", "-S"], "used", "alloc");
            assert_eq!(line.as_deref(), corrected, "{typed}");
        }
    }

    #[test]
    fn near_name_differs_in_case_or_is_nearer_than_all_others() {
        for (word, known, near) in [
            ("tank/VM1", &["tank/o1", "tank/vm1", "tank/vm2"][..], Some("tank/vm1")),
            ("tank/vm99", &["tank/o1", "tank/vm9"], Some("tank/vm9")),
            ("tank/vm3", &["tank/vm1", "tank/vm2"], None),
            ("tank/ab", &["tank/cd"], None),
            ("tank/x", &["tank/y"], None),
            ("tank/vm1@mondya", &["tank/vm1@monday", "tank/vm1@tue"], Some("tank/vm1@monday")),
            ("iqn.2026-01.org.weir:vmss", &["iqn.2026-01.org.weir:vms"], {
                Some("iqn.2026-01.org.weir:vms")
            }),
            ("ztsd", &["lz4", "zstd"], Some("zstd")),
        ] {
            assert_eq!(nearest(word, known.iter().copied()), near, "{word}");
        }
    }

    #[test]
    fn suggestion_can_be_pasted_into_a_shell() {
        let (options, words) = grammar::split_options(&["--json".into(), "pool".into()]);
        assert_eq!(shown(&options, &words), "weir --json pool");
        assert_eq!(shown(&[], &["a b".into(), "it's".into()]), r"weir 'a b' 'it'\''s'");
    }
}
