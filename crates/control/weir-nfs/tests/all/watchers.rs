//! Tests of the reports to the watcher of a filesystem.
//!
//! Invariant: the watcher records a report at the end of its future, so that a reply that does not
//! wait for the report fails the test.

use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use weir_base::ObjectId;
use weir_fs::{Changed, Filesystem, InodeRef, NewKind};
use weir_nfs::Watcher;
use weir_nfs_wire::nfs3::{
    Args, CreateArgs, CreateHow, DirOpArgs, FileArgs, FileHandle, LinkArgs, MkdirArgs, MknodArgs,
    MknodData, ReadArgs, RenameArgs, Results, Sattr3, SetattrArgs, StableHow, SymlinkArgs,
    WriteArgs,
};
use weir_nfs_wire::nfsacl::{AclEntries, AclEntry, Secattr, mask, tag};
use weir_oncrpc::Opaque;

use crate::common::{Served, User};

/// Records the reports at the end of its futures, which are not ready at once.
#[derive(Clone)]
struct Recorder {
    files: Arc<Filesystem>,
    reports: Arc<Mutex<Vec<Report>>>,
}

struct Report {
    changed: Changed,
    /// Size of each inode at the time of the report; `None` if the inode is gone.
    sizes: Vec<Option<u64>>,
}

impl Watcher for Recorder {
    fn changed(&self, changed: Changed) -> LocalBoxFuture<'static, ()> {
        let Self { files, reports } = self.clone();
        Box::pin(async move {
            let mut sizes = Vec::new();
            for inode in &changed.inodes {
                sizes.push(files.attributes(inode.number).await.ok().map(|found| found.size));
            }
            let mut polls = 0;
            std::future::poll_fn(|_| {
                polls += 1;
                if polls > 3 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            reports.lock().push(Report { changed, sizes });
        })
    }
}

/// A server with a recorder.
struct Watched {
    served: Served,
    recorder: Recorder,
}

impl Watched {
    fn new() -> Self {
        let served = Served::new(&["*:no_root_squash"]);
        let recorder = Recorder { files: Arc::clone(&served.files), reports: Arc::default() };
        served.watcher.set(Some(Arc::new(recorder.clone())));
        Self { served, recorder }
    }

    /// Reports since the last call. After a reply, only reports that the reply waited for are here.
    fn reports(&self) -> Vec<Changed> {
        self.recorder.reports.lock().drain(..).map(|report| report.changed).collect()
    }

    fn root(&self) -> ObjectId {
        self.served.root.number
    }

    fn file(&self, name: &str) -> InodeRef {
        self.served.create(self.served.root, name, (NewKind::File, 0o644), 0)
    }

    fn directory(&self, name: &str) -> InodeRef {
        self.served.create(self.served.root, name, (NewKind::Directory, 0o755), 0)
    }
}

fn handle(bytes: &[u8]) -> FileHandle<'_> {
    Opaque::new(bytes).unwrap()
}

fn place<'a>(dir: &'a [u8], name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs { dir: handle(dir), name: Opaque::new(name.as_bytes()).unwrap() }
}

/// Looks up a name of the root.
fn lookup(user: &User<'_>, root: &[u8], name: &str) -> Vec<u8> {
    user.nfs(&Args::Lookup(place(root, name)), |results| match results {
        Results::Lookup(Ok(found)) => found.object.bytes().to_vec(),
        other => panic!("{other:?}"),
    })
}

/// Runs a call. Returns the number of the inode that it created, if there is one. Panics if the
/// outcome is another one.
fn call(user: &User<'_>, args: &Args<'_>, succeeds: bool) -> Option<ObjectId> {
    let (is_ok, created) = user.nfs(args, |results| match &results {
        Results::Create(result)
        | Results::Mkdir(result)
        | Results::Symlink(result)
        | Results::Mknod(result) => {
            let created = result.as_ref().ok().and_then(|created| created.attributes);
            (result.is_ok(), created.map(|created| ObjectId(created.fileid)))
        }
        Results::Getattr(result) => (result.is_ok(), None),
        Results::Read(result) => (result.is_ok(), None),
        Results::Write(result) => (result.is_ok(), None),
        Results::Setattr(result) | Results::Remove(result) | Results::Rmdir(result) => {
            (result.is_ok(), None)
        }
        Results::Rename(result) => (result.is_ok(), None),
        Results::Link(result) => (result.is_ok(), None),
        other => panic!("{other:?}"),
    });
    assert_eq!(is_ok, succeeds, "{args:?}");
    created
}

