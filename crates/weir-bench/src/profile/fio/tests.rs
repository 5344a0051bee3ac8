//! Job files in, job files out, and fio's own opinion of those.
//!
//! Not here: running them.

use std::process::Command;

use super::super::lint::{Machine, lint};
use super::super::{Options, load};
use super::{export_fio, import_fio};
use crate::spec::{Access, Arrival, Durability, LoadSpec, Scale};

const SEED: Scale = Scale::Seed;

const JOBS: &str = "; a comment
[global]
ioengine=libaio
direct=1
size=1g
filename=/data/file
runtime=60
time_based
fsync=8
buffer_compress_percentage=50

[oltp]
rw=randrw
rwmixread=70
bssplit=4k/60:64k/40
iodepth=16
numjobs=4
random_distribution=zipf:1.2

[backup]
stonewall
rw=write
bs=1m
iodepth=8
ramp_time=5s
";

fn options() -> Options {
    Options { scale: SEED, ..Options::default() }
}

#[test]
fn a_job_file_becomes_rows() {
    let imported = import_fio("jobs.fio", JOBS, &options()).unwrap();
    assert_eq!(imported.traps, []);
    let spec = imported.spec;
    assert_eq!((spec.dataset.files, spec.dataset.file_bytes), (1, 1 << 30));
    assert_eq!(spec.durability, Durability::Flush { every_writes: 8 });
    assert!((spec.content.compress - 2.0).abs() < 1e-9);
    let [oltp, backup] = spec.cells.as_slice() else { panic!("two rows: {:?}", spec.cells) };
    assert_eq!(oltp.load, LoadSpec::Closed { workers: 4, depth: 16 });
    assert_eq!(oltp.streams[0].access, Access::Zipf { theta: 1.2 });
    let blocks: Vec<(u32, u32)> =
        oltp.streams[0].blocks.iter().map(|block| (block.bytes, block.weight)).collect();
    assert_eq!(blocks, [(4096, 60), (65_536, 40)]);
    assert!((oltp.streams[0].read_pct - 70.0).abs() < 1e-9);
    assert_eq!(backup.load, LoadSpec::Closed { workers: 1, depth: 8 });
    assert_eq!((backup.warmup_ms, backup.duration_ms), (5000, 60_000));
    assert_eq!(backup.streams[0].access, Access::Sequential);
    let machine = Machine { memory_bytes: 16 << 30, cores: 2 };
    let traps = lint(&spec, &machine);
    let named = |words: &str| traps.iter().any(|trap| trap.what.contains(words));
    assert!(named("memory can cache") && named("fewer than 3 runs") && named("16 per worker"));
}

#[test]
fn what_fio_would_have_measured_instead_is_named() {
    let text = "[slow]\nrw=randread\nsize=1g\nruntime=10\niodepth=32\nrate_iops=500\nnumjobs=2\n";
    let imported = import_fio("slow.fio", text, &options()).unwrap();
    let what: Vec<&str> = imported.traps.iter().map(|trap| trap.what.as_str()).collect();
    for words in ["direct=1", "engine psync", "time_based", "rate_iops"] {
        assert!(what.iter().any(|what| what.contains(words)), "{words}: {what:?}");
    }
    let LoadSpec::Open { rate, arrival, in_flight_max, .. } = imported.spec.cells[0].load else {
        panic!("a rate is an open loop")
    };
    assert!((rate - 1000.0).abs() < 1e-9, "500 for each of two");
    assert_eq!((arrival, in_flight_max), (Arrival::Constant, 2), "psync waits");
    assert_eq!(imported.spec.dataset.files, 2, "each copy of a job has a file of its own");
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    let cases = [
        ("rwmixread=70", "rwmixreed=70", 14, "did you mean `rwmixread`?"),
        ("rw=randrw", "rw=trim", 13, "`rw` is \"trim\""),
        ("bs=1m", "bs=4kib", 23, "4000 bytes cannot be done directly"),
        ("bs=1m", "bs=4k,8k", 23, "`bs` is \"4k,8k\""),
        ("4k/60:64k/40", "4k/60:64k/30", 15, "100 together"),
        ("zipf:1.2", "pareto:0.9", 18, "pareto"),
        ("ioengine=libaio", "ioengine=rbd", 3, "does something else"),
        ("runtime=60\n", "", 11, "ends with its data"),
        ("size=1g", "size=50%", 5, "`size` is \"50%\""),
        ("size=1g\n", "", 11, "has no `size`"),
        ("stonewall\n", "", 20, "runs at the same time"),
        ("stonewall", "stonewall\nfsync=1", 20, "other data, content or syncs"),
        ("[backup]", "[oltp]", 20, "two jobs are called"),
        ("[backup]", "[backup", 20, "does not end"),
        ("; a comment", "direct=1", 1, "before the first section"),
        ("numjobs=4", "numjobs=0", 17, "at least 1"),
        ("fsync=8", "sync=maybe", 9, "`sync` is \"maybe\""),
        ("percentage=50", "percentage=100", 10, "every block would be the same"),
    ];
    for (old, new, line, words) in cases {
        let text = JOBS.replacen(old, new, 1);
        let error = import_fio("jobs.fio", &text, &options()).expect_err(new).to_string();
        assert!(error.starts_with(&format!("jobs.fio:{line}: ")), "{new}: {error}");
        assert!(error.contains(words), "{new}: {error}");
    }
    assert!(import_fio("empty.fio", "", &options()).is_err());
}

