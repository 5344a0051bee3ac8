//! Properties that are set on a dataset or on the pool itself, as stored in the dataset record or
//! pool record.
//!
//! Inheritance, defaults and the meaning of each property are in weir-dataset.
//!
//! Invariants:
//! - a record stores the properties that are set on its dataset, never inherited ones;
//! - properties of a newer Weir are kept byte for byte;
//! - a record fits into its block, whatever properties are set.

use std::collections::BTreeMap;
use std::ops::Range;

use weir_base::property::{
    COMPRESSION, DEDUPE, Key, Kind, Limit, Property, QUOTA, READ_ONLY, REFRESERVATION, RESERVATION,
    TABLE, Value,
};
use weir_base::{BLOCK_BYTES, Compression};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

/// Maximum number of user properties of one dataset.
pub const USER_PROPERTIES_MAX: usize = 32;
/// Maximum length of a user property's name, including its module.
pub const USER_NAME_BYTES_MAX: usize = 128;
/// Maximum length of a user property's value.
pub const USER_VALUE_BYTES_MAX: usize = 1024;
/// Maximum total size of the user properties of one dataset: names and values, each with 2 bytes
/// for its length.
pub const USER_BYTES_MAX: usize = 1536;

/// Maximum size of the properties in [`TABLE`] in a record, each with 4 bytes for its number and
/// length.
const KNOWN_BYTES_MAX: usize = 256;
/// Maximum size of properties with other numbers, which a newer Weir set. A newer Weir keeps its
/// additions to the table within this size, so that this Weir can change the record.
const UNKNOWN_BYTES_MAX: usize = 256;

const WHAT: &str = "properties";
/// Property number that a record stores for every user property.
const USER_ID: u16 = 0;

/// Properties that are set on a dataset or pool. An unset property is inherited or has its default
/// value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Encoded values by the number of the property, including properties of a newer Weir.
    set: BTreeMap<u16, Box<[u8]>>,
    /// User properties, which Weir stores and does not interpret; keyed by `module:name`.
    pub user: BTreeMap<String, String>,
}

impl From<Compression> for Properties {
    fn from(compression: Compression) -> Self {
        Self::default().with(COMPRESSION, compression)
    }
}

/// Returns the row of [`TABLE`] with this property number; `None` if records store no such
/// property.
fn row_of(id: u16) -> Option<&'static Property> {
    TABLE.iter().copied().find(|row| row.id == id && id > 0)
}

/// True if a record may store these bytes for a property. A limit of 0 means no limit and is never
/// stored.
fn is_storable(row: &Property, bytes: &[u8]) -> bool {
    match row.kind {
        Kind::Limit => Limit::decode(bytes).is_some_and(|limit| limit.0 > 0),
        _ => row.show(bytes).is_some(),
    }
}

