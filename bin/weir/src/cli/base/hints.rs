//! Errors of the command line's grammar, with the command that the user probably meant.
//!
//! Users of other tools type a verb before its noun, plural nouns, verbs of zpool and targetcli, or
//! no verb. Not here: errors of the server, and the grammar (`args`).
//!
//! Invariants:
//! - a suggested command has the grammar of a command: [`parses`] checks each of them;
//! - the exit code is 2, and help and version are printed as clap does.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::cli::base::output;

/// Words of other tools, and the verbs of Weir with that meaning.
const VERBS: [(&str, &[&str]); 21] = [
    ("delete", &["destroy", "remove"]),
    ("del", &["destroy", "delete", "remove"]),
    ("rm", &["destroy", "delete", "remove"]),
    ("destroy", &["delete", "remove"]),
    ("remove", &["delete", "destroy"]),
    ("add", &["create", "set"]),
    ("new", &["create", "add"]),
    ("make", &["create", "add"]),
    ("create", &["add", "set"]),
    ("ls", &["list"]),
    ("info", &["show", "status"]),
    ("describe", &["show", "status"]),
    ("inspect", &["show", "status"]),
    ("get", &["show", "status"]),
    ("show", &["status", "list"]),
    ("status", &["show", "list"]),
    ("grow", &["resize", "expand"]),
    ("extend", &["resize", "expand"]),
    ("mv", &["rename"]),
    ("top", &["iostat"]),
    ("stat", &["iostat", "show"]),
];

/// Tools whose commands users type after `weir`, and the noun with their verbs.
const TOOLS: [(&str, Option<&str>); 4] =
    [("zpool", Some("pool")), ("zfs", None), ("targetcli", Some("target")), ("weir", None)];

/// Verb for an object that is named without a verb, by noun.
const DEFAULTS: [(&str, &[&str]); 5] = [
    ("pool", &["status"]),
    ("volume", &["show"]),
    ("snapshot", &["create"]),
    ("bookmark", &["create"]),
    ("target", &["show"]),
];

/// Options that take a value and may precede a command.
const WITH_VALUE: [&str; 3] = ["--api", "--ca", "--timeout"];

/// Prints the error of the parser and exits.
pub(crate) fn exit(error: &Error, grammar: &Command, given: &[OsString]) -> ! {
    let words: Vec<String> =
        given.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match text(error, grammar, &words) {
        Some(text) => {
            output::say(&text);
            std::process::exit(2)
        }
        None => error.exit(),
    }
}

/// Returns the text of an error; `None` for help, version, and errors that clap describes better.
fn text(error: &Error, grammar: &Command, words: &[String]) -> Option<String> {
    let (options, words) = split_options(words);
    let unknown = error.kind() == ErrorKind::InvalidSubcommand;
    let is_usage = matches!(
        error.kind(),
        ErrorKind::UnknownArgument
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::InvalidValue
            | ErrorKind::ValueValidation
            | ErrorKind::ArgumentConflict
            | ErrorKind::TooManyValues
            | ErrorKind::TooFewValues
            | ErrorKind::WrongNumberOfValues
            | ErrorKind::NoEquals
    );
    if !unknown && !is_usage {
        return None;
    }
    let found: Vec<String> = meant(grammar, &words, 0)
        .into_iter()
        .filter_map(|command| complete(grammar, command))
        .map(|command| shown(&options, &command))
        .collect();
    if unknown {
        let wrong = match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) => word.clone(),
            _ => words.join(" "),
        };
        let noun = words.iter().take_while(|word| **word != wrong).cloned().collect::<Vec<_>>();
        let place = [vec!["weir".to_owned()], noun.clone()].concat().join(" ");
        let next = if found.is_empty() { format!("{place} --help") } else { found.join(", or ") };
        let wrong = output::clean(&wrong);
        return Some(format!("weir: {place} has no command {wrong:?}\n  try: {next}"));
    }
    let rendered = error.render().to_string();
    let rendered = rendered.strip_prefix("error: ").unwrap_or(&rendered);
    let (rendered, _) = rendered.split_once("\nFor more information").unwrap_or((rendered, ""));
    let next = match found.first() {
        Some(next) => next.clone(),
        None => format!("{} --help", path_of(grammar, &words)),
    };
    let blank = if rendered.contains('\n') { "\n" } else { "" };
    Some(format!("weir: {}{blank}\n  try: {next}", rendered.trim_end()))
}

