//! GETATTR, SETATTR, ACCESS, READLINK, READ, WRITE, COMMIT.
//!
//! Spec: RFC 1813 sections 3.3.1, 3.3.2, 3.3.4 to 3.3.7 and 3.3.21.
//!
//! Invariant: data is acknowledged as stable only after a sync.

use weir_format::files::{FileType, TimeStamp};
use weir_fs::{Allowed, Attributes, BeforeAfter, Changed, FsError};
use weir_nfs_wire::nfs3::{
    AccessArgs, AccessResok, CommitArgs, CommitResok, GetattrResok, Nfsstat3, Nfstime3, ReadArgs,
    ReadlinkResok, SetattrArgs, StableHow, WriteArgs, WriteResok, access, encode_read_head,
};
use weir_oncrpc::{Encoder, Opaque, Xdr};
use weir_pool::PlantedBug;

use crate::attributes::set_attributes;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::procedures::at::{At, put, put_error, put_status};
use crate::procedures::view::View;

pub(super) async fn getattr(at: &At, out: &mut Encoder<'_>) {
    match at.attributes().await {
        Ok(attributes) => put(out, &GetattrResok { attributes: at.fattr(&attributes) }),
        Err(error) => put_error(out, &error, ()),
    }
}

pub(super) async fn setattr(at: &At, args: &SetattrArgs<'_>, out: &mut Encoder<'_>) {
    let requested = set_attributes(&args.new_attributes, at.files().time());
    let Some((changes, sets_now)) = requested else {
        return put_status(out, Nfsstat3::Inval, at.known_wcc().await);
    };
    let is_expected = |ctime: TimeStamp| {
        let now = Nfstime3::saturating_from(ctime.seconds, ctime.nanos);
        args.guard.is_none_or(|guard| guard == now)
    };
    let user = at.user.credentials();
    let set = at.files().set_attributes_for(&user, at.inode, (&changes, sets_now), &is_expected);
    let set = set.await;
    if let Ok(change) = &set {
        at.changed(|| of_attributes(change)).await;
    }
    match at.durable(set, |_| at.inode.number).await {
        Ok(change) => put(out, &at.wcc(&change)),
        Err(error) => put_error(out, &error, at.known_wcc().await),
    }
}

/// Description of a change of attributes. A new size changes the data from the smaller size on: the
/// bytes after the old end become zero.
pub(super) fn of_attributes(change: &BeforeAfter) -> Changed {
    let BeforeAfter { before, after } = change;
    if before.size == after.size {
        Changed::default().inode(after.number)
    } else {
        Changed::default().data(after.number, before.size.min(after.size)..u64::MAX)
    }
}

/// Description of a write of some bytes. After a write behind the end of the file, the bytes
/// between the old end and the offset are zero.
fn of_write(change: &BeforeAfter, offset: u64, bytes: u64) -> Changed {
    if bytes == 0 {
        return Changed::default();
    }
    let data = offset.min(change.before.size)..offset.saturating_add(bytes);
    Changed::default().data(change.after.number, data)
}

/// Returns the attributes of the inode of the call, and the rights of the user on it. Every user
/// may read the directories above the snapshots.
async fn allowed(at: &At) -> Result<(Attributes, Allowed), FsError> {
    match &at.view {
        View::Virtual(..) => {
            let rights = Allowed { reads: true, looks_up: true, ..Allowed::default() };
            Ok((at.attributes().await?, rights))
        }
        View::Own | View::Snapshot(..) => {
            at.files().allowed(&at.user.credentials(), at.inode).await
        }
    }
}

pub(super) async fn access(at: &At, args: &AccessArgs<'_>, out: &mut Encoder<'_>) {
    let (attributes, allowed) = match allowed(at).await {
        Ok(found) => found,
        Err(error) => return put_error(out, &error, at.known().await),
    };
    let Allowed { reads, looks_up, modifies, extends, deletes, executes } = allowed;
    let changes = at.user.writes && at.is_own();
    let bits = [
        (reads, access::READ),
        (looks_up, access::LOOKUP),
        (modifies && changes, access::MODIFY),
        (extends && changes, access::EXTEND),
        (deletes && changes, access::DELETE),
        (executes, access::EXECUTE),
    ];
    let granted = bits.iter().filter(|(is_allowed, _)| *is_allowed);
    let access = granted.fold(0, |granted, (_, bit)| granted | bit) & args.access;
    put(out, &AccessResok { attributes: Some(at.fattr(&attributes)), access });
}

