//! Tests of procedures.

use weir_fs::{InodeRef, NewKind};
use weir_nfs_wire::nfs3::{
    AccessArgs, Args, CreateArgs, CreateHow, DirOpArgs, FileArgs, FileHandle, LinkArgs, Nfsstat3,
    ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, Results, Sattr3, SetattrArgs, StableHow,
    WriteArgs, access,
};
use weir_oncrpc::Opaque;

use crate::common::{Served, User};

fn handle(bytes: &[u8]) -> FileHandle<'_> {
    Opaque::new(bytes).unwrap()
}

fn place<'a>(dir: &'a [u8], name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs { dir: handle(dir), name: Opaque::new(name.as_bytes()).unwrap() }
}

/// Looks up a name. Returns its handle or the status.
fn lookup(user: &User<'_>, dir: &[u8], name: &str) -> Result<Vec<u8>, Nfsstat3> {
    user.nfs(&Args::Lookup(place(dir, name)), |results| match results {
        Results::Lookup(Ok(found)) => {
            assert!(found.attributes.is_some() && found.dir_attributes.is_some());
            Ok(found.object.bytes().to_vec())
        }
        Results::Lookup(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

fn create(user: &User<'_>, dir: &[u8], name: &str) -> Vec<u8> {
    let how = CreateHow::Guarded(Sattr3 { mode: Some(0o644), ..Sattr3::default() });
    user.nfs(&Args::Create(CreateArgs { place: place(dir, name), how }), |results| match results {
        Results::Create(Ok(created)) => created.object.unwrap().bytes().to_vec(),
        other => panic!("{other:?}"),
    })
}

fn remove(user: &User<'_>, xid: u32, dir: &[u8], name: &str) -> Result<(), Nfsstat3> {
    user.nfs_as(xid, &Args::Remove(place(dir, name)), |results| match results {
        Results::Remove(Ok(_)) => Ok(()),
        Results::Remove(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

fn write(user: &User<'_>, file: &[u8], stable: StableHow) -> Result<StableHow, Nfsstat3> {
    let data = Opaque::new(b"data").unwrap();
    let args = WriteArgs { file: handle(file), offset: 0, count: 4, stable, data };
    user.nfs(&Args::Write(args), |results| match results {
        Results::Write(Ok(written)) => {
            assert_eq!((written.count, written.verifier), (4, [3; 8]));
            let (before, after) = (written.wcc.before.unwrap(), written.wcc.after.unwrap());
            assert!(before.size <= after.size && after.size == 4);
            Ok(written.committed)
        }
        Results::Write(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

fn read(
    user: &User<'_>,
    file: &[u8],
    offset: u64,
    count: u32,
) -> Result<(Vec<u8>, bool), Nfsstat3> {
    user.nfs(&Args::Read(ReadArgs { file: handle(file), offset, count }), |results| match results {
        Results::Read(Ok(read)) => {
            assert_eq!(read.count as usize, read.data.bytes().len());
            Ok((read.data.bytes().to_vec(), read.eof))
        }
        Results::Read(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

#[test]
fn created_file_is_written_read_and_found() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let file = create(&user, &root, "f");
    assert_eq!(lookup(&user, &root, "f"), Ok(file.clone()));
    assert_eq!(write(&user, &file, StableHow::Unstable), Ok(StableHow::Unstable));
    assert_eq!(write(&user, &file, StableHow::DataSync), Ok(StableHow::FileSync));
    assert_eq!(read(&user, &file, 0, 3), Ok((b"dat".to_vec(), false)));
    assert_eq!(read(&user, &file, 0, 4), Ok((b"data".to_vec(), true)));
    assert_eq!(read(&user, &file, 9, 4), Ok((Vec::new(), true)));
    assert_eq!(read(&user, &root, 0, 4), Err(Nfsstat3::Inval), "a directory has no data");
    assert_eq!(lookup(&user, &root, "g"), Err(Nfsstat3::Noent));
    assert_eq!(lookup(&user, &file, "g"), Err(Nfsstat3::Notdir));
    assert_eq!(lookup(&user, &root, &"n".repeat(256)), Err(Nfsstat3::Nametoolong));
}

#[test]
fn repeated_remove_gets_the_reply_of_the_first() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    create(&user, &root, "f");
    assert_eq!(remove(&user, 77, &root, "f"), Ok(()));
    assert_eq!(remove(&user, 77, &root, "f"), Ok(()), "the client repeats the call");
    // The client lost its connection, too.
    let again = served.user(0);
    assert_eq!(remove(&again, 77, &root, "f"), Ok(()));
    assert_eq!(remove(&again, 78, &root, "f"), Err(Nfsstat3::Noent), "another call");
    let other = served.user_at("10.0.0.2:700", 0);
    assert_eq!(remove(&other, 77, &root, "f"), Err(Nfsstat3::Noent), "another client");
    let principal = served.user(9);
    assert_eq!(remove(&principal, 77, &root, "f"), Err(Nfsstat3::Acces), "another user");
}

#[test]
fn repeated_exclusive_create_finds_its_file() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let exclusive = |xid, verifier| {
        let args = CreateArgs { place: place(&root, "f"), how: CreateHow::Exclusive(verifier) };
        user.nfs_as(xid, &Args::Create(args), |results| match results {
            Results::Create(Ok(created)) => Ok(created.object.unwrap().bytes().to_vec()),
            Results::Create(Err(failed)) => Err(failed.status),
            other => panic!("{other:?}"),
        })
    };
    let file = exclusive(100, [0; 8]).unwrap();
    // With another xid, as after a restart of the server, which forgets replies.
    assert_eq!(exclusive(101, [0; 8]), Ok(file.clone()));
    assert_eq!(exclusive(102, [1; 8]), Err(Nfsstat3::Exist));
    let changes = Sattr3 { mode: Some(0o640), ..Sattr3::default() };
    let set = SetattrArgs { object: handle(&file), new_attributes: changes, guard: None };
    user.nfs(&Args::Setattr(set), |results| {
        assert!(matches!(results, Results::Setattr(Ok(_))), "{results:?}");
    });
    assert_eq!(exclusive(103, [0; 8]), Err(Nfsstat3::Exist));
}

#[test]
fn unchecked_create_opens_a_file_but_no_directory() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let file = create(&user, &root, "f");
    write(&user, &file, StableHow::Unstable).unwrap();
    served.create(served.root, "d", (NewKind::Directory, 0o755), 0);
    served.create(served.root, "l", (NewKind::Symlink(b"f"), 0o777), 0);
    let unchecked = |name: &str, size| {
        let how = CreateHow::Unchecked(Sattr3 { size, ..Sattr3::default() });
        let args = CreateArgs { place: place(&root, name), how };
        user.nfs(&Args::Create(args), |results| match results {
            Results::Create(Ok(created)) => Ok(created.attributes.unwrap().size),
            Results::Create(Err(failed)) => Err(failed.status),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(unchecked("f", None), Ok(4));
    assert_eq!(unchecked("f", Some(0)), Ok(0));
    assert_eq!(unchecked("d", None), Err(Nfsstat3::Isdir));
    assert_eq!(unchecked("l", None), Err(Nfsstat3::Exist));
    assert_eq!(unchecked("new", Some(0)), Ok(0));
}

#[test]
fn access_grants_the_bits_that_operations_allow() {
    let served = Served::new(&["*:no_root_squash", "10.0.0.9:ro"]);
    served.create(served.root, "f", (NewKind::File, 0o644), 5);
    let bits = |user: &User<'_>, file: &[u8]| {
        let args = AccessArgs { object: handle(file), access: access::ALL };
        user.nfs(&Args::Access(args), |results| match results {
            Results::Access(Ok(granted)) => granted.access,
            other => panic!("{other:?}"),
        })
    };
    let (owner, other) = (served.user(5), served.user(6));
    let root = owner.mount("/tank/home").unwrap();
    let file = lookup(&owner, &root, "f").unwrap();
    assert_eq!(bits(&owner, &file), access::READ | access::MODIFY | access::EXTEND);
    assert!(write(&owner, &file, StableHow::Unstable).is_ok());
    assert_eq!(bits(&other, &file), access::READ);
    assert_eq!(write(&other, &file, StableHow::Unstable), Err(Nfsstat3::Acces));
    assert_eq!(bits(&other, &root), access::READ | access::LOOKUP);
    // The share is read-only for this client, also for the owner.
    let reader = served.user_at("10.0.0.9:700", 5);
    assert_eq!(bits(&reader, &file), access::READ);
    assert_eq!(write(&reader, &file, StableHow::Unstable), Err(Nfsstat3::Rofs));
}

/// Names of a directory, listed with lists of at most `count` bytes.
fn names(user: &User<'_>, dir: &[u8], count: u32, plus: bool) -> Result<Vec<String>, Nfsstat3> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let (dir, cookieverf) = (handle(dir), [0; 8]);
        let args = if plus {
            let dircount = count;
            Args::Readdirplus(ReaddirplusArgs {
                dir,
                cookie,
                cookieverf,
                dircount,
                maxcount: count,
            })
        } else {
            Args::Readdir(ReaddirArgs { dir, cookie, cookieverf, count })
        };
        let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        let (part, eof) = user.nfs(&args, |results| match results {
            Results::Readdir(Ok(list)) => {
                let part = list.entries.0.iter();
                Ok((part.map(|e| (text(e.name.bytes()), e.cookie)).collect::<Vec<_>>(), list.eof))
            }
            Results::Readdirplus(Ok(list)) => {
                for entry in &list.entries.0 {
                    let is_parent = entry.name.bytes() == b"..";
                    assert_eq!(entry.handle.is_none(), is_parent, "the parent has no handle");
                }
                let part = list.entries.0.iter();
                Ok((part.map(|e| (text(e.name.bytes()), e.cookie)).collect(), list.eof))
            }
            Results::Readdir(Err(failed)) | Results::Readdirplus(Err(failed)) => Err(failed.status),
            other => panic!("{other:?}"),
        })?;
        assert!(eof || !part.is_empty(), "the client would loop");
        cookie = part.last().map_or(cookie, |(_, cookie)| *cookie);
        names.extend(part.into_iter().map(|(name, _)| name));
        if eof {
            return Ok(names);
        }
    }
}

#[test]
fn lists_of_any_length_have_each_entry_once() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let expected: Vec<String> = (0..300).map(|n| format!("file-{n:03}")).collect();
    for name in &expected {
        served.create(served.root, name, (NewKind::File, 0o644), 0);
    }
    for plus in [false, true] {
        for count in [300, 1000, 4096, 1 << 20, u32::MAX] {
            let mut found = names(&user, &root, count, plus).unwrap();
            assert_eq!(found.get(..2), Some(&[".".to_owned(), "..".to_owned()][..]));
            found.drain(..2);
            found.sort_unstable();
            assert_eq!(found, expected, "{count} bytes");
        }
        assert_eq!(names(&user, &root, 110, plus), Err(Nfsstat3::Toosmall));
        assert_eq!(names(&user, &root, 0, plus), Err(Nfsstat3::Toosmall));
    }
}

#[test]
fn guard_of_setattr_changes_nothing_if_the_ctime_differs() {
    let served = Served::new(&["*:no_root_squash"]);
    let user = served.user(0);
    let root = user.mount("/tank/home").unwrap();
    let file = create(&user, &root, "f");
    let attributes = |user: &User<'_>| {
        let args = Args::Getattr(FileArgs { object: handle(&file) });
        user.nfs(&args, |results| match results {
            Results::Getattr(Ok(found)) => found.attributes,
            other => panic!("{other:?}"),
        })
    };
    let before = attributes(&user);
    let set = |guard| {
        let new_attributes = Sattr3 { mode: Some(0o600), ..Sattr3::default() };
        let args = SetattrArgs { object: handle(&file), new_attributes, guard: Some(guard) };
        user.nfs(&Args::Setattr(args), |results| match results {
            Results::Setattr(Ok(_)) => Ok(()),
            Results::Setattr(Err(failed)) => {
                assert!(failed.info.after.is_some(), "errors have attributes, too");
                Err(failed.status)
            }
            other => panic!("{other:?}"),
        })
    };
    let other = weir_nfs_wire::nfs3::Nfstime3 { seconds: 1, nanos: 0 };
    assert_eq!(set(other), Err(Nfsstat3::NotSync));
    assert_eq!(attributes(&user), before);
    assert_eq!(set(before.ctime), Ok(()));
    assert_eq!(attributes(&user).mode, 0o600);
}

#[test]
fn rename_and_link_stay_inside_a_share() {
    let served = Served::new(&["*:no_root_squash"]);
    let below = served.create(served.root, "sub", (NewKind::Directory, 0o777), 0);
    let inside = served.create(below, "inside", (NewKind::Directory, 0o777), 0);
    let file = served.create(below, "f", (NewKind::File, 0o644), 0);
    served.server.shares.set(served.share("/tank/home/sub", below, &["*:no_root_squash"]));
    let user = served.user(0);
    let (all, sub) = (user.mount("/tank/home").unwrap(), user.mount("/tank/home/sub").unwrap());
    let moved = |from: &[u8], to: &[u8]| {
        let args = RenameArgs { from: place(from, "f"), to: place(to, "g") };
        user.nfs(&Args::Rename(args), |results| match results {
            Results::Rename(Ok(_)) => Ok(()),
            Results::Rename(Err(failed)) => Err(failed.status),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(moved(&sub, &all), Err(Nfsstat3::Xdev));
    let found = lookup(&user, &sub, "f").unwrap();
    let args = LinkArgs { file: handle(&found), link: place(&all, "g") };
    user.nfs(&Args::Link(args), |results| match results {
        Results::Link(Err(failed)) => assert_eq!(failed.status, Nfsstat3::Xdev),
        other => panic!("{other:?}"),
    });
    // `..` of the root of a share is the root itself.
    assert_eq!(lookup(&user, &sub, ".."), Ok(sub.clone()));
    let up = lookup(&user, &lookup(&user, &sub, "inside").unwrap(), "..").unwrap();
    assert_eq!(up, sub);
    let lists = names(&user, &sub, 4096, true).unwrap();
    assert_eq!(lists.len(), 4);
    assert_eq!(moved(&sub, &sub), Ok(()));
    let _: (InodeRef, InodeRef) = (inside, file);
}