/// Imported again, an exported run is the same load.
#[test]
fn what_is_exported_comes_back_the_same() {
    for name in ["quick", "backup", "s001-storpool", "s002-vlab"] {
        let spec = load(name, &options()).unwrap();
        let text = export_fio(&spec).unwrap().replace("offset_increment", "#offset_increment");
        let text: String = text
            .lines()
            .map(|line| {
                if line.starts_with("size=") { "size=1g\n".to_owned() } else { format!("{line}\n") }
            })
            .collect();
        let back = import_fio("export.fio", &text, &options()).unwrap_or_else(|e| panic!("{e}"));
        let closed = spec.cells.iter().filter(|cell| cell.search.is_none());
        assert_eq!(back.spec.durability, spec.durability);
        let loads: Vec<_> =
            closed.map(|cell| (cell.load, cell.streams.clone(), cell.duration_ms)).collect();
        let back: Vec<_> = back
            .spec
            .cells
            .iter()
            .map(|cell| (cell.load, cell.streams.clone(), cell.duration_ms))
            .collect();
        assert_eq!(back, loads, "{name}");
    }
}

#[test]
fn rows_that_fio_cannot_do_are_left_out_and_named() {
    let text = export_fio(&load("s001-storpool", &options()).unwrap()).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("# left out: curve")).count(), 2);
    assert_eq!(text.matches("\nstonewall").count(), 32);
    let error = export_fio(&load("s004-exchange", &options()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("several streams"), "{error}");
}

#[test]
fn a_job_file_is_loaded_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.fio");
    std::fs::write(&path, JOBS).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(load(path, &options()).unwrap().cells.len(), 2);
    let variant = Options { variant: Some("cold".to_owned()), ..options() };
    assert!(load(path, &variant).unwrap_err().to_string().ends_with("has none"));
    let smoke = load(path, &Options { scale: Scale::Smoke, ..options() }).unwrap();
    assert_eq!(smoke.cells[0].duration_ms, 5000);
    assert!(smoke.title.ends_with("smoke scale") && smoke.dataset.total_bytes() <= 256 << 20);
}

/// fio reads every export. It belongs to a machine on which the tests run: without it nobody knows
/// whether an export is one.
#[test]
fn fio_understands_what_is_exported() {
    let version = Command::new("fio").arg("--version").output();
    let version = version.expect("the program fio is missing: install the package fio");
    assert!(version.status.success(), "fio --version: {}", version.status);
    let folder = tempfile::tempdir().unwrap();
    for name in super::super::names() {
        let Ok(text) = export_fio(&load(name, &options()).unwrap()) else { continue };
        let path = folder.path().join(format!("{name}.fio"));
        std::fs::write(&path, text).unwrap();
        let fio = |target: Option<&str>| {
            let mut fio = Command::new("fio");
            fio.arg("--parse-only").arg(&path).current_dir(folder.path());
            target.map(|target| fio.env("WEIR_TARGET", target));
            fio.output().unwrap()
        };
        let output = fio(Some("target"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert!(!fio(None).status.success(), "{name}: without a target it must not run");
    }
}
