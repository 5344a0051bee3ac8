//! Tests of job files: import, export, and whether fio accepts exported files.
//!
//! The tests run no load.

mod round_trip;

use std::process::Command;

use super::super::lint::{Machine, lint};
use super::super::{Imported, Options, load};
use super::values::{size_bytes, time_ms};
use super::{export_fio, fio_path, import_fio};
use crate::spec::{Access, Arrival, Durability, LoadSpec, OpKind, RunSpec, Scale};

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
    Options::default()
}

fn imported(text: &str) -> Imported {
    import_fio("jobs.fio", text, &options()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the text of a job of 1 GiB with additional lines.
fn job(lines: &str) -> String {
    format!(
        "[job]\nioengine=libaio\ndirect=1\nsize=1g\nruntime=60\ntime_based\nfilename=x\n{lines}"
    )
}

fn what(imported: &Imported) -> Vec<&str> {
    imported.traps.iter().map(|trap| trap.what.as_str()).collect()
}

#[test]
fn job_file_is_imported_as_rows() {
    let imported = imported(JOBS);
    assert_eq!(imported.traps.len(), 1, "{:?}", imported.traps);
    assert!(imported.traps[0].what.contains("aligned to their size"), "of a zipf with two sizes");
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
fn large_job_keeps_its_size_and_time() {
    let text = job("bs=1m\nrw=write\niodepth=8").replace("1g", "200g").replace("60", "3600");
    let spec = imported(&text).spec;
    assert_eq!((spec.dataset.total_bytes(), spec.cells[0].duration_ms), (200 << 30, 3_600_000));
    assert_eq!((spec.scale, spec.title.as_str()), (Scale::Seed, "fio job jobs.fio"));
    let standard = Options { scale: Some(Scale::Standard), ..options() };
    let asked = import_fio("jobs.fio", &text, &standard).unwrap().spec;
    assert_eq!((asked.dataset.total_bytes(), asked.cells[0].duration_ms), (8 << 30, 60_000));
    assert!(asked.title.ends_with("standard scale"), "{}", asked.title);
}

#[test]
fn job_without_runtime_ends_after_its_bytes() {
    let job = |lines: &str| {
        let text = format!("[job]\nrw=randread\nsize=1g\nnumjobs=2\nfilename=x\n{lines}");
        let imported = imported(&text);
        let named = |word: &str| what(&imported).iter().any(|what| what.contains(word));
        assert!(!named("time_based"), "{lines}");
        let cell = &imported.spec.cells[0];
        (cell.duration_ms, cell.worker_bytes)
    };
    assert_eq!(job(""), (0, Some(1 << 30)));
    assert_eq!(job("loops=3\n"), (0, Some(3 << 30)));
    assert_eq!(job("io_size=4g\nloops=2\n"), (0, Some(8 << 30)));
    assert_eq!(job("io_size=50%\n"), (0, Some(512 << 20)));
    assert_eq!(job("runtime=60\n"), (60_000, Some(1 << 30)));
    assert_eq!(job("runtime=60\ntime_based\nloops=3\n"), (60_000, None));
    let text = "[job]\nrw=randread\nsize=1g\nnumjobs=4\n";
    let asked = Options { size_bytes: Some(64 << 20), ..options() };
    let cell = &import_fio("jobs.fio", text, &asked).unwrap().spec.cells[0];
    assert_eq!(cell.worker_bytes, Some(16 << 20), "each copy has a file of its own");
    let smoke = Options { scale: Some(Scale::Smoke), ..options() };
    let cell = &import_fio("jobs.fio", text, &smoke).unwrap().spec.cells[0];
    assert_eq!((cell.duration_ms, cell.worker_bytes), (5_000, Some(1 << 30)));
}

// Regression: block sizes of 4 and 12 KiB reduced a file of 1 GiB to 1,073,737,728 bytes.
#[test]
fn odd_block_sizes_do_not_shrink_the_dataset() {
    for sizes in ["bssplit=4k/50:12k/50", "bsrange=4k-20k", "bs=4k,20k"] {
        let spec = imported(&job(&format!("rw=randrw\n{sizes}"))).spec;
        assert_eq!(spec.dataset.total_bytes(), 1 << 30, "{sizes}");
        assert_eq!(spec.fill.block_bytes, 1 << 20, "{sizes}");
    }
}

#[test]
fn differences_from_fio_are_reported_as_traps() {
    let text = "[slow]\nrw=randread\nsize=1g\nruntime=10\niodepth=32\nrate_iops=500\nnumjobs=2\n";
    let imported = imported(text);
    let what = what(&imported);
    for words in ["direct=1", "engine psync", "a rate"] {
        assert!(what.iter().any(|what| what.contains(words)), "{words}: {what:?}");
        assert!(imported.spec.assume.iter().any(|line| line.contains(words)), "{words}");
    }
    let LoadSpec::Open { rate, arrival, in_flight_max, .. } = imported.spec.cells[0].load else {
        panic!("a rate is an open loop")
    };
    assert!((rate - 1000.0).abs() < 1e-9, "500 for each of two");
    assert_eq!((arrival, in_flight_max), (Arrival::Constant, 2), "psync waits");
    assert_eq!(imported.spec.dataset.files, 2, "each copy of a job has a file of its own");
}

#[test]
fn comment_ends_a_line_as_in_fio() {
    let text = "[job] # behind a section\nrw=randread ; behind a value\nsize=1g#\nruntime=60\n";
    let spec = imported(text).spec;
    assert_eq!((spec.cells[0].name.as_str(), spec.dataset.total_bytes()), ("job", 1 << 30));
    assert_eq!(spec.cells[0].streams[0].access, Access::Random);
}

/// Properties of a stream: weight, percentage of reads, block sizes with weights, and access
/// pattern.
type Shape = (u32, f64, Vec<(u32, u32)>, Access);

/// Returns the streams that the import makes from a job with these lines.
fn streams(lines: &str) -> Vec<Shape> {
    let spec = imported(&job(lines)).spec;
    let streams = spec.cells[0].streams.iter();
    let one = |stream: &crate::spec::StreamSpec| {
        let blocks = stream.blocks.iter().map(|block| (block.bytes, block.weight)).collect();
        (stream.share, stream.read_pct, blocks, stream.access)
    };
    streams.map(one).collect()
}

fn walk(random_pct: f64, align_bytes: u32, between: bool) -> Access {
    Access::Walk { random_pct, align_bytes, between }
}

#[test]
fn sizes_and_order_match_fio() {
    let one = |bytes: u32| vec![(bytes, 1)];
    let cases = [
        ("rw=randrw\nbs=8k", vec![(1, 50.0, one(8192), Access::Random)]),
        // If reads and writes have different sizes, the job becomes two streams, weighted by the
        // mix.
        (
            "rw=randrw\nrwmixread=70\nbs=4k,64k",
            vec![(70, 100.0, one(4096), Access::Random), (30, 0.0, one(65_536), Access::Random)],
        ),
        (
            "rw=randrw\nbs=,8k",
            vec![(50, 100.0, one(4096), Access::Random), (50, 0.0, one(8192), Access::Random)],
        ),
        ("rw=randread\nbs=4k,64k", vec![(1, 100.0, one(4096), Access::Random)]),
        // fio keeps a separate position for reads and for writes.
        (
            "rw=rw",
            vec![
                (50, 100.0, one(4096), Access::Sequential),
                (50, 0.0, one(4096), Access::Sequential),
            ],
        ),
        ("rw=randrw\nrwmixread=100", vec![(1, 100.0, one(4096), Access::Random)]),
        ("rw=randread\npercentage_random=30", vec![(1, 100.0, one(4096), walk(30.0, 4096, false))]),
        (
            "rw=randrw\npercentage_random=30,100",
            vec![
                (50, 100.0, one(4096), walk(30.0, 4096, false)),
                (50, 0.0, one(4096), Access::Random),
            ],
        ),
        (
            "rw=randwrite\nbsrange=4k-64k",
            vec![(1, 0.0, vec![(4096, 1), (65_536, 1)], walk(100.0, 4096, true))],
        ),
        // The later one of `bs` and `bsrange` applies, and `bssplit` overrides both.
        ("rw=randwrite\nbsrange=4k-64k\nbs=16k", vec![(1, 0.0, one(16_384), Access::Random)]),
        (
            "rw=randwrite\nbssplit=4k/60:64k/40\nbs=16k",
            vec![(1, 0.0, vec![(4096, 60), (65_536, 40)], walk(100.0, 4096, false))],
        ),
        (
            "rw=read\nbssplit=4k/50:1k/:32k/",
            vec![(1, 100.0, vec![(4096, 100), (1024, 50), (32_768, 50)], walk(0.0, 1024, false))],
        ),
        ("rw=randread\nba=64k", vec![(1, 100.0, one(4096), walk(100.0, 65_536, false))]),
        (
            "rw=randread\nrandom_distribution=zoned:90/10:10/90",
            vec![(1, 100.0, one(4096), Access::Hotspot { ops_pct: 90.0, data_pct: 10.0 })],
        ),
        // If copies of a job share one file, each copy reads all of the file. With
        // `offset_increment`, each copy reads its own range of the file.
        ("rw=read\nnumjobs=4", vec![(1, 100.0, one(4096), walk(0.0, 4096, false))]),
        (
            "rw=read\nnumjobs=4\noffset_increment=1g",
            vec![(1, 100.0, one(4096), Access::Sequential)],
        ),
    ];
    for (lines, expected) in cases {
        assert_eq!(streams(lines), expected, "{lines}");
    }
}

#[test]
fn sequential_copies_of_one_file_are_a_trap() {
    let machine = Machine { memory_bytes: 1 << 20, cores: 2 };
    let follows = |lines: &str| {
        let traps = lint(&imported(&job(lines)).spec, &machine);
        traps.iter().any(|trap| trap.what.contains("reads the same data sequentially"))
    };
    assert!(follows("rw=read\nnumjobs=4"));
    assert!(!follows("rw=read\nnumjobs=4\noffset_increment=1g") && !follows("rw=read"));
    assert!(!follows("rw=randread\nnumjobs=4\nbsrange=4k-8k"));
}

#[test]
fn trim_takes_the_third_block_size() {
    let imported = imported(&job("rw=randtrim\nbs=4k,8k,1m"));
    let stream = &imported.spec.cells[0].streams[0];
    assert_eq!((stream.op, stream.blocks[0].bytes), (Some(OpKind::Trim), 1 << 20));
    assert_eq!(stream.access, Access::Random);
    assert!(what(&imported).iter().any(|what| what.contains("last quarter")), "{imported:?}");
    let text = job("rw=trim\nbs=64m").replace("1g", "256m");
    let error = import_fio("jobs.fio", &text, &options()).unwrap_err().to_string();
    assert!(error.starts_with("jobs.fio:4: ") && error.contains("the last quarter"), "{error}");
}

/// In fio 3.33, `rate_iops=100` in a `randrw` job means 100 reads and 100 writes per second.
#[test]
fn rate_applies_to_each_direction_and_copy() {
    let rate = |lines: &str| {
        let spec = imported(&job(lines)).spec;
        let LoadSpec::Open { rate, arrival, .. } = spec.cells[0].load else { panic!("{lines}") };
        (rate, spec.cells[0].streams[0].read_pct, arrival)
    };
    let (even, poisson) = (Arrival::Constant, Arrival::Poisson);
    assert_eq!(rate("rw=randrw\nrwmixread=70\nrate_iops=100"), (200.0, 50.0, even));
    let more = "rw=randrw\nnumjobs=3\nrate_iops=300,100\nrate_process=poisson";
    assert_eq!(rate(more), (1200.0, 75.0, poisson));
    assert_eq!(rate("rw=randread\nrate_iops=100,"), (100.0, 100.0, even));
    assert_eq!(rate("rw=randwrite\nrate_iops=,200"), (200.0, 0.0, even));
    // `rate` is in bytes per second. Divided by the only block size, the rate gives operations per
    // second.
    assert_eq!(rate("rw=randwrite\nbs=8k\nrate=1m"), (128.0, 0.0, even));
    let skipped = imported(&job("rw=randrw\nrwmixread=70\nrate_iops=100")).skipped;
    assert!(skipped.iter().any(|word| word.word.contains("rwmixread")), "{skipped:?}");
    let none = imported(&job("rw=randread\nrate_iops=,200")).spec;
    assert!(matches!(none.cells[0].load, LoadSpec::Closed { .. }), "of writes, which it has not");
}

#[test]
fn file_lists_and_percent_sizes_resolve_to_bytes() {
    let dataset = |lines: &str, options: &Options| {
        let text = format!("[job]\nrw=randread\nruntime=60\n{lines}");
        import_fio("jobs.fio", &text, options).map(|imported| imported.spec.dataset)
    };
    let known = Options { target_bytes: Some(10 << 30), ..options() };
    let asked = Options { size_bytes: Some(64 << 20), ..options() };
    let cases = [
        ("size=1g\nfilename=a:b", &known, (2, 512 << 20)),
        ("size=1g\nfilename=a\\:b", &known, (1, 1 << 30)),
        ("size=1g\nnumjobs=3", &known, (3, 1 << 30)),
        ("size=1g\nnumjobs=3\nioengine=nbd\nuri=nbd://x", &known, (1, 1 << 30)),
        ("size=1g\nnumjobs=3\nnrfiles=4", &known, (12, 256 << 20)),
        ("size=1g\nnumjobs=3\nfilename=a\nnrfiles=4", &known, (1, 1 << 30)),
        ("size=50%\nfilename=a", &known, (1, 5 << 30)),
        ("filename=a", &known, (1, 10 << 30)),
        ("size=50%\nfilename=a", &asked, (1, 64 << 20)),
        ("size=20%\nfilename=a\nnumjobs=4\noffset_increment=20%", &known, (4, 2 << 30)),
    ];
    for (lines, options, (files, file_bytes)) in cases {
        let found = dataset(lines, options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((found.files, found.file_bytes), (files, file_bytes), "{lines}");
    }
    for lines in ["size=50%\nfilename=a", "filename=a"] {
        let error = dataset(lines, &options()).expect_err(lines).to_string();
        assert!(error.contains("--size"), "{error}");
    }
    let over = dataset("size=50%\nfilename=a\nnumjobs=4\noffset_increment=50%", &known);
    assert!(over.expect_err("200 %").to_string().contains("exceed the target's"));
}

#[test]
fn invalid_option_is_refused_with_its_line() {
    let cases = [
        ("rwmixread=70", "rwmixreed=70", 14, "did you mean `rwmixread`?"),
        ("rw=randrw", "rw=trimwrite", 13, "`rw` is \"trimwrite\""),
        ("rw=randrw", "rw=randrw:8", 13, "omit the number"),
        ("bs=1m", "bs=4kib", 23, "does not support a block of 4000 bytes"),
        ("bs=1m", "bs=4k,8k,1m,2m", 23, "more than three values"),
        ("bs=1m", "bs=4k-8k", 23, "`bs` is \"4k-8k\""),
        ("bs=1m", "bs=$pagesize", 23, "write the value itself"),
        ("bs=1m", "bsrange=4k", 23, "give a range"),
        ("4k/60:64k/40", "4k/60:64k/30", 15, "add up to 100"),
        ("4k/60:64k/40", "4k/60:64k/60", 15, "add up to 100"),
        ("zipf:1.2", "pareto:0.9", 18, "pareto"),
        ("zipf:1.2", "zoned:60/10:30/20:8/30:2/40", 18, "zoned"),
        ("zipf:1.2", "zipf:1.2\npercentage_random=50", 18, "a distribution is combined with"),
        ("iodepth=16", "iodepth=16\nrate_iops=100", 17, "bytes per second"),
        ("bs=1m", "rw=rw\nrate_iops=100,", 24, "but not for writes"),
        ("iodepth=16", "iodepth=16\niodepth_batch=8", 17, "several operations at a time"),
        ("iodepth=16", "iodepth=16\nthinktime=100", 17, "another load"),
        ("iodepth=16", "iodepth=100000000", 16, "in flight exceed the maximum"),
        ("iodepth=16", "iodepth=99999999999", 16, "one number of at least 1"),
        ("ioengine=libaio", "ioengine=rbd", 3, "does not read and write a file"),
        ("runtime=60\n", "", 7, "without `runtime`"),
        ("time_based\n", "loops=99999999999\n", 8, "one number of at least 1"),
        ("time_based\n", "io_size=99999999999g\n", 8, "`io_size` is"),
        ("runtime=60", "runtime=1h30m", 7, "give one time"),
        ("runtime=60", "runtime=10 m", 7, "give one time"),
        ("size=1g", "size=50%", 5, "whose size is not known"),
        ("size=1g", "size=1.5g", 5, "`size` is \"1.5g\""),
        ("size=1g", "size=0", 5, "`size` is 0"),
        ("size=1g", "size=512", 5, "hold no block"),
        ("size=1g", "size=1g\noffset=1m", 6, "`offset` is not 0"),
        ("size=1g\n", "", 11, "has no `size`"),
        ("stonewall\n", "", 20, "runs at the same time"),
        ("stonewall", "stonewall\nfsync=1", 20, "different syncs"),
        ("stonewall", "stonewall\nsize=2g", 20, "different data"),
        ("fsync=8", "fsync=8\nfdatasync=4", 10, "flush after different numbers"),
        ("[backup]", "[oltp]", 20, "two jobs are called"),
        ("[backup]", "[backup", 20, "does not end"),
        ("[backup]", "[]", 20, "without a name"),
        ("; a comment", "direct=1", 1, "before the first section"),
        ("; a comment", "[global]\ninclude none.inc", 2, "none.inc cannot be read"),
        ("numjobs=4", "numjobs=0", 17, "at least 1"),
        ("fsync=8", "sync=maybe", 9, "`sync` is \"maybe\""),
        ("percentage=50", "percentage=100", 10, "every block would be the same"),
        ("direct=1", "exec_prerun=drop-caches", 4, "run it yourself"),
        ("direct=1", "zonemode=zbd", 4, "zoned devices"),
        ("direct=1", "direct=yes", 4, "give 0 or 1"),
    ];
    for (old, new, line, words) in cases {
        assert!(JOBS.contains(old), "{old}");
        let text = JOBS.replacen(old, new, 1);
        let error = import_fio("jobs.fio", &text, &options()).expect_err(new).to_string();
        assert!(error.starts_with(&format!("jobs.fio:{line}: ")), "{new}: {error}");
        assert!(error.contains(words), "{new}: {error}");
    }
    assert!(import_fio("empty.fio", "", &options()).is_err());
}

#[test]
fn skipped_options_are_listed_with_their_lines() {
    let text = "[global]
group_reporting
thread=1
log_avg_msec=1000
loops=3
end_fsync=1
startdelay=5
iodepth_batch_complete_max=8
zonemode=none
rwmixread=30
bs=4k
[job]
direct=1
rw=randread
size=1g
runtime=60
time_based
filename=x
invalidate=1
percentage_random=100
bs=8k
bs=16k
nice=5
";
    let imported = imported(text);
    let skipped: Vec<(usize, &str)> =
        imported.skipped.iter().map(|word| (word.line, word.word.as_str())).collect();
    let expected = [
        (2, "group_reporting"),
        (3, "thread"),
        (4, "log_avg_msec"),
        (5, "loops"),
        (6, "end_fsync"),
        (7, "startdelay"),
        (8, "iodepth_batch_complete_max"),
        (9, "zonemode"),
        (10, "rwmixread"),
        (11, "bs"),
        (18, "filename"),
        (19, "invalidate"),
        (21, "bs"),
    ];
    assert_eq!(skipped, expected);
    assert!(imported.skipped.iter().all(|word| word.file == "jobs.fio" && !word.why.is_empty()));
    let why = |line: usize| {
        let word = imported.skipped.iter().find(|word| word.line == line);
        word.map(|word| word.why.as_str())
    };
    assert_eq!(why(10), Some("it has no effect in a job of this kind"));
    assert_eq!(why(11), Some("every job overrides it"));
    assert_eq!(why(21), Some("jobs.fio:22 overrides it"));
    assert_eq!(what(&imported), ["jobs.fio:23: `nice`: workers have the priority of this process"]);
}

/// Compares the table of options with the options that the installed fio has.
#[test]
fn every_option_of_fio_is_known() {
    let output = Command::new("fio").arg("--cmdhelp=all").output();
    let output = output.expect("the program fio is missing: install the package fio");
    let text = String::from_utf8_lossy(&output.stdout);
    let known = super::words::all();
    let is_known = |word: &str| {
        let alias = super::words::ALIASES.iter().find(|(alias, _)| *alias == word);
        known.contains(&alias.map_or(word, |(_, word)| word))
    };
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let unknown: Vec<&str> =
        names.map(|name| name.trim_end_matches(':')).filter(|name| !is_known(name)).collect();
    assert_eq!(unknown, [] as [&str; 0]);
    for (alias, word) in super::words::ALIASES {
        assert!(known.contains(&word), "{alias} stands for {word}");
    }
}

#[test]
fn include_belongs_to_the_including_section() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("all.inc"), "size=1g\nruntime=60\ninclude more.inc\n").unwrap();
    std::fs::write(path("more.inc"), "direct=1\n").unwrap();
    std::fs::write(path("deep.inc"), "iodepth=many\n").unwrap();
    let write = |text: &str| {
        std::fs::write(path("jobs.fio"), text).unwrap();
        load(path("jobs.fio").to_str().unwrap(), &options())
    };
    let spec = write("[global]\ninclude all.inc\n[job]\nrw=randread\n").unwrap();
    assert_eq!((spec.dataset.total_bytes(), spec.cells[0].duration_ms), (1 << 30, 60_000));
    let job = "[job]\nioengine=libaio\ninclude all.inc\ninclude deep.inc\n";
    let error = write(job).unwrap_err().to_string();
    assert!(error.contains("deep.inc:1: `iodepth`"), "{error}");
    std::fs::write(path("more.inc"), "[job2]\n").unwrap();
    assert!(
        write(job).unwrap_err().to_string().contains("more.inc:1: an included file has a section")
    );
    std::fs::write(path("more.inc"), "include all.inc\n").unwrap();
    assert!(write(job).unwrap_err().to_string().contains("include each other"));
}

#[test]
fn verify_option_checks_all_written_blocks() {
    let pct = |lines: &str| imported(&job(lines)).spec.cells[0].verify_pct;
    assert!(pct("rw=randwrite\nverify=crc32c") > 99.0);
    for lines in ["rw=randwrite", "rw=randwrite\nverify=md5\ndo_verify=0", "rw=read\nverify=md5"] {
        assert!(pct(lines) < 2.0, "{lines}");
    }
}

#[test]
fn export_lists_rows_that_fio_cannot_run() {
    let text = export_fio(&load("s001-storpool", &options()).unwrap()).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("# left out: curve")).count(), 2);
    assert_eq!(text.matches("\nstonewall").count(), 32);
    let error = export_fio(&load("s004-exchange", &options()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("several streams"), "{error}");
}

#[test]
fn exported_path_is_one_file_to_fio() {
    assert_eq!(fio_path("/dev/pci-0000:00").as_deref(), Some("/dev/pci-0000\\:00"));
    for path in ["a#b", "a;b", "${HOME}", "a\nb", " a", "a\\b"] {
        assert_eq!(fio_path(path), None, "{path:?}");
    }
}

#[test]
fn job_file_loads_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.fio");
    std::fs::write(&path, JOBS).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(load(path, &options()).unwrap().cells.len(), 2);
    let variant = Options { variant: Some("cold".to_owned()), ..options() };
    assert!(load(path, &variant).unwrap_err().to_string().ends_with("has none"));
    let smoke = load(path, &Options { scale: Some(Scale::Smoke), ..options() }).unwrap();
    assert_eq!(smoke.cells[0].duration_ms, 5000);
    assert!(smoke.title.ends_with("smoke scale") && smoke.dataset.total_bytes() <= 256 << 20);
}

/// fio parses every exported file. Machines that run the tests must have fio, because nothing else
/// can show that an export is valid.
#[test]
fn fio_parses_every_export() {
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
