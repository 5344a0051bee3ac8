//! Tests of `.weir/snapshot` through a share: handles, numbers, lists, refused changes, and
//! snapshots that are destroyed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use weir_base::DatasetId;
use weir_dataset::{Engine, ListedSnapshot, SnapshotId, Volume};
use weir_format::files::TimeStamp;
use weir_fs::{Filesystem, FsError, InodeRef, NewKind, SnapshotEntry, SnapshotTotals, Snapshots};
use weir_nfs::Share;
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::{
    AccessArgs, Args, CommitArgs, CreateArgs, CreateHow, DirOpArgs, FileArgs, FileHandle,
    MkdirArgs, Nfsstat3, ReadArgs, ReaddirArgs, ReaddirplusArgs, Results, Sattr3, access,
};
use weir_oncrpc::Opaque;

use crate::common::{FSID, Served, User, run};

/// The snapshots of the filesystem of a test.
struct Directory {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    is_visible: AtomicBool,
    open: Mutex<BTreeMap<DatasetId, Arc<Filesystem>>>,
    opens: AtomicUsize,
}

fn entry(listed: ListedSnapshot) -> SnapshotEntry {
    SnapshotEntry { dataset: listed.dataset, name: listed.name.into_bytes().into() }
}

impl Snapshots for Directory {
    fn is_visible(&self) -> bool {
        self.is_visible.load(Ordering::Relaxed)
    }

    fn list(&self, after: DatasetId) -> Vec<SnapshotEntry> {
        self.volume.snapshots_after(after).into_iter().map(entry).collect()
    }

    fn find(&self, name: &[u8]) -> Option<SnapshotEntry> {
        self.volume.snapshot_named(std::str::from_utf8(name).ok()?).map(entry)
    }

    fn totals(&self) -> SnapshotTotals {
        SnapshotTotals { count: self.volume.snapshot_totals().0, newest: None }
    }

    fn open(&self, dataset: DatasetId) -> Result<Arc<Filesystem>, FsError> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        let view = self.engine.open_snapshot_by_number(&self.volume, dataset);
        let view = view.ok_or(FsError::Stale)?;
        let mut open = self.open.lock();
        if let Some(files) = open.get(&dataset) {
            return Ok(Arc::clone(files));
        }
        let now = Box::new(|| TimeStamp { seconds: 2_000, nanos: 0 });
        let files = Arc::new(Filesystem::open_unchanged(&self.engine, view, now)?);
        open.insert(dataset, Arc::clone(&files));
        Ok(files)
    }
}

/// Each client has all rights of the user 0.
const RULES: &[&str] = &["*:no_root_squash"];

/// A server whose share has the snapshots `monday`, with the file `f` and the directory `d`, and
/// `tuesday`, without `f`.
fn served() -> (Served, Arc<Directory>) {
    let served = Served::new(RULES);
    let file = served.create(served.root, "f", (NewKind::File, 0o600), 5);
    run(&served.engine, served.files.write(file.number, 0, b"content", false)).unwrap();
    served.create(served.root, "d", (NewKind::Directory, 0o755), 5);
    let take = |name: &str| {
        let ids = [SnapshotId::new("home", name)];
        run(&served.engine, served.engine.create_snapshots_by(&ids, None)).unwrap();
    };
    take("monday");
    run(&served.engine, served.files.remove(served.root.number, b"f", false)).unwrap();
    take("tuesday");
    let directory = Arc::new(Directory {
        engine: Arc::clone(&served.engine),
        volume: served.engine.volume("home").unwrap(),
        is_visible: AtomicBool::new(false),
        open: Mutex::default(),
        opens: AtomicUsize::new(0),
    });
    let share = served.share("/tank/home", served.root, RULES);
    let snapshots = Some(Arc::clone(&directory) as Arc<dyn Snapshots>);
    served.server.shares.set(Share { snapshots, ..share });
    (served, directory)
}

fn handle(bytes: &[u8]) -> FileHandle<'_> {
    Opaque::new(bytes).unwrap()
}

