//! `weir get`, `weir set` and `weir inherit`: properties of pools, volumes and snapshots.
//!
//! Not here: the table of properties (weir-api) and the effects of properties.
//!
//! Invariants:
//! - each call changes one object. If the server refuses a call, the objects that earlier calls
//!   changed stay changed;
//! - the checks in this file run before the first call and cover all objects.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command, ValueEnum};
use serde::Serialize;
use weir_api::types::{
    GetProperties, PROPERTIES, Property, PropertyChange, PropertyInherit, PropertyKind,
    PropertySet, PropertySource, PropertySpec, PropertyValues, Request, Setting, find_property,
    is_user_property,
};
use weir_api::{ApiError, Call};
use weir_base::{ErrorKind, names, size};

use crate::cli::base::output::Style;
use crate::cli::base::session::Session;
use crate::cli::base::sizes::check_unit;
use crate::cli::base::{output, typed};
use crate::cli::pool::split_property;

/// Parser of property names separated by commas; shell completion offers the known names.
#[derive(Clone)]
struct PropertyNames;

impl TypedValueParser for PropertyNames {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let one = |spec: &PropertySpec| PossibleValue::new(spec.name).help(spec.what);
        Some(Box::new(PROPERTIES.iter().copied().map(one)))
    }
}

/// Returns the table of all properties, for the help text.
fn table() -> String {
    table_of(|_| true)
}

/// Returns the table of the properties that can be set, for the help text.
fn settable() -> String {
    table_of(|spec| spec.values.is_some())
}

fn table_of(is_listed: impl Fn(&PropertySpec) -> bool) -> String {
    let listed = PROPERTIES.iter().filter(|spec| is_listed(spec));
    let lines = listed.map(|spec| format!("  {}\n", spec.help()));
    let own = "  module:name: your own, for pools, volumes and snapshots\n";
    format!("Properties:\n{}{own}", lines.collect::<String>())
}

/// Column that the option `-o` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Field {
    Name,
    Property,
    Value,
    Source,
}

/// Source of a value that the option `-s` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    Local,
    Default,
    Inherited,
    None,
}

impl From {
    fn is(self, source: PropertySource) -> bool {
        match self {
            Self::Local => source == PropertySource::Local,
            Self::Default => source == PropertySource::Default,
            Self::Inherited => source == PropertySource::Inherited,
            Self::None => source == PropertySource::None,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = table())]
pub(crate) struct GetArgs {
    /// Property names separated by commas, or all
    #[arg(value_name = "all|PROPERTY[,PROPERTY]", value_parser = PropertyNames,
        hide_possible_values = true)]
    properties: String,
    /// Full names of pools, volumes and snapshots [default: all pools and volumes]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Columns to show
    #[arg(short = 'o', value_name = "COLUMN[,COLUMN]", value_delimiter = ',', value_enum)]
    columns: Vec<Field>,
    /// Show only values from these sources
    #[arg(short = 's', value_name = "SOURCE[,SOURCE]", value_delimiter = ',', value_enum)]
    sources: Vec<From>,
    /// Print for scripts: no header, tab-separated columns
    #[arg(short = 'H')]
    script: bool,
    /// Print exact values: bytes, seconds since 1970
    #[arg(short = 'p')]
    exact: bool,
}