impl Properties {
    /// Maximum size of all properties of a record.
    pub(crate) const BYTES_MAX: usize =
        2 + KNOWN_BYTES_MAX + UNKNOWN_BYTES_MAX + USER_BYTES_MAX + 2 * USER_PROPERTIES_MAX;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(2, "count", "number of properties that follow"),
        field(0, "property", "for each {u16 number, u16 length, value}, by number: 1 compression"),
        field(0, "", "(u8: 0 off, 1 lz4, 2 auto, 33 to 51 zstd-1 to zstd-19), 2 dedupe (u8),"),
        field(0, "", "3 readonly (u8), 4 quota, 5 reservation, 6 refreservation (u64 bytes), 7"),
        field(0, "", "mountpoint (path), 8 atime (u8: 0 off, 1 on, 2 relative). A user property"),
        field(0, "", "has the number 0 and the value {u16 length, name; value}, by name. Other"),
        field(0, "", "numbers are kept, at most 256 bytes"),
    ];

    /// Returns the value of a property, if the property is set.
    pub fn get<T: Value>(&self, key: Key<T>) -> Option<T> {
        T::decode(self.set.get(&key.row.id)?)
    }

    /// Sets a property, or unsets it if `value` is `None` or a limit of 0.
    ///
    /// # Panics
    /// If records do not store the property or this value.
    pub fn set<T: Value>(&mut self, key: Key<T>, value: Option<T>) {
        self.set_bytes(key.row, value.map(|value| value.encode()).as_deref());
    }

    /// Returns these properties with one more property set.
    ///
    /// # Panics
    /// As [`Self::set`].
    #[must_use]
    pub fn with<T: Value>(mut self, key: Key<T>, value: T) -> Self {
        self.set(key, Some(value));
        self
    }

    /// Maximum bytes that a volume with its snapshots, or the pool, may use; 0: no limit.
    pub fn quota_bytes(&self) -> u64 {
        self.limit(QUOTA.row)
    }

    /// Bytes reserved for a volume and its snapshots; 0: none.
    pub fn reservation_bytes(&self) -> u64 {
        self.limit(RESERVATION.row)
    }

    /// Bytes reserved for a volume's own data; 0: none.
    pub fn refreservation_bytes(&self) -> u64 {
        self.limit(REFRESERVATION.row)
    }

    fn limit(&self, row: &Property) -> u64 {
        self.set.get(&row.id).and_then(|bytes| Limit::decode(bytes)).unwrap_or_default().0
    }

    /// Returns the value of a property as encoded by [`Value::encode`], if the property is set.
    pub fn bytes(&self, row: &Property) -> Option<&[u8]> {
        self.set.get(&row.id).map(|bytes| &**bytes)
    }

    /// Like [`Self::set`], with a value encoded by [`Value::encode`].
    ///
    /// # Panics
    /// As [`Self::set`].
    pub fn set_bytes(&mut self, row: &Property, value: Option<&[u8]>) {
        assert!(row.id > 0, "no record can store {}", row.name);
        let no_limit = Limit(0).encode();
        let is_set = |bytes: &&[u8]| row.kind != Kind::Limit || *bytes != no_limit;
        match value.filter(is_set) {
            None => drop(self.set.remove(&row.id)),
            Some(bytes) => {
                assert!(is_storable(row, bytes), "no record can store this {}", row.name);
                self.set.insert(row.id, bytes.into());
            }
        }
    }

    /// Properties that this Weir does not know: their numbers and values.
    pub fn unknown(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let set = self.set.iter().map(|(id, bytes)| (*id, &**bytes));
        set.filter(|(id, _)| row_of(*id).is_none())
    }

    /// Size of the user properties, at most [`USER_BYTES_MAX`] in a record.
    pub fn user_bytes(&self) -> usize {
        self.user.iter().map(|(name, value)| 4 + name.len() + value.len()).sum()
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        assert!(self.fits(), "the caller checks the space");
        w.u16((self.user.len() + self.set.len()) as u16);
        for (name, value) in &self.user {
            w.u16(USER_ID);
            w.sized(|w| {
                w.str(name);
                w.bytes(value.as_bytes());
            });
        }
        for (id, bytes) in &self.set {
            w.u16(*id);
            w.sized(|w| w.bytes(bytes));
        }
    }

    /// True if the properties fit into a record.
    pub fn fits(&self) -> bool {
        let short = |(name, value): (&String, &String)| {
            (1..=USER_NAME_BYTES_MAX).contains(&name.len()) && value.len() <= USER_VALUE_BYTES_MAX
        };
        let unknown: usize = self.unknown().map(|(_, bytes)| 4 + bytes.len()).sum();
        self.user.len() <= USER_PROPERTIES_MAX
            && self.user_bytes() <= USER_BYTES_MAX
            && self.user.iter().all(short)
            && unknown <= UNKNOWN_BYTES_MAX
    }

    /// Decodes the properties of a record. `of`: name of the dataset, for errors.
    pub(crate) fn read(r: &mut Reader<'_>, of: &str) -> Result<Self, FormatError> {
        let mut found = Self::default();
        for _ in 0..r.u16()? {
            let id = r.u16()?;
            let mut value = r.sized()?;
            if id == USER_ID {
                let name = value.str("user")?;
                let value = value.rest_str("user")?;
                if !found.set.is_empty() {
                    return Err(r.bad("number", id));
                }
                found.insert_user(r, name, value)?;
                continue;
            }
            if found.set.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return Err(r.bad("number", id));
            }
            let bytes = value.take(value.left())?;
            if let Some(row) = row_of(id).filter(|row| !is_storable(row, bytes)) {
                let (of, property, bytes) = (of.into(), row.name, bytes.len() as u64);
                return Err(FormatError::Property { of, property, bytes });
            }
            found.set.insert(id, bytes.into());
        }
        found.fitting(r)
    }

    /// Decodes the properties of a record of format 8, which has one field per property.
    pub(crate) fn read_v8(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        /// Bits of the field `set`.
        const COMPRESSION_SET: u8 = 1;
        const READ_ONLY_SET: u8 = 2;
        const DEDUPE_SET: u8 = 4;
        let (set, code, read_only, dedupe) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        if set & !(COMPRESSION_SET | READ_ONLY_SET | DEDUPE_SET) != 0 {
            return Err(r.bad("set", set));
        }
        let mut found = Self::default();
        for (bit, row, code) in [
            (COMPRESSION_SET, COMPRESSION.row, code),
            (READ_ONLY_SET, READ_ONLY.row, read_only),
            (DEDUPE_SET, DEDUPE.row, dedupe),
        ] {
            let is_set = set & bit != 0;
            if if is_set { !is_storable(row, &[code]) } else { code != 0 } {
                return Err(r.bad(row.name, code));
            }
            found.set_bytes(row, is_set.then_some(&[code]));
        }
        for row in [QUOTA.row, RESERVATION.row, REFRESERVATION.row] {
            found.set_bytes(row, Some(&Limit(r.u64()?).encode()));
        }
        for _ in 0..r.u8()? {
            let (name, value) = (r.str("user")?, r.str("user")?);
            found.insert_user(r, name, value)?;
        }
        found.fitting(r)
    }

    fn insert_user(
        &mut self,
        r: &Reader<'_>,
        name: String,
        value: String,
    ) -> Result<(), FormatError> {
        if self.user.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(r.bad("user", name.len() as u64));
        }
        self.user.insert(name, value);
        Ok(())
    }

    fn fitting(self, r: &Reader<'_>) -> Result<Self, FormatError> {
        if self.fits() { Ok(self) } else { Err(r.bad("user", self.user_bytes() as u64)) }
    }
}

