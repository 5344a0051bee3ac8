//! Table of all properties of pools, volumes and snapshots.
//!
//! The types of the values are in `value`, the effects of the properties in weir-dataset, the
//! commands that set properties in bin/weir.
//!
//! Get, set, inherit, help, completion, docs/operating/properties.md and the API come from this
//! table. A new property needs a row in this table and the code that applies the property.
//!
//! Invariants:
//! - every property that can be set has a number, which no other property ever gets;
//! - the default of a property that can be set is a valid value.

use std::fmt;
use std::marker::PhantomData;

use super::value::{
    AtimePolicy, Kind, Limit, MountPoint, Refreservation, SnapshotVisibility, Value,
};
use crate::compression::Compression;
use crate::names::PropertyOf;

/// A property that Weir interprets. User properties, which Weir only stores, are not in this table.
pub struct Property {
    /// Number of the property in on-disk records; 0 if on-disk records do not store the property.
    pub id: u16,
    /// Name of the property.
    pub name: &'static str,
    /// Kind of the property's values.
    pub kind: Kind,
    /// Description of the accepted values; `None` if the property is read-only.
    pub values: Option<&'static str>,
    /// Default value of a property that can be set.
    pub default: &'static str,
    /// True if volumes inherit the property from their pool.
    pub inherits: bool,
    /// Kinds of objects that have this property.
    pub of: &'static [PropertyOf],
    /// Description for users.
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
    /// Parses a text and encodes the value; `None` if the text is invalid.
    pub fn parse(&self, text: &str) -> Option<Vec<u8>> {
        (self.parse)(text)
    }

    /// Exact text form of an encoded value; `None` if the bytes are invalid.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        (self.show)(bytes)
    }

    /// Exact text form of the default value.
    pub fn default_value(&self) -> Option<String> {
        self.parse(self.default).and_then(|bytes| self.show(&bytes))
    }

    /// Line about the property in the help.
    pub fn help(&self) -> String {
        match self.values {
            Some(values) => format!("{}: {} ({values})", self.name, self.what),
            None => format!("{}: {}; cannot be set", self.name, self.what),
        }
    }
}

/// A property together with the type of its values.
pub struct Key<T> {
    /// Row of the property in the table.
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

