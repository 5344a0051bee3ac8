//! Properties that are set on a dataset or on the pool itself, as stored in its record.
//!
//! Inheritance, defaults and the meaning of each property are in weir-dataset.
//!
//! Invariants:
//! - a record stores the properties that are set on its dataset, never inherited ones;
//! - a record fits into its block, whatever properties are set.

use std::collections::BTreeMap;
use std::ops::Range;

use weir_base::property::{
    COMPRESSION, DEDUPE, Key, Limit, Property, QUOTA, READ_ONLY, REFRESERVATION, RESERVATION, Value,
};
use weir_base::{BLOCK_BYTES, Compression};

use crate::bytes::{Field, Reader, Writer, field};
use crate::compression::compression_of_code;
use crate::error::FormatError;

/// Maximum number of user properties of one dataset.
pub const USER_PROPERTIES_MAX: usize = 32;
/// Maximum length of a user property's name, including its module.
pub const USER_NAME_BYTES_MAX: usize = 128;
/// Maximum length of a user property's value.
pub const USER_VALUE_BYTES_MAX: usize = 1024;
/// Maximum total size of the user properties of one dataset: names and values, each with 2 bytes
/// for its length. The longest other fields of a directory entry leave slightly more than this in a
/// block.
pub const USER_BYTES_MAX: usize = 1536;

const WHAT: &str = "properties";

/// Properties that are set on a dataset or pool. An unset property is inherited or has its default
/// value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Compression of new blocks.
    pub compression: Option<Compression>,
    /// Whether new blocks are deduplicated against existing ones.
    pub dedupe: Option<bool>,
    /// Whether the dataset refuses writes.
    pub read_only: Option<bool>,
    /// Maximum bytes that a volume with its snapshots, or the pool, may use; 0: no limit.
    pub quota_bytes: u64,
    /// Bytes reserved for a volume and its snapshots; 0: none.
    pub reservation_bytes: u64,
    /// Bytes reserved for a volume's own data; 0: none.
    pub refreservation_bytes: u64,
    /// User properties, which Weir stores and does not interpret; keyed by `module:name`.
    pub user: BTreeMap<String, String>,
}

/// Bits of the `set` field.
const COMPRESSION_SET: u8 = 1;
const READ_ONLY_SET: u8 = 2;
const DEDUPE_SET: u8 = 4;

impl From<Compression> for Properties {
    fn from(compression: Compression) -> Self {
        Self { compression: Some(compression), ..Self::default() }
    }
}