/// The first block of the dataset directory: properties that are set on the pool itself. If the
/// block is a hole, no property is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRecord {
    /// Properties that datasets inherit or that apply to the whole pool.
    pub properties: Properties,
    /// Numbers of datasets whose directory entries were lost, ascending. If an entry with such a
    /// number is readable again, its contents are out of date.
    pub lost: Vec<Range<u64>>,
}

/// Maximum number of ranges in [`PoolRecord::lost`]; more ranges are merged.
pub const LOST_RANGES_MAX: usize = 64;

/// Kind of the pool record. The kind field follows the id field, which is 0 in this record.
const POOL_KIND: u8 = 19;
/// Kind of the pool record in format 8, whose properties have another layout.
const POOL_KIND_V8: u8 = 3;
// The longest pool record fits into its block.
const _: () = assert!(8 + 1 + 2 + Properties::BYTES_MAX + 2 + LOST_RANGES_MAX * 16 <= BLOCK_BYTES);

impl PoolRecord {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "0: no dataset has this number"),
        field(1, "kind", "19; 3: the layout of format 8"),
        field(2, "properties_bytes", "length of the properties"),
        field(0, "properties", "as below"),
        field(2, "lost", "ranges of numbers of datasets with unreadable records, at most 64"),
        field(0, "ranges", "for each {u64 first, u64 end}, ascending and apart"),
    ];

    /// Encodes the record as the first block of the dataset directory.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.u64(0);
        w.u8(POOL_KIND);
        w.sized(|w| self.properties.write(w));
        assert!(self.lost.len() <= LOST_RANGES_MAX, "the caller merges ranges");
        w.u16(self.lost.len() as u16);
        for range in &self.lost {
            w.u64(range.start);
            w.u64(range.end);
        }
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes the first block of the dataset directory.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let (id, kind) = (r.u64()?, r.u8()?);
        if id != 0 {
            return Err(r.bad("id", id));
        }
        let properties = match kind {
            POOL_KIND => {
                let mut sized = r.sized()?;
                let properties = Properties::read(&mut sized, "the pool")?;
                sized.end("properties_bytes")?;
                properties
            }
            POOL_KIND_V8 => Properties::read_v8(&mut r)?,
            _ => return Err(r.bad("kind", kind)),
        };
        let ranges = r.u16()?;
        if usize::from(ranges) > LOST_RANGES_MAX {
            return Err(r.bad("lost", ranges));
        }
        let mut lost = Vec::<Range<u64>>::new();
        for _ in 0..ranges {
            let range = r.u64()?..r.u64()?;
            let after = lost.last().map_or(0, |last| last.end);
            if range.is_empty() || range.start < after {
                return Err(r.bad("first", range.start));
            }
            lost.push(range);
        }
        r.zeros()?;
        Ok(Self { properties, lost })
    }
}

