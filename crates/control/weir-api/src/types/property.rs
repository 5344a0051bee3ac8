//! Properties: their table, and the calls that tell, set and inherit them.
//!
//! Not here: what they do (weir-dataset).
//!
//! Invariants:
//! - the table below is the one list of them: requests, the command line's help and completion, and
//!   the operator's page are made of it;
//! - a value that passes [`Setting::parse`] means something; whether there is room for it the pool
//!   says.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names::{self, PropertyOf};
use weir_base::{BLOCK_BYTES, RecordSize, size};

use super::volume_size::check_volume_size;
use super::{Answer, Compression, Outcome, Request};
use crate::Error;
use crate::access::Scope;

/// What the value of a property is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyKind {
    /// A word.
    Word,
    /// A number of bytes.
    Bytes,
    /// A number of bytes where 0 is none.
    Limit,
    /// How many times smaller something is.
    Ratio,
    /// Seconds since 1970.
    Time,
}

/// A property that means something to Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySpec {
    /// Its name.
    pub name: &'static str,
    /// What its value is.
    pub kind: PropertyKind,
    /// What it can be set to; `None`: it cannot be set.
    pub values: Option<&'static str>,
    /// The value where nobody set one; of those that can be set.
    pub default: &'static str,
    /// Whether volumes inherit it from their pool.
    pub inherits: bool,
    /// Where it can be looked at, and set if it can be set.
    pub of: &'static [PropertyOf],
    /// What it is, for people.
    pub what: &'static str,
}

const POOL: PropertyOf = PropertyOf::Pool;
const VOLUME: PropertyOf = PropertyOf::Volume;
const SNAPSHOT: PropertyOf = PropertyOf::Snapshot;

/// A property that can be looked at.
const fn shown(
    name: &'static str,
    kind: PropertyKind,
    of: &'static [PropertyOf],
    what: &'static str,
) -> PropertySpec {
    PropertySpec { name, kind, values: None, default: "", inherits: false, of, what }
}

/// Every property of Weir, in the order people see them.
pub const PROPERTIES: &[PropertySpec] = &[
    shown("type", PropertyKind::Word, &[POOL, VOLUME, SNAPSHOT], "pool, volume or snapshot"),
    shown("creation", PropertyKind::Time, &[VOLUME, SNAPSHOT], "when it was made"),
    shown(
        "used",
        PropertyKind::Bytes,
        &[POOL, VOLUME, SNAPSHOT],
        "what destroying it with all its snapshots would free",
    ),
    shown("available", PropertyKind::Bytes, &[POOL, VOLUME], "room that it can still take"),
    shown("referenced", PropertyKind::Bytes, &[VOLUME, SNAPSHOT], "what it leads to"),
    shown("compressratio", PropertyKind::Ratio, &[POOL, VOLUME], "data by what it takes on disk"),
    shown("origin", PropertyKind::Word, &[VOLUME], "the snapshot it was cloned from"),
    shown("clones", PropertyKind::Word, &[SNAPSHOT], "the volumes cloned from it"),
    shown("guid", PropertyKind::Word, &[POOL, VOLUME, SNAPSHOT], "tells it apart from any other"),
    PropertySpec {
        name: "size",
        kind: PropertyKind::Bytes,
        values: Some("a size such as 10GiB, a multiple of record_size"),
        default: "",
        inherits: false,
        of: &[VOLUME, SNAPSHOT],
        what: "what clients see; a volume never shrinks below written data",
    },
    shown(
        "record_size",
        PropertyKind::Bytes,
        &[VOLUME, SNAPSHOT],
        "what is checksummed, compressed and stored as one; chosen when a volume is made",
    ),
    PropertySpec {
        name: "quota",
        kind: PropertyKind::Limit,
        values: Some("a size, or none"),
        default: "none",
        inherits: false,
        of: &[POOL, VOLUME],
        what: "most that a volume with its snapshots, or the pool, may take",
    },
    PropertySpec {
        name: "reservation",
        kind: PropertyKind::Limit,
        values: Some("a size, or none"),
        default: "none",
        inherits: false,
        of: &[VOLUME],
        what: "room kept back for a volume with its snapshots",
    },
    PropertySpec {
        name: "refreservation",
        kind: PropertyKind::Limit,
        values: Some("a size, none, or auto: all that the volume can take"),
        default: "none",
        inherits: false,
        of: &[VOLUME],
        what: "room kept back for a volume's own data, anew after each snapshot",
    },
    shown("usedbysnapshots", PropertyKind::Bytes, &[VOLUME], "of used, what only snapshots have"),
    shown("usedbydataset", PropertyKind::Bytes, &[VOLUME], "of used, what the volume leads to"),
    shown(
        "usedbyrefreservation",
        PropertyKind::Bytes,
        &[VOLUME],
        "of used, what refreservation keeps back beside that",
    ),
    shown(
        "written",
        PropertyKind::Bytes,
        &[VOLUME, SNAPSHOT],
        "of referenced, what was written since the snapshot before",
    ),
    PropertySpec {
        name: "compression",
        kind: PropertyKind::Word,
        values: Some("lz4, auto, off, zstd, zstd-1 to zstd-19"),
        default: "lz4",
        inherits: true,
        of: &[POOL, VOLUME],
        what: "how blocks written from now on are compressed",
    },
    PropertySpec {
        name: "dedupe",
        kind: PropertyKind::Word,
        values: Some("on, off"),
        default: "off",
        inherits: true,
        of: &[POOL, VOLUME],
        what: "whether what is written from now on is looked for among what is there",
    },
    PropertySpec {
        name: "readonly",
        kind: PropertyKind::Word,
        values: Some("on, off"),
        default: "off",
        inherits: true,
        of: &[POOL, VOLUME],
        what: "whether writes are refused; exports of it become read-only",
    },
];

