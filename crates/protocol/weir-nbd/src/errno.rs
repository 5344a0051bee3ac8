//! Maps error kinds to NBD error values.
//!
//! The error kinds are in weir-base, the NBD error values in `wire`.
//!
//! Invariant: no error kind maps to 0, because 0 means success.

use weir_base::ErrorKind;

use crate::wire::Errno;

/// NBD error value for an error kind.
pub const fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Invalid => Errno::Inval,
        ErrorKind::NoSpace => Errno::NoSpc,
        ErrorKind::ReadOnly | ErrorKind::Permission => Errno::Perm,
        // NBD has no error value for "not found" or "busy"; clients treat EIO as a permanent error.
        ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Busy
        | ErrorKind::Unavailable
        | ErrorKind::Data
        | ErrorKind::Poisoned
        | ErrorKind::Internal => Errno::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_kind_has_its_errno() {
        for kind in ErrorKind::ALL {
            let expected = match kind.name() {
                "invalid" => 22,
                "no_space" => 28,
                "read_only" | "permission" => 1,
                _ => 5,
            };
            assert_eq!(errno(kind) as u32, expected, "{kind:?}");
        }
    }
}