#[derive(Debug, Args)]
#[command(after_help = settable())]
pub(crate) struct SetArgs {
    /// Properties to set, and full names of pools, volumes and snapshots, in any order
    #[arg(required = true, value_name = "PROPERTY=VALUE... NAME")]
    words: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct InheritArgs {
    /// Also clear the property on the volumes of a pool or the snapshots of a volume
    #[arg(short, long)]
    recursive: bool,
    /// Name of the property
    #[arg(value_name = "PROPERTY", value_parser = PropertyNames, hide_possible_values = true)]
    property: String,
    /// Full names of pools, volumes and snapshots
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Formats the value of a property for users, with units.
fn human(property: &Property) -> String {
    let spec = PROPERTIES.iter().find(|spec| spec.name == property.property);
    let number = property.value.parse::<u64>().ok();
    match (spec.map(|spec| spec.kind), number) {
        (Some(PropertyKind::Limit), Some(0)) => "none".to_owned(),
        (Some(PropertyKind::Bytes | PropertyKind::Limit), Some(bytes)) => {
            size::Human(bytes).to_string()
        }
        (Some(PropertyKind::Time), Some(seconds)) => output::date(seconds * 1000),
        (Some(PropertyKind::Ratio), _) => format!("{}x", property.value),
        _ => property.value.clone(),
    }
}

fn source(property: &Property) -> String {
    match (&property.source, &property.inherited_from) {
        (PropertySource::None, _) => "-".to_owned(),
        (PropertySource::Inherited, Some(from)) => format!("inherited from {from}"),
        (source, _) => source.name().to_owned(),
    }
}

pub(crate) fn get(arguments: &GetArgs, session: &Session) -> Result<(), ApiError> {
    let properties = match arguments.properties.as_str() {
        "all" => Vec::new(),
        names => names.split(',').map(str::to_owned).collect(),
    };
    if let [name] = properties.as_slice()
        && arguments.names.is_empty()
        && find_property(name).is_err()
        && (names::pool(name).is_ok() || name.contains('/'))
        && !is_user_property(name)
    {
        let message = format!("{name:?} is no property");
        return Err(
            ApiError::new(ErrorKind::Invalid, message).with_action(format!("weir get all {name}"))
        );
    }
    check_order(&properties, &arguments.names)?;
    properties.iter().try_for_each(|name| known(name, "get", false))?;
    let query = GetProperties { of: arguments.names.clone(), properties };
    let mut answer = session.call(query)?;
    let kept = |p: &Property| {
        arguments.sources.is_empty() || arguments.sources.iter().any(|from| from.is(p.source))
    };
    answer.properties.retain(kept);
    let columns: &[Field] = match arguments.columns.as_slice() {
        [] => &[Field::Name, Field::Property, Field::Value, Field::Source],
        some => some,
    };
    session.print(&answer, |answer| {
        let cell = |p: &Property, column: Field| match column {
            Field::Name => p.name.clone(),
            Field::Property => p.property.clone(),
            Field::Value if arguments.exact => p.value.clone(),
            Field::Value => human(p),
            Field::Source => source(p),
        };
        let title = |column: Field| match column {
            Field::Name => "NAME",
            Field::Property => "PROPERTY",
            Field::Value => "VALUE",
            Field::Source => "SOURCE",
        };
        let rows: Vec<Vec<String>> = answer
            .properties
            .iter()
            .map(|p| columns.iter().map(|column| cell(p, *column)).collect())
            .collect();
        let header: Vec<&str> = columns.iter().map(|column| title(*column)).collect();
        output::rows(&header, &rows, Style::new(arguments.script))
    })
}

/// Rejects an object's name before the property, as in `get tank/vm1 compression`.
fn check_order(properties: &[String], names: &[String]) -> Result<(), ApiError> {
    let is_property = |word: &str| {
        let is_known = |name: &str| find_property(name).is_ok() || is_user_property(name);
        word == "all" || word.split(',').all(is_known)
    };
    let ([object], Some(property)) = (properties, names.iter().find(|name| is_property(name)))
    else {
        return Ok(());
    };
    let Some(kind) = kind_of(object).filter(|_| !is_property(object)) else { return Ok(()) };
    let error = ApiError::new(
        ErrorKind::Invalid,
        format!("{object} is a {kind}: the property comes first"),
    );
    Err(typed::with_line(error, typed::moved(property, object)))
}

/// Returns the kind of object that can have a name of this form.
fn kind_of(name: &str) -> Option<&'static str> {
    let kinds = [
        (names::snapshot(name).is_ok(), "snapshot"),
        (names::volume(name).is_ok(), "volume"),
        (names::pool(name).is_ok(), "pool"),
    ];
    kinds.into_iter().find(|(is_it, _)| *is_it).map(|(_, kind)| kind)
}

/// Joins a property and its value that the user typed as separate words, such as `compression zstd`
/// or `quota = 10GiB`. Returns `None` if the words contain no such pair.
fn joined(words: &[String]) -> Option<Vec<String>> {
    let (mut all, mut at, mut is_found) = (Vec::new(), 0, false);
    while let Some(word) = words.get(at) {
        let next = words.get(at + 1).map(String::as_str);
        let name = word.strip_suffix('=').unwrap_or(word);
        let is_property = find_property(name).is_ok() || is_user_property(name);
        let (value, used) = match next {
            Some("=") => (words.get(at + 2).map(String::as_str), 3),
            Some(next) => (Some(next.strip_prefix('=').unwrap_or(next)), 2),
            None => (None, 1),
        };
        match value.filter(|value| is_property && !value.is_empty()) {
            Some(value) => {
                all.push(format!("{name}={value}"));
                at += used;
                is_found = true;
            }
            None => {
                all.push(word.clone());
                at += 1;
            }
        }
    }
    is_found.then_some(all)
}

pub(crate) fn set(arguments: &SetArgs, session: &Session) -> Result<(), ApiError> {
    // Names and properties may be in any order, because the names of pools, volumes and snapshots
    // never contain `=`.
    let words = arguments.words.iter().cloned();
    let (given, names): (Vec<String>, Vec<String>) = words.partition(|word| word.contains('='));
    let is_split = given.is_empty() || given.iter().any(|word| word.starts_with('='));
    if let Some(joined) = joined(&arguments.words).filter(|_| is_split) {
        let message = "a property and its value are one word, with '=' between them";
        let words = ["set".to_owned()].into_iter().chain(joined);
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(typed::shown(&[], &words.collect::<Vec<_>>())));
    }
    if names.is_empty() {
        return Err(ApiError::new(ErrorKind::Invalid, "no pool, volume or snapshot is given")
            .with_action("name a pool, volume or snapshot: weir set compression=lz4 tank/vm1"));
    }
    let properties = values(&given)?;
    let request =
        |name: &String| PropertySet { name: name.clone(), properties: properties.clone() };
    names.iter().try_for_each(|name| request(name).check())?;
    changed(session, &names, request)
}