impl PropertySpec {
    /// The property of this name.
    ///
    /// # Errors
    /// [`Error::Property`], with the name that is nearest.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        PROPERTIES.iter().find(|spec| spec.name == name).ok_or_else(|| {
            /// Closer than this is a typing mistake.
            const NEAR: f64 = 0.75;
            let near = |spec: &&&Self| strsim::jaro_winkler(spec.name, name);
            let nearest = PROPERTIES.iter().map(|spec| (near(&&spec), spec.name));
            let nearest = nearest.max_by(|(a, _), (b, _)| a.total_cmp(b));
            let nearest = nearest.filter(|(near, _)| *near > NEAR).map(|(_, name)| name);
            let hint = match nearest {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => {
                    let all: Vec<_> = PROPERTIES.iter().map(|spec| spec.name).collect();
                    format!("there are {}, and module:name for your own", all.join(", "))
                }
            };
            Error::Property { name: name.to_owned(), hint }
        })
    }

    /// What is said of it in help: how to set it, or what it is.
    pub fn help(&self) -> String {
        match self.values {
            Some(values) => format!("{}: {} ({values})", self.name, self.what),
            None => format!("{}: {}; cannot be set", self.name, self.what),
        }
    }
}

/// Whether a name is one of users' own properties: those have a colon.
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
}

/// A property with a value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `compression`.
    Compression(Compression),
    /// `dedupe`.
    Dedupe(bool),
    /// `readonly`.
    ReadOnly(bool),
    /// `quota`, in bytes; 0: none.
    Quota(u64),
    /// `reservation`, in bytes; 0: none.
    Reservation(u64),
    /// `refreservation`, in bytes; 0: none; `None`: auto.
    Refreservation(Option<u64>),
    /// `size`, in bytes.
    Size(u64),
    /// One of users' own.
    User(String, String),
}

/// Longest name and value of a property of users: what records have room for.
const USER_NAME_BYTES_MAX: usize = 128;
const USER_VALUE_BYTES_MAX: usize = 1024;