    /// Default value of the property, from the table.
    ///
    /// # Panics
    /// If the default in the table is invalid.
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

/// Creates a row for a property that can be set: number, name, values, default and description.
/// Pools and volumes have the property, and volumes inherit it from their pool.
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

/// Creates a row for a read-only property.
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

/// Row of `compression`: the compression of new blocks.
pub const COMPRESSION: Key<Compression> = Key::new(&set::<Compression>(
    1,
    "compression",
    "lz4, auto, off, zstd, zstd-1 to zstd-19",
    "lz4",
    "compression of new blocks",
));

/// Row of `dedupe`: whether new blocks are deduplicated.
pub const DEDUPE: Key<bool> = Key::new(&set::<bool>(
    2,
    "dedupe",
    "on, off",
    "off",
    "whether new records are deduplicated against stored data",
));

/// Row of `readonly`: whether writes are refused.
pub const READ_ONLY: Key<bool> = Key::new(&set::<bool>(
    3,
    "readonly",
    "on, off",
    "off",
    "whether writes are rejected; its exports become read-only",
));

/// Row of `quota`: maximum bytes that a volume with its snapshots, or a pool, may use.
pub const QUOTA: Key<Limit> = Key::new(&Property {
    inherits: false,
    ..set::<Limit>(
        4,
        "quota",
        "a size, or none",
        "none",
        "maximum space of a volume with its snapshots, or of the pool",
    )
});

/// Row of `reservation`: bytes reserved for a volume with its snapshots.
pub const RESERVATION: Key<Limit> = Key::new(&Property {
    inherits: false,
    of: &[VOLUME],
    ..set::<Limit>(
        5,
        "reservation",
        "a size, or none",
        "none",
        "space guaranteed to a volume with its snapshots",
    )
});

/// Row of `refreservation`: bytes reserved for a volume's own data.
pub const REFRESERVATION: Key<Refreservation> = Key::new(&Property {
    inherits: false,
    of: &[VOLUME],
    ..set::<Refreservation>(
        6,
        "refreservation",
        "a size, none, or auto: enough for all blocks of the volume",
        "none",
        "space guaranteed to a volume's own data, in full again after each snapshot",
    )
});

/// Values of `type`.
const TYPES: &str = "pool, volume, filesystem or snapshot";

/// Row of `mountpoint`: directory at which the server mounts a filesystem when it starts.
pub const MOUNTPOINT: Key<MountPoint> = Key::new(&Property {
    inherits: false,
    of: &[VOLUME],
    ..set::<MountPoint>(
        7,
        "mountpoint",
        "an absolute directory, or none; only of filesystems",
        "none",
        "directory where the server mounts the filesystem at its start; weir mount sets it",
    )
});

/// Row of `atime`: the rule by which reads set the time of the last read of a file.
pub const ATIME: Key<AtimePolicy> = Key::new(&set::<AtimePolicy>(
    8,
    "atime",
    "relative, on, off; only of filesystems",
    "relative",
    "whether reads set the time of the last read of a file; relative: at most once a day",
));

/// Row of `snapdir`: whether the root of a filesystem lists the directory of its snapshots.
pub const SNAPDIR: Key<SnapshotVisibility> = Key::new(&set::<SnapshotVisibility>(
    9,
    "snapdir",
    "hidden, visible; only of filesystems",
    "hidden",
    "whether the root of the filesystem lists .weir, which has the snapshots",
));

/// All properties, in the order in which they are displayed.
pub static TABLE: &[&Property] = &[
    &shown("type", Kind::Word, &[POOL, VOLUME, SNAPSHOT], TYPES),
    &shown("creation", Kind::Time, &[VOLUME, SNAPSHOT], "time of creation"),
    &shown(
        "used",
        Kind::Bytes,
        &[POOL, VOLUME, SNAPSHOT],
        "space that destroying it with all its snapshots would free",
    ),
    &shown("available", Kind::Bytes, &[POOL, VOLUME], "space that it can still use"),
    &shown(
        "referenced",
        Kind::Bytes,
        &[VOLUME, SNAPSHOT],
        "space used by its blocks, shared or not",
    ),
    &shown(
        "compressratio",
        Kind::Ratio,
        &[POOL, VOLUME],
        "size of the data divided by its size on disk",
    ),
    &shown("origin", Kind::Word, &[VOLUME], "the snapshot it was cloned from"),
    &shown("clones", Kind::Word, &[SNAPSHOT], "the volumes cloned from it"),
    &shown("guid", Kind::Word, &[POOL, VOLUME, SNAPSHOT], "globally unique id"),
    // On-disk records do not store the size as a property. Setting a new size resizes the volume.
    &Property {
        values: Some("a size such as 10GiB, a multiple of record_size"),
        ..shown(
            "size",
            Kind::Bytes,
            &[VOLUME, SNAPSHOT],
            "size that clients see; a volume never shrinks below written data",
        )
    },
    &shown(
        "record_size",
        Kind::Bytes,
        &[VOLUME, SNAPSHOT],
        "unit of checksums, compression and storage; fixed when a volume is created",
    ),
    &shown(
        "case",
        Kind::Word,
        &[VOLUME, SNAPSHOT],
        "sensitive or insensitive: the names in a filesystem; fixed when it is created",
    ),
    QUOTA.row,
    RESERVATION.row,
    REFRESERVATION.row,
    &shown(
        "usedbysnapshots",
        Kind::Bytes,
        &[VOLUME],
        "part of used that destroying all snapshots would free",
    ),
    &shown(
        "usedbydataset",
        Kind::Bytes,
        &[VOLUME],
        "part of used that the volume's own blocks take",
    ),
    &shown(
        "usedbyrefreservation",
        Kind::Bytes,
        &[VOLUME],
        "part of used that refreservation adds to the volume's own blocks",
    ),
    &shown(
        "written",
        Kind::Bytes,
        &[VOLUME, SNAPSHOT],
        "part of referenced written since the previous snapshot",
    ),
    COMPRESSION.row,
    DEDUPE.row,
    READ_ONLY.row,
    MOUNTPOINT.row,
    ATIME.row,
    SNAPDIR.row,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_defaults_are_valid() {
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
    fn invalid_encoded_values_are_refused() {
        assert_eq!(COMPRESSION.row.show(&[60]), None);
        assert_eq!(COMPRESSION.row.show(&[]), None);
        assert_eq!(DEDUPE.row.show(&[2]), None);
        assert_eq!(QUOTA.row.show(&[0; 7]), None);
        assert_eq!(REFRESERVATION.row.show(&[]), Some("auto".to_owned()));
        assert_eq!(QUOTA.row.parse("1KiB"), Some(vec![0, 4, 0, 0, 0, 0, 0, 0]));
        assert_eq!(QUOTA.row.parse("auto"), None);
        let stored = MOUNTPOINT.row.parse("/srv/home").unwrap();
        assert_eq!(MOUNTPOINT.row.show(&stored), Some("/srv/home".to_owned()));
        for bad in ["srv", "/", "/a/../b", "/a//b", "/a\u{7}", "on"] {
            assert_eq!(MOUNTPOINT.row.parse(bad), None, "{bad:?}");
            assert_eq!(MOUNTPOINT.row.show(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(MOUNTPOINT.row.show(b"none"), None);
    }
}
