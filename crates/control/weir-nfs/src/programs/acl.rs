//! NFSACL version 3: POSIX ACLs.
//!
//! Spec: Linux `fs/nfsd/nfs3acl.c`; acl(5).
//!
//! Invariant: an inode without an ACL shows the entries of its permission bits.

use weir_format::files::{Acl, AclEntry, AclTag, FileType};
use weir_fs::{Attributes, Changed, FsError};
use weir_nfs_wire::nfs3::{FileHandle, Nfsstat3, PostOpAttr};
use weir_nfs_wire::nfsacl::{
    AclEntries, AclEntry as WireEntry, Args, GetaclArgs, GetaclResok, Secattr, SetaclArgs,
    SetaclResok, mask, tag,
};
use weir_oncrpc::Encoder;
use weir_oncrpc::message::AuthStat;

use crate::procedures::at::{At, put, put_error, put_status};
use crate::procedures::dispatch::{Caller, Stop, resolve};
use crate::procedures::view::View;
use crate::share::Shares;

/// Runs a procedure of NFSACL and appends its results.
///
/// # Errors
/// The server denies the call: the credential is not accepted.
pub(crate) async fn run(
    shares: &Shares,
    caller: &Caller<'_>,
    args: &Args<'_>,
    out: &mut Encoder<'_>,
) -> Result<(), AuthStat> {
    let handle: FileHandle<'_> = match args {
        Args::Null(()) => return Ok(()),
        Args::Getacl(args) => args.object,
        Args::Setacl(args) => args.object,
    };
    let at = match resolve(shares, caller, (&handle, args.procedure().effect())).await {
        Ok(at) => at,
        Err(Stop::Auth(stat)) => return Err(stat),
        Err(Stop::Status(status)) => {
            put_status(out, status, PostOpAttr::None);
            return Ok(());
        }
    };
    match args {
        Args::Null(()) => {}
        Args::Getacl(args) => getacl(&at, args, out).await,
        Args::Setacl(args) => setacl(&at, args, out).await,
    }
    Ok(())
}

async fn getacl(at: &At, args: &GetaclArgs<'_>, out: &mut Encoder<'_>) {
    if args.mask & !mask::ALL != 0 {
        return put_status(out, Nfsstat3::Inval, at.known().await);
    }
    let found = match at.view {
        View::Virtual(..) => at.attributes().await.map(|found| (found, [None, None])),
        View::Own | View::Snapshot(..) => at.files().acls_of(at.inode).await,
    };
    let (attributes, [access, default]) = match found {
        Ok(found) => found,
        Err(error) => return put_error(out, &error, at.known().await),
    };
    let access = access.map_or_else(|| of_permissions(&attributes), |acl| wire(&acl, 0));
    let default = default.map_or_else(Vec::new, |acl| wire(&acl, tag::DEFAULT));
    let (Ok(access), Ok(default)) = (AclEntries::new(access), AclEntries::new(default)) else {
        return put_status(out, Nfsstat3::Serverfault, Some(at.fattr(&attributes)));
    };
    let acls = Secattr::new(args.mask, access, default);
    put(out, &GetaclResok { attributes: Some(at.fattr(&attributes)), acls });
}

async fn setacl(at: &At, args: &SetaclArgs<'_>, out: &mut Encoder<'_>) {
    match set(at, &args.acls).await {
        Ok(attributes) => put(out, &SetaclResok { attributes: Some(at.fattr(&attributes)) }),
        Err(error) => put_error(out, &error, at.known().await),
    }
}

async fn set(at: &At, acls: &Secattr) -> Result<Attributes, FsError> {
    let mut attributes = at.files().attributes_of(at.inode).await?;
    let is_directory = attributes.file_type == FileType::Directory;
    // Both ACLs are decoded before the first one changes.
    let access = if acls.mask & mask::ACL != 0 { Some(stored(&acls.acl)?) } else { None };
    let default = if acls.mask & mask::DEFAULT_ACL != 0 && is_directory {
        Some(stored(&acls.default_acl)?)
    } else {
        None
    };
    let user = at.user.credentials();
    let mut failed = None;
    for (is_default, acl) in [(false, access), (true, default)] {
        let Some(acl) = acl else { continue };
        match at.files().set_acl_for(&user, at.inode, (is_default, acl.as_deref())).await {
            Ok(after) => attributes = after,
            // There was no ACL to remove.
            Err(FsError::NoAttribute) => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // Also after an error: the set-group-id bit or the first ACL may have changed.
    at.changed(|| Changed::default().inode(at.inode.number)).await;
    if let Some(error) = failed {
        return Err(error);
    }
    at.durable(Ok(attributes), |_| at.inode.number).await
}

/// Entries of an ACL in the order of Linux. `flag`: bit of the entries of a default ACL.
fn wire(acl: &Acl, flag: u32) -> Vec<WireEntry> {
    let entry = |entry: &AclEntry| {
        let (tag, id) = match entry.tag {
            AclTag::Owner => (tag::USER_OBJ, 0),
            AclTag::User(uid) => (tag::USER, uid),
            AclTag::OwningGroup => (tag::GROUP_OBJ, 0),
            AclTag::Group(gid) => (tag::GROUP, gid),
            AclTag::Mask => (tag::MASK, 0),
            AclTag::Other => (tag::OTHER, 0),
        };
        WireEntry { tag: tag | flag, id, permissions: u32::from(entry.permissions) }
    };
    acl.entries().iter().map(entry).collect()
}

/// Entries of the permission bits of an inode without an ACL.
fn of_permissions(attributes: &Attributes) -> Vec<WireEntry> {
    let tags = [(tag::USER_OBJ, 6), (tag::GROUP_OBJ, 3), (tag::OTHER, 0)];
    let entry = |(tag, shift): (u32, u32)| WireEntry {
        tag,
        id: 0,
        permissions: attributes.permissions >> shift & 7,
    };
    tags.map(entry).to_vec()
}

/// Encodes the entries of a client for weir-fs; `None` removes the ACL.
fn stored(entries: &AclEntries) -> Result<Option<Vec<u8>>, FsError> {
    const INVALID: FsError = FsError::Invalid("the ACL has an invalid entry");
    if entries.items().is_empty() {
        return Ok(None);
    }
    let of = |entry: &WireEntry| {
        let tag = match entry.tag & !tag::DEFAULT {
            tag::USER_OBJ => AclTag::Owner,
            tag::USER => AclTag::User(entry.id),
            tag::GROUP_OBJ => AclTag::OwningGroup,
            tag::GROUP => AclTag::Group(entry.id),
            tag::MASK => AclTag::Mask,
            tag::OTHER => AclTag::Other,
            _ => return Err(INVALID),
        };
        let permissions = u8::try_from(entry.permissions).ok().filter(|bits| *bits <= 7);
        Ok(AclEntry { tag, permissions: permissions.ok_or(INVALID)? })
    };
    let mut own: Vec<AclEntry> = entries.items().iter().map(of).collect::<Result<_, _>>()?;
    // Solaris and Linux send a mask with the permissions of the group for an ACL without one.
    let is_minimal = own.len() == 4 && own.iter().any(|entry| entry.tag == AclTag::Mask);
    if is_minimal {
        own.retain(|entry| entry.tag != AclTag::Mask);
    }
    Ok(Some(Acl::new(own).map_err(|_| INVALID)?.encode()))
}
