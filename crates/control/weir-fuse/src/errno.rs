//! Error numbers of Linux for errors of weir-fs.
//!
//! Invariant: an error without a better number is EIO.

use fuser::Errno;
use weir_dataset::DatasetError;
use weir_fs::FsError;

/// Returns the error number for an error of weir-fs.
pub(crate) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists | FsError::AttributeExists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::NotUnicode => Errno::EILSEQ,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::TooLarge => Errno::EFBIG,
        FsError::NotPermitted(_) => Errno::EPERM,
        FsError::Stale => Errno::ESTALE,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::AttributeTooLarge => Errno::E2BIG,
        FsError::AccessDenied(_) => Errno::EACCES,
        FsError::NotSupported(_) => Errno::EOPNOTSUPP,
        FsError::Quota(_) => Errno::EDQUOT,
        FsError::OtherProject => Errno::EXDEV,
        FsError::Reserved => Errno::EROFS,
        FsError::TooManyOpens => Errno::ENFILE,
        FsError::Full(_) => Errno::ENOSPC,
        FsError::Dataset(error) => of_dataset(error),
        // EIO covers damaged inodes, and errors of newer versions of weir-fs.
        _ => Errno::EIO,
    }
}

fn of_dataset(error: &DatasetError) -> Errno {
    match error {
        DatasetError::Full { .. } | DatasetError::CannotReserve { .. } => Errno::ENOSPC,
        DatasetError::Quota { .. } => Errno::EDQUOT,
        DatasetError::WritesRefused { .. } | DatasetError::ReadOnly { .. } => Errno::EROFS,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use weir_format::files::OwnerKind;

    use super::*;

    #[test]
    fn each_error_has_its_number() {
        let name = || "tank/home".to_owned();
        let table = [
            (FsError::NotFound, Errno::ENOENT),
            (FsError::Exists, Errno::EEXIST),
            (FsError::NotDirectory, Errno::ENOTDIR),
            (FsError::IsDirectory, Errno::EISDIR),
            (FsError::NotEmpty, Errno::ENOTEMPTY),
            (FsError::NameTooLong, Errno::ENAMETOOLONG),
            (FsError::NotUnicode, Errno::EILSEQ),
            (FsError::TooManyLinks, Errno::EMLINK),
            (FsError::Invalid("x"), Errno::EINVAL),
            (FsError::TooLarge, Errno::EFBIG),
            (FsError::NotPermitted("x"), Errno::EPERM),
            (FsError::Stale, Errno::ESTALE),
            (FsError::NoAttribute, Errno::ENODATA),
            (FsError::AttributeExists, Errno::EEXIST),
            (FsError::AttributeTooLarge, Errno::E2BIG),
            (FsError::AccessDenied("x"), Errno::EACCES),
            (FsError::NotSupported("x"), Errno::EOPNOTSUPP),
            (FsError::Quota(OwnerKind::User), Errno::EDQUOT),
            (FsError::OtherProject, Errno::EXDEV),
            (FsError::Reserved, Errno::EROFS),
            (FsError::TooManyOpens, Errno::ENFILE),
            (FsError::Full("x"), Errno::ENOSPC),
            (FsError::Damaged { inode: 16, what: "x".to_owned() }, Errno::EIO),
            (DatasetError::Full { pool: name() }.into(), Errno::ENOSPC),
            (DatasetError::Quota { name: name(), quota_bytes: 1 }.into(), Errno::EDQUOT),
            (DatasetError::WritesRefused { name: name() }.into(), Errno::EROFS),
            (DatasetError::ReadOnly { name: name() }.into(), Errno::EROFS),
            (DatasetError::Destroyed { name: name() }.into(), Errno::EIO),
        ];
        for (error, number) in table {
            assert_eq!(errno(&error).code(), number.code(), "{error}");
        }
    }
}
