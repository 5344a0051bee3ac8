//! Completes a command: adds a placeholder in upper case for each missing argument.
//!
//! Not here: how to find the command that the user meant (`hints`, `slips`).
//!
//! Invariants:
//! - a completed command keeps all words of the user, and is valid by the grammar;
//! - an example from the help replaces no word of the user, and is never an example of a verb that
//!   removes something.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::cli::base::{examples, grammar, typed};

/// Completes a command: adds a placeholder for each missing argument, or returns an example if the
/// user typed no argument. Drops options that skip a question, such as `--yes`. If the parser
/// refuses the command for another reason, returns its `--help` or the `list` of its noun.
pub(crate) fn complete(grammar: &Command, command: Vec<String>) -> Option<Vec<String>> {
    let command = typed::without_skips(command);
    let error = grammar::error_of(grammar, &command);
    let kind = error.as_ref().map(Error::kind);
    let (level, path) = grammar::level_of(grammar, &command);
    let is_complete = |command: &Vec<String>| {
        matches!(
            grammar::error_of(grammar, command).map(|error| error.kind()),
            None | Some(ErrorKind::DisplayHelp)
        )
    };
    let help = || {
        let help = path.iter().take(2).cloned().chain(["--help".to_owned()]);
        Some(help.collect::<Vec<_>>()).filter(is_complete)
    };
    match (kind, error) {
        (None | Some(ErrorKind::DisplayHelp), _) => Some(command),
        (Some(ErrorKind::InvalidSubcommand), _) => None,
        (Some(ErrorKind::MissingRequiredArgument), Some(error)) => {
            let is_bare = command.len() == path.len() && !typed::removes(path);
            if is_bare && path.len() == 2 {
                return example(path).or_else(help);
            }
            let with_first = with_first(level, path, &command);
            let filled = match &with_first {
                Some(shifted) => match grammar::error_of(grammar, shifted) {
                    None => Some(shifted.clone()),
                    Some(error) => filled(&error, level, path, shifted),
                },
                None if command.len() == path.len() && path.len() < 2 => None,
                None => filled(&error, level, path, &command),
            };
            let is_filled = |command: &Vec<String>| {
                is_complete(command)
                    || grammar::error_of(grammar, command).is_some_and(|e| refuses_placeholder(&e))
            };
            filled.filter(is_filled).or_else(help)
        }
        _ => {
            let is_list = path.last().is_some_and(|verb| verb == "list");
            let bare = Some(path.to_vec()).filter(|path| is_list && grammar::parses(grammar, path));
            bare.or_else(help)
        }
    }
}

/// True if the parser refuses the command only because a placeholder is not a valid value of its
/// option.
fn refuses_placeholder(error: &Error) -> bool {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return false;
    };
    let kinds = [ErrorKind::InvalidValue, ErrorKind::ValueValidation];
    kinds.contains(&error.kind()) && value.chars().all(|c| c.is_ascii_uppercase())
}

/// Returns the first example that the help has for a command.
fn example(path: &[String]) -> Option<Vec<String>> {
    let start = format!("weir {} ", path.join(" "));
    let line = examples::all().find(|line| line.starts_with(&start))?;
    let words = line.split_whitespace().skip(1).map(|word| word.replace('\'', ""));
    Some(words.collect())
}

/// Returns the command with a placeholder in front of its only argument, if the form of that
/// argument shows that it is the second one: `target allow iqn...`, `lun add tank/vm1`.
fn with_first(level: &Command, path: &[String], command: &[String]) -> Option<Vec<String>> {
    let given = arguments(level, command, path.len());
    let [only] = given.as_slice() else { return None };
    let word = command[*only].as_str();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let first = match path.as_slice() {
        ["snapshot", "hold" | "release"] if word.contains('@') => "TAG",
        ["target", "allow" | "deny"] if grammar::is_iscsi(word) => "TARGET",
        ["lun", "add" | "remove"] if word.contains('/') => "TARGET",
        ["export", "create"] if word.contains('/') => "nbd",
        _ => return None,
    };
    let mut command = command.to_vec();
    command.insert(*only, first.to_owned());
    Some(command)
}

/// Returns the indexes of the words that are positional arguments.
pub(crate) fn arguments(level: &Command, words: &[String], from: usize) -> Vec<usize> {
    let takes_value = |word: &str| {
        let is_it = |arg: &clap::Arg| match word.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => {
                let mut short = arg.get_short_and_visible_aliases().unwrap_or_default();
                short.extend(arg.get_all_short_aliases().unwrap_or_default());
                word.len() == 2 && short.iter().any(|short| word.ends_with(*short))
            }
        };
        let own = level.get_arguments().find(|arg| is_it(arg));
        own.is_some_and(|arg| arg.get_action().takes_values())
            || grammar::WITH_VALUE.contains(&word)
    };
    let (mut found, mut at) = (Vec::new(), from);
    while let Some(word) = words.get(at) {
        if !word.starts_with('-') || word.len() == 1 {
            found.push(at);
        } else if takes_value(word) {
            at += 1;
        }
        at += 1;
    }
    found
}

/// Returns the command with a placeholder for each argument that the error reports as missing.
fn filled(
    error: &Error,
    level: &Command,
    path: &[String],
    command: &[String],
) -> Option<Vec<String>> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let given = arguments(level, command, path.len());
    let at = given.last().map_or(path.len(), |last| last + 1);
    let first = given.first().map(|at| command[*at].as_str());
    let name_of = |text: &str| -> String {
        text.trim_start_matches('<').split(['>', '|']).next().unwrap_or_default().to_owned()
    };
    let (mut words, mut options) = (Vec::new(), Vec::new());
    for part in missing {
        if part.starts_with('-') {
            options.extend(part.split_whitespace().map(name_of));
        } else {
            words.push(placeholder(path, &name_of(part), first));
        }
    }
    Some([&command[..at], &words, &command[at..], &options].concat())
}

/// Returns the placeholder for an argument. `first` is the first argument of the command.
fn placeholder(path: &[String], name: &str, first: Option<&str>) -> String {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match (path.as_slice(), name) {
        (["volume", "create" | "resize"], "SIZE") if first.is_some() => "10GiB".to_owned(),
        (["pool", _], "VDEV") => "DISK".to_owned(),
        (["snapshot", "clone"], "VOLUME") | (["volume", "rename" | "copy"], "TO") => {
            let pool =
                first.and_then(|first| first.split_once('/')).map_or("POOL", |(pool, _)| pool);
            format!("{pool}/NEW")
        }
        _ => name.to_owned(),
    }
}
