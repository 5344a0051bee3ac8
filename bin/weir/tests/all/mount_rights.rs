//! Rights on a mount: access control lists, as the kernel and programs of other users see them.
//!
//! Not here: the evaluation of ACLs (weir-fs), other operations (mounts.rs).

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;

use crate::common::{Dirs, is_root};
use crate::mounts::{mounted, on_fuse};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Tags of entries (acl(5)), as the kernel stores them in attributes.
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Id of an entry that names no user.
const NONE: u32 = u32::MAX;
/// A user that exists on no machine.
const FRIEND: u32 = 61_234;
const STRANGER: u32 = 61_235;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, rights, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [vec![2, 0, 0, 0], entries.iter().flat_map(entry).collect()].concat()
}

/// An ACL that gives rights to the owner and to one other user.
fn friend_may(rights: u16) -> Vec<u8> {
    acl(&[
        (USER_OBJ, 7, NONE),
        (USER, rights, FRIEND),
        (GROUP_OBJ, 0, NONE),
        (MASK, 7, NONE),
        (OTHER, 0, NONE),
    ])
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// True if a program of this user can run this test(1) on a path.
fn can(user: u32, test: &str, path: &Path) -> bool {
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "test", test]);
    command.arg(path).status().unwrap().success()
}

#[test]
fn acls_grant_rights_to_single_users_and_pass_to_new_files() {
    if !is_root() {
        eprintln!("skipped: only root can run programs as another user");
        return;
    }
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        for parent in home.at("").ancestors().take_while(|path| path.starts_with("/tmp/")) {
            fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        }
        let file = home.at("file");
        fs::write(&file, b"text").unwrap();
        set(&file, ACCESS, &friend_may(4));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o770, "the mask is shown");
        assert!(can(FRIEND, "-r", &file) && !can(FRIEND, "-w", &file));
        assert!(!can(STRANGER, "-r", &file));
        // chmod of the group bits changes the mask, which limits the friend.
        fs::set_permissions(&file, Permissions::from_mode(0o700)).unwrap();
        assert!(!can(FRIEND, "-r", &file));

        let shared = home.at("shared");
        fs::create_dir(&shared).unwrap();
        set(&shared, ACCESS, &friend_may(7));
        set(&shared, DEFAULT, &friend_may(6));
        let new = shared.join("new");
        fs::write(&new, b"text").unwrap();
        assert!(can(FRIEND, "-w", &new) && !can(STRANGER, "-r", &new));
        let below = shared.join("below");
        fs::create_dir(&below).unwrap();
        let mut value = [0; 256];
        let bytes = rustix::fs::getxattr(&below, DEFAULT, &mut value).unwrap();
        assert_eq!(value[..bytes], friend_may(6), "directories inherit the default ACL");
        // The wrong version, and an ACL without the entry of the owner.
        for wrong in [vec![3, 0, 0, 0], acl(&[(OTHER, 0, NONE)])] {
            let refused = rustix::fs::setxattr(&file, ACCESS, &wrong, XattrFlags::empty());
            assert!(refused.is_err(), "{wrong:?}");
        }
        // The ACLs are in the pool.
        server.weir("unmount tank/home").ok();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert!(can(FRIEND, "-w", &new) && !can(FRIEND, "-r", &file));
        server.weir("unmount tank/home").ok();
    });
}
