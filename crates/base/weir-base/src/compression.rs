//! Values of the `compression` property.
//!
//! weir-codec has the compressors.
//!
//! Invariants:
//! - zstd supports each level that this file defines;
//! - an on-disk code never gets another meaning in a later version.

/// Compression level of zstd: 1 (fast) to 19 (small).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The fastest level.
    pub const MIN: Self = Self(1);
    /// Level of the property value `zstd`; also the default of the `zstd` tool.
    pub const DEFAULT: Self = Self(3);
    /// The level with the best ratio. The levels above it use windows that are larger than any
    /// block.
    pub const MAX: Self = Self(19);

    /// Returns the level with this number, if it exists.
    pub const fn new(level: u8) -> Option<Self> {
        if Self::MIN.0 <= level && level <= Self::MAX.0 { Some(Self(level)) } else { None }
    }

    /// Number of this level.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// All levels, fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::MIN.0..=Self::MAX.0).map(Self)
    }
}

/// Compression of new blocks of a dataset. Weir stores a block compressed only if the compression
/// saves enough space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    Off,
    /// LZ4.
    Lz4,
    /// LZ4, except while clients would have to wait for the compression.
    Auto,
    /// Zstd at this level.
    Zstd(ZstdLevel),
}

/// The on-disk code of a zstd level is this value plus the level.
const ZSTD_CODE: u8 = 32;

const ZSTD_NAMES: [&str; ZstdLevel::MAX.0 as usize] = [
    "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9",
    "zstd-10", "zstd-11", "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17",
    "zstd-18", "zstd-19",
];

impl Compression {
    /// Text form of the property value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lz4 => "lz4",
            Self::Auto => "auto",
            Self::Zstd(level) => ZSTD_NAMES[level.0 as usize - 1],
        }
    }

    /// Parses the text form of the property value; `zstd` means `zstd-3`.
    pub fn find(text: &str) -> Option<Self> {
        if text == "zstd" {
            return Some(Self::Zstd(ZstdLevel::DEFAULT));
        }
        Self::all().find(|known| known.name() == text)
    }

    /// On-disk code of the value. A code never gets another meaning.
    pub const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Lz4 => 1,
            Self::Auto => 2,
            Self::Zstd(level) => ZSTD_CODE + level.0,
        }
    }

    /// Returns the value for an on-disk code.
    pub const fn of_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Off),
            1 => Some(Self::Lz4),
            2 => Some(Self::Auto),
            ZSTD_CODE.. => match ZstdLevel::new(code - ZSTD_CODE) {
                Some(level) => Some(Self::Zstd(level)),
                None => None,
            },
            _ => None,
        }
    }

    /// All values of the property.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Lz4, Self::Auto, Self::Off].into_iter().chain(ZstdLevel::all().map(Self::Zstd))
    }
}
