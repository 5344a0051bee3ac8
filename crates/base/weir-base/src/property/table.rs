//! The table of properties: the one list of them.
//!
//! Not here: the types of values (`value`), the effects of properties (weir-dataset), the verbs
//! that set them (bin/weir).
//!
//! Get, set, inherit, help, completion, the page of the operator and the API are loops over this
//! table. A new property is a row here and the code that obeys it.
//!
//! Invariants:
//! - a property that can be set has a number, which is never given to another one;
//! - the default of a property that can be set can be read.

use std::fmt;
use std::marker::PhantomData;

use super::value::{Kind, Limit, Refreservation, Value};
use crate::compression::Compression;
use crate::names::PropertyOf;

/// A property that means something to Weir.
pub struct Property {
    /// Its number in records; 0 if records do not store it.
    pub id: u16,
    /// Its name.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The values that it accepts; `None`: it cannot be set.
    pub values: Option<&'static str>,
    /// The default value of a property that can be set.
    pub default: &'static str,
    /// True if volumes inherit it from their pool.
    pub inherits: bool,
    /// Kinds of objects with this property.
    pub of: &'static [PropertyOf],
    /// Its meaning, for people.
    pub what: &'static str,
    parse: fn(&str) -> Option<Vec<u8>>,
    show: fn(&[u8]) -> Option<String>,
}

impl PartialEq for Property {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Property {}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Property {
    /// Parses a value and encodes it.
    pub fn parse(&self, text: &str) -> Option<Vec<u8>> {
        (self.parse)(text)
    }

    /// The exact value of encoded bytes. None for bytes that no value encodes to.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        (self.show)(bytes)
    }

    /// The exact default value.
    pub fn default_value(&self) -> Option<String> {
        self.parse(self.default).and_then(|bytes| self.show(&bytes))
    }

    /// Its line in help.
    pub fn help(&self) -> String {
        match self.values {
            Some(values) => format!("{}: {} ({values})", self.name, self.what),
            None => format!("{}: {}; cannot be set", self.name, self.what),
        }
    }
}

/// A property with the type of its values.
pub struct Key<T> {
    /// Its row.
    pub row: &'static Property,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T: Value> Key<T> {
    const fn new(row: &'static Property) -> Self {
        Self { row, value: PhantomData }
    }

    /// The default value of the table.
    ///
    /// # Panics
    /// If the table is wrong.
    pub fn default_value(self) -> T {
        T::parse(self.row.default).expect("the default of a property can be read")
    }
}

fn parse<T: Value>(text: &str) -> Option<Vec<u8>> {
    T::parse(text).map(|value| value.encode())
}

fn show<T: Value>(bytes: &[u8]) -> Option<String> {
    T::decode(bytes).map(|value| value.show())
}

const POOL: PropertyOf = PropertyOf::Pool;
const VOLUME: PropertyOf = PropertyOf::Volume;
const SNAPSHOT: PropertyOf = PropertyOf::Snapshot;

/// A property that can be set: number, name, values, default and meaning. Pools and volumes have
/// it, and volumes inherit it.
const fn set<T: Value>(
    id: u16,
    name: &'static str,
    values: &'static str,
    default: &'static str,
    what: &'static str,
) -> Property {
    Property {
        id,
        name,
        kind: T::KIND,
        values: Some(values),
        default,
        inherits: true,
        of: &[POOL, VOLUME],
        what,
        parse: parse::<T>,
        show: show::<T>,
    }
}

/// A property that can only be shown.
const fn shown(
    name: &'static str,
    kind: Kind,
    of: &'static [PropertyOf],
    what: &'static str,
) -> Property {
    Property {
        id: 0,
        name,
        kind,
        values: None,
        default: "",
        inherits: false,
        of,
        what,
        parse: |_| None,
        show: |_| None,
    }
}

/// Compression of blocks written from now on.
pub const COMPRESSION: Key<Compression> = Key::new(&set::<Compression>(
    1,
    "compression",
    "lz4, auto, off, zstd, zstd-1 to zstd-19",
    "lz4",
    "how blocks written from now on are compressed",
));

/// Deduplication of blocks written from now on.
pub const DEDUPE: Key<bool> = Key::new(&set::<bool>(
    2,
    "dedupe",
    "on, off",
    "off",
    "whether what is written from now on is looked for among what is there",
));

/// Refusal of writes.
pub const READ_ONLY: Key<bool> = Key::new(&set::<bool>(
    3,
    "readonly",
    "on, off",
    "off",
    "whether writes are refused; exports of it become read-only",
));