/// Separates the options before the command from the command.
fn split_options(words: &[String]) -> (Vec<String>, Vec<String>) {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        at += 1 + usize::from(WITH_VALUE.contains(&word.as_str()));
    }
    let (options, command) = words.split_at(at.min(words.len()));
    (options.to_vec(), command.to_vec())
}

/// Returns the noun and verb at the start of a command.
fn path_of(grammar: &Command, words: &[String]) -> String {
    let (mut path, mut level) = ("weir".to_owned(), grammar);
    for word in words {
        let Some(next) = level.find_subcommand(word) else { break };
        path = path + " " + word;
        level = next;
    }
    path
}

/// Returns the commands that the words may mean, the most probable first. `depth` limits the
/// recursion.
fn meant(grammar: &Command, words: &[String], depth: u32) -> Vec<Vec<String>> {
    let Some((first, rest)) = words.split_first().filter(|_| depth < 3) else { return Vec::new() };
    let with = |head: &[&str], rest: &[String]| -> Vec<String> {
        head.iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect()
    };
    if let Some((_, noun)) = TOOLS.iter().find(|(tool, _)| tool == first) {
        let command = noun.map_or_else(|| rest.to_vec(), |noun| with(&[noun], rest));
        return if parses(grammar, &command) {
            vec![command]
        } else {
            meant(grammar, &command, depth + 1)
        };
    }
    let nouns = || grammar.get_subcommands().filter(|noun| noun.has_subcommands());
    let noun_of = |word: &str| {
        let singular = word.strip_suffix('s').unwrap_or(word);
        nouns().map(Command::get_name).find(|noun| *noun == word || *noun == singular)
    };
    if let Some(noun) = noun_of(first) {
        return of_noun(grammar, noun, noun != first, rest, depth);
    }
    // "create volume tank/vm1": a verb before its noun.
    if let Some((second, tail)) = rest.split_first()
        && let Some(noun) = noun_of(second)
    {
        return of_noun(grammar, noun, false, &with(&[first], tail), depth);
    }
    if grammar.find_subcommand(first).is_some() {
        // "status tank": a command of all pools with the name of one.
        return if rest.is_empty() { Vec::new() } else { of_object(grammar, first, rest) };
    }
    let mut found = of_object(grammar, first, rest);
    if found.is_empty() {
        let all = grammar.get_subcommands().map(Command::get_name);
        if let Some(near) = nearest(first, all) {
            found = if parses(grammar, &with(&[near], rest)) {
                vec![with(&[near], rest)]
            } else {
                meant(grammar, &with(&[near], rest), depth + 1)
            };
        }
    }
    found
}

/// Returns the commands of a noun that the words after it may mean.
fn of_noun(
    grammar: &Command,
    noun: &str,
    is_plural: bool,
    words: &[String],
    depth: u32,
) -> Vec<Vec<String>> {
    let level = grammar.find_subcommand(noun).expect("the caller found the noun in the grammar");
    let with = |verb: &str, rest: &[String]| -> Vec<String> {
        [noun, verb].iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect()
    };
    let Some((verb, rest)) = words.split_first() else {
        return if is_plural { vec![with("list", &[])] } else { Vec::new() };
    };
    if level.find_subcommand(verb).is_some() {
        return vec![with(verb, rest)];
    }
    let synonyms = VERBS.iter().filter(|(word, _)| word == verb).flat_map(|(_, verbs)| *verbs);
    let known: Vec<_> = synonyms.filter(|verb| level.find_subcommand(verb).is_some()).collect();
    if let Some(known) = known.first() {
        return vec![with(known, rest)];
    }
    if let Some(near) = nearest(verb, level.get_subcommands().map(Command::get_name)) {
        return vec![with(near, rest)];
    }
    // "volume snapshot tank/vm1@a", "pool volume list".
    let others = meant(grammar, words, depth + 1);
    let is_other = |command: &Vec<String>| command.first().is_some_and(|first| first != noun);
    if !looks_like_object(verb) && others.iter().any(is_other) {
        return others.into_iter().filter(is_other).collect();
    }
    let defaults = DEFAULTS.iter().filter(|(with, _)| *with == noun).flat_map(|(_, verbs)| *verbs);
    let mut found: Vec<_> = defaults.map(|verb| with(verb, words)).collect();
    // The name of a pool looks like any other word.
    match noun {
        "pool" => found.push(vec![noun.to_owned(), "--help".to_owned()]),
        _ if !looks_like_object(verb) => found.clear(),
        _ => {}
    }
    found
}