fn set(file: &[u8], new_attributes: Sattr3) -> Args<'_> {
    Args::Setattr(SetattrArgs { object: handle(file), new_attributes, guard: None })
}

fn write<'a>(file: &'a [u8], offset: u64, data: &'a [u8]) -> Args<'a> {
    let (file, count, stable) = (handle(file), data.len() as u32, StableHow::Unstable);
    Args::Write(WriteArgs { file, offset, count, stable, data: Opaque::new(data).unwrap() })
}

fn create<'a>(dir: &'a [u8], name: &'a str, how: CreateHow) -> Args<'a> {
    Args::Create(CreateArgs { place: place(dir, name), how })
}

fn of_data(number: ObjectId, data: Range<u64>) -> Changed {
    Changed::default().data(number, data)
}

fn of_inode(number: ObjectId) -> Changed {
    Changed::default().inode(number)
}

fn of_name(directory: ObjectId, name: &str) -> Changed {
    Changed::default().name(directory, name.as_bytes())
}

#[test]
fn reply_waits_for_the_report_of_a_change_that_has_happened() {
    let watched = Watched::new();
    let file = watched.file("f").number;
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let handle = lookup(&user, &root, "f");
    call(&user, &write(&handle, 0, b"data"), true);
    let reports = std::mem::take(&mut *watched.recorder.reports.lock());
    let found: Vec<_> = reports.iter().map(|report| (&report.changed, &*report.sizes)).collect();
    assert_eq!(found, [(&of_data(file, 0..4), &[Some(4)][..])]);
    // Without a watcher, calls wait for nothing.
    watched.served.watcher.set(None);
    call(&user, &write(&handle, 0, b"more data"), true);
    assert_eq!(watched.reports(), []);
}

#[test]
fn write_and_setattr_report_the_changed_data() {
    let watched = Watched::new();
    let file = watched.file("f").number;
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let handle = lookup(&user, &root, "f");
    let size = |size| set(&handle, Sattr3 { size: Some(size), ..Sattr3::default() });
    for (args, expected) in [
        (write(&handle, 0, b"data"), Some(of_data(file, 0..4))),
        (write(&handle, 1, b"at"), Some(of_data(file, 1..3))),
        // The bytes from 4 to 10 become zero.
        (write(&handle, 10, b"on"), Some(of_data(file, 4..12))),
        (write(&handle, 0, b""), None),
        (size(5), Some(of_data(file, 5..u64::MAX))),
        (size(9), Some(of_data(file, 5..u64::MAX))),
        (size(9), Some(of_inode(file))),
        (set(&handle, Sattr3 { mode: Some(0o600), ..Sattr3::default() }), Some(of_inode(file))),
    ] {
        call(&user, &args, true);
        assert_eq!(watched.reports(), Vec::from_iter(expected), "{args:?}");
    }
    let stranger = watched.served.user(7);
    call(&stranger, &write(&handle, 0, b"data"), false);
    call(&stranger, &set(&handle, Sattr3 { mode: Some(0), ..Sattr3::default() }), false);
    assert_eq!(watched.reports(), [], "failed calls change nothing");
}

#[test]
fn creations_report_the_name_the_directory_and_the_inode() {
    let watched = Watched::new();
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let plain = Sattr3 { mode: Some(0o644), ..Sattr3::default() };
    let owned = Sattr3 { uid: Some(7), ..plain };
    let of = |name, inode| of_name(watched.root(), name).inode(inode);
    let special = MknodData::Fifo(plain);
    let target = Opaque::new(b"f").unwrap();
    for (name, args) in [
        ("f", create(&root, "f", CreateHow::Guarded(plain))),
        ("u", create(&root, "u", CreateHow::Unchecked(plain))),
        ("x", create(&root, "x", CreateHow::Exclusive([1; 8]))),
        ("d", Args::Mkdir(MkdirArgs { place: place(&root, "d"), attributes: plain })),
        ("p", Args::Mknod(MknodArgs { place: place(&root, "p"), what: special })),
        ("l", Args::Symlink(SymlinkArgs { place: place(&root, "l"), attributes: plain, target })),
    ] {
        let created = call(&user, &args, true).unwrap();
        assert_eq!(watched.reports(), [of(name, created)], "{args:?}");
    }
    // Other attributes follow the creation: programs can see the inode between the two.
    let created = call(&user, &create(&root, "o", CreateHow::Guarded(owned)), true).unwrap();
    assert_eq!(watched.reports(), [of_name(watched.root(), "o").data(created, 0..u64::MAX)]);
    call(&user, &create(&root, "f", CreateHow::Guarded(plain)), false);
    call(&user, &create(&root, "x", CreateHow::Exclusive([1; 8])), true);
    call(&user, &create(&root, "f", CreateHow::Unchecked(plain)), true);
    assert_eq!(watched.reports(), [], "the files exist");
}