pub(super) async fn readlink(at: &At, out: &mut Encoder<'_>) {
    match at.files().read_link_of(at.inode).await {
        Ok((target, attributes)) => {
            let attributes = Some(at.fattr(&attributes));
            match Opaque::new(&target) {
                Ok(target) => put(out, &ReadlinkResok { attributes, target }),
                Err(_) => put_status(out, Nfsstat3::Serverfault, attributes),
            }
        }
        Err(error) => put_error(out, &error, at.known().await),
    }
}

pub(super) async fn read(at: &At, args: &ReadArgs<'_>, out: &mut Encoder<'_>) {
    let bytes = args.count.min(TRANSFER_BYTES_MAX) as usize;
    let user = at.user.credentials();
    match at.files().read_for(&user, at.inode, (args.offset, bytes)).await {
        Ok((data, attributes)) => {
            let end = args.offset.saturating_add(data.len() as u64);
            at.bytes.set(data.len() as u64);
            let (is_end, attributes) = (end >= attributes.size, Some(at.fattr(&attributes)));
            // The sender appends the data and its padding.
            let _padding = encode_read_head(out, &attributes, data.len(), is_end);
            at.data.set(data);
        }
        Err(error) => put_error_of_data(&error, at.known().await, out),
    }
}

pub(super) async fn write(at: &At, args: &WriteArgs<'_>, out: &mut Encoder<'_>) {
    // RFC 1813 section 3.3.7 lets the server write fewer bytes than the client sent.
    let count = args.data.bytes().len().min(args.count as usize).min(TRANSFER_BYTES_MAX as usize);
    let data = args.data.bytes().get(..count).unwrap_or_default();
    let user = at.user.credentials();
    let written = at.files().write_for(&user, at.inode, (args.offset, data)).await;
    if let Ok(change) = &written {
        at.changed(|| of_write(change, args.offset, count as u64)).await;
    }
    let written = match written {
        Ok(change) if args.stable != StableHow::Unstable => {
            let synced = match at.files().bug() {
                PlantedBug::FileSyncNotSynced => Ok(()),
                _ => at.files().sync(at.inode.number).await,
            };
            synced.map(|()| (change, StableHow::FileSync))
        }
        written => written.map(|change| (change, StableHow::Unstable)),
    };
    match written {
        Ok((change, committed)) => {
            at.bytes.set(count as u64);
            let (wcc, verifier) = (at.wcc(&change), at.share.verifier);
            put(out, &WriteResok { wcc, count: count as u32, committed, verifier });
        }
        Err(error) => put_error_of_data(&error, at.known_wcc().await, out),
    }
}

/// Appends the error of a READ or WRITE: NFS3ERR_INVAL for an inode that is no file (RFC 1813
/// section 3.3.6).
fn put_error_of_data<'a>(error: &FsError, info: impl Xdr<'a>, out: &mut Encoder<'_>) {
    match error {
        FsError::IsDirectory => put_status(out, Nfsstat3::Inval, info),
        error => put_error(out, error, info),
    }
}

pub(super) async fn commit(at: &At, _args: &CommitArgs<'_>, out: &mut Encoder<'_>) {
    // All data of the file becomes durable, which includes the range of the call.
    let committed = match at.files().attributes_of(at.inode).await {
        Ok(attributes) if attributes.file_type == FileType::Regular => {
            at.files().sync(at.inode.number).await
        }
        Ok(_) => Err(FsError::Invalid("not a file")),
        Err(error) => Err(error),
    };
    let wcc = at.known_wcc().await;
    match committed {
        Ok(()) => put(out, &CommitResok { wcc, verifier: at.share.verifier }),
        Err(error) => put_error(out, &error, wcc),
    }
}
