//! Properties: the requests that get, set and inherit them.
//!
//! The table of properties is in weir-base, their effects are in weir-dataset.
//!
//! Invariant: a value that passes [`Setting::parse`] is valid; only the pool can check whether it
//! has enough space for the value.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names::{self, PropertyOf};
use weir_base::{BLOCK_BYTES, RecordSize, size};

use super::volume::size::check_volume_size;
use super::{Answer, Outcome, Request};
use crate::Error;
use crate::access::Scope;

pub use weir_base::property::{
    Kind as PropertyKind, Property as PropertySpec, TABLE as PROPERTIES,
};

/// Returns the property of this name.
///
/// # Errors
/// [`Error::Property`] with the most similar name.
pub fn find_property(name: &str) -> Result<&'static PropertySpec, Error> {
    PROPERTIES.iter().copied().find(|spec| spec.name == name).ok_or_else(|| {
        /// Minimum similarity of a suggested property name.
        const NEAR: f64 = 0.75;
        let near = |spec: &PropertySpec| strsim::jaro_winkler(spec.name, name);
        let nearest = PROPERTIES.iter().map(|spec| (near(spec), spec.name));
        let nearest = nearest.max_by(|(a, _), (b, _)| a.total_cmp(b));
        let nearest = nearest.filter(|(near, _)| *near > NEAR).map(|(_, name)| name);
        let hint = match nearest {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => {
                let all: Vec<_> = PROPERTIES.iter().map(|spec| spec.name).collect();
                format!("there are {}, and module:name for user properties", all.join(", "))
            }
        };
        Error::Property { name: name.to_owned(), hint }
    })
}

/// Prefix of the name that is shown for a property of a newer Weir version; the property's number
/// follows.
pub const UNKNOWN_MODULE: &str = "unknown:";

/// True if this is the name of a user property. The names of user properties contain a colon.
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
}

/// A property with its parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A property that is stored in the dataset's directory entry, with its encoded value.
    Stored(&'static PropertySpec, Vec<u8>),
    /// `size`, in bytes.
    Size(u64),
    /// A user property: name and value.
    User(String, String),
}

/// Maximum lengths of the name and of the value of a user property in a directory entry.
const USER_NAME_BYTES_MAX: usize = 128;
const USER_VALUE_BYTES_MAX: usize = 1024;

impl Setting {
    /// Parses the value of the property `name`.
    ///
    /// # Errors
    /// An error with the cause and the valid names or values.
    pub fn parse(name: &str, value: &str) -> Result<Self, Error> {
        if is_user_property(name) {
            check_user_name(name)?;
            if name.starts_with(UNKNOWN_MODULE) {
                let why = "the module 'unknown' names properties that a newer weir has set";
                return Err(Error::UserProperty { name: name.to_owned(), why });
            }
            if value.len() > USER_VALUE_BYTES_MAX || value.contains('\0') {
                let why = "its value has at most 1024 bytes and no zero byte";
                return Err(Error::UserProperty { name: name.to_owned(), why });
            }
            return Ok(Self::User(name.to_owned(), value.to_owned()));
        }
        let spec = find_property(name)?;
        let Some(known) = spec.values else {
            return Err(Error::PropertyReadOnly { name: spec.name });
        };
        let bad = || Error::PropertyValue { name: spec.name, value: value.to_owned(), known };
        if spec.id > 0 {
            return spec.parse(value).map(|bytes| Self::Stored(spec, bytes)).ok_or_else(bad);
        }
        // The size is a field of the volume, so it is not stored as a property.
        let mut bytes = size::parse(value).map_err(|_| bad())?;
        if size::is_rounded(value) {
            // The user may have copied a rounded size from the output of Weir. Such a size may not
            // be a whole number of blocks, so round it up.
            bytes = bytes.checked_next_multiple_of(BLOCK_BYTES as u64).unwrap_or(bytes);
        }
        // The engine checks later whether the size fits the volume's record size.
        check_volume_size(bytes, RecordSize::BLOCK)?;
        Ok(Self::Size(bytes))
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
        return bad("its name may contain lower-case letters, digits, ':', '.', '_', '-' and '+'");
    }
    if name.starts_with(':') || name.ends_with(':') {
        return bad("write it as module:name");
    }
    Ok(())
}

/// Checks the name of a property, including user properties.
fn check_property(name: &str) -> Result<(), Error> {
    if is_user_property(name) { check_user_name(name) } else { find_property(name).map(drop) }
}

/// Property values by name, in the form that users write: `{"quota": "10GiB"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct PropertyValues(pub BTreeMap<String, String>);

impl fmt::Display for PropertyValues {
    /// Writes the properties as history and events show them: `quota=10GiB compression=lz4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, value): (&String, &String)| format!("{name}={value}");
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(" "))
    }
}

