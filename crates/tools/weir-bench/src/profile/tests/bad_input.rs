//! Tests that a damaged file gives an error with the file's name and line, and never a panic.
//!
//! The tests of each parser cover single mistakes and their messages.
//!
//! Invariant: each run of the tests makes the same changes to the files.

use std::fs;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::{import_fio, import_icf, read_text};
use super::{Options, ProfileError, SMALL, load, parse};
use crate::profile::builtin::PROFILES;
use crate::spec::{Access, BlockShare};

const FIO: &str = "# a comment
[global]
ioengine=libaio
direct=1
size=1g
filename=/data/file:/data/other
runtime=60
time_based
kb_base=1024
buffer_compress_percentage=50
[oltp]
rw=randrw
rwmixread=70
bssplit=4k/60:64k/40,8k/50:16k/
iodepth=16
numjobs=4
percentage_random=50,60
random_distribution=random
fdatasync=8
[range]
stonewall
rw=randwrite
bsrange=4k-64k,8k:32k
blockalign=4k
rate_iops=100,200,300
rate_process=poisson
ramp_time=500ms
fdatasync=8
verify=crc32c
[files]
stonewall
rw=randtrim
nrfiles=2
io_size=5g
loops=3
";

const ICF: &str = "Version 1.1.0
'Run Time
\t0          5          30
'Ramp Up Time (s)
\t10
'Test Type
\tNORMAL
'Access specification name,default assignment
\tMixed,NONE
'size,% of size,% reads,% random,delay,burst,align,reply
\t4096,60,70,75,0,1,0,0
\t8192,40,70,75,0,1,4096,0
'Manager ID, manager name
\t1,HOST
'Worker
\tWorker 1
'Worker type
\tDISK
'Number of outstanding IOs,test connection rate,transactions per connection,use fixed seed
\t32,DISABLED,1,DISABLED,0
'Disk maximum size,starting sector,Data pattern
\t8388608,0,0
'Assigned access specs
\tMixed
'End worker
'End manager
";

/// Replacements for numbers and words in a file.
const STRANGE: [&str; 24] = [
    "0",
    "-1",
    "1",
    "100",
    "101",
    "512",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "99999999999999999999999",
    "1e308",
    "nan",
    "inf",
    "",
    " ",
    "\"",
    "[",
    "]",
    "%",
    "50%",
    ",",
    ":/,-",
    "\u{0}",
    "\u{1f4be}",
];

/// Makes 1 to 3 random changes to a text.
fn spoiled(text: &str, rng: &mut SmallRng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..4) {
        if lines.is_empty() {
            break;
        }
        let index = rng.random_range(0..lines.len());
        match rng.random_range(0..6) {
            0 => drop(lines.remove(index)),
            1 => {
                let line = lines[rng.random_range(0..lines.len())].clone();
                lines.insert(index, line);
            }
            2 => lines.truncate(index),
            3 => {
                let end = lines[index].chars().count();
                let kept = rng.random_range(0..=end);
                lines[index] = lines[index].chars().take(kept).collect();
            }
            _ => lines[index] = replaced(&lines[index], rng),
        }
    }
    lines.join("\n")
}

/// Replaces one word or number in a line.
fn replaced(line: &str, rng: &mut SmallRng) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '%');
    let mut words: Vec<(usize, usize)> = Vec::new();
    for (at, c) in line.char_indices().filter(|(_, c)| is_word(*c)) {
        match words.last_mut() {
            Some((_, end)) if *end == at => *end = at + c.len_utf8(),
            _ => words.push((at, at + c.len_utf8())),
        }
    }
    let strange = STRANGE[rng.random_range(0..STRANGE.len())];
    let Some((begin, end)) = words.get(rng.random_range(0..words.len().max(1))) else {
        return strange.to_owned();
    };
    format!("{}{strange}{}", &line[..*begin], &line[*end..])
}