impl Setting {
    /// Reads a value.
    ///
    /// # Errors
    /// What is wrong with name or value, and what there is.
    pub fn parse(name: &str, value: &str) -> Result<Self, Error> {
        if is_user_property(name) {
            check_user_name(name)?;
            if value.len() > USER_VALUE_BYTES_MAX || value.contains('\0') {
                let why = "it has at most 1024 bytes, none of them zero";
                return Err(Error::UserProperty { name: name.to_owned(), why });
            }
            return Ok(Self::User(name.to_owned(), value.to_owned()));
        }
        let spec = PropertySpec::find(name)?;
        let Some(known) = spec.values else {
            return Err(Error::PropertyReadOnly { name: spec.name });
        };
        let bad = || Error::PropertyValue { name: spec.name, value: value.to_owned(), known };
        let bytes = || size::parse(value).map_err(|_| bad());
        let limit = || if value == "none" { Ok(0) } else { bytes() };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(bad()),
        };
        Ok(match spec.name {
            "compression" => Self::Compression(value.parse()?),
            "dedupe" => Self::Dedupe(switch()?),
            "readonly" => Self::ReadOnly(switch()?),
            "quota" => Self::Quota(limit()?),
            "reservation" => Self::Reservation(limit()?),
            "refreservation" if value == "auto" => Self::Refreservation(None),
            "refreservation" => Self::Refreservation(Some(limit()?)),
            "size" => {
                let mut bytes = bytes()?;
                if size::is_rounded(value) {
                    // As it is printed, it may be no whole number of blocks.
                    bytes = bytes.checked_next_multiple_of(BLOCK_BYTES as u64).unwrap_or(bytes);
                }
                // With larger records the volume itself allows fewer.
                check_volume_size(bytes, RecordSize::BLOCK)?;
                Self::Size(bytes)
            }
            other => unreachable!("{other} can be set and no reader knows it"),
        })
    }
}

fn check_user_name(name: &str) -> Result<(), Error> {
    let bad = |why| Err(Error::UserProperty { name: name.to_owned(), why });
    if name.len() > USER_NAME_BYTES_MAX {
        return bad("its name is longer than 128 bytes");
    }
    let allowed = |c: char| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '.' | '_' | '-' | '+')
    };
    if !name.chars().all(allowed) {
        return bad("its name may have lower-case letters, digits, ':', '.', '_', '-' and '+'");
    }
    if name.starts_with(':') || name.ends_with(':') {
        return bad("write it as module:name");
    }
    Ok(())
}

/// Checks a name of a property, also of users' own.
fn check_property(name: &str) -> Result<(), Error> {
    if is_user_property(name) { check_user_name(name) } else { PropertySpec::find(name).map(drop) }
}

/// Values of properties by their names, as people write them: `{"quota": "10GiB"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct PropertyValues(pub BTreeMap<String, String>);

impl fmt::Display for PropertyValues {
    /// As the record has them: `quota=10GiB compression=lz4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, value): (&String, &String)| format!("{name}={value}");
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(" "))
    }
}

impl PropertyValues {
    /// Reads all values for something.
    ///
    /// # Errors
    /// The first that cannot be, or not there.
    pub fn settings(&self, of: PropertyOf) -> Result<Vec<Setting>, Error> {
        let read = |(name, value): (&String, &String)| {
            let setting = Setting::parse(name, value)?;
            let fits = match setting {
                Setting::User(..) => true,
                Setting::Size(_) => of == PropertyOf::Volume,
                _ => PropertySpec::find(name)?.of.contains(&of),
            };
            let misplaced = || Error::PropertyOf { property: name.clone(), of: of.name() };
            if fits { Ok(setting) } else { Err(misplaced()) }
        };
        let settings: Vec<Setting> = self.0.iter().map(read).collect::<Result<_, _>>()?;
        let sizes = settings.iter().any(|setting| matches!(setting, Setting::Size(_)));
        if sizes && settings.len() > 1 {
            return Err(Error::SizeWithOthers);
        }
        Ok(settings)
    }
}

/// Properties to be set on something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PropertySet {
    /// Full name of a pool, volume or snapshot.
    pub name: String,
    /// The properties to set.
    pub properties: PropertyValues,
}

impl Request for PropertySet {
    fn check(&self) -> Result<(), Error> {
        let of = names::property_of(&self.name)?;
        if self.properties.0.is_empty() {
            return Err(Error::NoProperty);
        }
        self.properties.settings(of).map(drop)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.properties.to_string()
    }
}

