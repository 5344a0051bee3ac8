//! How the blocks of a volume are compressed, by the words people use.
//!
//! Not here: what is worth storing compressed (weir-pool).
//!
//! Invariant: JSON, tables and the command line have one word for each value, and read it back.

use std::borrow::Cow;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use weir_base::ZstdLevel;

use crate::Error;

/// How blocks are compressed, where that saves enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "&'static str")]
pub enum Compression {
    /// LZ4: fast.
    #[default]
    Lz4,
    /// LZ4, but not while writes would wait for it.
    Auto,
    /// None.
    Off,
    /// Zstd of this level: small, the smaller the slower.
    Zstd(ZstdLevel),
}

const ZSTD_NAMES: [&str; ZstdLevel::MAX.get() as usize] = [
    "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9",
    "zstd-10", "zstd-11", "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17",
    "zstd-18", "zstd-19",
];

impl Compression {
    /// The value as JSON and tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Zstd(level) => ZSTD_NAMES[level.get() as usize - 1],
        }
    }

    /// Every value.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Lz4, Self::Auto, Self::Off].into_iter().chain(ZstdLevel::all().map(Self::Zstd))
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// Reads the word for a value; `zstd` alone is `zstd-3`.
    ///
    /// # Errors
    /// [`Error::PropertyValue`], which lists what there is.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "zstd" {
            return Ok(Self::Zstd(ZstdLevel::DEFAULT));
        }
        Self::all().find(|known| known.name() == text).ok_or_else(|| Error::PropertyValue {
            name: "compression",
            value: text.to_owned(),
            known: "lz4, auto, off, zstd, zstd-1 to zstd-19",
        })
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
        let what = "How blocks are compressed, where that saves enough: fast (lz4), fast but not \
                    while writes would wait for it (auto), not (off), or small (zstd).";
        let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(what));
        schema.enum_values(Some(names)).into()
    }
}

impl ToSchema for Compression {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_one_word_that_reads_back() {
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