fn is_named(error: &ProfileError, file: &str) -> bool {
    let text = error.to_string();
    let line = text.strip_prefix(file).and_then(|rest| rest.strip_prefix(':'));
    let line = line.and_then(|rest| rest.split_once(": ")).map(|(line, _)| line.parse::<usize>());
    let missing = text.contains("there is no variant");
    matches!(line, Some(Ok(1..))) || missing
}

#[test]
fn damaged_file_is_read_or_refused_with_its_line() {
    let mut rng = SmallRng::seed_from_u64(34);
    let options = |rng: &mut SmallRng| Options {
        target_bytes: Some(100 << 30),
        variant: rng.random_range(0..2).eq(&0).then(|| "deep".to_owned()),
        ..Options::default()
    };
    let mut good = [0; 3];
    for round in 0..3000 {
        let (text, file) = match round % 3 {
            0 => (spoiled(FIO, &mut rng), "bad.fio"),
            1 => (spoiled(ICF, &mut rng), "bad.icf"),
            _ => {
                let (_, known) = PROFILES[rng.random_range(0..PROFILES.len())];
                let text = if round % 2 == 0 { known } else { SMALL };
                (spoiled(text, &mut rng), "bad.toml")
            }
        };
        let options = options(&mut rng);
        let spec = match round % 3 {
            0 => import_fio(file, &text, &options).map(|imported| imported.spec),
            1 => import_icf(file, &text, &options).map(|imported| imported.spec),
            _ => parse(file, &text, &options),
        };
        match spec {
            Err(error) => assert!(is_named(&error, file), "{error}\n{text}"),
            Ok(spec) => {
                good[round % 3] += 1;
                for cell in &spec.cells {
                    let ends = cell.duration_ms > 0 || cell.worker_bytes.is_some();
                    assert!(ends && !cell.streams.is_empty(), "{text}");
                    for stream in &cell.streams {
                        let part = spec.dataset.file_bytes;
                        let is_walk = matches!(stream.access, Access::Walk { .. });
                        let fits = |block: &BlockShare| match u64::from(block.bytes) {
                            0 => false,
                            bytes if is_walk => bytes <= part,
                            bytes => part.is_multiple_of(bytes),
                        };
                        assert!(stream.blocks.iter().all(fits), "{:?}\n{text}", spec.dataset);
                    }
                }
                // The export may return an error, but it must not panic.
                drop(super::super::export_fio(&spec));
            }
        }
    }
    assert!(good.iter().all(|count| *count > 30), "some changes are harmless: {good:?}");
}

#[test]
fn non_utf8_file_is_refused_at_its_first_bad_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        load(path.to_str().unwrap(), &Options::default()).unwrap_err().to_string()
    };
    for name in ["bad.fio", "bad.icf", "bad.toml"] {
        let error = write(name, b"# one\n# two \xff\n");
        assert!(error.contains(&format!("{name}:2: byte 0xff is not valid UTF-8")), "{error}");
        let error = write(name, &[0; 100]);
        assert!(error.contains(&format!("{name}:1: ")), "{error}");
        let error = write(name, &vec![b'#'; 5 << 20]);
        assert!(error.contains("larger than 4 MiB"), "{error}");
    }
    let deep = "a=".to_owned() + &"[".repeat(100_000);
    assert!(write("deep.toml", deep.as_bytes()).contains("deep.toml:1: "));
    let marked = folder.path().join("marked.fio");
    fs::write(&marked, "\u{feff}[job]\nrw=read\nsize=1g\nruntime=60\n").unwrap();
    load(marked.to_str().unwrap(), &Options::default()).unwrap();
}

#[test]
fn folders_and_endless_devices_are_refused() {
    let error = load("/dev/zero.fio/../zero", &Options::default()).unwrap_err();
    assert!(matches!(error, ProfileError::Read { .. }), "{error}");
    assert!(matches!(read_text("/".as_ref()), Err(ProfileError::Read { .. })));
    let error = read_text("/dev/zero".as_ref()).unwrap_err().to_string();
    assert!(error.contains("larger than 4 MiB"), "{error}");
}
