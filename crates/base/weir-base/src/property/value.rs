//! Types of property values: parsing, display and encoding.
//!
//! The properties are in `table`.
//!
//! Invariants:
//! - [`Value::parse`] accepts the output of [`Value::show`], and [`Value::decode`] the output of
//!   [`Value::encode`];
//! - decoding refuses all other bytes, because the bytes come from disks.

use crate::compression::Compression;
use crate::size;

/// Kind of a property value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A word.
    Word,
    /// A number of bytes.
    Bytes,
    /// A number of bytes; 0 means no limit.
    Limit,
    /// A ratio of two sizes.
    Ratio,
    /// Seconds since 1970.
    Time,
}

/// Type of a property value.
pub trait Value: Sized + 'static {
    /// Kind of the values, in tables.
    const KIND: Kind;

    /// Parses the text form of a value that a user enters.
    fn parse(text: &str) -> Option<Self>;

    /// Exact text form of the value, for programs; sizes are in bytes.
    fn show(&self) -> String;

    /// Encodes the value for on-disk records.
    fn encode(&self) -> Vec<u8>;

    /// Decodes the output of [`Self::encode`].
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A value that is one of a few words.
pub trait Words: Copy + PartialEq + 'static {
    /// All values, each at the index of its code in on-disk records, with their words.
    const ALL: &'static [(Self, &'static str)];

    /// Code of the value.
    fn code(self) -> usize {
        let place = Self::ALL.iter().position(|(value, _)| *value == self);
        place.expect("the list has all values")
    }
}

impl<T: Words> Value for T {
    const KIND: Kind = Kind::Word;

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, word)| *word == text).map(|(value, _)| *value)
    }

    fn show(&self) -> String {
        let (_, word) = Self::ALL[self.code()];
        word.to_owned()
    }

    fn encode(&self) -> Vec<u8> {
        vec![self.code() as u8]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [code] = bytes else { return None };
        Self::ALL.get(usize::from(*code)).map(|(value, _)| *value)
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Word;

    fn parse(text: &str) -> Option<Self> {
        match text {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        if *self { "on".to_owned() } else { "off".to_owned() }
    }

    fn encode(&self) -> Vec<u8> {
        vec![u8::from(*self)]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Value for Compression {
    const KIND: Kind = Kind::Word;

    fn parse(text: &str) -> Option<Self> {
        Self::find(text)
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn encode(&self) -> Vec<u8> {
        vec![self.code()]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [code] => Self::of_code(*code),
            _ => None,
        }
    }
}

/// A number of bytes; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit(pub u64);

impl From<u64> for Limit {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl Value for Limit {
    const KIND: Kind = Kind::Limit;

    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(Self(0)) } else { size::parse(text).ok().map(Self) }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }

    fn encode(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|bytes| Self(u64::from_le_bytes(bytes)))
    }
}

/// Value of `refreservation`: bytes reserved for a volume's own data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreservation {
    /// A fixed number of bytes; 0 means no reservation.
    Bytes(u64),
    /// As much space as the volume can ever use: its size and the nodes of its tree. Directory
    /// entries store the resulting number of bytes.
    Auto,
}

impl Value for Refreservation {
    const KIND: Kind = Kind::Limit;

    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { Limit::parse(text).map(|l| Self::Bytes(l.0)) }
    }

    fn show(&self) -> String {
        match self {
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Auto => "auto".to_owned(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => Limit(*bytes).encode(),
            Self::Auto => Vec::new(),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::Auto);
        }
        Limit::decode(bytes).map(|limit| Self::Bytes(limit.0))
    }
}

/// Value of `atime`: the rule by which reads set the time of the last read of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// No read sets the atime.
    Off,
    /// Each read sets the atime.
    On,
    /// A read sets the atime if the atime is not after the last change, or is older than 24 hours
    /// (mount option `relatime` of Linux).
    #[default]
    Relative,
}

impl Words for AtimePolicy {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Off, "off"), (Self::On, "on"), (Self::Relative, "relative")];
}

/// Value of `snapdir`: whether the root of a filesystem lists the directory `.weir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotVisibility {
    /// The root does not list `.weir`. A lookup of the name finds the directory.
    #[default]
    Hidden,
    /// The root lists `.weir`.
    Visible,
}

impl Words for SnapshotVisibility {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Hidden, "hidden"), (Self::Visible, "visible")];
}

/// Maximum length of a mount point: records store at most 256 bytes of properties of the table.
pub const MOUNTPOINT_BYTES_MAX: usize = 160;

/// Value of `mountpoint`: an absolute directory, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountPoint(pub Option<String>);

impl MountPoint {
    /// Checks a directory: absolute, below the root, without `.`, `..`, empty parts and control
    /// characters.
    ///
    /// # Errors
    /// The rule that the directory breaks.
    pub fn check(directory: &str) -> Result<(), &'static str> {
        let parts = || directory.split('/').skip(1);
        if !directory.starts_with('/') {
            Err("must be an absolute path, such as /srv/home")
        } else if directory == "/" {
            Err("cannot be the root directory")
        } else if parts().any(|part| part.is_empty() || part == "." || part == "..") {
            Err("has an empty part, '.' or '..'")
        } else if directory.contains(char::is_control) {
            Err("contains a control character")
        } else if directory.len() > MOUNTPOINT_BYTES_MAX {
            Err("has more than 160 bytes")
        } else {
            Ok(())
        }
    }
}

impl Value for MountPoint {
    const KIND: Kind = Kind::Word;

    fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self(None));
        }
        Self::check(text).ok().map(|()| Self(Some(text.to_owned())))
    }

    fn show(&self) -> String {
        self.0.clone().unwrap_or_else(|| "none".to_owned())
    }

    fn encode(&self) -> Vec<u8> {
        self.0.clone().unwrap_or_default().into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self(None));
        }
        Self::parse(std::str::from_utf8(bytes).ok()?).filter(|value| value.0.is_some())
    }
}
