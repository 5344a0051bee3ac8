//! Tests of shares, handles and rights of clients.

use weir_fs::{InodeRef, NewKind};
use weir_nfs::{Handle, Incident, Incidents};
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::{Args, FileArgs, Nfsstat3, Results};
use weir_oncrpc::Opaque;

use crate::common::{Served, User};

fn getattr(user: &User<'_>, handle: &[u8]) -> Result<u64, Nfsstat3> {
    let args = Args::Getattr(FileArgs { object: Opaque::new(handle).unwrap() });
    user.nfs(&args, |results| match results {
        Results::Getattr(Ok(found)) => Ok(found.attributes.fileid),
        Results::Getattr(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

#[test]
fn client_that_no_rule_names_mounts_nothing_and_uses_no_handle() {
    let served = Served::new(&["10.0.0.0/8"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    assert_eq!(getattr(&user, &root), Ok(1));
    let stranger = served.user_at("192.0.2.1:700", 0);
    assert_eq!(stranger.mount("/tank/home"), Err(Mountstat3::Acces));
    assert_eq!(stranger.mount("/tank/work"), Err(Mountstat3::Acces), "no share has this path");
    assert_eq!(getattr(&stranger, &root), Err(Nfsstat3::Acces), "a handle alone is no right");
    let program = served.user_at("10.0.0.1:40000", 0);
    assert_eq!(program.mount("/tank/home"), Err(Mountstat3::Acces), "an ordinary port");
    assert_eq!(getattr(&program, &root), Err(Nfsstat3::Acces));
}

#[test]
fn mount_walks_paths_inside_the_share() {
    let served = Served::new(&["*"]);
    let directory = served.create(served.root, "a", (NewKind::Directory, 0o700), 5);
    served.create(directory, "b", (NewKind::Directory, 0o700), 5);
    served.create(served.root, "f", (NewKind::File, 0o644), 5);
    served.create(served.root, "l", (NewKind::Symlink(b"/"), 0o777), 5);
    let user = served.user(7);
    let root = user.mount("/tank/home").unwrap();
    assert_eq!(user.mount("/tank/home/"), Ok(root));
    assert!(user.mount("/tank/home/a/b").is_ok());
    for (path, status) in [
        ("/tank/home/f", Mountstat3::Notdir),
        ("/tank/home/f/g", Mountstat3::Notdir),
        ("/tank/home/l", Mountstat3::Notdir),
        ("/tank/home/x", Mountstat3::Noent),
        ("/tank/home/../home", Mountstat3::Noent),
        ("/tank/home/a/..", Mountstat3::Noent),
        ("/tank/homes", Mountstat3::Acces),
        ("/tank", Mountstat3::Acces),
        ("", Mountstat3::Acces),
    ] {
        assert_eq!(user.mount(path), Err(status), "{path}");
    }
    let entries = served.server.mounts.entries();
    let paths: Vec<_> = entries.iter().map(|(_, path)| String::from_utf8_lossy(path)).collect();
    assert_eq!(paths, ["/tank/home", "/tank/home/", "/tank/home/a/b"], "only mounts that worked");
}

#[test]
fn handles_of_deleted_shares_are_stale_and_forged_handles_bad() {
    let served = Served::new(&["*"]);
    let user = served.user(7);
    let root = user.mount("/tank/home").unwrap();
    for at in 0..root.len() {
        let mut forged = root.clone();
        forged[at] ^= 1;
        // Bytes 4 to 11 name a share, which does not exist.
        let status = if (4..12).contains(&at) { Nfsstat3::Stale } else { Nfsstat3::Badhandle };
        assert_eq!(getattr(&user, &forged), Err(status), "{at}");
    }
    assert_eq!(getattr(&user, &[]), Err(Nfsstat3::Badhandle));
    assert_eq!(getattr(&user, &[0; 64]), Err(Nfsstat3::Badhandle));
    let share = served.server.shares.all().remove(0);
    assert!(served.server.shares.remove(share.id));
    assert_eq!(getattr(&user, &root), Err(Nfsstat3::Stale));
    assert_eq!(user.mount("/tank/home"), Err(Mountstat3::Acces));
    // While the server opens the filesystem of a share, its clients wait.
    served.server.shares.wait(share.id, "/tank/home");
    assert_eq!(getattr(&user, &root), Err(Nfsstat3::Jukebox));
    assert_eq!(user.mount("/tank/home"), Err(Mountstat3::Serverfault));
    // The share with the same name and directory accepts the old handles.
    served.server.shares.set(served.share("/tank/home", served.root, &["*"]));
    assert_eq!(getattr(&user, &root), Ok(1));
}

#[test]
fn squashed_refused_and_stale_calls_are_counted() {
    let served = Served::new(&["10.0.0.0/8"]);
    let share = served.server.shares.all().remove(0);
    let incidents = &share.statistics.incidents;
    let totals = |of: &Incidents| Incident::ALL.map(|kind| of.totals().of(kind));
    let file = served.create(served.root, "f", (NewKind::File, 0o644), 5);
    let gone = InodeRef { generation: weir_base::Txg(file.generation.0 + 1), ..file };
    let handle = |inode| {
        let handle = Handle { share: share.id, fsid: share.fsid, inode, snapshot: 0 };
        share.key.encode(&handle)
    };
    let (user, root) = (served.user(7), served.user(0));
    assert_eq!(getattr(&user, &handle(file)), Ok(file.number.0));
    assert_eq!(totals(incidents), [0, 0, 0]);
    assert_eq!(getattr(&root, &handle(file)), Ok(file.number.0));
    assert_eq!(totals(incidents), [1, 0, 0]);
    assert_eq!(getattr(&user, &handle(gone)), Err(Nfsstat3::Stale));
    assert_eq!(totals(incidents), [1, 0, 1]);
    let stranger = served.user_at("192.0.2.1:700", 7);
    assert_eq!(getattr(&stranger, &handle(file)), Err(Nfsstat3::Acces));
    assert_eq!(stranger.mount("/tank/home"), Err(Mountstat3::Acces));
    assert_eq!(totals(incidents), [1, 2, 1]);
    let clients = incidents.take();
    let of = |text: &str| {
        let mut found = clients.iter().filter(|(client, _)| *client == text.parse().ok());
        let (_, counts) = found.next().expect("the client");
        Incident::ALL.map(|kind| counts.of(kind))
    };
    assert_eq!((of("192.0.2.1"), of("10.0.0.1")), ([0, 2, 0], [1, 0, 1]));
    // Calls for shares that do not exist.
    served.server.shares.remove(share.id);
    assert_eq!(getattr(&user, &handle(file)), Err(Nfsstat3::Stale));
    assert_eq!(user.mount("/tank/home"), Err(Mountstat3::Acces));
    assert_eq!(totals(&served.server.shares.incidents), [0, 1, 1]);
    assert_eq!(totals(incidents), [1, 2, 1]);
}

#[test]
fn unknown_programs_versions_and_procedures_have_their_errors() {
    let served = Served::new(&["*"]);
    let user = served.user(7);
    for (program, version, procedure, expected) in [
        (100_003, 3, 0, "Success"),
        (100_005, 3, 0, "Success"),
        (100_005, 1, 0, "Success"),
        (100_227, 3, 0, "Success"),
        (100_021, 4, 0, "Success"),
        (100_003, 4, 1, "ProgMismatch { low: 3, high: 3 }"),
        (100_005, 4, 1, "ProgMismatch { low: 1, high: 3 }"),
        (100_003, 3, 22, "ProcUnavail"),
        (100_005, 3, 6, "ProcUnavail"),
        (100_227, 3, 3, "ProcUnavail"),
        (100_021, 4, 6, "ProcUnavail"),
        (100_003, 3, 1, "GarbageArgs"),
        (100_005, 3, 1, "GarbageArgs"),
        (100_021, 4, 2, "GarbageArgs"),
        (100_000, 2, 0, "ProgUnavail"),
    ] {
        let reply = user.call(program, version, procedure);
        assert!(reply.contains(expected), "{program} {version} {procedure}: {reply}");
    }
}
