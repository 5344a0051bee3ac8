//! A program on the mount sees each change of an NFS client after the reply of the server.
//!
//! Each check prepares a file through the mount, so that the kernel caches it, changes it through
//! NFS, and returns true if the program sees the change.
//!
//! Invariant: [`nfs_changes_are_stale_without_a_watcher`] shows that the checks can fail.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use weir_nfs_wire::nfs3::{Nfstime3, Sattr3, SetTime};
use weir_nfs_wire::nfsacl::{AclEntries, AclEntry, Secattr, mask, tag};

use crate::common::{Machine, Nfs, on_machine};
use crate::mapped::Mapped;

const PAGE: usize = 4096;

/// A check. `is_cached`: the kernel caches the old state, so the check fails without a watcher.
struct Check {
    name: &'static str,
    is_cached: bool,
    sees_change: fn(&Machine, &Nfs<'_>, &str) -> bool,
}

const fn cached(name: &'static str, sees_change: fn(&Machine, &Nfs<'_>, &str) -> bool) -> Check {
    Check { name, is_cached: true, sees_change }
}

/// A check of something that the kernel does not cache today.
const fn asked(name: &'static str, sees_change: fn(&Machine, &Nfs<'_>, &str) -> bool) -> Check {
    Check { name, is_cached: false, sees_change }
}

const CHECKS: [Check; 20] = [
    cached("size", size),
    cached("pages", pages),
    cached("pages-of-open-file", pages_of_open_file),
    cached("growth", growth),
    cached("truncate", truncate),
    cached("mapping", mapping),
    cached("mapping-truncated", mapping_truncated),
    asked("new-name", new_name),
    cached("removed-name", removed_name),
    cached("removed-directory", removed_directory),
    cached("renamed", renamed),
    cached("replaced", replaced),
    cached("replaced-open-file", replaced_open_file),
    cached("mode", mode),
    cached("times", times),
    cached("links", links),
    cached("links-of-removed", links_of_removed),
    asked("list", list),
    cached("directory", directory),
    cached("acl", acl),
];

fn create(machine: &Machine, name: &str, data: &[u8]) {
    let path = machine.path(name);
    fs::write(&path, data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);
}

fn size(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    nfs.write(name, 4, b" and more").unwrap();
    fs::metadata(machine.path(name)).unwrap().len() == 13
}

fn pages(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, &[b'a'; 3 * PAGE]);
    nfs.write(name, 100, &[b'b'; PAGE]).unwrap();
    let mut expected = vec![b'a'; 3 * PAGE];
    expected[100..100 + PAGE].fill(b'b');
    fs::read(machine.path(name)).unwrap() == expected
}

fn pages_of_open_file(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, &[b'a'; PAGE]);
    let file = File::open(machine.path(name)).unwrap();
    let mut data = [0; 4];
    file.read_exact_at(&mut data, 0).unwrap();
    nfs.write(name, 0, b"bbbb").unwrap();
    file.read_exact_at(&mut data, 0).unwrap();
    data == *b"bbbb"
}

fn growth(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, &[b'a'; 100]);
    // The bytes between the old end and the offset are zero.
    nfs.write(name, 2 * PAGE as u64, b"end").unwrap();
    let data = fs::read(machine.path(name)).unwrap();
    data.len() == 2 * PAGE + 3 && data[100..2 * PAGE].iter().all(|byte| *byte == 0)
}

fn truncate(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, &[b'a'; 3 * PAGE]);
    set_size(nfs, name, 100);
    set_size(nfs, name, PAGE as u64);
    let data = fs::read(machine.path(name)).unwrap();
    data.len() == PAGE && data[100..].iter().all(|byte| *byte == 0)
}

fn set_size(nfs: &Nfs<'_>, name: &str, size: u64) {
    nfs.set(name, Sattr3 { size: Some(size), ..Sattr3::default() }).unwrap();
}

fn mapped(machine: &Machine, name: &str) -> Mapped {
    create(machine, name, &[b'a'; PAGE]);
    let file = OpenOptions::new().read(true).write(true).open(machine.path(name)).unwrap();
    let mapped = Mapped::new(&file, PAGE);
    assert_eq!(mapped.read(200, 4), b"aaaa");
    mapped
}

fn mapping(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let mapped = mapped(machine, name);
    nfs.write(name, 200, b"bbbb").unwrap();
    mapped.read(200, 4) == b"bbbb"
}

fn mapping_truncated(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let mapped = mapped(machine, name);
    set_size(nfs, name, 100);
    mapped.read(200, 4) == [0; 4]
}

fn new_name(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    assert!(!machine.path(name).exists());
    nfs.create(name).unwrap();
    machine.path(name).exists()
}

fn removed_name(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    nfs.remove(name).unwrap();
    !machine.path(name).exists()
}

fn removed_directory(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    fs::create_dir(machine.path(name)).unwrap();
    nfs.rmdir(name).unwrap();
    !machine.path(name).exists()
}

fn renamed(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    let inode = fs::metadata(machine.path(name)).unwrap().ino();
    let new = format!("{name}-new");
    nfs.rename(name, &new).unwrap();
    let found = fs::metadata(machine.path(&new)).unwrap().ino();
    found == inode && !machine.path(name).exists()
}

fn replaced(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let new = format!("{name}-new");
    create(machine, name, b"data");
    create(machine, &new, b"new data");
    let inode = fs::metadata(machine.path(&new)).unwrap().ino();
    nfs.rename(&new, name).unwrap();
    let found = fs::metadata(machine.path(name)).unwrap().ino();
    found == inode && fs::read(machine.path(name)).unwrap() == b"new data"
}

