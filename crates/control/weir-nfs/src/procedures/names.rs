//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.
//!
//! Spec: RFC 1813 sections 3.3.3 and 3.3.8 to 3.3.15.
//!
//! Invariant: no name leads out of the share and its snapshots: `..` of its root is the root
//! itself.

use weir_format::files::FileType;
use weir_fs::{
    Attributes, BeforeAfter, Changed, FsError, InodeRef, Looked, NewInode, NewKind, Removed,
    Renamed,
};
use weir_nfs_wire::nfs3::{
    CreateArgs, CreateHow, CreateResok, DirOpArgs, LinkWcc, LookupResok, MkdirArgs, MknodArgs,
    MknodData, Nfsstat3, RenameWcc, Sattr3, Specdata3, SymlinkArgs, WccData,
};
use weir_oncrpc::Encoder;

use crate::attributes::{device_number, set_attributes};
use crate::procedures::at::{At, as_handle, put, put_error, put_status};
use crate::procedures::content::of_attributes;
use crate::procedures::snapshots;
use crate::procedures::view::View;
use crate::status::status;

pub(super) async fn lookup(at: &At, args: &DirOpArgs<'_>, out: &mut Encoder<'_>) {
    // The root has no parent inside the share.
    let name = match args.name.bytes() {
        b".." if at.is_root() => b".",
        name => name,
    };
    let leads_up = name == b".." && at.is_snapshot_root();
    if (leads_up || matches!(at.view, View::Virtual(..))) && snapshots::lookup(at, name, out).await
    {
        return;
    }
    match at.files().lookup_for(&at.user.credentials(), at.inode, name).await {
        Err(FsError::NotFound) if at.is_own() && snapshots::lookup(at, name, out).await => {}
        Ok(Looked { found, directory }) => put(
            out,
            &LookupResok {
                object: as_handle(&at.handle(InodeRef::from(&found))),
                attributes: Some(at.fattr(&found)),
                dir_attributes: Some(at.fattr(&directory)),
            },
        ),
        Err(error) => put_error(out, &error, at.known().await),
    }
}

/// Attributes of a created inode, and of the directory if the call changed it.
type New = (Attributes, Option<BeforeAfter>);

pub(super) async fn create(at: &At, args: &CreateArgs<'_>, out: &mut Encoder<'_>) {
    let name = args.place.name.bytes();
    let made = match args.how {
        CreateHow::Exclusive(verifier) => {
            let call = (name, u64::from_le_bytes(verifier));
            let made = at.files().create_exclusive(&at.user.credentials(), at.inode, call).await;
            if let Ok((inode, Some(_))) = &made {
                at.changed(|| of_name(at, name).inode(inode.number)).await;
            }
            made
        }
        CreateHow::Guarded(requested) => make(at, (name, NewKind::File), &requested).await,
        CreateHow::Unchecked(requested) => create_or_open(at, name, &requested).await,
    };
    put_new(at, made, out).await;
}

/// Description of a change of a name in the directory of the call.
fn of_name(at: &At, name: &[u8]) -> Changed {
    Changed::default().name(at.inode.number, name)
}

/// Creates a file, or changes the size of the existing one. Each of the two is atomic. If the file
/// disappears between them, the call begins again.
async fn create_or_open(at: &At, name: &[u8], requested: &Sattr3) -> Result<New, FsError> {
    const ATTEMPTS_MAX: usize = 16;
    for _ in 0..ATTEMPTS_MAX {
        match make(at, (name, NewKind::File), requested).await {
            Err(FsError::Exists) => {}
            made => return made,
        }
        let user = at.user.credentials();
        let Looked { found, .. } = match at.files().lookup_for(&user, at.inode, name).await {
            Err(FsError::NotFound) => continue,
            found => found?,
        };
        match found.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Exists),
        }
        let Some(size) = requested.size else { return Ok((found, None)) };
        // Of the attributes only the size is for an existing file, as for open(2) with O_TRUNC.
        let only_size = Sattr3 { size: Some(size), ..Sattr3::default() };
        let (changes, _) = set_attributes(&only_size, at.files().time()).expect("no time");
        let inode = InodeRef::from(&found);
        let set = at.files().set_attributes_for(&user, inode, (&changes, true), &|_| true);
        match set.await {
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
            Ok(change) => {
                at.changed(|| of_attributes(&change)).await;
                return Ok((change.after, None));
            }
        }
    }
    Err(FsError::Exists)
}

pub(super) async fn mkdir(at: &At, args: &MkdirArgs<'_>, out: &mut Encoder<'_>) {
    let new = (args.place.name.bytes(), NewKind::Directory);
    put_new(at, make(at, new, &args.attributes).await, out).await;
}

pub(super) async fn symlink(at: &At, args: &SymlinkArgs<'_>, out: &mut Encoder<'_>) {
    let new = (args.place.name.bytes(), NewKind::Symlink(args.target.bytes()));
    // The permission bits of a link have no meaning; Linux shows them as 0777.
    let attributes = Sattr3 { mode: Some(0o777), ..args.attributes };
    put_new(at, make(at, new, &attributes).await, out).await;
}

pub(super) async fn mknod(at: &At, args: &MknodArgs<'_>, out: &mut Encoder<'_>) {
    let none = Specdata3::default();
    let (file_type, attributes, device) = match args.what {
        MknodData::CharacterDevice(attributes, device) => {
            (FileType::CharDevice, attributes, device)
        }
        MknodData::BlockDevice(attributes, device) => (FileType::BlockDevice, attributes, device),
        MknodData::Socket(attributes) => (FileType::Socket, attributes, none),
        MknodData::Fifo(attributes) => (FileType::Fifo, attributes, none),
        MknodData::Other(_) => {
            return put_status(out, Nfsstat3::Badtype, at.known_wcc().await);
        }
    };
    let Some(device) = device_number(device) else {
        return put_status(out, Nfsstat3::Inval, at.known_wcc().await);
    };
    let new = (args.place.name.bytes(), NewKind::Special(file_type, device));
    put_new(at, make(at, new, &attributes).await, out).await;
}

