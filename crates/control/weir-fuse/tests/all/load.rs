//! Programs on the mount and NFS clients that change the same files at the same time.
//!
//! Invariant: no call hangs.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use weir_nfs_wire::nfs3::{Nfsstat3, Sattr3};

use crate::common::{Machine, on_machine};

const DURATION: Duration = Duration::from_secs(30);

/// Maximum time of one round of calls. A caller that waits for a stuck kernel needs 5 s.
const ROUND_MAX: Duration = Duration::from_secs(4);

const PAGE: usize = 4096;
const FILE_BYTES: usize = 64 * PAGE;

/// Rounds of one thread.
#[derive(Debug, Default)]
struct Rounds {
    count: u64,
    longest: Duration,
}

fn repeat(mut round: impl FnMut(u64)) -> Rounds {
    let (begun, mut rounds) = (Instant::now(), Rounds::default());
    while begun.elapsed() < DURATION {
        let start = Instant::now();
        round(rounds.count);
        rounds.longest = rounds.longest.max(start.elapsed());
        rounds.count += 1;
    }
    rounds
}

/// Offset of a round: the threads meet at the same pages.
fn offset(round: u64) -> u64 {
    round * 1000 % (FILE_BYTES - 2 * PAGE) as u64
}

/// Accepts the error of a name that another thread changed meanwhile.
fn or_raced(done: Result<(), Nfsstat3>) {
    let raced = [Nfsstat3::Noent, Nfsstat3::Exist, Nfsstat3::Stale];
    assert!(done.is_ok() || done.is_err_and(|status| raced.contains(&status)), "{done:?}");
}

/// As [`or_raced`], for a program.
fn or_changed<T>(done: std::io::Result<T>) {
    if let Err(error) = done {
        let raced =
            [ErrorKind::NotFound, ErrorKind::AlreadyExists, ErrorKind::StaleNetworkFileHandle];
        assert!(raced.contains(&error.kind()), "{error}");
    }
}

/// An NFS client that writes to the file, truncates it, and changes names in its directory.
fn client(machine: &Machine) -> Rounds {
    let nfs = machine.connect();
    repeat(|round| {
        nfs.write("file", offset(round), &[b'n'; 2 * PAGE]).unwrap();
        or_raced(nfs.create("name"));
        or_raced(nfs.rename("name", "other"));
        or_raced(nfs.remove("other"));
        if round.is_multiple_of(16) {
            let size = Some((FILE_BYTES / 2) as u64);
            nfs.set("file", Sattr3 { size, ..Sattr3::default() }).unwrap();
        }
    })
}

/// A program that writes to the file, reads it, and changes names in its directory.
fn program(machine: &Machine) -> Rounds {
    let file = OpenOptions::new().read(true).write(true).open(machine.path("file")).unwrap();
    let mut data = vec![0; FILE_BYTES];
    repeat(|round| {
        file.write_all_at(&[b'p'; 2 * PAGE], offset(round)).unwrap();
        file.read_at(&mut data, 0).unwrap();
        or_changed(fs::write(machine.path("name"), b"data"));
        or_changed(fs::rename(machine.path("name"), machine.path("other")));
        or_changed(fs::metadata(machine.path("other")));
        or_changed(fs::remove_file(machine.path("other")));
        if round.is_multiple_of(16) {
            file.set_len(FILE_BYTES as u64).unwrap();
            assert!(fs::read_dir(machine.path("")).unwrap().count() > 0);
        }
    })
}

#[test]
fn programs_and_nfs_clients_change_the_same_file_and_directory() {
    on_machine(true, |machine| {
        fs::write(machine.path("file"), vec![b'a'; FILE_BYTES]).unwrap();
        let all: Vec<_> = std::thread::scope(|scope| {
            let clients = [(); 2].map(|()| scope.spawn(|| client(machine)));
            let programs = [(); 2].map(|()| scope.spawn(|| program(machine)));
            clients.into_iter().chain(programs).map(|thread| thread.join().unwrap()).collect()
        });
        eprintln!("{all:?}");
        for rounds in &all {
            assert!(rounds.count > 100 && rounds.longest < ROUND_MAX, "{all:?}");
        }
        // No thread changes the file any more, so the program and the client agree.
        let nfs = machine.connect();
        nfs.write("file", 0, b"the end").unwrap();
        assert!(fs::read(machine.path("file")).unwrap().starts_with(b"the end"));
    });
}

/// The first lookup of a file can read its size before a write of a client, and the kernel can
/// store this size after the notification, which found no inode.
#[test]
fn size_of_a_file_that_was_looked_up_during_its_write_is_right() {
    const FILES: usize = 2000;
    on_machine(true, |machine| {
        let nfs = machine.connect();
        let names: Vec<_> = (0..FILES).map(|number| format!("file-{number}")).collect();
        names.iter().for_each(|name| nfs.create(name).unwrap());
        let size = |name: &String| fs::metadata(machine.path(name)).unwrap().len();
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for name in &names {
                    both.wait();
                    size(name);
                }
            });
            for name in &names {
                both.wait();
                nfs.write(name, 0, b"data").unwrap();
            }
        });
        assert_eq!(names.iter().filter(|name| size(name) != 4).count(), 0, "stale sizes");
    });
}

#[test]
fn name_that_was_looked_up_during_its_removal_is_gone() {
    const FILES: usize = 2000;
    on_machine(true, |machine| {
        let nfs = machine.connect();
        nfs.create("first-change").unwrap();
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for file in 0..FILES {
                    both.wait();
                    or_changed(fs::metadata(machine.path(&format!("file-{file}"))));
                    both.wait();
                }
            });
            let mut stale = 0;
            for file in 0..FILES {
                let name = format!("file-{file}");
                // The kernel knows some names from their creation, and looks up the others.
                match file % 2 {
                    0 => fs::write(machine.path(&name), b"data").unwrap(),
                    _ => nfs.create(&name).unwrap(),
                }
                both.wait();
                nfs.remove(&name).unwrap();
                both.wait();
                stale += usize::from(machine.path(&name).exists());
            }
            assert_eq!(stale, 0, "stale names");
        });
    });
}
