//! Compression as settings name it.
//!
//! Not here: compressing (weir-codec).
//!
//! Invariant: zstd supports each level.

/// How hard the compressor tries: 1 (fast) to 19 (small).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The fastest.
    pub const MIN: Self = Self(1);
    /// What `zstd` alone means, as with the tool of that name.
    pub const DEFAULT: Self = Self(3);
    /// The smallest; higher ones want windows that no block fills.
    pub const MAX: Self = Self(19);

    /// A level, if there is one of this number.
    pub const fn new(level: u8) -> Option<Self> {
        if Self::MIN.0 <= level && level <= Self::MAX.0 { Some(Self(level)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// All of them, fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::MIN.0..=Self::MAX.0).map(Self)
    }
}
