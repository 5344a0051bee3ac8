//! Which NBD error number stands for which kind of error.
//!
//! Not here: the kinds (weir-base), the numbers (`wire`).
//!
//! Invariant: no kind has the number 0.

use weir_base::ErrorKind;

use crate::wire::Errno;

/// The number a client gets for each kind of error.
pub const fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Invalid => Errno::Inval,
        ErrorKind::NoSpace => Errno::NoSpc,
        ErrorKind::ReadOnly | ErrorKind::Permission => Errno::Perm,
        // NBD has no number for "not there" or "busy", and its clients treat EIO as final.
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
    fn each_kind_has_its_number() {
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