impl Properties {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(
            1,
            "set",
            "bit 0 compression, 1 read_only, 2 dedupe; a value that is not set is zero",
        ),
        field(1, "compression", "0 off, 1 lz4, 2 auto, 33 to 51 zstd-1 to zstd-19"),
        field(1, "read_only", "1 writes are refused"),
        field(1, "dedupe", "1 new records are compared with stored ones"),
        field(8, "quota_bytes", "maximum space, 0 no limit"),
        field(8, "reservation_bytes", "guaranteed space with snapshots, 0 none"),
        field(8, "refreservation_bytes", "guaranteed space of its own data, 0 none"),
        field(1, "user", "number of user properties"),
        field(0, "pair", "for each {u16 length, name; u16 length, value}, by name"),
    ];

    /// Returns the value of a property if it is set here.
    pub fn get<T: Value>(&self, key: Key<T>) -> Option<T> {
        T::decode(&self.bytes(key.row)?)
    }

    /// Sets a property, or unsets it if `value` is `None`.
    ///
    /// # Panics
    /// If directory entries have no field for the property ([`Self::has_place`]).
    pub fn set<T: Value>(&mut self, key: Key<T>, value: Option<T>) {
        self.set_bytes(key.row, value.map(|value| value.encode()).as_deref());
    }

    /// True if directory entries of this format have a field for the property.
    pub fn has_place(row: &Property) -> bool {
        (COMPRESSION.row.id..=REFRESERVATION.row.id).contains(&row.id)
    }

    /// Returns the value of a property as encoded by [`Value::encode`], if it is set here. A limit
    /// of 0 counts as unset.
    pub fn bytes(&self, row: &Property) -> Option<Vec<u8>> {
        let limit = |bytes: u64| (bytes > 0).then(|| Limit(bytes).encode());
        match row.id {
            id if id == COMPRESSION.row.id => self.compression.map(|value| value.encode()),
            id if id == DEDUPE.row.id => self.dedupe.map(|value| value.encode()),
            id if id == READ_ONLY.row.id => self.read_only.map(|value| value.encode()),
            id if id == QUOTA.row.id => limit(self.quota_bytes),
            id if id == RESERVATION.row.id => limit(self.reservation_bytes),
            id if id == REFRESERVATION.row.id => limit(self.refreservation_bytes),
            _ => None,
        }
    }

    /// Like [`Self::set`], with a value encoded by [`Value::encode`].
    ///
    /// # Panics
    /// If the record has no field for the property, or if the bytes are no value of it.
    pub fn set_bytes(&mut self, row: &Property, value: Option<&[u8]>) {
        fn read<T: Value>(value: Option<&[u8]>) -> Option<T> {
            value.map(|bytes| T::decode(bytes).expect("a value of this property"))
        }
        let limit = || read::<Limit>(value).unwrap_or_default().0;
        match row.id {
            id if id == COMPRESSION.row.id => self.compression = read(value),
            id if id == DEDUPE.row.id => self.dedupe = read(value),
            id if id == READ_ONLY.row.id => self.read_only = read(value),
            id if id == QUOTA.row.id => self.quota_bytes = limit(),
            id if id == RESERVATION.row.id => self.reservation_bytes = limit(),
            id if id == REFRESERVATION.row.id => self.refreservation_bytes = limit(),
            _ => panic!("no record can store {}", row.name),
        }
    }

    /// Size of the user properties in a directory entry.
    pub fn user_bytes(&self) -> usize {
        self.user.iter().map(|(name, value)| 4 + name.len() + value.len()).sum()
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        assert!(self.fits(), "the caller checks the space");
        let compression = if self.compression.is_some() { COMPRESSION_SET } else { 0 };
        let read_only = if self.read_only.is_some() { READ_ONLY_SET } else { 0 };
        let dedupe = if self.dedupe.is_some() { DEDUPE_SET } else { 0 };
        w.u8(compression | read_only | dedupe);
        w.u8(self.compression.map_or(0, Compression::code));
        w.u8(u8::from(self.read_only == Some(true)));
        w.u8(u8::from(self.dedupe == Some(true)));
        w.u64(self.quota_bytes);
        w.u64(self.reservation_bytes);
        w.u64(self.refreservation_bytes);
        w.u8(self.user.len() as u8);
        for (name, value) in &self.user {
            w.str(name);
            w.str(value);
        }
    }

    /// True if the user properties fit into a directory entry.
    pub fn fits(&self) -> bool {
        let short = |(name, value): (&String, &String)| {
            (1..=USER_NAME_BYTES_MAX).contains(&name.len()) && value.len() <= USER_VALUE_BYTES_MAX
        };
        self.user.len() <= USER_PROPERTIES_MAX
            && self.user_bytes() <= USER_BYTES_MAX
            && self.user.iter().all(short)
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (set, code, read_only, dedupe) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        if set & !(COMPRESSION_SET | READ_ONLY_SET | DEDUPE_SET) != 0 {
            return Err(r.bad("set", set));
        }
        let is_set = |bit| set & bit != 0;
        if !is_set(COMPRESSION_SET) && code != 0 {
            return Err(r.bad("compression", code));
        }
        if read_only > 1 || (!is_set(READ_ONLY_SET) && read_only != 0) {
            return Err(r.bad("read_only", read_only));
        }
        if dedupe > 1 || (!is_set(DEDUPE_SET) && dedupe != 0) {
            return Err(r.bad("dedupe", dedupe));
        }
        let compression = is_set(COMPRESSION_SET).then(|| compression_of_code(code));
        let mut found = Self {
            compression: compression.transpose()?,
            read_only: is_set(READ_ONLY_SET).then_some(read_only == 1),
            dedupe: is_set(DEDUPE_SET).then_some(dedupe == 1),
            quota_bytes: r.u64()?,
            reservation_bytes: r.u64()?,
            refreservation_bytes: r.u64()?,
            user: BTreeMap::new(),
        };
        for _ in 0..r.u8()? {
            let (name, value) = (r.str("user")?, r.str("user")?);
            if found.user.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(r.bad("user", name.len() as u64));
            }
            found.user.insert(name, value);
        }
        if !found.fits() {
            return Err(r.bad("user", found.user_bytes() as u64));
        }
        Ok(found)
    }
}