/// Creates an inode with the attributes that the client requests. The mode comes with the inode;
/// the other attributes are set before the reply.
async fn make(
    at: &At,
    (name, kind): (&[u8], NewKind<'_>),
    requested: &Sattr3,
) -> Result<New, FsError> {
    let user = at.user.credentials();
    let directory = kind == NewKind::Directory;
    let default = if directory { 0o777 } else { 0o666 };
    let permissions = requested.mode.unwrap_or(default);
    let new = NewInode { kind, permissions, umask: 0, uid: user.uid, gid: user.gid };
    let invalid = FsError::Invalid("a time with more than 999,999,999 nanoseconds");
    let rest = Sattr3 { mode: None, ..*requested };
    let (changes, sets_now) = set_attributes(&rest, at.files().time()).ok_or(invalid)?;
    let created = at.files().create_for(&user, at.inode, (name, &new)).await?;
    let number = created.inode.number;
    let nothing = Sattr3 { size: rest.size.filter(|size| *size > 0), ..rest };
    if nothing == Sattr3::default() {
        at.changed(|| of_name(at, name).inode(number)).await;
        return Ok((created.inode, Some(created.directory)));
    }
    let inode = InodeRef::from(&created.inode);
    // A user may not give a file away. The file stays, as with a server that ignores the owner.
    let set = at.files().set_attributes_for(&user, inode, (&changes, sets_now), &|_| true).await;
    // Other programs can see the inode since its creation. The new size changes its data.
    at.changed(|| of_name(at, name).data(number, 0..u64::MAX)).await;
    Ok((set.map_or(created.inode, |change| change.after), Some(created.directory)))
}

/// Makes a new inode durable and appends the result.
async fn put_new(at: &At, made: Result<New, FsError>, out: &mut Encoder<'_>) {
    match at.durable(made, |(inode, _)| inode.number).await {
        Ok((inode, directory)) => {
            let dir_wcc = match directory {
                Some(change) => at.wcc(&change),
                None => at.known_wcc().await,
            };
            put(
                out,
                &CreateResok {
                    object: Some(as_handle(&at.handle(InodeRef::from(&inode)))),
                    attributes: Some(at.fattr(&inode)),
                    dir_wcc,
                },
            );
        }
        Err(error) => put_error(out, &error, at.known_wcc().await),
    }
}

pub(super) async fn remove(
    at: &At,
    args: &DirOpArgs<'_>,
    is_directory: bool,
    out: &mut Encoder<'_>,
) {
    let user = at.user.credentials();
    let place = (at.inode, args.name.bytes());
    let removed = at.files().remove_by(&user, place, is_directory).await;
    if let Ok(Removed { inode, .. }) = &removed {
        at.changed(|| of_name(at, args.name.bytes()).inode(*inode)).await;
    }
    match at.durable(removed, |_| at.inode.number).await {
        Ok(removed) => put(out, &at.wcc(&removed.directory)),
        Err(error) => put_error(out, &error, at.known_wcc().await),
    }
}

/// Renames a name of the directory `at` to a name of the directory `to` of the same share.
pub(super) async fn rename(
    at: &At,
    old_name: &[u8],
    (to, new_name): (Result<InodeRef, Nfsstat3>, &[u8]),
    out: &mut Encoder<'_>,
) {
    let user = at.user.credentials();
    let known = async |to: Option<InodeRef>| {
        let to_dir = match to {
            Some(inode) => at.files().attributes_of(inode).await.ok(),
            None => None,
        };
        let after = to_dir.map(|attributes| at.fattr(&attributes));
        RenameWcc { from_dir: at.known_wcc().await, to_dir: WccData { before: None, after } }
    };
    let to = match to {
        Ok(to) => to,
        Err(status) => return put_status(out, status, known(None).await),
    };
    let renamed = at.files().rename_by(&user, (at.inode, old_name), (to, new_name)).await;
    if let Ok(Renamed { inodes: Some((moved, replaced)), .. }) = &renamed {
        let names = || of_name(at, old_name).name(to.number, new_name).inode(*moved);
        at.changed(|| replaced.iter().fold(names(), |all, number| all.inode(*number))).await;
    }
    match at.durable(renamed, |_| to.number).await {
        Ok(change) => {
            put(out, &RenameWcc { from_dir: at.wcc(&change.from), to_dir: at.wcc(&change.to) });
        }
        Err(error) => put_status(out, status(&error), known(Some(to)).await),
    }
}

/// Adds a name in the directory `to` of the same share to the inode `at`.
pub(super) async fn link(
    at: &At,
    (to, name): (Result<InodeRef, Nfsstat3>, &[u8]),
    out: &mut Encoder<'_>,
) {
    let user = at.user.credentials();
    let known = async || LinkWcc { attributes: at.known().await, dir_wcc: WccData::default() };
    let to = match to {
        Ok(to) => to,
        Err(status) => return put_status(out, status, known().await),
    };
    let linked = at.files().link_by(&user, at.inode, (to, name)).await;
    if linked.is_ok() {
        at.changed(|| Changed::default().name(to.number, name).inode(at.inode.number)).await;
    }
    match at.durable(linked, |_| at.inode.number).await {
        Ok(created) => put(
            out,
            &LinkWcc {
                attributes: Some(at.fattr(&created.inode)),
                dir_wcc: at.wcc(&created.directory),
            },
        ),
        Err(error) => put_error(out, &error, known().await),
    }
}
