//! Errors of the command line's grammar: prints them with the command that the user probably meant.
//!
//! Users who know other tools type a verb before its noun, plural nouns, verbs of zpool and
//! targetcli, or no verb. Not here: errors of the server, the grammar (`args`), whole lines of
//! other tools (`slips`).
//!
//! Invariants:
//! - a suggested command is valid by the grammar: [`parses`] checks each suggestion;
//! - the exit code is 2; help and version are printed as clap prints them.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use weir_base::names;

use crate::cli::base::complete::complete;
use crate::cli::base::grammar::{grammar, level_of, parses, split_options};
use crate::cli::base::typed::{nearest, shown};
use crate::cli::base::{output, slips, typed};

/// Verbs that remove an object or a setting; each noun has one or two of these verbs.
const REMOVALS: &[&str] = &["destroy", "delete", "remove", "revoke", "clear", "cancel"];

/// Words that other tools use, each with the verbs of Weir that have the same meaning.
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

/// Commands of other tools, each with the first words of the Weir command with this meaning.
const WORDS: [(&str, &[&str]); 23] = [
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
    ("vgextend", &["pool", "add"]),
    ("vgremove", &["pool", "destroy"]),
    ("lvrename", &["volume", "rename"]),
    ("iscsi", &["target"]),
    ("acl", &["target", "allow"]),
];

/// Nouns that users of zfs and zpool type in front of a command of [`OF_DATASETS`].
const DATASETS: [&str; 3] = ["pool", "volume", "snapshot"];
/// Commands of Weir that have no noun, although users of zfs expect one.
const OF_DATASETS: [&str; 6] = ["get", "set", "inherit", "send", "receive", "events"];

/// Tools whose commands users type after `weir`. Each has the noun of the verbs that follow.
const TOOLS: [(&str, Option<&str>); 4] =
    [("zpool", Some("pool")), ("zfs", None), ("targetcli", Some("target")), ("weir", None)];

/// Verbs to suggest if a user names an object but no verb. Each noun has its own.
const DEFAULTS: [(&str, &[&str]); 7] = [
    ("pool", &["status"]),
    ("volume", &["show"]),
    ("filesystem", &["show"]),
    ("snapshot", &["create"]),
    ("bookmark", &["create"]),
    ("export", &["create", "nbd"]),
    ("target", &["show"]),
];

/// Long options that every command has if it calls the server.
const GLOBAL: [&str; 4] = ["api", "ca", "json", "timeout"];

/// Prints an error of the parser with a suggestion, and exits.
pub(crate) fn exit(error: &Error) -> ! {
    let grammar = grammar().expect("main sets the grammar first");
    match text(error, &grammar, &typed::words()) {
        Some(text) => {
            output::say(&text);
            std::process::exit(2)
        }
        None => error.exit(),
    }
}

/// Returns the text of an error with a suggestion; `None` for help, for the version, and for errors
/// that clap itself describes better.
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
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => Some(wrong.as_str()),
        _ => None,
    };
    if let Some((message, next)) = slips::explained(&words, wrong) {
        return Some(format!("weir: {}\n  try: {next}", output::clean(&message)));
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
    // Leave out the tips of clap: they name unrelated options, and the command that is suggested
    // below is more exact.
    let lines: Vec<&str> = rendered.lines().filter(|line| !line.starts_with("  tip:")).collect();
    let rendered = lines.join("\n").replace("\n\n\n", "\n\n");
    let corrected = corrected(error, grammar, &words).and_then(|line| complete(grammar, line));
    let corrected = corrected.map(|command| shown(&options, &command));
    let own = || {
        let is_short = error.kind() == ErrorKind::MissingRequiredArgument;
        let own = complete(grammar, words.clone()).filter(|_| is_short)?;
        Some(shown(&options, &own))
    };
    let next = match corrected.or_else(|| found.first().cloned()).or_else(own) {
        Some(next) => next,
        None => format!("weir {} --help", level_of(grammar, &words).1.join(" ")),
    };
    let blank = if rendered.contains('\n') { "\n" } else { "" };
    Some(format!("weir: {}{blank}\n  try: {next}", rendered.trim_end()))
}

