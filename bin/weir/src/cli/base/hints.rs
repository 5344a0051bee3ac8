//! Errors of the command line's grammar, with the command that the user probably meant.
//!
//! Users of other tools type a verb before its noun, plural nouns, verbs of zpool and targetcli, or
//! no verb. Not here: errors of the server, and the grammar (`args`).
//!
//! Invariants:
//! - a suggested command has the grammar of a command: [`parses`] checks each of them;
//! - the exit code is 2, and help and version are printed as clap does.

use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::cli::base::{examples, output};

/// Verbs that remove an object or a setting; each noun has one or two of them.
const REMOVALS: &[&str] = &["destroy", "delete", "remove", "revoke", "clear", "cancel"];

/// Words of other tools, and the verbs of Weir with that meaning.
const VERBS: [(&str, &[&str]); 32] = [
    ("delete", REMOVALS),
    ("del", REMOVALS),
    ("rm", REMOVALS),
    ("drop", REMOVALS),
    ("destroy", REMOVALS),
    ("remove", REMOVALS),
    ("revoke", REMOVALS),
    ("clear", REMOVALS),
    ("cancel", REMOVALS),
    ("kill", REMOVALS),
    ("stop", &["cancel", "pause"]),
    ("add", &["create", "set"]),
    ("new", &["create", "add", "set"]),
    ("make", &["create", "add", "set"]),
    ("create", &["add", "set"]),
    ("map", &["add"]),
    ("unmap", &["remove"]),
    ("acl", &["allow"]),
    ("ls", &["list"]),
    ("info", &["show", "status", "list"]),
    ("describe", &["show", "status", "list"]),
    ("inspect", &["show", "status", "list"]),
    ("get", &["show", "status", "list"]),
    ("show", &["status", "list"]),
    ("status", &["show", "list"]),
    ("grow", &["resize", "expand"]),
    ("extend", &["resize", "expand"]),
    ("mv", &["rename"]),
    ("cp", &["copy"]),
    ("restore", &["rollback"]),
    ("top", &["iostat"]),
    ("stat", &["iostat", "show"]),
];

/// Commands of other tools, and the start of the command with that meaning.
const WORDS: [(&str, &[&str]); 19] = [
    ("snap", &["snapshot"]),
    ("vol", &["volume"]),
    ("nbd", &["export"]),
    ("share", &["export", "create", "nbd"]),
    ("unexport", &["export", "delete"]),
    ("unshare", &["export", "delete"]),
    ("recv", &["receive"]),
    ("log", &["events"]),
    ("logs", &["events"]),
    ("man", &["help"]),
    ("pvcreate", &["pool", "create"]),
    ("vgcreate", &["pool", "create"]),
    ("vgs", &["pool", "list"]),
    ("pvs", &["pool", "status"]),
    ("lvcreate", &["volume", "create"]),
    ("lvs", &["volume", "list"]),
    ("lvextend", &["volume", "resize"]),
    ("lvremove", &["volume", "destroy"]),
    ("acl", &["target", "allow"]),
];

/// Nouns that users of zfs and zpool type before the commands of [`OF_DATASETS`].
const DATASETS: [&str; 3] = ["pool", "volume", "snapshot"];
/// Commands that have no noun.
const OF_DATASETS: [&str; 6] = ["get", "set", "inherit", "send", "receive", "events"];

/// Options that skip a question or a check. A suggestion never has them: the user adds them again.
const SKIPS: [&str; 4] = ["-y", "--yes", "-f", "--force"];

/// Tools whose commands users type after `weir`, and the noun with their verbs.
const TOOLS: [(&str, Option<&str>); 4] =
    [("zpool", Some("pool")), ("zfs", None), ("targetcli", Some("target")), ("weir", None)];

/// Verb for an object that is named without a verb, by noun.
const DEFAULTS: [(&str, &[&str]); 6] = [
    ("pool", &["status"]),
    ("volume", &["show"]),
    ("snapshot", &["create"]),
    ("bookmark", &["create"]),
    ("export", &["create", "nbd"]),
    ("target", &["show"]),
];

/// Long options of all commands that call the server.
const GLOBAL: [&str; 4] = ["api", "ca", "json", "timeout"];

/// Options that take a value and may precede a command.
const WITH_VALUE: [&str; 3] = ["--api", "--ca", "--timeout"];

/// Returns the grammar of this process. Only errors need it.
static GRAMMAR: OnceLock<fn() -> Command> = OnceLock::new();

/// Sets the function that returns the grammar, once, before the first use of this file.
pub(crate) fn set_grammar(grammar: fn() -> Command) {
    GRAMMAR.get_or_init(|| grammar);
}

