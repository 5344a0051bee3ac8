//! Layout of a filesystem: the bytes of weir-fs in the directory entry of the dataset.
//!
//! The rules for names are here; weir-fs has the tables of Unicode that they need.
//!
//! Invariants:
//! - a case-sensitive filesystem has version 2 of the layout, whose bytes never change;
//! - a program opens a filesystem only if it knows the version of the layout and of Unicode.

use weir_base::RecordSize;

use crate::bytes::{Field, field};
use crate::dataset::ObjectTable;

/// Version of the layout of a filesystem that compares names byte for byte.
const EXACT_NAMES: u8 = 2;
/// Version of the layout of a filesystem with other rules for names.
const FOLDED_NAMES: u8 = 3;
/// Code of names without a difference between upper and lower case.
const CASE_INSENSITIVE: u8 = 1;
/// Code of Normalization Form C.
const NFC: u8 = 1;

/// Major version of Unicode whose tables define equal names in a case-insensitive filesystem. A
/// filesystem keeps its version: another table would make names unreachable.
pub const UNICODE_VERSION: u8 = 16;

/// Comparison of the names in a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameCase {
    /// Names are bytes. Names with different bytes are different.
    #[default]
    Sensitive,
    /// Names are UTF-8. Names that differ only in case or normalization are equal.
    Insensitive,
}

/// Settings of a filesystem that are fixed at its creation and stored in the directory entry.
/// Clones and streams carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Secret key of the hash of names.
    pub hash_key: u128,
    /// Maximum record size of files.
    pub record_size: RecordSize,
    /// Comparison of names.
    pub case: NameCase,
}

impl Layout {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(1, "version", "2: names are bytes; 3: names are compared by the next fields"),
        field(1, "record_size", "log2 of the blocks of a file's largest record, 0 to 8"),
        field(1, "case", "version 3: 1 case-insensitive: names of equal simple folding are equal"),
        field(1, "normalization", "version 3: 1 NFC, before and after the folding"),
        field(1, "unicode", "version 3: major version of the Unicode tables, 16"),
        field(3, "zero", ""),
        field(16, "hash_key", "key of SipHash-2-4 for names (version 3: for folded names)"),
        field(16, "zero", ""),
    ];

    /// Encodes the settings.
    pub fn encode(&self) -> [u8; ObjectTable::LAYER_BYTES] {
        let shift = self.record_size.shift();
        let head = match self.case {
            NameCase::Sensitive => [EXACT_NAMES, shift, 0, 0, 0],
            NameCase::Insensitive => [FOLDED_NAMES, shift, CASE_INSENSITIVE, NFC, UNICODE_VERSION],
        };
        let mut bytes = [0; ObjectTable::LAYER_BYTES];
        let fields = head.into_iter().chain([0; 3]).chain(self.hash_key.to_le_bytes());
        bytes.iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
        bytes
    }

    /// Decodes the settings; `None` if the dataset has another layout.
    pub fn decode(bytes: &[u8; ObjectTable::LAYER_BYTES]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        let (shift, case) = match *head {
            [EXACT_NAMES, shift, 0, 0, 0, 0, 0, 0] => (shift, NameCase::Sensitive),
            [FOLDED_NAMES, shift, CASE_INSENSITIVE, NFC, UNICODE_VERSION, 0, 0, 0] => {
                (shift, NameCase::Insensitive)
            }
            _ => return None,
        };
        let (key, zeros) = rest.split_first_chunk()?;
        if zeros.iter().any(|byte| *byte != 0) {
            return None;
        }
        let record_size = RecordSize::from_shift(shift)?;
        Some(Self { hash_key: u128::from_le_bytes(*key), record_size, case })
    }

    /// True if the bytes encode the settings of a case-insensitive filesystem that this Weir can
    /// open.
    pub fn folds_names(bytes: &[u8; ObjectTable::LAYER_BYTES]) -> bool {
        Self::decode(bytes).is_some_and(|layout| layout.case == NameCase::Insensitive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(case: NameCase) -> Layout {
        let record_size = RecordSize::from_shift(5).expect("128 KiB");
        Layout { hash_key: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100, record_size, case }
    }

    /// Filesystems of older versions of Weir have exactly these bytes.
    #[test]
    fn case_sensitive_layout_has_the_bytes_of_older_versions() {
        let head = [2, 5, 0, 0, 0, 0, 0, 0];
        let bytes: Vec<u8> = head.into_iter().chain(0..16).chain([0; 16]).collect();
        assert_eq!(layout(NameCase::Sensitive).encode()[..], bytes);
        let folded = layout(NameCase::Insensitive).encode();
        assert_eq!(folded[..8], [3, 5, 1, 1, 16, 0, 0, 0]);
        assert_eq!(folded[8..], bytes[8..]);
    }

    #[test]
    fn other_bytes_are_refused() {
        for case in [NameCase::Sensitive, NameCase::Insensitive] {
            let bytes = layout(case).encode();
            assert_eq!(Layout::decode(&bytes), Some(layout(case)));
            assert_eq!(Layout::folds_names(&bytes), case == NameCase::Insensitive);
            // The record size and the key have other valid values.
            for at in [0, 2, 3, 4, 5, 6, 7, 24, 39] {
                for value in (0..=u8::MAX).filter(|value| *value != bytes[at]) {
                    let mut other = bytes;
                    other[at] = value;
                    assert_eq!(Layout::decode(&other), None, "{value} at {at}");
                    assert!(!Layout::folds_names(&other));
                }
            }
            let mut other = bytes;
            other[1] = 9;
            assert_eq!(Layout::decode(&other), None, "no record size");
        }
    }
}