fn place<'a>(dir: &'a [u8], name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs { dir: handle(dir), name: Opaque::new(name.as_bytes()).unwrap() }
}

/// A found inode: handle, number of the filesystem, number of the inode.
type Found = (Vec<u8>, u64, u64);

fn lookup(user: &User<'_>, dir: &[u8], name: &str) -> Result<Found, Nfsstat3> {
    user.nfs(&Args::Lookup(place(dir, name)), |results| match results {
        Results::Lookup(Ok(found)) => {
            let attributes = found.attributes.unwrap();
            assert!(found.dir_attributes.is_some());
            Ok((found.object.bytes().to_vec(), attributes.fsid, attributes.fileid))
        }
        Results::Lookup(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

/// Looks up the names of a path.
#[track_caller]
fn walk(user: &User<'_>, root: &[u8], path: &str) -> Found {
    let start = (root.to_vec(), 0, 0);
    path.split('/').fold(start, |(dir, ..), name| lookup(user, &dir, name).unwrap())
}

fn getattr(user: &User<'_>, object: &[u8]) -> Result<(u64, u64), Nfsstat3> {
    user.nfs(&Args::Getattr(FileArgs { object: handle(object) }), |results| match results {
        Results::Getattr(Ok(found)) => Ok((found.attributes.fsid, found.attributes.fileid)),
        Results::Getattr(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

fn read(user: &User<'_>, file: &[u8]) -> Result<Vec<u8>, Nfsstat3> {
    let args = ReadArgs { file: handle(file), offset: 0, count: 100 };
    user.nfs(&Args::Read(args), |results| match results {
        Results::Read(Ok(read)) => Ok(read.data.bytes().to_vec()),
        Results::Read(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

/// Lists a directory by READDIR, one reply of a few entries after the other, and by READDIRPLUS.
/// Returns the names, and the names with a handle.
fn list(user: &User<'_>, dir: &[u8]) -> (Vec<String>, Vec<String>) {
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let args = ReaddirArgs { dir: handle(dir), cookie, cookieverf: [0; 8], count: 200 };
        let eof = user.nfs(&Args::Readdir(args), |results| {
            let Results::Readdir(Ok(list)) = results else { panic!("{results:?}") };
            cookie = list.entries.0.last().map_or(cookie, |entry| entry.cookie);
            names.extend(list.entries.0.iter().map(|entry| text(entry.name.bytes())));
            list.eof
        });
        if eof {
            break;
        }
    }
    let (dircount, maxcount) = (4096, 32_768);
    let (dir, cookieverf) = (handle(dir), [0; 8]);
    let args = ReaddirplusArgs { dir, cookie: 0, cookieverf, dircount, maxcount };
    let with_handles = user.nfs(&Args::Readdirplus(args), |results| {
        let Results::Readdirplus(Ok(list)) = results else { panic!("{results:?}") };
        assert!(list.eof);
        let all: Vec<_> = list.entries.0.iter().map(|entry| text(entry.name.bytes())).collect();
        assert_eq!(all, names);
        let with_handles = list.entries.0.iter().filter(|entry| entry.handle.is_some());
        with_handles.map(|entry| text(entry.name.bytes())).collect()
    });
    (names, with_handles)
}

#[test]
fn files_of_a_snapshot_are_read_with_the_rights_of_their_time() {
    let (served, _) = served();
    let (owner, other) = (served.user(5), served.user(7));
    let root = owner.mount("/tank/home").unwrap();
    assert_eq!(lookup(&owner, &root, "f"), Err(Nfsstat3::Noent), "removed");
    let (monday, monday_fsid, number) = walk(&owner, &root, ".weir/snapshot/monday");
    assert_eq!(number, 1);
    let (_, tuesday_fsid, _) = walk(&owner, &root, ".weir/snapshot/tuesday");
    assert!(![tuesday_fsid, FSID].contains(&monday_fsid) && tuesday_fsid != FSID);
    let (file, fsid, _) = lookup(&owner, &monday, "f").unwrap();
    assert_eq!(fsid, monday_fsid);
    assert_eq!(read(&owner, &file), Ok(b"content".to_vec()));
    assert_eq!(read(&other, &file), Err(Nfsstat3::Acces));
    assert_eq!(lookup(&owner, &monday, "absent"), Err(Nfsstat3::Noent));

    // The parents of the directories, and the numbers in the attributes.
    let (snapshots, fsid, above) = lookup(&owner, &monday, "..").unwrap();
    assert_eq!((fsid, getattr(&owner, &snapshots)), (FSID, Ok((FSID, above))));
    let (weir, _, number) = lookup(&owner, &snapshots, "..").unwrap();
    assert_eq!(getattr(&owner, &weir), Ok((FSID, number)));
    assert_eq!(lookup(&owner, &weir, "..").unwrap(), (root.clone(), FSID, 1));
    assert_eq!(lookup(&owner, &snapshots, ".").unwrap().0, snapshots);
    assert_eq!(lookup(&owner, &weir, "x"), Err(Nfsstat3::Noent));
    assert_eq!(lookup(&owner, &snapshots, "x"), Err(Nfsstat3::Noent));
    let (below, ..) = lookup(&owner, &monday, "d").unwrap();
    assert_eq!(lookup(&owner, &below, "..").unwrap().0, monday);
    assert_eq!(lookup(&owner, &below, ".weir"), Err(Nfsstat3::Noent));
    assert_eq!(lookup(&owner, &monday, ".weir"), Err(Nfsstat3::Noent));
}

#[test]
fn lists_open_no_snapshot_and_hide_the_directory() {
    let (served, directory) = served();
    let user = served.user(7);
    let root = user.mount("/tank/home").unwrap();
    assert_eq!(list(&user, &root).0, [".", "..", "d"]);
    directory.is_visible.store(true, Ordering::Relaxed);
    let (mut names, _) = list(&user, &root);
    names.sort();
    assert_eq!(names, [".", "..", ".weir", "d"]);
    let (weir, ..) = lookup(&user, &root, ".weir").unwrap();
    assert_eq!(list(&user, &weir).0, [".", "..", "snapshot"]);
    for number in 0..40 {
        let ids = [SnapshotId::new("home", format!("s{number}"))];
        run(&served.engine, served.engine.create_snapshots_by(&ids, None)).unwrap();
    }
    let (snapshots, ..) = lookup(&user, &weir, "snapshot").unwrap();
    let (names, with_handles) = list(&user, &snapshots);
    let later = (0..40).map(|number| format!("s{number}"));
    let expected = [".", "..", "monday", "tuesday"].map(str::to_owned).into_iter().chain(later);
    assert_eq!(names, expected.collect::<Vec<_>>());
    assert_eq!(with_handles, [""; 0]);
    assert_eq!(directory.opens.load(Ordering::Relaxed), 0);
    let (monday, ..) = lookup(&user, &snapshots, "monday").unwrap();
    let (mut names, with_handles) = list(&user, &monday);
    names.sort();
    assert_eq!(names, [".", "..", "d", "f"]);
    assert_eq!(with_handles.len(), 3, "{with_handles:?}");
}

#[test]
fn changes_in_snapshots_and_of_their_directories_are_refused() {
    let (served, _) = served();
    let user = served.user(5);
    let root = user.mount("/tank/home").unwrap();
    let (file, ..) = walk(&user, &root, ".weir/snapshot/monday/f");
    let status = |args: &Args<'_>| {
        user.nfs(args, |results| match results {
            Results::Create(Err(failed))
            | Results::Mkdir(Err(failed))
            | Results::Remove(Err(failed))
            | Results::Commit(Err(failed)) => failed.status,
            other => panic!("{other:?}"),
        })
    };
    for path in [".weir", ".weir/snapshot", ".weir/snapshot/monday", ".weir/snapshot/monday/d"] {
        let (dir, ..) = walk(&user, &root, path);
        let (how, attributes) = (CreateHow::Unchecked(Sattr3::default()), Sattr3::default());
        let create = Args::Create(CreateArgs { place: place(&dir, "new"), how });
        let mkdir = Args::Mkdir(MkdirArgs { place: place(&dir, "new"), attributes });
        for args in [create, mkdir, Args::Remove(place(&dir, "f"))] {
            assert_eq!(status(&args), Nfsstat3::Rofs, "{path}");
        }
        let all = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE;
        let args = Args::Access(AccessArgs { object: handle(&dir), access: all });
        let granted = user.nfs(&args, |results| match results {
            Results::Access(Ok(found)) => found.access,
            other => panic!("{other:?}"),
        });
        assert_eq!(granted, access::READ | access::LOOKUP, "{path}");
    }
    let commit = CommitArgs { file: handle(&file), offset: 0, count: 0 };
    assert_eq!(status(&Args::Commit(commit)), Nfsstat3::Rofs);
    let how = CreateHow::Guarded(Sattr3::default());
    let superuser = served.user(0);
    let create = Args::Create(CreateArgs { place: place(&root, ".weir"), how });
    let reserved = superuser.nfs(&create, |results| match results {
        Results::Create(Err(failed)) => failed.status,
        other => panic!("{other:?}"),
    });
    assert_eq!(reserved, Nfsstat3::Rofs);
}

#[test]
fn handles_of_a_destroyed_snapshot_are_stale() {
    let (served, directory) = served();
    let user = served.user(5);
    let root = user.mount("/tank/home").unwrap();
    let (file, ..) = walk(&user, &root, ".weir/snapshot/monday/f");
    directory.open.lock().clear();
    assert_eq!(read(&user, &file), Ok(b"content".to_vec()), "opened again");
    directory.open.lock().clear();
    let names = ["monday".to_owned()];
    run(&served.engine, served.engine.destroy_snapshots("home", &names)).unwrap();
    assert_eq!(read(&user, &file), Err(Nfsstat3::Stale));
    assert_eq!(getattr(&user, &file), Err(Nfsstat3::Stale));
    let (snapshots, ..) = walk(&user, &root, ".weir/snapshot");
    assert_eq!(lookup(&user, &snapshots, "monday"), Err(Nfsstat3::Noent));
    assert_eq!(list(&user, &snapshots).0, [".", "..", "tuesday"]);
}

#[test]
fn paths_of_mounts_lead_into_snapshots_of_a_share_of_the_root() {
    let (served, _) = served();
    let user = served.user(5);
    let root = user.mount("/tank/home").unwrap();
    for path in [".weir", ".weir/snapshot", ".weir/snapshot/monday", ".weir/snapshot/monday/d"] {
        let mounted = user.mount(&format!("/tank/home/{path}"));
        assert_eq!(mounted, Ok(walk(&user, &root, path).0), "{path}");
    }
    for path in [".weir/x", ".weir/snapshot/x", ".weir/snapshot/monday/x", ".weir/..", "d/.weir"] {
        let mounted = user.mount(&format!("/tank/home/{path}"));
        assert_eq!(mounted, Err(Mountstat3::Noent), "{path}");
    }
    let mounted = user.mount("/tank/home/.weir/snapshot/monday/f");
    assert_eq!(mounted, Err(Mountstat3::Notdir));
    // The share of another directory has no snapshots.
    let (below, ..) = lookup(&user, &root, "d").unwrap();
    let attributes = run(&served.engine, served.files.lookup(served.root.number, b"d")).unwrap();
    let share = served.share("/tank/d", InodeRef::from(&attributes), &["*"]);
    served.server.shares.set(share);
    let other_root = user.mount("/tank/d").unwrap();
    assert_ne!(other_root, below);
    assert_eq!(lookup(&user, &other_root, ".weir"), Err(Nfsstat3::Noent));
    assert_eq!(user.mount("/tank/d/.weir/snapshot"), Err(Mountstat3::Noent));
}
