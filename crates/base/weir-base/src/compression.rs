//! Compression as settings name it.
//!
//! Not here: compressing (weir-codec).
//!
//! Invariants:
//! - zstd supports each level;
//! - a code on disk is never given another meaning.

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

/// The compression of new blocks of a dataset, where it saves enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    Off,
    /// LZ4.
    Lz4,
    /// LZ4, but not while clients would wait for it.
    Auto,
    /// Zstd of this level.
    Zstd(ZstdLevel),
}

/// The code of zstd is this and its level.
const ZSTD_CODE: u8 = 32;

const ZSTD_NAMES: [&str; ZstdLevel::MAX.0 as usize] = [
    "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9",
    "zstd-10", "zstd-11", "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17",
    "zstd-18", "zstd-19",
];

impl Compression {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lz4 => "lz4",
            Self::Auto => "auto",
            Self::Zstd(level) => ZSTD_NAMES[level.0 as usize - 1],
        }
    }

    /// The value of a word; `zstd` alone is `zstd-3`.
    pub fn find(text: &str) -> Option<Self> {
        if text == "zstd" {
            return Some(Self::Zstd(ZstdLevel::DEFAULT));
        }
        Self::all().find(|known| known.name() == text)
    }

    /// Code on disk; a code is never given another meaning.
    pub const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Lz4 => 1,
            Self::Auto => 2,
            Self::Zstd(level) => ZSTD_CODE + level.0,
        }
    }

    /// The value of a code on disk.
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

    /// Every value.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Lz4, Self::Auto, Self::Off].into_iter().chain(ZstdLevel::all().map(Self::Zstd))
    }
}
