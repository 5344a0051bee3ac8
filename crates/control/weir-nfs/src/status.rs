//! Status codes of NFSv3 and MOUNT for errors of weir-fs.
//!
//! Invariant: only an inode that does not exist any more is NFS3ERR_STALE, because clients drop the
//! unwritten data of a stale file.

use std::time::Duration;

use weir_base::LogLimiter;
use weir_dataset::DatasetError;
use weir_fs::FsError;
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::Nfsstat3;

/// Interval for log lines about failed calls. A client that reads a damaged file in a loop must not
/// fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the status for an error of weir-fs (RFC 1813 section 2.6). Logs errors that show a fault
/// of the pool, at a limited rate.
pub fn status(error: &FsError) -> Nfsstat3 {
    static LOG: LogLimiter<()> = LogLimiter::new(LOG_INTERVAL);
    let status = of(error);
    if status == Nfsstat3::Io
        && let Some(more) = LOG.pass(())
    {
        tracing::warn!(%error, more, "a call of an NFS client fails");
    }
    status
}

fn of(error: &FsError) -> Nfsstat3 {
    match error {
        FsError::NotFound => Nfsstat3::Noent,
        FsError::Exists | FsError::AttributeExists => Nfsstat3::Exist,
        FsError::NotDirectory => Nfsstat3::Notdir,
        FsError::IsDirectory => Nfsstat3::Isdir,
        FsError::NotEmpty => Nfsstat3::Notempty,
        FsError::NameTooLong => Nfsstat3::Nametoolong,
        FsError::NotUnicode | FsError::Invalid(_) | FsError::NoAttribute => Nfsstat3::Inval,
        FsError::AttributeTooLarge | FsError::Full(_) => Nfsstat3::Nospc,
        FsError::TooManyLinks => Nfsstat3::Mlink,
        FsError::TooLarge => Nfsstat3::Fbig,
        FsError::NotPermitted(_) => Nfsstat3::Perm,
        FsError::AccessDenied(_) => Nfsstat3::Acces,
        FsError::Stale => Nfsstat3::Stale,
        FsError::Changed => Nfsstat3::NotSync,
        FsError::NotSupported(_) => Nfsstat3::Notsupp,
        FsError::Quota(_) => Nfsstat3::Dquot,
        FsError::OtherProject => Nfsstat3::Xdev,
        FsError::Reserved => Nfsstat3::Rofs,
        FsError::TooManyOpens => Nfsstat3::Jukebox,
        FsError::Dataset(error) => of_dataset(error),
        // NFS3ERR_IO covers damaged inodes, and errors of newer versions of weir-fs.
        _ => Nfsstat3::Io,
    }
}

fn of_dataset(error: &DatasetError) -> Nfsstat3 {
    match error {
        DatasetError::Full { .. } | DatasetError::CannotReserve { .. } => Nfsstat3::Nospc,
        DatasetError::Quota { .. } => Nfsstat3::Dquot,
        DatasetError::WritesRefused { .. } | DatasetError::ReadOnly { .. } => Nfsstat3::Rofs,
        _ => Nfsstat3::Io,
    }
}

/// Returns the status of MNT for an error of weir-fs (RFC 1813 section 5.1.5).
pub fn mount_status(error: &FsError) -> Mountstat3 {
    match status(error) {
        Nfsstat3::Noent | Nfsstat3::Stale => Mountstat3::Noent,
        Nfsstat3::Notdir => Mountstat3::Notdir,
        Nfsstat3::Nametoolong => Mountstat3::Nametoolong,
        Nfsstat3::Acces | Nfsstat3::Perm => Mountstat3::Acces,
        Nfsstat3::Inval => Mountstat3::Inval,
        Nfsstat3::Io => Mountstat3::Io,
        _ => Mountstat3::Serverfault,
    }
}

#[cfg(test)]
mod tests {
    use weir_format::files::OwnerKind;

    use super::*;

    #[test]
    fn each_error_has_its_status() {
        let name = || "tank/home".to_owned();
        let table = [
            (FsError::NotFound, Nfsstat3::Noent),
            (FsError::Exists, Nfsstat3::Exist),
            (FsError::NotDirectory, Nfsstat3::Notdir),
            (FsError::IsDirectory, Nfsstat3::Isdir),
            (FsError::NotEmpty, Nfsstat3::Notempty),
            (FsError::NameTooLong, Nfsstat3::Nametoolong),
            (FsError::NotUnicode, Nfsstat3::Inval),
            (FsError::TooManyLinks, Nfsstat3::Mlink),
            (FsError::TooLarge, Nfsstat3::Fbig),
            (FsError::NotPermitted(""), Nfsstat3::Perm),
            (FsError::AccessDenied(""), Nfsstat3::Acces),
            (FsError::Stale, Nfsstat3::Stale),
            (FsError::Changed, Nfsstat3::NotSync),
            (FsError::NotSupported(""), Nfsstat3::Notsupp),
            (FsError::Quota(OwnerKind::User), Nfsstat3::Dquot),
            (FsError::OtherProject, Nfsstat3::Xdev),
            (FsError::Reserved, Nfsstat3::Rofs),
            (FsError::TooManyOpens, Nfsstat3::Jukebox),
            (FsError::Full(""), Nfsstat3::Nospc),
            (FsError::Damaged { inode: 1, what: String::new() }, Nfsstat3::Io),
            (
                FsError::Dataset(DatasetError::Quota { name: name(), quota_bytes: 1 }),
                Nfsstat3::Dquot,
            ),
        ];
        for (error, expected) in table {
            assert_eq!(status(&error), expected, "{error}");
        }
    }

    #[test]
    fn mount_of_a_path_that_is_gone_says_that_it_does_not_exist() {
        let table = [
            (FsError::NotFound, Mountstat3::Noent),
            (FsError::Stale, Mountstat3::Noent),
            (FsError::NotDirectory, Mountstat3::Notdir),
            (FsError::AccessDenied(""), Mountstat3::Acces),
            (FsError::NameTooLong, Mountstat3::Nametoolong),
            (FsError::TooManyLinks, Mountstat3::Serverfault),
        ];
        for (error, expected) in table {
            assert_eq!(mount_status(&error), expected, "{error}");
        }
    }
}