#[test]
fn unchecked_creation_that_truncates_a_file_reports_its_data() {
    let watched = Watched::new();
    let file = watched.file("f").number;
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    call(&user, &write(&lookup(&user, &root, "f"), 0, b"data"), true);
    watched.reports();
    let how = CreateHow::Unchecked(Sattr3 { size: Some(0), ..Sattr3::default() });
    call(&user, &create(&root, "f", how), true);
    assert_eq!(watched.reports(), [of_data(file, 0..u64::MAX)]);
}

#[test]
fn removals_and_links_report_the_inode_that_lost_or_got_the_name() {
    let watched = Watched::new();
    let (file, directory) = (watched.file("f").number, watched.directory("d").number);
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let (f, d) = (lookup(&user, &root, "f"), lookup(&user, &root, "d"));
    let link = Args::Link(LinkArgs { file: handle(&f), link: place(&d, "g") });
    call(&user, &link, true);
    assert_eq!(watched.reports(), [of_name(directory, "g").inode(file)]);
    call(&user, &link, false);
    call(&user, &Args::Rmdir(place(&root, "d")), false);
    assert_eq!(watched.reports(), [], "the name exists, and the directory has an entry");
    call(&user, &Args::Remove(place(&d, "g")), true);
    assert_eq!(watched.reports(), [of_name(directory, "g").inode(file)]);
    call(&user, &Args::Rmdir(place(&root, "d")), true);
    assert_eq!(watched.reports(), [of_name(watched.root(), "d").inode(directory)]);
    let remove = Args::Remove(place(&root, "f"));
    let removed = |results: Results<'_>| assert!(matches!(results, Results::Remove(Ok(_))));
    user.nfs_as(700, &remove, removed);
    assert_eq!(watched.reports(), [of_name(watched.root(), "f").inode(file)]);
    user.nfs_as(700, &remove, removed);
    assert_eq!(watched.reports(), [], "the reply of a repeated call is a remembered one");
}

#[test]
fn rename_reports_both_names_and_the_replaced_inode() {
    let watched = Watched::new();
    let (file, other) = (watched.file("f").number, watched.file("o").number);
    let directory = watched.directory("d").number;
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let d = lookup(&user, &root, "d");
    let rename = |from: &[u8], old, to: &[u8], new, succeeds| {
        let args = RenameArgs { from: place(from, old), to: place(to, new) };
        call(&user, &Args::Rename(args), succeeds);
    };
    rename(&root, "f", &d, "g", true);
    let names = of_name(watched.root(), "f").name(directory, b"g");
    assert_eq!(watched.reports(), [names.inode(file)]);
    rename(&d, "g", &root, "o", true);
    let names = of_name(directory, "g").name(watched.root(), b"o");
    assert_eq!(watched.reports(), [names.inode(file).inode(other)], "`o` was replaced");
    let o = lookup(&user, &root, "o");
    let link = Args::Link(LinkArgs { file: handle(&o), link: place(&root, "p") });
    call(&user, &link, true);
    watched.reports();
    rename(&root, "o", &root, "p", true);
    assert_eq!(watched.reports(), [], "two names of one inode");
    rename(&root, "gone", &root, "p", false);
    assert_eq!(watched.reports(), []);
}

#[test]
fn setacl_reports_the_inode_and_reads_report_nothing() {
    let watched = Watched::new();
    let file = watched.file("f").number;
    let user = watched.served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let f = lookup(&user, &root, "f");
    let entry = |tag, permissions| AclEntry { tag, id: 0, permissions };
    let entries = vec![entry(tag::USER_OBJ, 6), entry(tag::GROUP_OBJ, 0), entry(tag::OTHER, 4)];
    let acl = AclEntries::new(entries).unwrap();
    let acls = Secattr::new(mask::ACL, acl, AclEntries::default());
    assert!(user.set_acl(&f, &acls));
    assert_eq!(watched.reports(), [of_inode(file)]);
    assert!(!watched.served.user(7).set_acl(&f, &acls), "the user is not the owner");
    assert_eq!(watched.reports(), [of_inode(file)], "a part may have changed");
    call(&user, &Args::Getattr(FileArgs { object: handle(&f) }), true);
    call(&user, &Args::Read(ReadArgs { file: handle(&f), offset: 0, count: 9 }), true);
    assert_eq!(watched.reports(), []);
}