/// Prints the error of the parser and exits.
pub(crate) fn exit(error: &Error) -> ! {
    let grammar = GRAMMAR.get().expect("main sets the grammar first")();
    match text(error, &grammar, &typed()) {
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
        let place = [vec!["weir".to_owned()], noun].concat().join(" ");
        let next = if found.is_empty() { format!("{place} --help") } else { found.join(", or ") };
        let wrong = output::clean(&wrong);
        return Some(format!("weir: {place} has no command {wrong:?}\n  try: {next}"));
    }
    let rendered = error.render().to_string();
    let rendered = rendered.strip_prefix("error: ").unwrap_or(&rendered);
    let (rendered, _) = rendered.split_once("\nFor more information").unwrap_or((rendered, ""));
    // Tips of clap name unrelated options; the corrected command says more.
    let lines: Vec<&str> = rendered.lines().filter(|line| !line.starts_with("  tip:")).collect();
    let rendered = lines.join("\n").replace("\n\n\n", "\n\n");
    let corrected = corrected(error, grammar, &words).map(|command| shown(&options, &command));
    let next = match corrected.as_ref().or(found.first()) {
        Some(next) => next.clone(),
        None => format!("weir {} --help", level_of(grammar, &words).1.join(" ")),
    };
    let blank = if rendered.contains('\n') { "\n" } else { "" };
    Some(format!("weir: {}{blank}\n  try: {next}", rendered.trim_end()))
}

/// Returns the command with the misspelled option replaced by the nearest one.
fn corrected(error: &Error, grammar: &Command, words: &[String]) -> Option<Vec<String>> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let wrong = wrong.split('=').next().filter(|wrong| wrong.starts_with("--"))?;
    let (level, _) = level_of(grammar, words);
    // The options that all commands share are known from every command.
    let known = level.get_arguments().filter_map(|arg| arg.get_long()).chain(GLOBAL);
    let near = nearest(wrong.trim_start_matches('-'), known)?;
    let fix = |word: &String| match word.strip_prefix(wrong) {
        Some(rest) => format!("--{near}{rest}"),
        None => word.clone(),
    };
    let command: Vec<String> = words.iter().map(fix).collect();
    parses(grammar, &command).then_some(command)
}