fn replaced_open_file(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let new = format!("{name}-new");
    create(machine, name, b"data");
    create(machine, &new, b"new data");
    let file = File::open(machine.path(name)).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    nfs.rename(&new, name).unwrap();
    let mut data = [0; 4];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(data, *b"data", "the open file keeps its data");
    file.metadata().unwrap().nlink() == 0
}

fn mode(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    nfs.set(name, Sattr3 { mode: Some(0o4751), uid: Some(7), ..Sattr3::default() }).unwrap();
    let found = fs::metadata(machine.path(name)).unwrap();
    found.mode() & 0o7777 == 0o4751 && found.uid() == 7
}

fn times(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    let mtime = SetTime::ClientTime(Nfstime3 { seconds: 1_000, nanos: 5 });
    nfs.set(name, Sattr3 { mtime, ..Sattr3::default() }).unwrap();
    let found = fs::metadata(machine.path(name)).unwrap();
    (found.mtime(), found.mtime_nsec()) == (1_000, 5)
}

fn links(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    nfs.link(name, &format!("{name}-link")).unwrap();
    fs::metadata(machine.path(name)).unwrap().nlink() == 2
}

fn links_of_removed(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    let link = format!("{name}-link");
    fs::hard_link(machine.path(name), machine.path(&link)).unwrap();
    assert_eq!(fs::metadata(machine.path(name)).unwrap().nlink(), 2);
    nfs.remove(&link).unwrap();
    fs::metadata(machine.path(name)).unwrap().nlink() == 1
}

fn names(machine: &Machine) -> Vec<String> {
    let entries = fs::read_dir(machine.path("")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn list(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let (removed, new) = (format!("{name}-removed"), format!("{name}-new"));
    create(machine, &removed, b"data");
    assert!(names(machine).contains(&removed));
    nfs.remove(&removed).unwrap();
    nfs.create(&new).unwrap();
    let names = names(machine);
    names.contains(&new) && !names.contains(&removed)
}

fn directory(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    let before = fs::metadata(machine.path("")).unwrap();
    nfs.mkdir(name).unwrap();
    let after = fs::metadata(machine.path("")).unwrap();
    let time = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec());
    after.nlink() == before.nlink() + 1 && time(&after) > time(&before)
}

fn acl(machine: &Machine, nfs: &Nfs<'_>, name: &str) -> bool {
    create(machine, name, b"data");
    let bytes = || {
        let (mut value, attribute) = (vec![0; 1000], "system.posix_acl_access");
        rustix::fs::getxattr(machine.path(name), attribute, &mut value).unwrap_or(0)
    };
    assert_eq!(bytes(), 0, "no ACL");
    let entry = |tag, id, permissions| AclEntry { tag, id, permissions };
    let entries = vec![
        entry(tag::USER_OBJ, 0, 6),
        entry(tag::USER, 7, 4),
        entry(tag::GROUP_OBJ, 0, 0),
        entry(tag::MASK, 0, 4),
        entry(tag::OTHER, 0, 0),
    ];
    let acl = AclEntries::new(entries).unwrap();
    nfs.set_acl(name, &Secattr::new(mask::ACL, acl, AclEntries::default()));
    // 4 bytes of a header and 8 of each entry.
    bytes() == 4 + 5 * 8
}

#[test]
fn program_on_the_mount_sees_each_change_of_nfs_clients() {
    on_machine(true, |machine| {
        let nfs = machine.connect();
        let failed: Vec<_> = CHECKS
            .iter()
            .filter(|check| !(check.sees_change)(machine, &nfs, check.name))
            .map(|check| check.name)
            .collect();
        assert_eq!(failed, [""; 0]);
    });
}

#[test]
fn nfs_changes_are_stale_without_a_watcher() {
    on_machine(false, |machine| {
        let nfs = machine.connect();
        let stale: Vec<_> = CHECKS
            .iter()
            .filter(|check| !(check.sees_change)(machine, &nfs, check.name))
            .map(|check| check.name)
            .collect();
        let expected: Vec<_> =
            CHECKS.iter().filter(|check| check.is_cached).map(|check| check.name).collect();
        assert_eq!(stale, expected);
    });
}

/// The kernel takes the end of the file from its cache, and caches the appended data there.
#[test]
fn append_of_a_program_follows_the_data_of_nfs_clients() {
    on_machine(true, |machine| {
        let nfs = machine.connect();
        create(machine, "log", b"begin\n");
        let path = machine.path("log");
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let mut expected = b"begin\n".to_vec();
        for round in 0..200 {
            let (end, line) = (expected.len() as u64, format!("client {round}\n"));
            nfs.write("log", end, line.as_bytes()).unwrap();
            expected.extend(line.bytes());
            // The kernel caches all pages, but does not learn the new end of the file.
            reader.read_exact_at(&mut [0; 6], expected.len() as u64 / 2).unwrap();
            let line = format!("program {round}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected.extend(line.bytes());
            let (begun, mut found) = (Instant::now(), vec![0; 6]);
            while !expected[end as usize..].starts_with(&found) {
                assert!(begun.elapsed() < Duration::from_secs(10), "pages at the wrong offset");
                reader.read_exact_at(&mut found, end).unwrap();
            }
            assert_eq!(fs::read(&path).unwrap(), expected);
        }
    });
}
