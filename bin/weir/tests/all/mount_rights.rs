//! Rights and quotas on a mount, as the kernel and programs of other users see them.
//!
//! Not here: the evaluation of ACLs and the counts of quotas (weir-fs), other operations (mounts).

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{
    FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, XattrFlags};

use crate::common::{Dirs, GIB, Server, WEIR, is_root, tool};
use crate::mounts::{Place, mounted, on_fuse};

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
/// Users that exist on no machine.
const FRIEND: u32 = 61_234;
const STRANGER: u32 = 61_235;
/// A user with an entry in /etc/passwd, which fusermount3 requires.
const NOBODY: u32 = 65_534;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, rights, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [vec![2, 0, 0, 0], entries.iter().flat_map(entry).collect()].concat()
}

/// Returns an ACL that gives rights to the owner and to one other user.
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

/// Runs a test with a mounted filesystem that all users can reach.
fn for_users(body: impl FnOnce(&Server, &Place) + Send + 'static) {
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
        body(&server, &home);
    });
}

/// Returns a command that runs a program as a user with a group of the same number.
fn as_user(user: u32, program: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).args(program);
    command
}

/// True if a program of this user can run this test(1) on a path.
fn can(user: u32, test: &str, path: &Path) -> bool {
    as_user(user, &["test", test]).arg(path).status().unwrap().success()
}

#[test]
fn acls_grant_rights_to_single_users_and_pass_to_new_files() {
    for_users(|server, home| {
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
        // Try an ACL with a wrong version, and an ACL without the entry of the owner.
        for wrong in [vec![3, 0, 0, 0], acl(&[(OTHER, 0, NONE)])] {
            let refused = rustix::fs::setxattr(&file, ACCESS, &wrong, XattrFlags::empty());
            assert!(refused.is_err(), "{wrong:?}");
        }
        // The pool stores the ACLs, so they still apply after an unmount.
        server.weir("unmount tank/home").ok();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert!(can(FRIEND, "-w", &new) && !can(FRIEND, "-r", &file));
        server.weir("unmount tank/home").ok();
    });
}

/// Runs `body` on a thread of a user with one group and without capabilities.
fn on_thread_of<T: Send>(uid: u32, gid: u32, body: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid))
    };
    std::thread::scope(|scope| {
        let run = || {
            become_user().unwrap();
            body()
        };
        scope.spawn(run).join().unwrap()
    })
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn every_change_of_a_program_by_another_user_clears_its_set_id_bits() {
    for_users(|server, home| {
        let (program, source) = (home.at("program"), home.at("source"));
        fs::copy("/usr/bin/id", &program).unwrap();
        let size = fs::metadata(&program).unwrap().len();
        fs::write(&source, vec![7; 200_000]).unwrap();
        let change = |what: &str, call: &(dyn Fn(&File) + Sync)| {
            fs::set_permissions(&program, Permissions::from_mode(0o6777)).unwrap();
            on_thread_of(STRANGER, STRANGER, || {
                call(&File::options().write(true).open(&program).unwrap());
            });
            assert_eq!(mode(&program), 0o777, "{what}");
        };
        let allocate = |flags: FallocateFlags, offset: u64| {
            move |file: &File| rustix::fs::fallocate(file, flags, offset, 4096).unwrap()
        };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        change("punch", &allocate(punch, 0));
        change("zero range", &allocate(FallocateFlags::ZERO_RANGE, 4096));
        change("allocate", &allocate(FallocateFlags::empty(), size));
        change("allocate inside", &allocate(FallocateFlags::empty(), 0));
        change("truncate", &|file| file.set_len(size).unwrap());
        change("write", &|file| file.write_all_at(b"x", 0).unwrap());
        change("copy", &|file| {
            let from = File::open(&source).unwrap();
            let copied = rustix::fs::copy_file_range(&from, None, file, None, 200_000).unwrap();
            assert!(copied > 0);
        });
        // Root keeps the bits.
        fs::set_permissions(&program, Permissions::from_mode(0o6777)).unwrap();
        allocate(punch, 0)(&File::options().write(true).open(&program).unwrap());
        assert_eq!(mode(&program), 0o6777);
        server.weir("unmount tank/home").ok();
    });
}