impl PropertyValues {
    /// Parses all values for an object of the type `of`.
    ///
    /// # Errors
    /// The error for the first value that is invalid, or for the first property that objects of
    /// this type do not have.
    pub fn settings(&self, of: PropertyOf) -> Result<Vec<Setting>, Error> {
        let read = |(name, value): (&String, &String)| {
            let setting = Setting::parse(name, value)?;
            let fits = match setting {
                Setting::User(..) => true,
                Setting::Size(_) => of == PropertyOf::Volume,
                Setting::Stored(spec, _) => spec.of.contains(&of),
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

/// Request to set properties.
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

/// Request to inherit a property again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PropertyInherit {
    /// Full name of a pool, volume or snapshot.
    pub name: String,
    /// The property.
    pub property: String,
    /// Also inherit the property on the children: the volumes of a pool, the snapshots of a volume.
    #[serde(default)]
    pub recursive: bool,
}

impl Request for PropertyInherit {
    fn check(&self) -> Result<(), Error> {
        let of = names::property_of(&self.name)?;
        if is_user_property(&self.property) {
            return check_user_name(&self.property);
        }
        let spec = find_property(&self.property)?;
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

/// Request to get properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GetProperties {
    /// Full names of pools, volumes and snapshots, separated by commas. Empty: all pools and
    /// volumes.
    #[serde(default)]
    pub of: Vec<String>,
    /// Names of properties, separated by commas. Empty: all properties.
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

/// Source of the value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PropertySource {
    /// Set on the object itself.
    Local,
    /// The default: no value is set.
    Default,
    /// Inherited from the object in `inherited_from`.
    Inherited,
    /// The property is read-only.
    None,
}

impl PropertySource {
    /// Returns the name of the source in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Default => "default",
            Self::Inherited => "inherited",
            Self::None => "none",
        }
    }

    /// All sources.
    pub const ALL: [Self; 4] = [Self::Local, Self::Default, Self::Inherited, Self::None];
}

/// A property of an object, with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Property {
    /// Full name of the object.
    pub name: String,
    /// Name of the property.
    pub property: String,
    /// The exact value: bytes, seconds since 1970, 0 for no limit, `-` for no value.
    pub value: String,
    /// Source of the value.
    pub source: PropertySource,
    /// Full name of the object from which the value is inherited.
    #[serde(default)]
    pub inherited_from: Option<String>,
}

impl Property {
    /// Removes names outside the scope from the value.
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
    /// The properties in the order of the request, or of the table of properties.
    pub properties: Vec<Property>,
}

impl Answer for PropertyList {
    fn keep(&mut self, scope: &Scope) {
        keep_properties(&mut self.properties, scope);
    }
}

/// Response of a call that sets properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PropertyChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The affected properties after the call.
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
    fn only_settable_properties_parse() {
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
    fn values_parse_as_in_the_property_table() {
        for (name, value, wanted) in [
            ("quota", "10GiB", "10737418240"),
            ("quota", "none", "0"),
            ("reservation", "1.5M", "1572864"),
            ("refreservation", "auto", "auto"),
            ("refreservation", "none", "0"),
            ("readonly", "on", "on"),
            ("compression", "zstd", "zstd-3"),
        ] {
            let Ok(Setting::Stored(spec, bytes)) = Setting::parse(name, value) else {
                panic!("{name}={value}");
            };
            assert_eq!((spec.name, spec.show(&bytes).as_deref()), (name, Some(wanted)));
        }
        assert_eq!(Setting::parse("size", "8K").ok(), Some(Setting::Size(8192)));
        let user = Setting::User("a:b".into(), String::new());
        assert_eq!(Setting::parse("a:b", "").ok(), Some(user));
        let long = "x".repeat(1025);
        for (name, value, part) in [
            ("compresion", "off", "did you mean compression?"),
            ("siez", "1G", "did you mean size?"),
            ("colour", "on", "there are type,"),
            ("used", "1", "is read-only"),
            ("record_size", "64K", "is read-only"),
            ("case", "insensitive", "is read-only"),
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
    fn property_is_refused_on_objects_that_lack_it() {
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
    fn only_inheritable_properties_can_be_inherited() {
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
            ("tank/a", "case", "filesystem create --case"),
            ("tank/a", "comprssion", "compression"),
            ("tank/a@m", "compression", "snapshot"),
        ] {
            let error = ApiText::of(inherit(name, property).expect_err(name));
            assert!(error.0.contains(part), "{}", error.0);
        }
    }

    /// An error and its action as the text that a caller sees.
    struct ApiText(String);

    impl ApiText {
        fn of(error: Error) -> Self {
            let error = crate::wire::ApiError::from(error);
            Self(format!("{} {}", error.message, error.action))
        }
    }
}
