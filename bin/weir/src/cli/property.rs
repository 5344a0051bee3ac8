//! `weir get`, `weir set` and `weir inherit`: properties of pools, volumes and snapshots.
//!
//! Not here: the list of properties (the table of weir-api) and their effects.
//!
//! Invariants:
//! - a call changes one object; the objects named before the first refused one stay changed;
//! - checks made here cover all objects before the first call.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command, ValueEnum};
use serde::Serialize;
use weir_api::types::{
    GetProperties, PROPERTIES, Property, PropertyChange, PropertyInherit, PropertyKind,
    PropertySet, PropertySource, PropertySpec, PropertyValues, Request, find_property,
    is_user_property,
};
use weir_api::{ApiError, Call};
use weir_base::{ErrorKind, names, size};

use crate::cli::base::output::Style;
use crate::cli::base::session::Session;
use crate::cli::base::{hints, output};
use crate::cli::pool::split_property;

/// Parser of one or more property names; shell completion offers the known names.
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

/// Returns the table of all properties for the help text.
fn table() -> String {
    table_of(|_| true)
}

/// Returns the table of the properties that can be set.
fn settable() -> String {
    table_of(|spec| spec.values.is_some())
}

fn table_of(is_listed: impl Fn(&PropertySpec) -> bool) -> String {
    let listed = PROPERTIES.iter().filter(|spec| is_listed(spec));
    let lines = listed.map(|spec| format!("  {}\n", spec.help()));
    let own = "  module:name: your own, for pools, volumes and snapshots\n";
    format!("Properties:\n{}{own}", lines.collect::<String>())
}

/// Columns that `-o` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Field {
    Name,
    Property,
    Value,
    Source,
}

/// Sources that `-s` selects.
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

/// Formats a value with units, for users.
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
    properties.iter().try_for_each(|name| known(name))?;
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

pub(crate) fn set(arguments: &SetArgs, session: &Session) -> Result<(), ApiError> {
    // Names and properties may be mixed, because no name of a pool, volume or snapshot contains
    // `=`.
    let words = arguments.words.iter().cloned();
    let (given, names): (Vec<String>, Vec<String>) = words.partition(|word| word.contains('='));
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
    known(property)?;
    let request = |name: &String| PropertyInherit {
        name: name.clone(),
        property: property.clone(),
        recursive: *recursive,
    };
    names.iter().try_for_each(|name| request(name).check())?;
    changed(session, names, request)
}

/// The responses of several calls.
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

/// Words of zfs, and the property with that meaning.
const OF_ZFS: [(&str, &str); 3] =
    [("volsize", "size"), ("recordsize", "record_size"), ("volblocksize", "record_size")];

/// Refuses an unknown property. The error has the typed command with the property that was meant.
fn known(name: &str) -> Result<(), ApiError> {
    let Err(error) = find_property(name) else { return Ok(()) };
    if is_user_property(name) {
        return Ok(());
    }
    let error = ApiError::from(error);
    let of_zfs = OF_ZFS.iter().find(|(word, _)| *word == name).map(|(_, property)| *property);
    let near = || hints::nearest(name, PROPERTIES.iter().map(|spec| spec.name));
    Err(match of_zfs.or_else(near).and_then(|near| hints::line_with(name, near)) {
        Some(line) => error.with_action(line),
        None => error.with_action("weir set --help lists the properties"),
    })
}

/// Parses properties from the command line.
pub(crate) fn values(given: &[String]) -> Result<PropertyValues, ApiError> {
    let mut properties = BTreeMap::new();
    for text in given {
        let (name, value) = split_property(text)?;
        known(name)?;
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
    fn every_property_is_in_the_help() {
        let help = table();
        assert!(PROPERTIES.iter().all(|spec| help.contains(spec.name) && help.contains(spec.what)));
    }
}
