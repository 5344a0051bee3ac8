//! Feature flags at the end of the label's body.
//!
//! Not here: setting a flag before the first structure that needs it (weir-pool).
//!
//! Invariants:
//! - a Weir that lacks a flag of [`Features::incompatible`] refuses the label;
//! - a Weir that lacks a flag of [`Features::read_only_compatible`] reads the pool and never writes
//!   to it;
//! - a flag never gets another meaning.

use weir_base::Guid;

use crate::bytes::{Reader, Writer};
use crate::error::FormatError;

/// Incompatible flag: the pool may have datasets with many objects, that is records of kind 20 and
/// 21, summaries with object numbers, and log records of objects.
const OBJECTS: u8 = 0;
/// Incompatible flag: the pool may have case-insensitive filesystems. The keys of names in them
/// depend on tables of Unicode, and a Weir without the feature lacks these.
const FOLDED_NAMES: u8 = 1;

/// Maximum length of a flag's text.
const NEEDS_BYTES_MAX: usize = 64;
/// Incompatible flags that this Weir handles, as bits.
const KNOWN_INCOMPATIBLE: u64 = 1 << OBJECTS | 1 << FOLDED_NAMES;
/// Read-only compatible flags that this Weir handles, as bits.
const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// One flag that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Number of the flag, 0 to 63.
    pub bit: u8,
    /// Text of the error in a Weir without the feature, such as `needs weir 0.4`.
    pub needs: String,
}

/// The flags of a pool. A flag marks a structure on disk that not every Weir of this format version
/// handles. Each flag that is set carries a text that names the version of Weir that is needed, so
/// that an older Weir can print this text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Flags that every reader must know, by number.
    pub incompatible: Vec<Feature>,
    /// Flags that every writer must know, by number.
    pub read_only_compatible: Vec<Feature>,
}

impl Features {
    /// Adds the flag of datasets with many objects.
    pub fn add_objects(&mut self) {
        self.add_incompatible(OBJECTS, "needs weir 0.3");
    }

    /// Adds the flag of case-insensitive filesystems.
    pub fn add_folded_names(&mut self) {
        let needs = "case-insensitive filesystems; needs weir 0.3";
        self.add_incompatible(FOLDED_NAMES, needs);
    }

    fn add_incompatible(&mut self, bit: u8, needs: &str) {
        if !self.has_incompatible(bit) {
            self.incompatible.push(Feature { bit, needs: needs.to_owned() });
            self.incompatible.sort_by_key(|feature| feature.bit);
        }
    }

    fn has_incompatible(&self, bit: u8) -> bool {
        self.incompatible.iter().any(|feature| feature.bit == bit)
    }

    /// True if the flag of datasets with many objects is set.
    pub fn has_objects(&self) -> bool {
        self.has_incompatible(OBJECTS)
    }

    /// True if the flag of case-insensitive filesystems is set.
    pub fn has_folded_names(&self) -> bool {
        self.has_incompatible(FOLDED_NAMES)
    }

    /// Refuses a pool whose structures this Weir cannot write.
    ///
    /// # Errors
    /// `FormatError::Feature`, with the `needs` text of the first flag that this Weir does not
    /// know.
    pub fn check_writable(&self, pool: Guid) -> Result<(), FormatError> {
        check_known(&self.read_only_compatible, KNOWN_READ_ONLY_COMPATIBLE, pool)
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        let sets = [&self.incompatible, &self.read_only_compatible];
        for set in sets {
            w.u64(set.iter().fold(0, |bits, feature| bits | 1 << feature.bit));
        }
        for feature in sets.into_iter().flatten() {
            w.str(&feature.needs);
        }
    }

    /// Decodes the flags of a label.
    ///
    /// # Errors
    /// `Feature`: this Weir cannot read the pool.
    pub(crate) fn read(r: &mut Reader<'_>, pool: Guid) -> Result<Self, FormatError> {
        let bits = [r.u64()?, r.u64()?];
        let mut texts = |bits: u64| {
            let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
            set.map(|bit| {
                let needs = r.str("needs")?;
                let is_text = needs.len() <= NEEDS_BYTES_MAX && !needs.contains(char::is_control);
                if is_text { Ok(Feature { bit, needs }) } else { Err(r.bad("needs", bit)) }
            })
            .collect::<Result<Vec<_>, FormatError>>()
        };
        let found = Self { incompatible: texts(bits[0])?, read_only_compatible: texts(bits[1])? };
        check_known(&found.incompatible, KNOWN_INCOMPATIBLE, pool)?;
        Ok(found)
    }
}

fn check_known(set: &[Feature], known: u64, pool: Guid) -> Result<(), FormatError> {
    let unknown = set.iter().find(|feature| known >> feature.bit & 1 == 0);
    unknown.map_or(Ok(()), |feature| {
        Err(FormatError::Feature { what: "label", needs: feature.needs.as_str().into(), pool })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Weir without a feature prints the text of its flag.
    #[test]
    fn older_weir_names_the_feature_that_it_lacks() {
        let mut features = Features::default();
        features.add_folded_names();
        features.add_objects();
        features.add_folded_names();
        let bits: Vec<u8> = features.incompatible.iter().map(|feature| feature.bit).collect();
        assert_eq!(bits, [0, 1]);
        assert!(features.has_objects() && features.has_folded_names());
        assert_eq!(check_known(&features.incompatible, KNOWN_INCOMPATIBLE, Guid(1)), Ok(()));
        let refused = check_known(&features.incompatible, 1 << OBJECTS, Guid(1)).unwrap_err();
        let text = "lacks: case-insensitive filesystems; needs weir 0.3";
        assert!(refused.to_string().ends_with(text), "{refused}");
        assert!(features.incompatible.iter().all(|flag| flag.needs.len() <= NEEDS_BYTES_MAX));
    }
}
