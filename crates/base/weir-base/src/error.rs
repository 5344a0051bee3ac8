//! Error kinds, to which every crate maps its errors at an interface.
//!
//! Each crate has one `thiserror` enum for its errors. Each interface has one exhaustive match from
//! an error kind to the interface's own error code.
//!
//! Invariant: an error kind tells the user what to do. A new kind is added only if it needs
//! different advice.

use std::io;

/// Kind of an error, by the action that the caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is invalid: correct the request.
    Invalid,
    /// The named object does not exist: check the name.
    NotFound,
    /// An object to be created already exists: choose another name, or use the existing object.
    Exists,
    /// Another user or operation uses the object: stop that use first.
    Busy,
    /// No space is left: free space or add disks. Reads and TRIM still work.
    NoSpace,
    /// The object is read-only: make it writable, or write to another object.
    ReadOnly,
    /// A disk or the service is unreachable: check the state of the disk or service, then try
    /// again.
    Unavailable,
    /// Stored data is damaged beyond the repair that redundancy allows: restore it from a backup.
    Data,
    /// The pool was suspended, because a failure put acknowledged data at risk: check the pool's
    /// disks and import the pool again.
    Poisoned,
    /// The caller lacks permission: use an account with more rights, or change the mode of the
    /// file.
    Permission,
    /// A bug in Weir: report it.
    Internal,
}

impl ErrorKind {
    /// All error kinds, in the order of the table in the documentation.
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

    /// Kind of an error of a file, a directory or a disk.
    pub const fn of_file(error: io::ErrorKind) -> Self {
        match error {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::PermissionDenied => Self::Permission,
            io::ErrorKind::AlreadyExists => Self::Exists,
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock => Self::Busy,
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory => Self::Invalid,
            _ => Self::Unavailable,
        }
    }

    /// Name of the error kind in JSON and logs.
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
