//! The one list of error kinds that every crate's errors fold into at a border.
//!
//! Not here: the errors themselves (one `thiserror` enum per crate) and the codes of protocols
//! (each border holds one exhaustive match from kind to code).
//!
//! Invariant: a kind tells the user what to do; a new kind is added only where the advice differs.

/// What went wrong, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong: correct it.
    Invalid,
    /// What was named does not exist: check the name.
    NotFound,
    /// What was to be made is there already: pick another name, or use what is there.
    Exists,
    /// In use by somebody else: stop that use first.
    Busy,
    /// No room: free space or add disks. Reads and TRIM still work.
    NoSpace,
    /// The thing may only be read: make it writable, or write elsewhere.
    ReadOnly,
    /// A disk or the service cannot be reached now: look at its state, then try again.
    Unavailable,
    /// Stored data is damaged beyond what redundancy repairs: restore it from a copy.
    Data,
    /// The pool was shut after a failure to keep acknowledged data safe: look at its disks and
    /// import it again.
    Poisoned,
    /// The caller may not do this: run with more rights or change the file's mode.
    Permission,
    /// A fault in Weir: report it.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of the documentation table.
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

    /// The kind's name as JSON and logs print it.
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
