//! Filesystems with valid checksums and invalid structures: the check names each violation, the
//! reads of a rescue end and find the rest, and each operation of a mount ends without a panic.
//!
//! The programs run on the same filesystems in the end-to-end tests.
//!
//! Invariant: no test is random; a failure names the forgery.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use weir_forge::{
    FILESYSTEM_FORGERIES, FilesystemForgery, Forgery, Map, Rng, check_filesystem, filesystem_pool,
    list_filesystem, use_filesystem,
};

/// Time after which an operation on a forged filesystem counts as hanging.
const HANGS_AFTER: Duration = Duration::from_mins(1);
/// Maximum resident memory of the tests.
const RESIDENT_MAX: u64 = 1 << 30;
/// Bytes and names of the sample that a forgery of one structure leaves readable.
const READABLE_BYTES: u64 = 20 * 4096;
const READABLE_NAMES: usize = 8;
/// Number of filesystems with random fields.
const IMAGES: u64 = 250;

/// Peak resident memory of the process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.expect("Linux counts the memory of a process") << 10
}

/// Aborts the process if the work that [`Watch::begin`] named does not end.
struct Watch(Sender<String>);

impl Watch {
    fn new() -> Self {
        let (send, watched) = channel::<String>();
        std::thread::spawn(move || {
            let mut now = String::new();
            loop {
                match watched.recv_timeout(HANGS_AFTER) {
                    Ok(name) => now = name,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("{now}: an operation does not end");
                        std::process::abort();
                    }
                }
            }
        });
        Self(send)
    }

    fn begin(&self, name: &str) {
        self.0.send(name.to_owned()).expect("the watch runs");
    }
}

/// Message of a panic.
fn text(payload: &Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_default()
}

/// Runs `of` on each forgery. Panics with the names of the forgeries for which `of` fails.
fn for_each(of: impl Fn(&FilesystemForgery) -> Result<(), String>) {
    let (watch, mut failed) = (Watch::new(), Vec::new());
    for forgery in FILESYSTEM_FORGERIES {
        watch.begin(forgery.name);
        match catch_unwind(AssertUnwindSafe(|| of(forgery))) {
            Ok(Ok(())) => {}
            Ok(Err(what)) => failed.push(format!("{}: {what}", forgery.name)),
            Err(payload) => failed.push(format!("{} panics: {}", forgery.name, text(&payload))),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(resident_bytes() < RESIDENT_MAX, "{} bytes", resident_bytes());
}

#[test]
fn sample_is_sound() {
    let (disks, _) = filesystem_pool(None);
    assert_eq!(check_filesystem(&disks), Some(Vec::new()));
    let read = list_filesystem(&disks).expect("a sound pool");
    assert!(read.bytes >= READABLE_BYTES && read.names > 120 && !read.is_endless, "{read:?}");
    use_filesystem(&disks).expect("a sound pool");
}

#[test]
fn check_names_the_inode_and_the_violation() {
    for_each(|forgery| {
        let (disks, tree) = filesystem_pool(Some(forgery));
        let found = check_filesystem(&disks).expect("the pool is sound");
        let is_expected = match forgery.finding {
            Some((suspect, what)) => {
                let inode = suspect(&tree).0;
                found.iter().any(|one| one.inode == inode && one.what.contains(what))
            }
            None => found.is_empty(),
        };
        if is_expected { Ok(()) } else { Err(format!("the check finds {found:?}")) }
    });
}

#[test]
fn reads_of_a_rescue_end_and_find_the_rest() {
    for_each(|forgery| {
        let (disks, _) = filesystem_pool(Some(forgery));
        let read = list_filesystem(&disks).expect("the pool is sound");
        // This forgery hides the only large file.
        let hides_data = forgery.name == "size-beyond-signed";
        let is_enough = read.names >= READABLE_NAMES
            && (read.bytes >= READABLE_BYTES || hides_data)
            && !read.is_endless;
        if is_enough { Ok(()) } else { Err(format!("{read:?}")) }
    });
}

#[test]
fn operations_on_a_forged_filesystem_end() {
    for_each(|forgery| {
        let (disks, _) = filesystem_pool(Some(forgery));
        match use_filesystem(&disks) {
            Err(error) if !error.is_damage() => Err(format!("opening: {error:?}")),
            _ => Ok(()),
        }
    });
}

/// Fields with random values, in all structures of the pool below the filesystem. SEED chooses
/// another first seed, IMAGES another number of filesystems.
#[test]
fn random_fields_below_a_filesystem_cause_no_panic_or_hang() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, images) = (number("SEED", 1), number("IMAGES", IMAGES));
    let (sound, _) = filesystem_pool(None);
    let map = Map::of(&sound);
    let (watch, mut failed, mut checked) = (Watch::new(), Vec::new(), 0);
    for seed in first..first + images {
        watch.begin(&format!("seed {seed}"));
        let (mut rng, mut forgery) = (Rng::new(seed), Forgery::new(&map));
        let forged: Vec<_> = (0..=(rng.below(3) / 2)).map(|_| forgery.forge(&mut rng)).collect();
        let mut disks = sound.clone();
        if !forgery.seal(&mut disks) {
            continue;
        }
        let run = AssertUnwindSafe(|| {
            let found = check_filesystem(&disks);
            list_filesystem(&disks);
            // An error of the open is a valid result.
            let _used = use_filesystem(&disks);
            u32::from(found.is_some())
        });
        match catch_unwind(run) {
            Ok(is_checked) => checked += is_checked,
            Err(payload) => failed.push(format!("seed {seed}: {}: {forged:x?}", text(&payload))),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(u64::from(checked) > images / 3, "only {checked} of {images} filesystems open");
    assert!(resident_bytes() < RESIDENT_MAX, "{} bytes", resident_bytes());
}