/// Returns the command in which the misspelled option is replaced by the nearest valid option.
fn corrected(error: &Error, grammar: &Command, words: &[String]) -> Option<Vec<String>> {
    if let Some(command) = with_known_value(error, words) {
        return Some(command);
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let wrong = wrong.split('=').next().filter(|wrong| wrong.starts_with("--"))?;
    let (level, _) = level_of(grammar, words);
    // Also search the options that all commands have.
    let known = level.get_arguments().filter_map(|arg| arg.get_long()).chain(GLOBAL);
    let near = nearest(wrong.trim_start_matches('-'), known)?;
    let fix = |word: &String| match word.strip_prefix(wrong) {
        Some(rest) => format!("--{near}{rest}"),
        None => word.clone(),
    };
    let command: Vec<String> = words.iter().map(fix).collect();
    parses(grammar, &command).then_some(command)
}

/// Returns the command in which a misspelled value is replaced by the nearest valid value.
fn with_known_value(error: &Error, words: &[String]) -> Option<Vec<String>> {
    let (Some(ContextValue::String(value)), Some(ContextValue::Strings(valid))) =
        (error.get(ContextKind::InvalidValue), error.get(ContextKind::ValidValue))
    else {
        return None;
    };
    let right = match value.as_str() {
        "root" | "administrator" if valid.iter().any(|valid| valid == "admin") => "admin",
        value => nearest(value, valid.iter().map(String::as_str))?,
    };
    let fix = |word: &String| match word.strip_suffix(value.as_str()) {
        Some(start) if start.is_empty() || start.ends_with('=') => format!("{start}{right}"),
        _ => word.clone(),
    };
    Some(words.iter().map(fix).collect())
}

/// Returns the commands that the user may have meant by the words, the most probable one first.
/// `depth` limits the recursion.
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
    // The user typed "list -t snapshot", as for `zfs list`.
    if let (Some("list"), [option, kind, ..]) = (Some(first.as_str()), rest)
        && option == "-t"
        && let Some(noun) = noun_of(kind)
    {
        return vec![with(&[noun, "list"], &rest[2..])];
    }
    if let Some(noun) = noun_of(first) {
        return of_noun(grammar, noun, noun != first, rest, depth);
    }
    // The user typed a verb before its noun, such as "create volume tank/vm1".
    if let Some((second, tail)) = rest.split_first()
        && let Some(noun) = noun_of(second)
    {
        return of_noun(grammar, noun, false, &with(&[first], tail), depth);
    }
    if grammar.find_subcommand(first).is_some() {
        // The user typed a command about all pools with the name of one object, such as "status
        // tank" or "list tank".
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

/// Returns the commands of a noun that the user may have meant by the words after the noun.
fn of_noun(
    grammar: &Command,
    noun: &str,
    is_plural: bool,
    words: &[String],
    depth: u32,
) -> Vec<Vec<String>> {
    if depth > 3 {
        return Vec::new();
    }
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
    // The user typed the object before the verb, such as "volume tank/vm1 show" or "pool tank
    // status".
    if let [object, verb, rest @ ..] = words
        && !object.starts_with('-')
        && grammar.find_subcommand(object).is_none()
    {
        let is_verb =
            level.find_subcommand(verb).is_some() || VERBS.iter().any(|(word, _)| word == verb);
        let swapped = [&[verb.clone(), object.clone()][..], rest].concat();
        let found =
            if is_verb { of_noun(grammar, noun, false, &swapped, depth + 1) } else { vec![] };
        if !found.is_empty() {
            return found;
        }
    }
    // The second word is not a verb of this noun but a noun or a command itself, such as "volume
    // snapshot tank/vm1@a", "pool volume list" or "pool events". Suggest nothing for a word that is
    // only a verb of other nouns: the suggestion could destroy an object of another kind.
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
        // A pool's name looks like any other word, so the word may also be a misspelled verb:
        // suggest the help of the noun too.
        ("pool", Some(verbs)) if !verb.starts_with('-') && rest.is_empty() => {
            vec![command(verbs), vec![noun.to_owned(), "--help".to_owned()]]
        }
        ("pool", _) | (_, None) => Vec::new(),
        // The user typed the snapshot's name as two words, such as "snapshot tank/vm1 monday".
        ("snapshot", Some(_)) if is_own_name(words) => {
            vec![with("create", &[format!("{}@{}", words[0], words[1])])]
        }
        (_, Some(verbs)) if has_object => vec![command(verbs)],
        (_, Some(_)) => Vec::new(),
    }
}

/// True for two words that are a volume and a snapshot's name without the volume.
fn is_own_name(words: &[String]) -> bool {
    let [volume, own] = words else { return false };
    names::volume(volume).is_ok() && names::snapshot(&format!("{volume}@{own}")).is_ok()
}

/// Returns the commands whose verb is `verb` or a synonym of it. If `rest` names an object, the
/// commands have the noun of this object. Otherwise there is one command for each noun that has the
/// verb.
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
        // The word is a synonym of a command without a noun, such as `ls` for `list`.
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

/// Returns the nouns of the objects that can have a name of this form.
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

    /// Returns the command that the text of an error suggests.
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
        ("target acl vms", "weir target allow vms INITIATOR"),
        ("list tank", "weir volume list tank"),
        ("status --jsno", "weir status --json"),
        ("volume create tank/vm1 --sise 1G", "weir volume create tank/vm1 --size 1G"),
        ("pool scrub", "weir pool scrub tank"),
        ("snapshot hold tank/vm1@b", "weir snapshot hold TAG tank/vm1@b"),
        ("snapshot hold", "weir snapshot hold keep tank/vm1@monday"),
        ("token create --role viewer", "weir token create NAME --role viewer"),
        ("token create ci", "weir token create ci --role ROLE"),
        ("token create t2 --role oprator", "weir token create t2 --role operator"),
        ("token create t2 --role root", "weir token create t2 --role admin"),
        (
            "target allow vms iqn.1993-08.org.debian:01:abc --chap-user admin",
            "weir target allow vms iqn.1993-08.org.debian:01:abc --chap-user admin \
             --chap-secret-file FILE",
        ),
        (
            "target allow vms iqn.1993-08.org.debian:01:abc --chap-secret-file F",
            "weir target allow vms iqn.1993-08.org.debian:01:abc --chap-secret-file F --chap-user \
             NAME",
        ),
        (
            "target allow iqn.1993-08.org.debian:01:abc",
            "weir target allow TARGET iqn.1993-08.org.debian:01:abc",
        ),
        ("lun add vms", "weir lun add vms VOLUME"),
        ("lun add tank/vm1", "weir lun add TARGET tank/vm1"),
        ("export create tank/vm1", "weir export create nbd tank/vm1"),
        ("pool create tank5", "weir pool create tank5 DISK"),
        ("snapshot clone tank/vm1@a", "weir snapshot clone tank/vm1@a tank/NEW"),
        ("volume rename tank/vm1", "weir volume rename tank/vm1 tank/NEW"),
        ("pool destroy", "weir pool destroy NAME"),
        ("token revoke", "weir token revoke NAME"),
        ("check tank", "weir check tank -d DIR"),
        ("volume tank/vm1 show", "weir volume show tank/vm1"),
        ("volume tank/vm1 delete --yes", "weir volume destroy tank/vm1"),
        ("pool tank status", "weir pool status tank"),
        ("tank/vm1 snapshot monday2", "weir snapshot create tank/vm1@monday2"),
        ("rbd create --size 1024 tank/vm9", "weir volume create tank/vm9 1024MiB"),
        ("acl add vms iqn.1993-08.org.x:y", "weir target allow vms iqn.1993-08.org.x:y"),
        ("volume create tank/s7 10 GiB", "weir volume create tank/s7 10GiB"),
        ("volume create tank/s5 -10GiB", "weir volume create tank/s5 10GiB"),
        ("vgextend tank /dev/sdx", "weir pool add tank /dev/sdx"),
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
        assert!(text.contains("weir pool destroy NAME, or weir volume destroy NAME"), "{text}");
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