/// Separates the options before the command from the command.
fn split_options(words: &[String]) -> (Vec<String>, Vec<String>) {
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

/// Returns the grammar of the noun and verb at the start of a command, and these words.
fn level_of<'a, 'w>(grammar: &'a Command, words: &'w [String]) -> (&'a Command, &'w [String]) {
    let (mut level, mut count) = (grammar, 0);
    while let Some(next) = words.get(count).and_then(|word| level.find_subcommand(word)) {
        (level, count) = (next, count + 1);
    }
    (level, &words[..count])
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
    if let Some((_, start)) = WORDS.iter().find(|(word, _)| word == first) {
        let command = with(start, rest);
        let found = meant(grammar, &command, depth + 1);
        return if found.is_empty() { vec![command] } else { found };
    }
    let nouns = || grammar.get_subcommands().filter(|noun| noun.has_subcommands());
    let noun_of = |word: &str| {
        let singular = word.strip_suffix('s').unwrap_or(word);
        nouns().map(Command::get_name).find(|noun| *noun == word || *noun == singular)
    };
    if first == "help" {
        let known = rest.iter().find_map(|word| {
            let tool = TOOLS.iter().find(|(tool, noun)| tool == word && noun.is_some());
            tool.and_then(|(_, noun)| *noun).or_else(|| noun_of(word))
        });
        return vec![with(&["help"], &known.map(str::to_owned).into_iter().collect::<Vec<_>>())];
    }
    // "list -t snapshot", as in `zfs list`.
    if let (Some("list"), [option, kind, ..]) = (Some(first.as_str()), rest)
        && option == "-t"
        && let Some(noun) = noun_of(kind)
    {
        return vec![with(&[noun, "list"], &rest[2..])];
    }
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
        // "status tank", "list tank": a command of all pools with the name of one.
        let objects: Vec<String> =
            rest.iter().filter(|word| !word.starts_with('-')).cloned().collect();
        return match (first.as_str(), objects.is_empty()) {
            (_, true) => Vec::new(),
            ("list", false) => vec![with(&["volume", "list"], &objects)],
            _ => of_object(grammar, first, rest),
        };
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
    if DATASETS.contains(&noun) && OF_DATASETS.contains(&verb.as_str()) {
        return vec![words.to_vec()];
    }
    let synonyms = VERBS.iter().filter(|(word, _)| word == verb).flat_map(|(_, verbs)| *verbs);
    if let Some(known) = synonyms.copied().find(|verb| level.find_subcommand(verb).is_some()) {
        return vec![with(known, rest)];
    }
    if let Some(near) = nearest(verb, level.get_subcommands().map(Command::get_name)) {
        return vec![with(near, rest)];
    }
    // "volume snapshot tank/vm1@a", "pool volume list", "pool events": the verb is another command.
    // A verb that only another noun has leads nowhere: it could destroy an object of that kind.
    let singular = verb.strip_suffix('s').unwrap_or(verb);
    if [verb.as_str(), singular].iter().any(|word| grammar.find_subcommand(word).is_some()) {
        let others = meant(grammar, words, depth + 1);
        return if others.is_empty() { vec![words.to_vec()] } else { others };
    }
    let defaults = DEFAULTS.iter().find(|(with, _)| *with == noun).map(|(_, verbs)| *verbs);
    let command = |verbs: &[&str]| -> Vec<String> {
        let start = std::iter::once(noun).chain(verbs.iter().copied()).map(str::to_owned);
        start.chain(words.iter().cloned()).collect()
    };
    let has_object = words.iter().any(|word| looks_like_object(word));
    match (noun, defaults) {
        // The name of a pool looks like any other word.
        ("pool", Some(verbs)) if !verb.starts_with('-') && rest.is_empty() => {
            vec![command(verbs), vec![noun.to_owned(), "--help".to_owned()]]
        }
        ("pool", _) | (_, None) => Vec::new(),
        (_, Some(verbs)) if has_object => vec![command(verbs)],
        (_, Some(_)) => Vec::new(),
    }
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

/// Returns the words of this process's command line, without the program.
fn typed() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the typed command line with the name `wrong` replaced: the whole word, or its start
/// before `/`, `@`, `#` or `=`. `None` if no word has this name.
pub(crate) fn line_with(wrong: &str, right: &str) -> Option<String> {
    replaced(&typed(), wrong, right)
}

fn replaced(words: &[String], wrong: &str, right: &str) -> Option<String> {
    let mut is_found = false;
    let fix = |word: &String| match word.strip_prefix(wrong) {
        Some(rest) if rest.is_empty() || rest.starts_with(['/', '@', '#', '=']) => {
            is_found = true;
            format!("{right}{rest}")
        }
        _ => word.clone(),
    };
    let line: Vec<String> = words.iter().map(fix).collect();
    is_found.then(|| shown(&[], &without_skips(line)))
}

/// Returns the typed command line without a word.
pub(crate) fn line_without(wrong: &str) -> String {
    let words: Vec<String> = typed().into_iter().filter(|word| word != wrong).collect();
    shown(&[], &without_skips(words))
}

/// Returns the typed command line with another noun, if that noun has the verb.
pub(crate) fn line_of(noun: &str, other: &str) -> Option<String> {
    let grammar = GRAMMAR.get()?();
    let mut words = typed();
    let at = words.iter().position(|word| word == noun)?;
    other.clone_into(&mut words[at]);
    let words = without_skips(words);
    parses(&grammar, &words).then(|| shown(&[], &words))
}

/// Removes the options that skip a question or a check.
fn without_skips(words: Vec<String>) -> Vec<String> {
    words.into_iter().filter(|word| !SKIPS.contains(&word.as_str())).collect()
}

/// Returns the noun and the name of the object that an error calls missing.
pub(crate) fn missing(message: &str) -> Option<(&str, &str)> {
    let (object, rest) = message.split_once(" does not exist")?;
    let (noun, name) = object.split_once(' ').filter(|_| rest.is_empty())?;
    Some((noun, name.trim_matches('"')))
}

/// Returns the known word that a word probably misspells.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
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

/// Makes a command complete: adds an example of a missing argument, or drops arguments that the
/// verb does not have. Drops options that skip a question.
fn complete(grammar: &Command, command: Vec<String>) -> Option<Vec<String>> {
    let command = without_skips(command);
    let path: Vec<&str> = command.iter().take(2).map(String::as_str).collect();
    let filler = match path.as_slice() {
        ["volume", "create" | "resize"] => Some("10GiB"),
        ["pool", "create"] => Some("/dev/sdb"),
        ["snapshot", "clone"] | ["volume", "rename" | "copy"] => Some("tank/new"),
        _ => None,
    };
    let parses = |command: &Vec<String>| {
        matches!(kind(grammar, command), None | Some(ErrorKind::DisplayHelp))
    };
    let of_path = |end: &str| -> Vec<String> {
        path.iter().copied().chain(std::iter::once(end)).map(str::to_owned).collect()
    };
    match kind(grammar, &command) {
        None | Some(ErrorKind::DisplayHelp) => Some(command),
        Some(ErrorKind::InvalidSubcommand) => None,
        Some(ErrorKind::MissingRequiredArgument) if path.len() == 2 => {
            let filler = filler.filter(|_| command.len() > 2);
            let filled = filler.map(|filler| {
                command.iter().cloned().chain([filler.to_owned()]).collect::<Vec<_>>()
            });
            let filled = filled.filter(&parses).or_else(|| example(&path));
            filled.or_else(|| Some(of_path("--help")).filter(&parses))
        }
        Some(_) => {
            let bare: Vec<String> = path.iter().map(|word| (*word).to_owned()).collect();
            let is_list = path.last() == Some(&"list");
            let bare = Some(bare).filter(|bare| is_list && parses(bare));
            bare.or_else(|| Some(of_path("--help")).filter(&parses))
        }
    }
}

/// Returns the first example of a command.
fn example(path: &[&str]) -> Option<Vec<String>> {
    let start = format!("weir {} ", path.join(" "));
    let line = examples::all().find(|line| line.starts_with(&start))?;
    let words = line.split_whitespace().skip(1).map(|word| word.replace('\'', ""));
    Some(words.collect())
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

    const MEANT: &[(&str, &str)] = &[
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
        ("create tank mirror /dev/sdb /dev/sdc", "weir pool create tank mirror /dev/sdb /dev/sdc"),
        ("zfs list", "weir list"),
        ("zfs create -V 10G tank/vm1", "weir volume create -V 10G tank/vm1"),
        ("zfs snapshot tank/vm1@a", "weir snapshot create tank/vm1@a"),
        ("info tank/vm1", "weir volume show tank/vm1"),
        ("resize tank/vm1 +1GiB", "weir volume resize tank/vm1 +1GiB"),
        ("--json volumes", "weir --json volume list"),
        ("--verbose pool list", "weir pool list"),
        ("token delete bob", "weir token revoke bob"),
        ("token rm tank -y", "weir token revoke tank"),
        ("schedule delete tank --yes", "weir schedule clear tank"),
        ("schedule rm tank/vm4", "weir schedule clear tank/vm4"),
        ("stream delete 3", "weir stream cancel 3"),
        ("lun destroy vms tank/vm1", "weir lun remove vms tank/vm1"),
        ("dedupe delete tank/vm1", "weir dedupe --help"),
        ("server rm x", "weir server --help"),
        ("lun grow vms 10G", "weir lun --help"),
        ("volume rm tank/vm1 --yes", "weir volume destroy tank/vm1"),
        ("pool events", "weir events"),
        ("zpool events", "weir events"),
        ("zpool get all tank", "weir get all tank"),
        ("export tank/vm1", "weir export create nbd tank/vm1"),
        ("unexport tank/vm1", "weir export delete tank/vm1"),
        ("export show tank/vm1", "weir export list"),
        ("nbd list", "weir export list"),
        ("snap tank/vm1@a", "weir snapshot create tank/vm1@a"),
        ("vol list", "weir volume list"),
        ("cp tank/vm1 tank/vm2", "weir volume copy tank/vm1 tank/vm2"),
        ("logs", "weir events"),
        ("recv tank/vm1", "weir receive tank/vm1"),
        ("zfs recv tank/vm1", "weir receive tank/vm1"),
        ("zfs snapshot -r tank@x", "weir snapshot create -r tank@x"),
        ("zfs list -t snapshot", "weir snapshot list"),
        ("lvs", "weir volume list"),
        ("lvcreate -s 1G tank/vm1", "weir volume create -s 1G tank/vm1"),
        ("top", "weir pool iostat tank"),
        ("man pool", "weir help pool"),
        ("help zpool", "weir help pool"),
        ("target acl vms", "weir target allow vms iqn.1998-01.com.vmware:esx1"),
        ("list tank", "weir volume list tank"),
        ("status --jsno", "weir status --json"),
        ("volume create tank/vm1 --sise 1G", "weir volume create tank/vm1 --size 1G"),
        ("pool scrub", "weir pool scrub tank"),
        ("snapshot hold tank/vm1@b", "weir snapshot hold keep tank/vm1@monday"),
    ];

    #[test]
    fn command_of_a_new_user_gets_the_command_that_was_meant() {
        for (line, command) in MEANT {
            assert_eq!(next(line), *command, "{line}: {}", said(line));
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
        assert!(!text.contains("tip:"), "{text}");
        let text = said("volume create tank/vm1 10G --colour 1");
        assert!(text.ends_with("try: weir volume create --help"), "{text}");
        let text = said("destroy");
        assert!(text.contains("weir pool destroy tank, or weir volume destroy tank/vm1"), "{text}");
    }

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
            ("pool scrub tankx", "tank", "pool", None),
        ] {
            assert_eq!(replaced(&line(typed), wrong, right).as_deref(), corrected, "{typed}");
        }
        assert_eq!(missing("pool \"tnk\" does not exist"), Some(("pool", "tnk")));
        assert_eq!(missing("volume tank/a does not exist"), Some(("volume", "tank/a")));
        assert_eq!(missing("pool x does not exist on the readable disks"), None);
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