/// A property to be inherited again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PropertyInherit {
    /// Full name of a pool, volume or snapshot.
    pub name: String,
    /// The property.
    pub property: String,
    /// Also on everything in it: the volumes of a pool, the snapshots of a volume.
    #[serde(default)]
    pub recursive: bool,
}

impl Request for PropertyInherit {
    fn check(&self) -> Result<(), Error> {
        let of = names::property_of(&self.name)?;
        if is_user_property(&self.property) {
            return check_user_name(&self.property);
        }
        let spec = PropertySpec::find(&self.property)?;
        if !spec.inherits {
            return Err(Error::NotInherited { name: spec.name, settable: spec.values.is_some() });
        }
        if !spec.of.contains(&of) {
            return Err(Error::PropertyOf { property: self.property.clone(), of: of.name() });
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        format!("{}{}", self.property, if self.recursive { " -r" } else { "" })
    }
}

/// Which properties to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GetProperties {
    /// Full names of pools, volumes and snapshots, with commas between; else all pools and volumes.
    #[serde(default)]
    pub of: Vec<String>,
    /// Names of properties, with commas between; else all.
    #[serde(default)]
    pub properties: Vec<String>,
}

impl Request for GetProperties {
    fn check(&self) -> Result<(), Error> {
        self.of.iter().try_for_each(|name| names::property_of(name).map(drop))?;
        self.properties.iter().try_for_each(|name| check_property(name))
    }

    fn names(&self) -> Vec<&str> {
        self.of.iter().map(String::as_str).collect()
    }
}

/// Where the value of a property comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PropertySource {
    /// It was set there.
    Local,
    /// Nobody set it.
    Default,
    /// From what `inherited_from` names.
    Inherited,
    /// It cannot be set.
    None,
}

impl PropertySource {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Default => "default",
            Self::Inherited => "inherited",
            Self::None => "none",
        }
    }

    /// Every source.
    pub const ALL: [Self; 4] = [Self::Local, Self::Default, Self::Inherited, Self::None];
}

/// A property of something, with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Property {
    /// Full name of what has it.
    pub name: String,
    /// Name of the property.
    pub property: String,
    /// The value, exact: bytes, seconds since 1970, 0 for no limit, `-` where there is none.
    pub value: String,
    /// Where the value comes from.
    pub source: PropertySource,
    /// Full name of what it is inherited from.
    #[serde(default)]
    pub inherited_from: Option<String>,
}

impl Property {
    /// Removes from the value the names outside of the scope.
    fn keep(&mut self, scope: &Scope) {
        if matches!(self.property.as_str(), "origin" | "clones") {
            let inside: Vec<&str> =
                self.value.split(',').filter(|name| scope.covers(name)).collect();
            self.value = if inside.is_empty() { "-".to_owned() } else { inside.join(",") };
        }
    }
}

fn keep_properties(properties: &mut Vec<Property>, scope: &Scope) {
    properties.retain(|property| scope.covers(&property.name));
    properties.iter_mut().for_each(|property| property.keep(scope));
}

/// Properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PropertyList {
    /// In the order asked for, or of the table of properties.
    pub properties: Vec<Property>,
}

impl Answer for PropertyList {
    fn keep(&mut self, scope: &Scope) {
        keep_properties(&mut self.properties, scope);
    }
}

/// The answer of a call that sets properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PropertyChange {
    /// What the call did.
    pub outcome: Outcome,
    /// The properties it was about, as they are now.
    pub properties: Vec<Property>,
}

