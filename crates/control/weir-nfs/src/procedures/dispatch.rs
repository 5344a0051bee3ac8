//! Runs the procedure of a call.
//!
//! Invariant: the rights of the client on the share are checked before the procedure runs.

use std::cell::Cell;
use std::net::SocketAddr;

use weir_fs::InodeRef;
use weir_nfs_wire::Effect;
use weir_nfs_wire::nfs3::{
    Args, FileHandle, LinkWcc, Nfsstat3, PostOpAttr, Procedure, RenameWcc, WccData,
};
use weir_oncrpc::Encoder;
use weir_oncrpc::message::{AuthStat, OpaqueAuth};

use crate::handle::Handle;
use crate::procedures::at::{At, put_status};
use crate::procedures::view::View;
use crate::procedures::{content, directories, names, properties};
use crate::share::{Found, Groups, Incident, Refusal, Shares, identify_caller};
use crate::status::status;

/// The client of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'c> {
    pub(crate) address: SocketAddr,
    pub(crate) credential: OpaqueAuth<'c>,
    /// Groups of users, for rules with `manage_gids`.
    pub(crate) groups: &'c Groups,
}

/// Reason why a procedure does not run.
pub(crate) enum Stop {
    Status(Nfsstat3),
    Auth(AuthStat),
}

/// Finds the share and the inode of a handle, and the user of the call.
pub(crate) async fn resolve(
    shares: &Shares,
    caller: &Caller<'_>,
    (handle, effect): (&FileHandle<'_>, Effect),
) -> Result<At, Stop> {
    let bad = Stop::Status(Nfsstat3::Badhandle);
    let Some(id) = Handle::share_of(handle.bytes()) else { return Err(bad) };
    // The key of a share that is gone is gone too, so its handles cannot be checked.
    let share = match shares.get(id) {
        Found::Share(share) => share,
        Found::Waits => return Err(Stop::Status(Nfsstat3::Jukebox)),
        Found::Nothing => {
            shares.incidents.add(caller.address.ip(), Incident::Stale);
            return Err(Stop::Status(Nfsstat3::Stale));
        }
    };
    let is = |incident| share.statistics.incidents.add(caller.address.ip(), incident);
    let stale = || {
        is(Incident::Stale);
        Stop::Status(Nfsstat3::Stale)
    };
    let Some(handle) = share.key.decode(handle.bytes()) else { return Err(bad) };
    if share.fsid != handle.fsid {
        return Err(stale());
    }
    let rules = (&share.rules, caller.groups);
    let user = identify_caller(rules, caller.address, &caller.credential).await;
    let user = user.map_err(|refusal| {
        let stop = match refusal {
            Refusal::Waits => return Stop::Status(Nfsstat3::Jukebox),
            Refusal::Access => Stop::Status(Nfsstat3::Acces),
            Refusal::Auth(stat) => Stop::Auth(stat),
        };
        is(Incident::Refused);
        stop
    })?;
    if user.is_squashed() {
        is(Incident::Squashed);
    }
    let is_own = handle.snapshot == Handle::OF_FILESYSTEM;
    if effect == Effect::Changes && !(user.writes && is_own) {
        return Err(Stop::Status(Nfsstat3::Rofs));
    }
    let view = View::of(&share, &handle).map_err(|error| match status(&error) {
        Nfsstat3::Stale => stale(),
        other => Stop::Status(other),
    })?;
    let (bytes, data) = (Cell::new(0), Cell::default());
    Ok(At { share, view, inode: handle.inode, user, bytes, data })
}

/// The handle that decides about share and user.
fn first_handle<'a>(args: &Args<'a>) -> Option<FileHandle<'a>> {
    Some(match args {
        Args::Null(()) => return None,
        Args::Getattr(args)
        | Args::Readlink(args)
        | Args::Fsstat(args)
        | Args::Fsinfo(args)
        | Args::Pathconf(args) => args.object,
        Args::Setattr(args) => args.object,
        Args::Access(args) => args.object,
        Args::Lookup(args) | Args::Remove(args) | Args::Rmdir(args) => args.dir,
        Args::Read(args) => args.file,
        Args::Write(args) => args.file,
        Args::Commit(args) => args.file,
        Args::Create(args) => args.place.dir,
        Args::Mkdir(args) => args.place.dir,
        Args::Symlink(args) => args.place.dir,
        Args::Mknod(args) => args.place.dir,
        Args::Rename(args) => args.from.dir,
        Args::Link(args) => args.file,
        Args::Readdir(args) => args.dir,
        Args::Readdirplus(args) => args.dir,
    })
}

