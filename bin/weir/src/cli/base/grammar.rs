//! The grammar of the command line, and functions that take a typed line apart by this grammar.
//!
//! Not here: the commands (`args`), corrections of a typed line (`hints`, `typed`).

use std::sync::OnceLock;

use clap::error::ErrorKind;
use clap::{Command, Error};

/// Options that take a value and may stand before a command.
pub(crate) const WITH_VALUE: [&str; 3] = ["--api", "--ca", "--timeout"];

/// Function that returns the grammar, called only after an error, because building the grammar is
/// slow.
static GRAMMAR: OnceLock<fn() -> Command> = OnceLock::new();

/// Sets the function that returns the grammar. Call this once, before any other function of this
/// file.
pub(crate) fn set_grammar(grammar: fn() -> Command) {
    GRAMMAR.get_or_init(|| grammar);
}

/// Returns the grammar; `None` in unit tests, which set none.
pub(crate) fn grammar() -> Option<Command> {
    GRAMMAR.get().map(|grammar| grammar())
}

/// True if a command is valid by the grammar, except that arguments may be missing.
pub(crate) fn parses(grammar: &Command, command: &[String]) -> bool {
    error_of(grammar, command)
        .is_none_or(|error| error.kind() == ErrorKind::MissingRequiredArgument)
}

/// Returns the error of the parser for a command; `None` if the command is valid.
pub(crate) fn error_of(grammar: &Command, command: &[String]) -> Option<Error> {
    let words = std::iter::once("weir").chain(command.iter().map(String::as_str));
    grammar.clone().try_get_matches_from(words).err()
}

/// True for the full name of an iSCSI target or initiator.
pub(crate) fn is_iscsi(word: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|kind| word.starts_with(kind))
}

/// Splits the words into the options before the command, and the command.
pub(crate) fn split_options(words: &[String]) -> (Vec<String>, Vec<String>) {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        at += 1 + usize::from(WITH_VALUE.contains(&word.as_str()));
    }
    let (options, command) = words.split_at(at.min(words.len()));
    let is_known = |word: &&String| {
        !word.starts_with('-') || *word == "--json" || WITH_VALUE.contains(&word.as_str())
    };
    (options.iter().filter(is_known).cloned().collect(), command.to_vec())
}

/// Returns the grammar of the noun and the verb at the start of a command, and these two words.
pub(crate) fn level_of<'a, 'w>(
    grammar: &'a Command,
    words: &'w [String],
) -> (&'a Command, &'w [String]) {
    let (mut level, mut count) = (grammar, 0);
    while let Some(next) = words.get(count).and_then(|word| level.find_subcommand(word)) {
        (level, count) = (next, count + 1);
    }
    (level, &words[..count])
}