/// The first block of the dataset directory: properties that are set on the pool itself. If it is a
/// hole, no property is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRecord {
    /// Properties that datasets inherit or that apply to the whole pool.
    pub properties: Properties,
    /// Numbers of datasets whose directory entries were lost, ascending. A dataset that is later
    /// found under such a number is out of date.
    pub lost: Vec<Range<u64>>,
}

/// Maximum number of ranges of lost datasets; further ranges are merged.
pub const LOST_RANGES_MAX: usize = 64;

/// Kind of the pool record. It follows the id field, which is 0 in this record.
const POOL_KIND: u8 = 3;

impl PoolRecord {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "0: no dataset has this number"),
        field(1, "kind", "3"),
        field(0, "properties", "as below"),
        field(2, "lost", "ranges of numbers of datasets with unreadable records, at most 64"),
        field(0, "ranges", "for each {u64 first, u64 end}, ascending and apart"),
    ];

    /// Encodes the first block of the directory.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.u64(0);
        w.u8(POOL_KIND);
        self.properties.write(&mut w);
        assert!(self.lost.len() <= LOST_RANGES_MAX, "the caller merges ranges");
        w.u16(self.lost.len() as u16);
        for range in &self.lost {
            w.u64(range.start);
            w.u64(range.end);
        }
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes the first block of the directory.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let (id, kind) = (r.u64()?, r.u8()?);
        if id != 0 {
            return Err(r.bad("id", id));
        }
        if kind != POOL_KIND {
            return Err(r.bad("kind", kind));
        }
        let properties = Properties::read(&mut r)?;
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
        let found = Self { properties, lost };
        // The bytes after the decoded fields must be zero.
        if found.encode() == *block { Ok(found) } else { Err(r.bad("zero", 1_u8)) }
    }
}

#[cfg(test)]
mod tests {
    use weir_base::property::{Kind, TABLE};

    use super::*;

    fn full() -> Properties {
        let mut user = BTreeMap::from([("backup:owner".to_owned(), "x".repeat(1024))]);
        user.insert("a:b".to_owned(), String::new());
        let read_only = Some(false);
        Properties {
            read_only,
            dedupe: Some(true),
            quota_bytes: 1 << 40,
            reservation_bytes: 1,
            refreservation_bytes: u64::MAX,
            user,
            ..Properties::from(Compression::Off)
        }
    }

    #[test]
    fn set_and_unset_properties_round_trip() {
        for properties in [Properties::default(), full()] {
            let record = PoolRecord { properties, lost: vec![3..4, 128..256] };
            assert_eq!(PoolRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn every_property_of_the_table_has_a_field() {
        let all = TABLE.iter().filter(|row| row.id > 0);
        for row in all {
            assert!(Properties::has_place(row), "{row:?}");
            let mut properties = Properties::default();
            assert_eq!(properties.bytes(row), None, "{row:?}");
            let value = match row.kind {
                Kind::Limit => row.parse("1GiB"),
                _ => row.parse("off"),
            };
            properties.set_bytes(row, value.as_deref());
            assert!(value.is_some() && properties.bytes(row) == value, "{row:?}");
            let record = PoolRecord { properties, lost: Vec::new() };
            let read = PoolRecord::decode(&record.encode()).unwrap();
            assert_eq!(read.properties.bytes(row), value, "{row:?}");
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
        let mut unset = PoolRecord::default().encode();
        unset[10] = 1;
        assert!(PoolRecord::decode(&unset).is_err(), "a compression that is not set");
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