/// Appends the results of a procedure that did not run.
fn put_stopped(procedure: Procedure, status: Nfsstat3, out: &mut Encoder<'_>) {
    use Procedure as P;
    match procedure {
        P::Null => {}
        P::Getattr => put_status(out, status, ()),
        P::Lookup
        | P::Access
        | P::Readlink
        | P::Read
        | P::Readdir
        | P::Readdirplus
        | P::Fsstat
        | P::Fsinfo
        | P::Pathconf => put_status(out, status, PostOpAttr::None),
        P::Setattr
        | P::Write
        | P::Create
        | P::Mkdir
        | P::Symlink
        | P::Mknod
        | P::Remove
        | P::Rmdir
        | P::Commit => put_status(out, status, WccData::default()),
        P::Rename => put_status(out, status, RenameWcc::default()),
        P::Link => put_status(out, status, LinkWcc::default()),
    }
}

/// Status of a procedure that an inode of a snapshot, or a directory above the snapshots, does not
/// have.
fn unsuitable(at: &At, procedure: Procedure) -> Option<Nfsstat3> {
    match (&at.view, procedure) {
        (View::Own, _) => None,
        (_, Procedure::Commit) => Some(Nfsstat3::Rofs),
        (View::Virtual(..), Procedure::Read | Procedure::Readlink) => Some(Nfsstat3::Inval),
        _ => None,
    }
}

/// Runs the procedure of a call and appends its results. Returns the place of the call, if it has
/// one.
///
/// # Errors
/// The server denies the call: the credential is not accepted.
pub(crate) async fn run(
    shares: &Shares,
    caller: &Caller<'_>,
    args: &Args<'_>,
    out: &mut Encoder<'_>,
) -> Result<Option<At>, AuthStat> {
    let procedure = args.procedure();
    let Some(handle) = first_handle(args) else { return Ok(None) };
    let at = match resolve(shares, caller, (&handle, procedure.effect())).await {
        Ok(at) => at,
        Err(Stop::Auth(stat)) => return Err(stat),
        Err(Stop::Status(status)) => {
            put_stopped(procedure, status, out);
            return Ok(None);
        }
    };
    // Directory of the second handle of RENAME and LINK: in the same share.
    let second = |handle: &FileHandle<'_>| -> Result<InodeRef, Nfsstat3> {
        let id = Handle::share_of(handle.bytes()).ok_or(Nfsstat3::Badhandle)?;
        if id != at.share.id {
            return Err(Nfsstat3::Xdev);
        }
        let handle = at.share.key.decode(handle.bytes()).ok_or(Nfsstat3::Badhandle)?;
        let is_same = handle.fsid == at.share.fsid;
        let is_own = handle.snapshot == Handle::OF_FILESYSTEM;
        if is_same && is_own { Ok(handle.inode) } else { Err(Nfsstat3::Xdev) }
    };
    if let Some(status) = unsuitable(&at, procedure) {
        put_stopped(procedure, status, out);
        return Ok(Some(at));
    }
    match args {
        Args::Null(()) => {}
        Args::Getattr(_) => content::getattr(&at, out).await,
        Args::Setattr(args) => content::setattr(&at, args, out).await,
        Args::Lookup(args) => names::lookup(&at, args, out).await,
        Args::Access(args) => content::access(&at, args, out).await,
        Args::Readlink(_) => content::readlink(&at, out).await,
        Args::Read(args) => content::read(&at, args, out).await,
        Args::Write(args) => content::write(&at, args, out).await,
        Args::Create(args) => names::create(&at, args, out).await,
        Args::Mkdir(args) => names::mkdir(&at, args, out).await,
        Args::Symlink(args) => names::symlink(&at, args, out).await,
        Args::Mknod(args) => names::mknod(&at, args, out).await,
        Args::Remove(args) => names::remove(&at, args, false, out).await,
        Args::Rmdir(args) => names::remove(&at, args, true, out).await,
        Args::Rename(args) => {
            let to = (second(&args.to.dir), args.to.name.bytes());
            names::rename(&at, args.from.name.bytes(), to, out).await;
        }
        Args::Link(args) => {
            let to = (second(&args.link.dir), args.link.name.bytes());
            names::link(&at, to, out).await;
        }
        Args::Readdir(args) => directories::readdir(&at, args, out).await,
        Args::Readdirplus(args) => directories::readdirplus(&at, args, out).await,
        Args::Fsstat(_) => properties::fsstat(&at, out).await,
        Args::Fsinfo(_) => properties::fsinfo(&at, out).await,
        Args::Pathconf(_) => properties::pathconf(&at, out).await,
        Args::Commit(args) => content::commit(&at, args, out).await,
    }
    Ok(Some(at))
}