pub(crate) fn inherit(arguments: &InheritArgs, session: &Session) -> Result<(), ApiError> {
    let InheritArgs { recursive, property, names } = arguments;
    if let [name] = names.as_slice()
        && find_property(property).is_err()
        && find_property(name).is_ok()
    {
        let message = format!("{property:?} is no property: the property comes first");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(format!("weir inherit {name} {property}")));
    }
    known(property, "inherit", true)?;
    let request = |name: &String| PropertyInherit {
        name: name.clone(),
        property: property.clone(),
        recursive: *recursive,
    };
    names.iter().try_for_each(|name| request(name).check())?;
    changed(session, names, request)
}

/// The responses of all calls of one command.
#[derive(Serialize)]
struct Changes {
    changes: Vec<PropertyChange>,
}

/// Makes one call for each name, and prints all responses as one document.
fn changed<C: Call<Answer = PropertyChange>>(
    session: &Session,
    names: &[String],
    request: impl Fn(&String) -> C,
) -> Result<(), ApiError> {
    let mut changes = Vec::new();
    for name in names {
        let change = session.call(request(name))?;
        session.say(&output::outcome("properties of", name, change.outcome));
        changes.push(change);
    }
    session.print(&Changes { changes }, |_| String::new())
}

/// Property names of zfs, each with the property of Weir that has the same meaning.
const OF_ZFS: [(&str, &str); 3] =
    [("volsize", "size"), ("recordsize", "record_size"), ("volblocksize", "record_size")];

/// Refuses an unknown property. The error has the typed command with the property that the user
/// probably meant. If `is_change` is set, the suggested property is one that `verb` can change.
fn known(name: &str, verb: &str, is_change: bool) -> Result<(), ApiError> {
    let Err(error) = find_property(name) else { return Ok(()) };
    if is_user_property(name) {
        return Ok(());
    }
    let error = ApiError::from(error);
    let of_zfs = OF_ZFS.iter().find(|(word, _)| *word == name).map(|(_, property)| *property);
    let near = of_zfs
        .or_else(|| typed::nearest(name, PROPERTIES.iter().map(|spec| spec.name)))
        .and_then(|near| find_property(near).ok());
    Err(match near {
        Some(spec) if is_change && spec.values.is_none() => {
            let fixed = match spec.name {
                "record_size" => "record_size is fixed when a volume is created".to_owned(),
                near => format!("{near} is read-only"),
            };
            let message = format!("unknown property {name:?}; {fixed}");
            let action = match spec.name {
                "record_size" => {
                    "weir volume create POOL/NEW SIZE -b 64KiB, then copy the data".to_owned()
                }
                near => format!("weir get {near}"),
            };
            ApiError::new(ErrorKind::Invalid, message).with_action(action)
        }
        near => {
            let line = near.and_then(|spec| typed::line_with(name, spec.name));
            let help = || format!("weir {verb} --help lists the properties");
            error.with_action(line.unwrap_or_else(help))
        }
    })
}

/// Words of other systems for a value, each with values of Weir that have the same meaning. A
/// property gets the first of these values that it accepts.
const VALUES: [(&str, &[&str]); 10] = [
    ("gzip", &["zstd"]),
    ("lzjb", &["lz4"]),
    ("zle", &["lz4"]),
    ("none", &["off", "none"]),
    ("true", &["on"]),
    ("yes", &["on"]),
    ("on", &["lz4"]),
    ("false", &["off"]),
    ("no", &["off"]),
    ("unlimited", &["none"]),
];

