//! The error kinds to which the errors of all crates are mapped at an interface.
//!
//! Each crate has one `thiserror` enum for its errors. Each interface has one exhaustive match from
//! kind to its own code.
//!
//! Invariant: a kind tells the user what to do. A new kind is added only if it needs different
//! advice.

/// Kind of an error, by the action that the caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong: correct it.
    Invalid,
    /// The named object does not exist: check the name.
    NotFound,
    /// An object to be created exists already: choose another name, or use the existing object.
    Exists,
    /// In use by another user or operation: stop that use first.
    Busy,
    /// No space: free space or add disks. Reads and TRIM still work.
    NoSpace,
    /// The object is read-only: make it writable, or write to another one.
    ReadOnly,
    /// A disk or the service is unreachable: check its state, then try again.
    Unavailable,
    /// Stored data is damaged beyond repair by redundancy: restore it from a copy.
    Data,
    /// The pool was suspended after a failure to keep acknowledged data safe: check its disks and
    /// import it again.
    Poisoned,
    /// The caller lacks permission: use an account with more rights or change the mode of the file.
    Permission,
    /// A bug in Weir: report it.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order of the documentation table.
    pub const ALL: [Self; 11] = [
        Self::Invalid,
        Self::NotFound,
        Self::Exists,
        Self::Busy,
        Self::NoSpace,
        Self::ReadOnly,
        Self::Unavailable,
        Self::Data,
        Self::Poisoned,
        Self::Permission,
        Self::Internal,
    ];

    /// Name of the kind in JSON and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::Busy => "busy",
            Self::NoSpace => "no_space",
            Self::ReadOnly => "read_only",
            Self::Unavailable => "unavailable",
            Self::Data => "data",
            Self::Poisoned => "poisoned",
            Self::Permission => "permission",
            Self::Internal => "internal",
        }
    }
}