impl Answer for PropertyChange {
    fn keep(&mut self, scope: &Scope) {
        keep_properties(&mut self.properties, scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_can_be_set_can_be_read_and_nothing_else() {
        for spec in PROPERTIES {
            let value = match spec.name {
                "size" => "8KiB",
                _ => spec.default,
            };
            match Setting::parse(spec.name, value) {
                Ok(_) => assert!(spec.values.is_some(), "{}", spec.name),
                Err(Error::PropertyReadOnly { name }) => assert!(spec.values.is_none(), "{name}"),
                Err(other) => panic!("{}: {other}", spec.name),
            }
        }
    }

    #[test]
    fn values_are_what_the_table_says() {
        for (name, value, wanted) in [
            ("quota", "10GiB", Setting::Quota(10 << 30)),
            ("quota", "none", Setting::Quota(0)),
            ("reservation", "1.5M", Setting::Reservation(3 << 19)),
            ("refreservation", "auto", Setting::Refreservation(None)),
            ("refreservation", "none", Setting::Refreservation(Some(0))),
            ("readonly", "on", Setting::ReadOnly(true)),
            ("size", "8K", Setting::Size(8192)),
            ("a:b", "", Setting::User("a:b".into(), String::new())),
        ] {
            assert_eq!(Setting::parse(name, value).ok(), Some(wanted), "{name}={value}");
        }
        let long = "x".repeat(1025);
        for (name, value, part) in [
            ("compresion", "off", "did you mean compression?"),
            ("siez", "1G", "did you mean size?"),
            ("atime", "on", "there are type,"),
            ("used", "1", "cannot be set"),
            ("record_size", "64K", "cannot be set"),
            ("quota", "auto", "a size, or none"),
            ("quota", "-1", "a size, or none"),
            ("readonly", "yes", "on, off"),
            ("compression", "gzip", "zstd-19"),
            ("size", "5000", "5000"),
            ("a:b", &long, "1024 bytes"),
            (&format!("a:{long}"), "", "128 bytes"),
            ("A:b", "", "lower-case"),
            (":b", "", "module:name"),
        ] {
            let error = Setting::parse(name, value).expect_err(name).to_string();
            assert!(error.contains(part), "{name}={value}: {error}");
        }
    }

    #[test]
    fn a_property_is_set_where_it_means_something() {
        let set = |name: &str, property: &str, value: &str| {
            let values = BTreeMap::from([(property.to_owned(), value.to_owned())]);
            PropertySet { name: name.into(), properties: PropertyValues(values) }.check()
        };
        for name in ["tank", "tank/a", "tank/a@m"] {
            set(name, "my:own", "1").expect(name);
        }
        set("tank", "quota", "1G").expect("a pool has one");
        for (name, property, part) in [
            ("tank", "reservation", "pool"),
            ("tank/a@m", "quota", "snapshot"),
            ("tank/a@m", "size", "snapshot"),
            ("tank/a/b", "quota", "'/'"),
        ] {
            let error = set(name, property, "1G").expect_err(name).to_string();
            assert!(error.contains(part), "{error}");
        }
        let both = ["size", "quota"].map(|name| (name.to_owned(), "1G".to_owned()));
        let both = PropertySet { name: "tank/a".into(), properties: PropertyValues(both.into()) };
        assert!(matches!(both.check(), Err(Error::SizeWithOthers)));
        let none = PropertySet { name: "tank/a".into(), properties: PropertyValues::default() };
        assert!(matches!(none.check(), Err(Error::NoProperty)));
    }

    #[test]
    fn what_is_inherited_says_so() {
        let inherit = |name: &str, property: &str| {
            let (name, property) = (name.to_owned(), property.to_owned());
            PropertyInherit { name, property, recursive: false }.check()
        };
        inherit("tank/a", "compression").expect("it is");
        inherit("tank/a@m", "my:own").expect("it is");
        for (name, property, part) in [
            ("tank/a", "quota", "set quota=none"),
            ("tank/a", "used", "cannot be set"),
            ("tank/a", "record_size", "--record-size"),
            ("tank/a", "comprssion", "compression"),
            ("tank/a@m", "compression", "snapshot"),
        ] {
            let error = ApiText::of(inherit(name, property).expect_err(name));
            assert!(error.0.contains(part), "{}", error.0);
        }
    }

    /// An error with its advice, as a caller sees both.
    struct ApiText(String);

    impl ApiText {
        fn of(error: Error) -> Self {
            let error = crate::wire::ApiError::from(error);
            Self(format!("{} {}", error.message, error.action))
        }
    }
}