/// Returns the commands whose verb is this word or a synonym: for the kind of the object that is
/// named, or for each noun with the verb.
fn of_object(grammar: &Command, verb: &str, rest: &[String]) -> Vec<Vec<String>> {
    let synonyms = VERBS.iter().filter(|(word, _)| *word == verb).flat_map(|(_, verbs)| *verbs);
    let verbs: Vec<&str> = std::iter::once(verb).chain(synonyms.copied()).collect();
    let has = |noun: &str, verb: &str| {
        grammar.find_subcommand(noun).is_some_and(|noun| noun.find_subcommand(verb).is_some())
    };
    let mut words = rest.iter().filter(|word| !word.starts_with('-'));
    let named = words.clone().find(|word| looks_like_object(word)).or_else(|| words.next());
    let named = named.map(|word| kinds_of(word));
    let all = ["pool", "volume", "snapshot", "export", "target"];
    let nouns: &[&str] = named.unwrap_or(&all);
    let command = |noun: &str, verb: &str| -> Vec<String> {
        [noun, verb].iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect()
    };
    for verb in &verbs {
        // A top-level command with the meaning of the word, such as `list` for `ls`.
        if named.is_none() && *verb != verbs[0] && grammar.find_subcommand(verb).is_some() {
            return vec![vec![(*verb).to_owned()]];
        }
        let found: Vec<_> =
            nouns.iter().filter(|noun| has(noun, verb)).map(|noun| command(noun, verb)).collect();
        match named {
            Some(_) if !found.is_empty() => return found.into_iter().take(1).collect(),
            None if !found.is_empty() => return found,
            _ => {}
        }
    }
    Vec::new()
}

/// Returns the nouns of an object, by the form of its name.
fn kinds_of(name: &str) -> &'static [&'static str] {
    match name {
        name if name.contains('@') => &["snapshot", "volume"],
        name if name.contains('#') => &["bookmark"],
        name if name.starts_with("iqn.") => &["target"],
        name if name.contains('/') => &["volume", "export"],
        _ => &["pool"],
    }
}

fn looks_like_object(word: &str) -> bool {
    word.contains(['/', '@', '#', ':']) && !word.starts_with(['/', '.', '-'])
}

/// Returns the known word that a word probably misspells.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|known| (strsim::osa_distance(word, known), known));
    let limit = if word.len() > 4 { 2 } else { 1 };
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, known)| known)
}

/// True if a command has the grammar of a command, apart from missing arguments.
fn parses(grammar: &Command, command: &[String]) -> bool {
    kind(grammar, command).is_none_or(|kind| kind == ErrorKind::MissingRequiredArgument)
}

/// Returns the parser's error for a command.
fn kind(grammar: &Command, command: &[String]) -> Option<ErrorKind> {
    let words = std::iter::once("weir").chain(command.iter().map(String::as_str));
    grammar.clone().try_get_matches_from(words).err().map(|error| error.kind())
}

/// Adds an example of a missing argument, or replaces arguments that the verb does not have by
/// `--help`.
fn complete(grammar: &Command, command: Vec<String>) -> Option<Vec<String>> {
    let path: Vec<&str> = command.iter().take(2).map(String::as_str).collect();
    let example = match path.as_slice() {
        ["volume", "create" | "resize"] => "10GiB",
        ["pool", "create"] => "/dev/sdb",
        ["snapshot", "clone"] => "tank/new",
        _ => "--help",
    };
    match kind(grammar, &command) {
        None | Some(ErrorKind::DisplayHelp) => Some(command),
        Some(ErrorKind::MissingRequiredArgument) if path.len() == 2 => {
            let example = if command.len() == 2 { "--help" } else { example };
            let filled: Vec<String> = command.into_iter().chain([example.to_owned()]).collect();
            let is_right = matches!(kind(grammar, &filled), None | Some(ErrorKind::DisplayHelp));
            is_right.then_some(filled)
        }
        Some(ErrorKind::InvalidSubcommand) => None,
        Some(_) => {
            let mut help: Vec<String> = path.iter().map(|word| (*word).to_owned()).collect();
            help.push("--help".to_owned());
            (kind(grammar, &help) == Some(ErrorKind::DisplayHelp)).then_some(help)
        }
    }
}

