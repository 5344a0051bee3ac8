//! Compression settings of volumes, with their names.
//!
//! The settings themselves are in weir-base; weir-pool decides which blocks it compresses.
//!
//! Invariant: each setting has one name, in JSON, in tables and on the command line; parsing the
//! name returns the setting.

use std::borrow::Cow;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use weir_base::property::COMPRESSION;

use crate::Error;

/// Compression of blocks, applied if it saves enough space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "&'static str")]
pub struct Compression(pub weir_base::Compression);

impl Compression {
    /// Returns the name of the value in JSON and in tables.
    pub const fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns all settings.
    pub fn all() -> impl Iterator<Item = Self> {
        weir_base::Compression::all().map(Self)
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self(COMPRESSION.default_value())
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// Parses the name of a setting; `zstd` alone means `zstd-3`.
    ///
    /// # Errors
    /// [`Error::PropertyValue`] with the names of all settings.
    fn from_str(text: &str) -> Result<Self, Error> {
        weir_base::Compression::find(text).map(Self).ok_or_else(|| Error::PropertyValue {
            name: COMPRESSION.row.name,
            value: text.to_owned(),
            known: COMPRESSION.row.values.unwrap_or_default(),
        })
    }
}

impl From<weir_base::Compression> for Compression {
    fn from(value: weir_base::Compression) -> Self {
        Self(value)
    }
}

impl TryFrom<Cow<'_, str>> for Compression {
    type Error = Error;

    fn try_from(text: Cow<'_, str>) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Compression> for &'static str {
    fn from(compression: Compression) -> Self {
        compression.name()
    }
}

impl PartialSchema for Compression {
    fn schema() -> RefOr<Schema> {
        let names = Self::all().map(Self::name);
        let what = "Compression of blocks, where it saves enough: fast (lz4), fast but skipped \
                    while writes would wait for it (auto), none (off), or smaller (zstd).";
        let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(what));
        schema.enum_values(Some(names)).into()
    }
}

impl ToSchema for Compression {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_parses_from_its_name() {
        for value in Compression::all() {
            assert_eq!(value.name().parse::<Compression>().ok(), Some(value));
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(json, format!("\"{}\"", value.name()));
            assert_eq!(serde_json::from_str::<Compression>(&json).unwrap(), value);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap().name(), "zstd-3");
        for wrong in ["zstd-0", "zstd-20", "zstd-", "zstd-03", "LZ4", "", "gzip"] {
            let error = wrong.parse::<Compression>().expect_err(wrong).to_string();
            assert!(error.contains("zstd-19"), "{error}");
            assert!(serde_json::from_str::<Compression>(&format!("\"{wrong}\"")).is_err());
        }
    }
}