#[cfg(test)]
mod tests {
    use weir_base::property::Refreservation;

    use weir_base::property::{MOUNTPOINT, MOUNTPOINT_BYTES_MAX};

    use super::*;

    fn full() -> Properties {
        let mut all = Properties::from(Compression::Off)
            .with(READ_ONLY, false)
            .with(DEDUPE, true)
            .with(QUOTA, Limit(1 << 40))
            .with(RESERVATION, Limit(1))
            .with(REFRESERVATION, Refreservation::Bytes(u64::MAX));
        all.user.insert("backup:owner".to_owned(), "x".repeat(1024));
        all.user.insert("a:b".to_owned(), String::new());
        all.set.extend([(7, [].into()), (u16::MAX, vec![1; UNKNOWN_BYTES_MAX - 8].into())]);
        all
    }

    #[test]
    fn set_and_unset_properties_round_trip() {
        for properties in [Properties::default(), full()] {
            let record = PoolRecord { properties, lost: vec![3..4, 128..256] };
            assert_eq!(PoolRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn every_property_of_the_table_is_stored() {
        let all: Vec<_> = TABLE.iter().filter(|row| row.id > 0).collect();
        let bytes_max = |row: &Property| match row.kind {
            _ if *row == *MOUNTPOINT.row => MOUNTPOINT_BYTES_MAX,
            Kind::Word => 1,
            _ => 8,
        };
        let total: usize = all.iter().map(|row| bytes_max(row) + 4).sum();
        assert!(total <= KNOWN_BYTES_MAX, "{total} bytes");
        for row in all {
            let mut properties = Properties::default();
            assert_eq!(properties.bytes(row), None, "{row:?}");
            let value = match row.kind {
                Kind::Limit => row.parse("1GiB"),
                _ if *row == MOUNTPOINT.row => {
                    row.parse(&format!("/{}", "a".repeat(MOUNTPOINT_BYTES_MAX - 1)))
                }
                _ => row.parse("off").or_else(|| row.parse("hidden")),
            };
            assert!(value.as_ref().is_some_and(|value| value.len() <= bytes_max(row)), "{row:?}");
            properties.set_bytes(row, value.as_deref());
            assert!(value.is_some() && properties.bytes(row) == value.as_deref(), "{row:?}");
            let record = PoolRecord { properties, lost: Vec::new() };
            let read = PoolRecord::decode(&record.encode()).unwrap();
            assert_eq!(read.properties.bytes(row), value.as_deref(), "{row:?}");
            let mut unset = read.properties;
            unset.set_bytes(row, None);
            assert_eq!(unset, Properties::default(), "{row:?}");
        }
    }

    #[test]
    fn decoded_record_encodes_to_the_same_bytes() {
        let good = PoolRecord { properties: full(), ..PoolRecord::default() }.encode();
        for at in 0..64 {
            for flip in [1, 2, 4, 0x80] {
                let mut bad = good;
                bad[at] ^= flip;
                let Ok(read) = PoolRecord::decode(&bad) else { continue };
                assert!(read.encode() == bad, "byte {at} flipped by {flip}");
            }
        }
    }

    /// Decodes properties with these numbers and values.
    fn decode(entries: &[(u16, &[u8])]) -> Result<Properties, FormatError> {
        let mut w = Writer::default();
        w.u16(entries.len() as u16);
        for (id, bytes) in entries {
            w.u16(*id);
            w.sized(|w| w.bytes(bytes));
        }
        Properties::read(&mut Reader::new(WHAT, &w.0), "vm1")
    }

    #[test]
    fn properties_of_a_newer_weir_are_kept() {
        let (quota, new) = (1_u64.to_le_bytes(), [1, 2, 3]);
        let entries: [(u16, &[u8]); 3] = [(4, &quota), (1000, &new), (1001, &[])];
        let mut found = decode(&entries).unwrap();
        assert!(found.unknown().eq([(1000, &new[..]), (1001, &[][..])]));
        found.set(QUOTA, Some(Limit(0)));
        assert_eq!((found.quota_bytes(), found.unknown().count()), (0, 2));
        let record = PoolRecord { properties: found, lost: Vec::new() };
        assert_eq!(PoolRecord::decode(&record.encode()), Ok(record));
        let long = [0; UNKNOWN_BYTES_MAX - 3];
        assert!(decode(&[(1000, &long)]).is_err(), "too many bytes");
    }

    #[test]
    fn invalid_value_is_refused_with_dataset_and_property() {
        for (id, bytes, property) in [
            (QUOTA.row.id, &[1, 0, 0][..], "quota"),
            (RESERVATION.row.id, &[0; 8], "reservation"),
            (REFRESERVATION.row.id, &[], "refreservation"),
            (COMPRESSION.row.id, &[60], "compression"),
            (DEDUPE.row.id, &[0, 0], "dedupe"),
            (READ_ONLY.row.id, &[2], "readonly"),
        ] {
            let error = decode(&[(id, bytes)]).unwrap_err();
            let bytes = bytes.len();
            let text =
                format!("record of vm1: property {property} has an invalid value of {bytes}");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
        let user: &[u8] = &[1, 0, b'a', b'x'];
        assert!(decode(&[(0, user), (4, &[1; 8])]).is_ok());
        for unordered in [
            &[(4, &[1; 8][..]), (0, user)][..],
            &[(0, user), (0, user)],
            &[(9, &[]), (9, &[])],
            &[(9, &[]), (4, &[1; 8])],
        ] {
            assert!(decode(unordered).is_err(), "{unordered:?}");
        }
    }

    #[test]
    fn user_properties_beyond_the_limits_do_not_fit() {
        let mut many = Properties::default();
        for n in 0..=USER_PROPERTIES_MAX {
            assert!(many.fits(), "{n}");
            many.user.insert(format!("m:{n}"), String::new());
        }
        assert!(!many.fits());
        let mut long = full();
        long.user.insert("c:d".to_owned(), "y".repeat(600));
        assert!(!long.fits(), "together");
        let value = "z".repeat(USER_VALUE_BYTES_MAX + 1);
        long.user = BTreeMap::from([("a:b".to_owned(), value)]);
        assert!(!long.fits(), "one value");
        long.user = BTreeMap::from([("n".repeat(USER_NAME_BYTES_MAX + 1), String::new())]);
        assert!(!long.fits(), "one name");
    }
}