/// Most bytes that a volume with its snapshots, or the pool, may take.
pub const QUOTA: Key<Limit> = Key::new(&Property {
    inherits: false,
    ..set::<Limit>(
        4,
        "quota",
        "a size, or none",
        "none",
        "most that a volume with its snapshots, or the pool, may take",
    )
});

/// Bytes promised to a volume and its snapshots.
pub const RESERVATION: Key<Limit> = Key::new(&Property {
    inherits: false,
    of: &[VOLUME],
    ..set::<Limit>(
        5,
        "reservation",
        "a size, or none",
        "none",
        "room kept back for a volume with its snapshots",
    )
});

/// Bytes promised to a volume's own data.
pub const REFRESERVATION: Key<Refreservation> = Key::new(&Property {
    inherits: false,
    of: &[VOLUME],
    ..set::<Refreservation>(
        6,
        "refreservation",
        "a size, none, or auto: all that the volume can take",
        "none",
        "room kept back for a volume's own data, anew after each snapshot",
    )
});

/// Every property of Weir, in the order people see them.
pub static TABLE: &[&Property] = &[
    &shown("type", Kind::Word, &[POOL, VOLUME, SNAPSHOT], "pool, volume or snapshot"),
    &shown("creation", Kind::Time, &[VOLUME, SNAPSHOT], "when it was made"),
    &shown(
        "used",
        Kind::Bytes,
        &[POOL, VOLUME, SNAPSHOT],
        "what destroying it with all its snapshots would free",
    ),
    &shown("available", Kind::Bytes, &[POOL, VOLUME], "room that it can still take"),
    &shown("referenced", Kind::Bytes, &[VOLUME, SNAPSHOT], "what it leads to"),
    &shown("compressratio", Kind::Ratio, &[POOL, VOLUME], "data by what it takes on disk"),
    &shown("origin", Kind::Word, &[VOLUME], "the snapshot it was cloned from"),
    &shown("clones", Kind::Word, &[SNAPSHOT], "the volumes cloned from it"),
    &shown("guid", Kind::Word, &[POOL, VOLUME, SNAPSHOT], "tells it apart from any other"),
    // A record stores no size as a property: a new size changes the volume itself.
    &Property {
        values: Some("a size such as 10GiB, a multiple of record_size"),
        ..shown(
            "size",
            Kind::Bytes,
            &[VOLUME, SNAPSHOT],
            "what clients see; a volume never shrinks below written data",
        )
    },
    &shown(
        "record_size",
        Kind::Bytes,
        &[VOLUME, SNAPSHOT],
        "what is checksummed, compressed and stored as one; chosen when a volume is made",
    ),
    QUOTA.row,
    RESERVATION.row,
    REFRESERVATION.row,
    &shown("usedbysnapshots", Kind::Bytes, &[VOLUME], "of used, what only snapshots have"),
    &shown("usedbydataset", Kind::Bytes, &[VOLUME], "of used, what the volume leads to"),
    &shown(
        "usedbyrefreservation",
        Kind::Bytes,
        &[VOLUME],
        "of used, what refreservation keeps back beside that",
    ),
    &shown(
        "written",
        Kind::Bytes,
        &[VOLUME, SNAPSHOT],
        "of referenced, what was written since the snapshot before",
    ),
    COMPRESSION.row,
    DEDUPE.row,
    READ_ONLY.row,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_property_has_one_name_one_number_and_a_default() {
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
        let stored: Vec<&&Property> = TABLE.iter().filter(|row| row.id > 0).collect();
        let numbers: BTreeSet<u16> = stored.iter().map(|row| row.id).collect();
        assert_eq!(numbers.len(), stored.len());
        for row in stored {
            let default = row.default_value().unwrap_or_else(|| panic!("{row:?}"));
            let bytes = row.parse(&default).unwrap_or_else(|| panic!("{row:?}: {default}"));
            assert_eq!(row.show(&bytes), Some(default), "{row:?}");
            assert!(row.values.is_some(), "{row:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_value_are_refused() {
        assert_eq!(COMPRESSION.row.show(&[60]), None);
        assert_eq!(COMPRESSION.row.show(&[]), None);
        assert_eq!(DEDUPE.row.show(&[2]), None);
        assert_eq!(QUOTA.row.show(&[0; 7]), None);
        assert_eq!(REFRESERVATION.row.show(&[]), Some("auto".to_owned()));
        assert_eq!(QUOTA.row.parse("1KiB"), Some(vec![0, 4, 0, 0, 0, 0, 0, 0]));
        assert_eq!(QUOTA.row.parse("auto"), None);
    }
}
