//! Tests of rules with `manage_gids`: the server looks up the groups of users.
//!
//! Invariant: each test looks up its users before the first call, so that no call waits for a
//! thread.

use std::time::Duration;

use weir_fs::NewKind;
use weir_nfs::Groups;
use weir_nfs_wire::nfs3::{AccessArgs, Args, Results, access};
use weir_oncrpc::Opaque;

use crate::common::{Served, User};

const USER: u32 = 7;
/// A group of the user after its first 16 groups.
const GROUP: u32 = 1019;

/// A server that knows 20 groups of the user 7, and cannot look up the user 8.
fn served(rule: &str) -> Served {
    let mut served = Served::new(&[rule]);
    let find = |uid| match uid {
        USER => Ok((1000..1020).collect()),
        9 => Ok(vec![0]),
        _ => Err(std::io::ErrorKind::HostUnreachable.into()),
    };
    served.server.groups = Groups::new(Box::new(find), Duration::from_hours(1));
    let runtime = compio::runtime::Runtime::new().unwrap();
    for uid in [USER, 8, 9] {
        runtime.block_on(served.server.groups.of(uid));
    }
    served
}

/// True if a user may read a file of a group.
fn may_read(served: &Served, user: &User<'_>, gid: u32) -> bool {
    let file = file_of(served, gid);
    let object = Opaque::new(&file).unwrap();
    let args = Args::Access(AccessArgs { object, access: access::READ });
    user.nfs(&args, |results| match results {
        Results::Access(Ok(found)) => found.access & access::READ != 0,
        other => panic!("{other:?}"),
    })
}

/// Creates a file that only this group may read. Returns its handle.
fn file_of(served: &Served, gid: u32) -> Vec<u8> {
    let name = format!("file-{gid}-{}", served.files.inodes_in_memory());
    let inode = served.create(served.root, &name, (NewKind::File, 0o040), gid);
    served.handle(inode)
}

#[test]
fn user_has_more_groups_than_a_call_carries() {
    let served = served("*:manage_gids");
    assert!(may_read(&served, &served.user(USER), GROUP));
    assert!(!may_read(&served, &served.user(USER), 2000));
}

#[test]
fn groups_of_the_server_replace_the_groups_of_the_call() {
    let in_call = |served: &Served| may_read(served, &served.user_in(USER, &[2000]), 2000);
    assert!(in_call(&served("*")));
    assert!(!in_call(&served("*:manage_gids")));
    let without = served("*");
    assert!(!may_read(&without, &without.user(USER), GROUP));
}

#[test]
fn groups_of_the_call_are_used_if_the_lookup_failed() {
    let served = served("*:manage_gids");
    assert!(may_read(&served, &served.user_in(8, &[2000]), 2000));
    assert!(!may_read(&served, &served.user_in(8, &[2000]), 2001));
    assert_eq!(served.server.groups.failures(), 1, "the failure is remembered");
}

#[test]
fn group_of_root_is_squashed_also_if_the_server_looks_it_up() {
    let squashes = served("*:manage_gids");
    assert!(!may_read(&squashes, &squashes.user(9), 0));
    let trusts = served("*:manage_gids,no_root_squash");
    assert!(may_read(&trusts, &trusts.user(9), 0));
}