/// Formats a command so that it can be pasted into a shell.
fn shown(options: &[String], command: &[String]) -> String {
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
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::args::Cli;

    fn said(line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let given = std::iter::once("weir").chain(words.iter().copied());
        let Err(error) = Cli::try_parse_from(given) else { panic!("{line} is a command") };
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        text(&error, &Cli::command(), &words).unwrap_or_else(|| panic!("{line}: {error}"))
    }

    /// Returns the suggested command.
    fn next(line: &str) -> String {
        let said = said(line);
        said.split_once("\n  try: ").unwrap_or_else(|| panic!("{said}")).1.to_owned()
    }

    #[test]
    fn command_of_a_new_user_gets_the_command_that_was_meant() {
        for (line, command) in [
            ("create volume tank/vm1 10G", "weir volume create tank/vm1 10G"),
            ("create volume tank/vm1", "weir volume create tank/vm1 10GiB"),
            ("volume create tank/vm1", "weir volume create tank/vm1 10GiB"),
            ("volume resize tank/vm1", "weir volume resize tank/vm1 10GiB"),
            ("list volumes", "weir volume list"),
            ("list pools", "weir pool list"),
            ("volumes", "weir volume list"),
            ("snapshots list tank/vm1", "weir snapshot list tank/vm1"),
            ("snapshot tank/vm1@a", "weir snapshot create tank/vm1@a"),
            ("volume snapshot tank/vm1@a", "weir snapshot create tank/vm1@a"),
            ("volume tank/vm1", "weir volume show tank/vm1"),
            ("pool tank", "weir pool status tank, or weir pool --help"),
            ("status tank", "weir pool status tank"),
            ("stat tank", "weir pool iostat tank"),
            ("iostat tank 1", "weir pool iostat tank 1"),
            ("top tank", "weir pool iostat tank"),
            ("scrub tank", "weir pool scrub tank"),
            ("import tank", "weir pool import tank"),
            ("clone tank/vm1@a tank/c", "weir snapshot clone tank/vm1@a tank/c"),
            ("rollback tank/vm1@a", "weir snapshot rollback tank/vm1@a"),
            ("destroy tank/vm1", "weir volume destroy tank/vm1"),
            ("destroy tank/vm1@a", "weir snapshot destroy tank/vm1@a"),
            ("destroy tank", "weir pool destroy tank"),
            ("volume delete tank/vm1", "weir volume destroy tank/vm1"),
            ("export destroy tank/vm1", "weir export delete tank/vm1"),
            ("lun create vms tank/vm1", "weir lun add vms tank/vm1"),
            ("volme list", "weir volume list"),
            ("volume lsit", "weir volume list"),
            ("ls", "weir list"),
            ("zpool status", "weir pool status"),
            ("zpool create tank mirror a b", "weir pool create tank mirror a b"),
            (
                "create tank mirror /dev/sdb /dev/sdc",
                "weir pool create tank mirror /dev/sdb /dev/sdc",
            ),
            ("zfs list", "weir list"),
            ("zfs create -V 10G tank/vm1", "weir volume create -V 10G tank/vm1"),
            ("zfs snapshot tank/vm1@a", "weir snapshot create tank/vm1@a"),
            ("info tank/vm1", "weir volume show tank/vm1"),
            ("resize tank/vm1 +1GiB", "weir volume resize tank/vm1 +1GiB"),
            ("--json volumes", "weir --json volume list"),
        ] {
            assert_eq!(next(line), command, "{line}: {}", said(line));
        }
    }

    #[test]
    fn words_without_a_meaning_get_the_help() {
        assert_eq!(next("frobnicate"), "weir --help");
        assert_eq!(
            said("frobnicate"),
            "weir: weir has no command \"frobnicate\"\n  try: weir --help"
        );
        assert_eq!(next("volume frobnicate"), "weir volume --help");
        let text = said("volume create tank/vm1 10G --sizes 1");
        assert!(text.starts_with("weir: unexpected argument '--sizes' found"), "{text}");
        assert!(text.ends_with("try: weir volume create --help"), "{text}");
        let text = said("destroy");
        assert!(text.contains("weir pool destroy --help, or weir volume destroy --help"), "{text}");
    }

    #[test]
    fn suggestion_can_be_pasted_into_a_shell() {
        let (options, words) = split_options(&["--json".into(), "pool".into()]);
        assert_eq!(shown(&options, &words), "weir --json pool");
        assert_eq!(shown(&[], &["a b".into(), "it's".into()]), r"weir 'a b' 'it'\''s'");
    }

    #[test]
    fn help_and_version_are_left_to_clap() {
        for line in ["--help", "--version", "pool --help", "volume"] {
            let Err(error) = Cli::try_parse_from(["weir"].into_iter().chain(line.split(' ')))
            else {
                panic!("{line}")
            };
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(text(&error, &Cli::command(), &words), None, "{line}");
        }
    }
}