/// User number with which a program runs that has been copied from id(1).
fn runs_as(program: &Path) -> u32 {
    let output = as_user(STRANGER, &[program.to_str().unwrap(), "-u"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn program_that_another_user_changed_runs_without_the_rights_of_its_owner() {
    for_users(|server, home| {
        let program = home.at("program");
        fs::copy("/usr/bin/id", &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o4777)).unwrap();
        assert_eq!(runs_as(&program), 0, "the program has the rights of its owner");
        let append = || File::options().append(true).open(&program).unwrap().write_all(b"x");
        on_thread_of(STRANGER, STRANGER, append).unwrap();
        // No request for the attributes comes before the start of the program.
        assert_eq!(runs_as(&program), STRANGER);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn set_group_id_bit_needs_a_member_of_the_group() {
    for_users(|server, home| {
        let file = home.at("file");
        fs::write(&file, b"text").unwrap();
        chown(&file, Some(STRANGER), Some(FRIEND)).unwrap();
        let change_acl = |gid| {
            fs::set_permissions(&file, Permissions::from_mode(0o2755)).unwrap();
            on_thread_of(STRANGER, gid, || set(&file, ACCESS, &friend_may(4)));
            mode(&file) & 0o2000
        };
        assert_eq!(change_acl(FRIEND), 0o2000, "a member changes the ACL");
        assert_eq!(change_acl(STRANGER), 0, "another user changes the ACL");

        let directory = home.at("directory");
        fs::create_dir(&directory).unwrap();
        chown(&directory, None, Some(FRIEND)).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o2777)).unwrap();
        let create = |name: &str, gid| {
            let path = directory.join(name);
            on_thread_of(STRANGER, gid, || {
                File::options().write(true).create_new(true).mode(0o2775).open(&path).unwrap();
            });
            let found = fs::metadata(&path).unwrap();
            assert_eq!(found.gid(), FRIEND, "the group of the directory");
            found.mode() & 0o2000
        };
        assert_eq!(create("of-member", FRIEND), 0o2000);
        assert_eq!(create("of-stranger", STRANGER), 0);
        server.weir("unmount tank/home").ok();
    });
}

/// Writes a file as a user. Returns true if the whole file was written.
fn writes(user: u32, path: &Path, mib: u32) -> bool {
    let mut command = as_user(user, &["dd", "if=/dev/urandom", "bs=1M"]);
    command.arg(format!("of={}", path.display())).arg(format!("count={mib}"));
    command.output().unwrap().status.success()
}

#[test]
fn quotas_limit_users_also_while_the_filesystem_is_mounted() {
    for_users(|server, home| {
        fs::set_permissions(home.at(""), Permissions::from_mode(0o1777)).unwrap();
        let said =
            server.weir(&format!("filesystem quota tank/home --user {FRIEND} 4MiB")).ok().talk;
        assert!(said.contains(&format!("quota of user {FRIEND}: 4MiB")), "{said}");
        assert!(writes(FRIEND, &home.at("small"), 3));
        assert!(!writes(FRIEND, &home.at("large"), 3), "EDQUOT");
        assert!(writes(STRANGER, &home.at("other"), 8), "another user has no quota");
        fs::remove_file(home.at("large")).unwrap();
        let usage = || server.weir("filesystem usage tank/home --json").json();
        let of = |user: u32| {
            let usage = usage();
            let owners = usage["owners"].as_array().unwrap().clone();
            let is = |one: &&serde_json::Value| one["owner"] == "user" && one["id"] == user;
            owners.iter().find(is).cloned().unwrap_or_default()
        };
        let friend = of(FRIEND);
        assert_eq!(friend["used_bytes"], 3 << 20, "{friend}");
        assert_eq!(friend["quota_bytes"], 4 << 20, "{friend}");
        assert_eq!(friend["files"], 1, "{friend}");
        assert_eq!(of(STRANGER)["used_bytes"], 8 << 20);
        let table = server.weir("filesystem usage tank/home --by user").ok().out;
        assert!(table.contains("4MiB") && !table.contains("group"), "{table}");
        // The pool stores the quota, and the calls work without a mount.
        server.weir("unmount tank/home").ok();
        assert_eq!(of(FRIEND)["quota_bytes"], 4 << 20);
        let again = server.weir(&format!("filesystem quota tank/home --user {FRIEND} 4MiB"));
        assert!(again.ok().talk.contains("as before"));
        server.weir(&format!("filesystem quota tank/home --user {FRIEND} none")).ok();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert!(writes(FRIEND, &home.at("large"), 8));
        for wrong in ["--user nobody-at-all 1GiB", "--project home 1GiB", "--user 7 0", ""] {
            let line = format!("filesystem quota tank/home {wrong}");
            server.weir(&line).fails(crate::common::code::INVALID, &["try: "]);
        }
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn directory_passes_its_project_on_and_the_quota_of_the_project_holds() {
    for_users(|server, home| {
        let (shared, other) = (home.at("shared"), home.at("other"));
        fs::create_dir(&shared).unwrap();
        fs::create_dir(&other).unwrap();
        let path = |path: &Path| path.display().to_string();
        tool("chattr", &["-p", "42", "+P", &path(&shared)]);
        let shown = tool("lsattr", &["-pd", &path(&shared)]);
        assert!(shown.trim_start().starts_with("42 ") && shown.contains('P'), "{shown}");
        server.weir("filesystem quota tank/home --project 42 2MiB").ok();
        assert!(writes(0, &shared.join("small"), 1));
        let shown = tool("lsattr", &["-p", &path(&shared.join("small"))]);
        assert!(shown.trim_start().starts_with("42 "), "{shown}");
        assert!(!writes(0, &shared.join("large"), 4), "EDQUOT");
        assert!(writes(0, &other.join("large"), 4), "another project");
        let moved = fs::rename(other.join("large"), shared.join("moved")).unwrap_err();
        assert_eq!(moved.raw_os_error(), Some(18), "EXDEV");
        // Only the owner and root may change the project; other flags do not exist here.
        fs::set_permissions(home.at(""), Permissions::from_mode(0o755)).unwrap();
        let refused = |mut command: Command| !command.output().unwrap().status.success();
        assert!(refused(as_user(STRANGER, &["chattr", "-p", "7", &path(&shared)])));
        assert!(refused(as_user(0, &["chattr", "+i", &path(&shared.join("small"))])));
        server.weir("unmount tank/home").ok();
    });
}

/// Starts a server of a user without any rights of root.
fn serve_as_nobody(dirs: &Dirs) -> Server {
    let program = dirs.file("weir");
    if !program.exists() {
        fs::copy(WEIR, &program).unwrap();
        for directory in [dirs.file(""), dirs.short("")] {
            chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let own = dirs.serve();
    let mut command = as_user(NOBODY, &[]);
    command.arg(program).args(own.get_args()).env_remove("WEIR_API").current_dir(dirs.file(""));
    Server::start(dirs, "", command)
}

#[test]
fn server_without_root_mounts_for_its_user() {
    if !is_root() {
        eprintln!("skipped: only root can run a server as another user");
        return;
    }
    on_fuse(|| {
        let dirs = Dirs::new();
        let server = serve_as_nobody(&dirs);
        let disk = dirs.disk("disk-a", GIB);
        let home = Place::new(&dirs, "home");
        for path in [&disk, &home.at("")] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        server.weir("pool create tank disk-a").ok();
        server.weir("filesystem create tank/home").ok();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert!(writes(NOBODY, &home.at("file"), 2));
        assert!(!can(STRANGER, "-e", &home.at("file")), "other users have no access");
        let read = as_user(NOBODY, &["cmp"]).arg(home.at("file")).arg("/dev/zero").output();
        let said = String::from_utf8(read.unwrap().stdout).unwrap();
        assert!(said.contains("differ"), "{said}");
        server.weir("unmount tank/home").ok();
        assert_eq!(home.mounts(), 0);

        server.weir("mount tank/home").ok();
        server.kill();
        assert_eq!(home.mounts(), 1, "the dead mount stays");
        let server = serve_as_nobody(&dirs);
        assert_eq!(home.mounts(), 1, "the server replaced the dead mount");
        assert!(can(NOBODY, "-s", &home.at("file")));
        server.stop_clean();
        assert_eq!(home.mounts(), 0, "a clean stop unmounts");
    });
}

#[test]
fn directory_of_an_absent_mount_accepts_no_files() {
    for_users(|server, home| {
        let below = home.at("");
        fs::set_permissions(&below, Permissions::from_mode(0o755)).unwrap();
        chown(&below, Some(FRIEND), Some(FRIEND)).unwrap();
        assert!(writes(FRIEND, &home.at("mounted"), 1));
        let detached = Command::new("umount").arg(&below).status().unwrap();
        assert!(detached.success());
        assert_eq!(home.mounts(), 0);
        chown(&below, Some(FRIEND), Some(FRIEND)).unwrap();
        assert!(!writes(FRIEND, &home.at("below"), 1), "the mount is absent");
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        server.weir("unmount tank/home").ok();
        assert!(writes(FRIEND, &home.at("below"), 1), "no mount is expected here");
    });
}
