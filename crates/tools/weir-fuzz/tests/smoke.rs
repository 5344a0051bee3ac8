//! Fuzz smoke test: each target runs its corpus, then mutated inputs for 5 s. `make fuzz` runs
//! coverage-guided fuzzing.
//!
//! Environment:
//! - `WEIR_FUZZ_SECONDS`: time for mutated inputs in place of 5 s; below 1 s, the minimum number of
//!   inputs does not apply;
//! - `WEIR_FUZZ_SEED`: repeats the run that printed this seed;
//! - `WEIR_FUZZ_INPUT`: runs only the input in this file;
//! - `WEIR_FUZZ_SEEDS`: writes the valid inputs of the target to this folder, and runs no input.
//!
//! Invariants: each target has a test; an input that panics, runs for more than 10 s or needs more
//! than 1 GiB is written to a file and fails the test.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use std::{env, fs, io};

use weir_codec::checksum::xxh3_64;
use weir_fuzz::{Plan, TARGETS, Target, Watchdog, search};

/// Default time for mutated inputs.
const SECONDS: f64 = 5.0;
/// Time limit of one input.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);
/// Limit of the resident memory of the process. A run that finds no bug stays below 100 MiB.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

macro_rules! smoke {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                smoke(stringify!($name));
            }
        )*
    };
}

smoke! {
    label uberblock log_batch node slot dataset_record summary references remap zstd_block stream
    inode directory file_record acl xattr_list
    nbd_negotiate nbd_request
    rpc_record nfs3_call nfs3_reply nfs_client mount_call nfsacl_call nfs_handle share_rules
    iscsi_pdu iscsi_login iscsi_session iscsi_initiator scsi_command
    forged
}

#[test]
fn each_target_has_a_test_a_program_and_a_corpus() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names, TESTED.iter().map(|name| (*name).to_owned()).collect());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The programs of `weir_fuzz::nfs` have a folder of their own.
    let programs = root.join("../../../fuzz/fuzz_targets");
    let (mut found, nfs) = (stems(&programs), stems(&programs.join("nfs")));
    assert!(found.remove("nfs"));
    found.extend(nfs);
    assert_eq!(names, found);
    assert_eq!(names, stems(&root.join("corpus")));
}

/// Names of the files in a folder, without extensions.
fn stems(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder of the project");
    let stem = |entry: io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        path.file_stem().expect("a name").to_str().expect("a plain name").to_owned()
    };
    entries.map(stem).collect()
}

fn smoke(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let mut target = *target.expect("a target of the table");
    if let Some(path) = env::var_os("WEIR_FUZZ_INPUT") {
        (target.run)(&fs::read(path).expect("WEIR_FUZZ_INPUT is a file"));
        return;
    }
    if let Some(folder) = env::var_os("WEIR_FUZZ_SEEDS") {
        (target.seeds)().iter().for_each(|seed| drop(keep(Path::new(&folder), name, seed)));
        return;
    }
    let seconds = from_env("WEIR_FUZZ_SECONDS").unwrap_or(SECONDS);
    if seconds < 1.0 {
        target.inputs_min = 0;
    }
    let seed = from_env("WEIR_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..));
    // The test harness does not capture this line, so the line is visible even after an abort.
    print_uncaptured(&format!("fuzz {name}: WEIR_FUZZ_SEED={seed}"));
    let watchdog = Watchdog::start(INPUT_TIME_MAX, MEMORY_BYTES_MAX, move |input, what| {
        print_uncaptured(&report(&target, input, what));
        // If the process exceeds its memory limit, another test in the process may be the cause. So
        // wait 1 s, in which the watchdog of the other test can write its input.
        std::thread::sleep(Duration::from_secs(1));
        std::process::abort();
    });
    let plan = Plan { time: Duration::from_secs_f64(seconds), seed };
    match search(&target, &corpus(&target), plan, &watchdog) {
        Ok(tried) => {
            let line =
                format!("fuzz {name}: {} replayed, {} mutated", tried.replayed, tried.mutated);
            print_uncaptured(&line);
            let min = target.inputs_min;
            assert!(tried.mutated >= min, "{line}; the minimum is {min}: the target is too slow");
        }
        Err(failure) => panic!("{}", report(&target, &failure.input, &failure.message)),
    }
}

fn from_env<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text:?}")))
}

fn print_uncaptured(line: &str) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// Inputs of the committed corpus, sorted by file name, followed by the valid inputs of the target.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = fs::read_dir(&folder).expect("the target has a corpus");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let files = files.iter().map(|path| fs::read(path).expect("a file"));
    files.chain((target.seeds)()).collect()
}

/// Writes an input to a file, and returns the command that runs this input again.
fn report(target: &Target, input: &[u8], what: &str) -> String {
    let name = target.name;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-failures");
    let found = match keep(&folder, name, input) {
        Ok(path) => {
            let path = path.display();
            let program = env::current_exe().unwrap_or_default();
            let program = program.display();
            format!("input: {path}\nreplay: WEIR_FUZZ_INPUT={path} {program} --exact {name}")
        }
        Err(error) => format!("the input cannot be written ({error}): {input:02x?}"),
    };
    format!("fuzz {name}: {what}\n{found}")
}

/// Writes an input to `<folder>/<target>-<hash>`.
fn keep(folder: &Path, name: &str, input: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}-{:016x}", xxh3_64(&[input])));
    fs::write(&path, input)?;
    Ok(path)
}