/// Returns the valid value of a property that the user probably meant.
fn meant(spec: &PropertySpec, value: &str) -> Option<String> {
    let known = spec.values?;
    let words: Vec<&str> = known.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let fits = |value: &str| Setting::parse(spec.name, value).is_ok();
    if let Err(error) = size::parse(value)
        && let Some(size) = error.meant().filter(|size| fits(size))
    {
        return Some(size.to_owned());
    }
    let lower = value.to_ascii_lowercase();
    let word = lower.split('-').next().unwrap_or_default();
    let synonym = VALUES.iter().find(|(known, _)| *known == word).and_then(|(_, values)| {
        let mut values = values.iter().copied();
        values.find(|value| words.contains(value) && fits(value))
    });
    let near = || typed::nearest(value, words.iter().copied().filter(|word| fits(word)));
    // For a word such as "zstd-25", find the largest valid number.
    let largest = || {
        let start = format!("{word}-");
        words.iter().rev().find(|known| known.starts_with(&start) && fits(known)).copied()
    };
    let found = synonym.or_else(near).or_else(largest)?;
    Some(found.to_owned())
}

/// Refuses an invalid value of a property. The error has the typed command with the value that the
/// user probably meant.
fn check_value(name: &str, value: &str) -> Result<(), ApiError> {
    let Ok(spec) = find_property(name) else { return Ok(()) };
    if matches!(spec.kind, PropertyKind::Bytes | PropertyKind::Limit) && spec.values.is_some() {
        check_unit(value)?;
    }
    // The server describes all other errors of a value, so check only for this one.
    let Err(error @ weir_api::Error::PropertyValue { .. }) = Setting::parse(name, value) else {
        return Ok(());
    };
    let mut error = ApiError::from(error);
    if let Err(why) = size::parse(value)
        && why.meant().is_some()
    {
        error.message = why.to_string();
    }
    let wrong = format!("{name}={value}");
    let line =
        meant(spec, value).and_then(|meant| typed::line_with(&wrong, &format!("{name}={meant}")));
    Err(typed::with_line(error, line))
}

/// Parses the properties in the words of the command line.
pub(crate) fn values(given: &[String]) -> Result<PropertyValues, ApiError> {
    let mut properties = BTreeMap::new();
    for text in given {
        let (name, value) = split_property(text)?;
        known(name, "set", true)?;
        check_value(name, value)?;
        if properties.insert(name.to_owned(), value.to_owned()).is_some() {
            let message = format!("property {name:?} is given twice");
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
    }
    Ok(PropertyValues(properties))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn property(name: &str, value: &str) -> Property {
        Property {
            name: "tank/v".to_owned(),
            property: name.to_owned(),
            value: value.to_owned(),
            source: PropertySource::Local,
            inherited_from: None,
        }
    }

    #[test]
    fn values_are_shown_in_units() {
        for (name, value, wanted) in [
            ("quota", "0", "none"),
            ("quota", "10737418240", "10GiB"),
            ("used", "0", "0B"),
            ("creation", "0", "1970-01-01 00:00:00 UTC"),
            ("compressratio", "1.50", "1.50x"),
            ("a:b", "4096", "4096"),
            ("used", "-", "-"),
        ] {
            assert_eq!(human(&property(name, value)), wanted, "{name}");
        }
    }

    #[test]
    fn bad_value_has_the_value_that_was_meant() {
        for (name, value, right) in [
            ("compression", "gzip", Some("zstd")),
            ("compression", "gzip-9", Some("zstd")),
            ("compression", "ztsd", Some("zstd")),
            ("compression", "LZ4", Some("lz4")),
            ("compression", "on", Some("lz4")),
            ("compression", "zstd-25", Some("zstd-19")),
            ("dedupe", "yes", Some("on")),
            ("readonly", "onn", Some("on")),
            ("readonly", "true", Some("on")),
            ("quota", "1,5GiB", Some("1.5GiB")),
            ("quota", "1.5", Some("1.5GiB")),
            ("compression", "brotli", None),
        ] {
            let spec = find_property(name).expect(name);
            assert_eq!(meant(spec, value).as_deref(), right, "{name}={value}");
        }
        let error = known("recordsize", "set", true).expect_err("read-only").message;
        assert!(error.contains("record_size is fixed when a volume is created"), "{error}");
    }

    #[test]
    fn property_and_value_in_two_words_are_joined() {
        for (typed, right) in [
            ("tank/vm1 compression zstd", Some("tank/vm1 compression=zstd")),
            ("quota = 10GiB tank/vm1", Some("quota=10GiB tank/vm1")),
            ("quota= 10GiB tank/vm1", Some("quota=10GiB tank/vm1")),
            ("tank/vm1 tank", None),
        ] {
            let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            assert_eq!(joined(&words).map(|words| words.join(" ")).as_deref(), right, "{typed}");
        }
        let [object, property] = ["tank/vm1".to_owned(), "compression".to_owned()];
        let error = check_order(&[object], &[property]).expect_err("the wrong order");
        assert_eq!(error.message, "tank/vm1 is a volume: the property comes first");
    }

    #[test]
    fn every_property_is_in_the_help() {
        let help = table();
        assert!(PROPERTIES.iter().all(|spec| help.contains(spec.name) && help.contains(spec.what)));
    }
}
