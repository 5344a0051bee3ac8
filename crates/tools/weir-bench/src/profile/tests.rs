//! Tests of built-in profiles and of refused profiles.
//!
//! `reference` tests the published rows, `lint` the traps.

mod bad_input;

use std::collections::BTreeSet;

use super::{Options, ProfileError, Protocol, export_fio, load, names, parse, variants};
use crate::spec::{
    Access, BonnieSize, CacheState, Durability, LoadSpec, MetadataSpec, OpKind, RunSpec, Scale,
    SearchSpec, StreamSpec,
};

const SCALES: [Scale; 3] = [Scale::Smoke, Scale::Standard, Scale::Seed];

const SMALL: &str = r#"schema = 1
name = "small"
dataset = { files = 2, file_size = "1GiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 1 }
durability = { writes = "none" }
load = { mode = "closed", workers = 2, qd = 8 }
matrix = { pattern = ["random"], read_pct = [70], block = ["4KiB"] }
[[test]]
name = "one"
pattern = "seq"
block = "1MiB"
read_pct = 0
qd = [4]
[[variant]]
name = "deep"
set = { "load.qd" = 64 }
cache = "cold"
"#;

fn at(scale: Scale) -> Options {
    Options { scale: Some(scale), ..Options::default() }
}

fn seed(name: &str, variant: Option<&str>) -> RunSpec {
    let options = Options { variant: variant.map(str::to_owned), ..at(Scale::Seed) };
    load(name, &options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_profile_can_be_run_at_every_scale_in_every_variant() {
    for name in names() {
        let variants = variants(name).unwrap().into_iter().map(Some).chain([None]);
        for variant in variants {
            for scale in SCALES {
                let options = Options { variant: variant.clone(), ..at(scale) };
                let spec = load(name, &options).unwrap_or_else(|error| panic!("{error}"));
                sound(&spec, scale);
                let json = serde_json::to_string(&spec).unwrap();
                assert_eq!(serde_json::from_str::<RunSpec>(&json).unwrap(), spec, "{name}");
            }
        }
    }
}

/// Asserts the properties of a run on which the generator relies.
fn sound(spec: &RunSpec, scale: Scale) {
    let what = format!("{} {:?} {scale:?}", spec.name, spec.cells[0].variant);
    let distinct: BTreeSet<&str> = spec.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(distinct.len(), spec.cells.len(), "{what}: two rows of one name");
    let most = match scale {
        Scale::Smoke => 256 << 20,
        Scale::Standard => 8 << 30,
        Scale::Seed => u64::MAX,
    };
    assert!(spec.dataset.total_bytes() <= most, "{what}: {:?}", spec.dataset);
    assert!(spec.dataset.file_bytes.is_multiple_of(u64::from(spec.fill.block_bytes)), "{what}");
    for cell in &spec.cells {
        for block in cell.streams.iter().flat_map(|stream| &stream.blocks) {
            assert!(spec.dataset.file_bytes.is_multiple_of(u64::from(block.bytes)), "{what}");
        }
        assert!(cell.duration_ms > 0 && cell.runs > 0 && !cell.streams.is_empty(), "{what}");
        if scale == Scale::Smoke {
            assert!(cell.duration_ms <= 5000 && cell.runs == 1, "{what}: {}", cell.name);
        }
        if scale == Scale::Standard && spec.reference.is_some() && cell.search.is_none() {
            assert_eq!(cell.duration_ms, 60_000, "{what}: {}", cell.name);
        }
    }
    let word = format!("{scale:?} scale").to_lowercase();
    assert_eq!(spec.title.contains(&word), scale != Scale::Seed, "{}", spec.title);
    assert_eq!(spec.assume.iter().any(|line| line.starts_with(&word)), scale != Scale::Seed);
}

#[test]
fn quick_profile_takes_about_a_minute() {
    let spec = seed("quick", None);
    let ms =
        |cell: &crate::spec::CellSpec| u64::from(cell.runs) * (cell.warmup_ms + cell.duration_ms);
    let total: u64 = spec.cells.iter().map(ms).sum();
    assert!((45_000..=60_000).contains(&total), "{total} ms without the fill");
    assert_eq!(load("quick", &Options::default()).unwrap().cells, spec.cells);
}

/// A user's file runs in full unless the user gives a scale; a built-in profile runs at standard
/// scale by default.
#[test]
fn user_profile_runs_in_full_by_default() {
    let large = SMALL.replacen("1GiB", "100GiB", 1).replacen(
        "[[test]]",
        "phases = { measure = { duration = \"1h\", warmup = \"5m\", runs = 7 } }\n[[test]]",
        1,
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(&path, &large).unwrap();
    let at =
        |scale| load(path.to_str().unwrap(), &Options { scale, ..Options::default() }).unwrap();
    let own = at(None);
    assert_eq!((own.scale, own.dataset.total_bytes()), (Scale::Seed, 200 << 30));
    let cell = &own.cells[0];
    assert_eq!((cell.duration_ms, cell.warmup_ms, cell.runs), (3_600_000, 300_000, 7));
    assert!(!own.title.contains("scale"), "{}", own.title);
    // A scale that the user gives shortens the runs of a user's file as well.
    let asked = at(Some(Scale::Standard));
    assert_eq!((asked.cells[0].duration_ms, asked.dataset.total_bytes()), (60_000, 8 << 30));
    assert!(asked.title.ends_with("standard scale"), "{}", asked.title);
    assert_eq!(load("s000-nexenta-vm", &Options::default()).unwrap().scale, Scale::Standard);
}

#[test]
fn matrix_has_the_order_of_the_published_tables() {
    let spec = seed("s000-nexenta-vm", None);
    let names: Vec<&str> = spec.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(names.len(), 54, "the sequential table has no rows with a quarter of reads");
    assert_eq!(names[..2], ["random 4KiB read 100%", "random 8KiB read 100%"]);
    assert_eq!(names[6], "random 4KiB read 75%");
    assert_eq!(names[29..31], ["random 128KiB read 0%", "seq 4KiB read 0%"]);
    assert_eq!(names[53], "seq 128KiB read 100%");
    assert_eq!(spec.cells[0].load, LoadSpec::Closed { workers: 128, depth: 4 });
    assert_eq!(spec.durability, Durability::FlushBytes { every_bytes: 4 << 20 });
    assert_eq!((spec.dataset.files, spec.fill.block_bytes), (120, 65_536));
    let published = 120_u64 * 20_000_000_000;
    assert!(published - spec.dataset.total_bytes() < 120 * 131_072, "cut to whole blocks only");

    let low = seed("s000-nexenta-vm", Some("async1-100pct-data"));
    assert_eq!(low.cells.len(), 30);
    assert_eq!(low.cells[0].load, LoadSpec::Closed { workers: 128, depth: 1 });
    assert!(low.assume.iter().any(|line| line.contains("4 raidz1 (4+1)")), "{:?}", low.assume);
    let left_out = |spec: &RunSpec| spec.assume.iter().any(|line| line.contains("5 % of metadata"));
    assert!(left_out(&spec) && !left_out(&low));
}

#[test]
fn profiles_contain_every_published_test() {
    let storpool = seed("s001-storpool", None);
    assert_eq!(storpool.cells.len(), 3 * 4 + 2 * 6 + 2 * 4 + 2);
    assert!(storpool.cells[..32].iter().all(|cell| cell.clients == 3));
    let curve = storpool.cells.last().unwrap();
    assert_eq!((curve.clients, curve.duration_ms), (1, 10_000));
    assert!(matches!(curve.search, Some(SearchSpec::Curve { refine: 4, .. })));
    let read = storpool.cells.iter().find(|cell| cell.name == "random-read qd64").unwrap();
    assert_eq!(read.duration_ms, 10_000);
    assert_eq!(read.load, LoadSpec::Closed { workers: 1, depth: 64 });

    let vlab = seed("s002-vlab", None);
    let hosts: Vec<u32> = vlab.cells.iter().map(|cell| cell.clients).collect();
    assert_eq!(hosts, [1, 3, 1, 1, 1]);
    let bonnie = vlab.bonnie.unwrap();
    assert_eq!((bonnie.size, bonnie.runs), (BonnieSize::MemoryTimes { times: 3.0 }, 8));

    let softnas = seed("s003-softnas", Some("object-1M"));
    assert_eq!(softnas.cells.len(), 10);
    assert_eq!(softnas.cells[0].streams[0].blocks[0].bytes, 1 << 20);
    assert_eq!(softnas.sizing.unwrap().bins_iops, [128.0, 256.0, 512.0]);

    let exchange = seed("s004-exchange", Some("metadata-warm"));
    assert_eq!(exchange.cells.len(), 2 + 7);
    assert!(exchange.cells.iter().all(|cell| cell.cache == CacheState::WarmMetadata));
    let LoadSpec::Open { rate, .. } = exchange.cells[0].load else { panic!("a rate is offered") };
    assert!((rate - 216.0).abs() < 1e-9);
    let bounds = exchange.require.unwrap().latency;
    let p99 = bounds.iter().find(|bound| bound.max_us > 99_999.0).unwrap();
    assert_eq!(p99.stream.as_deref(), Some("db"));
}

#[test]
fn variant_changes_only_the_values_it_sets() {
    let plain = parse("small.toml", SMALL, &at(Scale::Seed)).unwrap();
    let deep = Options { variant: Some("deep".to_owned()), seed: Some(7), ..at(Scale::Seed) };
    let deep = parse("small.toml", SMALL, &deep).unwrap();
    assert_eq!(plain.cells[0].load, LoadSpec::Closed { workers: 2, depth: 4 });
    assert_eq!(deep.cells[0].load, LoadSpec::Closed { workers: 2, depth: 32 });
    assert_eq!(deep.cells[1].load, plain.cells[1].load);
    assert_eq!((deep.cells[0].cache, deep.content.seed), (CacheState::Cold, 7));
    let unknown = Options { variant: Some("deeper".to_owned()), ..Options::default() };
    let error = parse("small.toml", SMALL, &unknown).unwrap_err().to_string();
    assert_eq!(error, "small.toml: there is no variant \"deeper\"; it has deep");
}

#[test]
fn title_names_the_substitute_for_a_missing_protocol() {
    let title =
        |name: &str, protocol| load(name, &Options { protocol, ..at(Scale::Seed) }).unwrap().title;
    assert!(title("s000-nexenta-vm", Some(Protocol::Nbd)).ends_with("(on nbd instead of nfs3)"));
    for protocol in [None, Some(Protocol::Nfs3)] {
        assert!(!title("s000-nexenta-vm", protocol).contains("instead"));
    }
    let text = SMALL.replacen("schema = 1\n", "schema = 1\nprotocols = [\"smb\"]\n", 1);
    let smb = parse("small.toml", &text, &at(Scale::Seed)).unwrap().title;
    assert!(smb.ends_with("(on file, nbd, iscsi or nfs3 instead of smb)"), "{smb}");
    assert!(!title("s001-storpool", Some(Protocol::Nbd)).contains("instead"));
    assert!(!title("quick", Some(Protocol::Null)).contains("instead"));
}

#[test]
fn small_blocks_are_rounded_up_and_reported() {
    let options = Options { block_min_bytes: Some(4096), ..at(Scale::Seed) };
    let spec = load("s002-vlab", &options).unwrap();
    assert_eq!(spec.cells[0].streams[0].blocks[0].bytes, 4096);
    assert!(spec.assume.iter().any(|line| line.starts_with("Max_IOPS: blocks of 4096 bytes")));
    assert_eq!(seed("s002-vlab", None).cells[0].streams[0].blocks[0].bytes, 512);
}

#[test]
fn access_follows_the_dataset() {
    assert_eq!(seed("database", None).cells[0].streams[0].access, Access::Zipf { theta: 0.9 });
    let hot = Access::Hotspot { ops_pct: 80.0, data_pct: 20.0 };
    assert_eq!(seed("vm", None).cells[0].streams[0].access, hot);
}

/// Text to replace in a valid profile, its replacement, the line of the expected error, and words
/// in the error.
const REFUSED: &[(&str, &str, usize, &str)] = &[
    ("block = \"1MiB\"", "blok = \"1MiB\"", 11, "`blok` is not known here, did you mean `block`?"),
    ("writes = \"none\"", "writes = \"fuaa\"", 5, "did you mean `fua`?"),
    ("durability = { writes = \"none\" }", "", 1, "`durability` is missing"),
    ("schema = 1", "schema = 2", 1, "schema 2 is not supported"),
    ("schema = 1", "schema = ", 1, "small.toml:1: "),
    ("read_pct = [70]", "read_pct = [101]", 7, "`read_pct` is 101"),
    ("read_pct = 0", "read_pct = \"all\"", 12, "invalid type"),
    ("block = [\"4KiB\"]", "block = [\"4KB\"]", 7, "4000 bytes is not a multiple of 512"),
    ("block = [\"4KiB\"]", "block = [\"4K\"]", 7, "may mean 1000 or 1024"),
    ("block = \"1MiB\"", "block = \"128MiB\"", 11, "larger than 64 MiB"),
    ("file_size = \"1GiB\"", "file_size = \"64KiB\"", 3, "do not fit a file of 65536"),
    ("qd = [4]", "qd = [0]", 13, "`qd` is 0"),
    ("qd = 8", "qd = 9", 6, "are not a multiple of 2 workers"),
    ("qd = 8", "qd = 8, rate = 5", 6, "a closed loop sends as fast as the target completes"),
    ("qd = 8", "qd = 8, window = 4", 6, "both `window` (per worker) and `qd`"),
    ("mode = \"closed\"", "mode = \"open\"", 6, "an open loop has no queue depth"),
    ("qd = [4]", "rate = 100", 8, "a closed loop sends as fast as the target completes"),
    ("qd = [4]", "mode = \"open\"", 8, "an open loop needs a rate"),
    ("qd = [4]", "mode = \"open\"\nrate = -1", 8, "a rate of -1"),
    ("qd = [4]", "qd = [4]\nsearch = { slo = \"require\", tolerance_pct = 3 }", 8, "has no rate"),
    ("block = \"1MiB\"\n", "", 8, "no block size"),
    ("read_pct = 0\n", "", 8, "is missing"),
    ("compress = 1.0", "compress = 0.5", 4, "`compress` is 0.5"),
    ("unit = \"4KiB\"", "unit = \"3KiB\"", 4, "power of two"),
    ("files = 2", "files = 0", 3, "no files"),
    ("files = 2", "files = 2, shares = 1", 3, "exactly one of three forms"),
    ("writes = \"none\"", "writes = \"flush\"", 5, "the interval between flushes is missing"),
    ("writes = \"none\"", "writes = \"none\", every_writes = 2", 5, "`writes` is not"),
    ("\"load.qd\"", "\"load.qdd\"", 16, "did you mean `qd`?"),
    ("name = \"one\"", "name = \"one\"\nsize = \"3xRAM\"", 8, "only the bonnie engine"),
    ("name = \"one\"", "name = \"one\"\nruns = 0", 8, "`runs` is 0"),
    (
        "block = \"1MiB\"\nread_pct = 0",
        "block = \"64MiB\"\nop = \"trim\"\nclients = 8",
        3,
        "in the last quarter of 268435456 bytes",
    ),
    ("name = \"one\"", "name = \"one\"\nruns = 100000", 8, "`runs` is 100000"),
    ("name = \"one\"", "name = \"one\"\nduration = \"99999h\"", 8, "more than a year"),
    ("qd = [4]", "threads = [4000000000]", 13, "exceed the maximum of 65536"),
    ("qd = [4]", "mode = \"open\"\nrate = 1e300", 8, "a rate of 1"),
    (
        "qd = [4]",
        "mode = \"open\"\nrate = 5\nworkers = 4000000000",
        8,
        "exceed the maximum of 65536",
    ),
    (
        "mode = \"closed\", workers = 2, qd = 8",
        "mode = \"open\", rate = 5, in_flight_max = 4000000000",
        6,
        "exceed the maximum of 65536",
    ),
];

#[test]
fn invalid_value_is_refused_with_its_line() {
    let options = Options { variant: Some("deep".to_owned()), ..at(Scale::Seed) };
    parse("small.toml", SMALL, &options).unwrap();
    for (old, new, line, words) in REFUSED {
        assert!(SMALL.contains(old), "{old}");
        let text = SMALL.replacen(old, new, 1);
        let plain = parse("small.toml", &text, &at(Scale::Seed));
        let error = plain.and_then(|_| parse("small.toml", &text, &options)).expect_err(new);
        let error = error.to_string();
        assert!(error.starts_with(&format!("small.toml:{line}: ")), "{new}: {error}");
        assert!(error.contains(words), "{new}: {error}");
    }
}

#[test]
fn unknown_profile_and_unreadable_file_are_different_errors() {
    let error = load("s000", &Options::default()).unwrap_err();
    assert!(matches!(&error, ProfileError::Unknown { known, .. } if known.contains("quick")));
    let error = load("./none.toml", &Options::default()).unwrap_err();
    assert!(matches!(error, ProfileError::Read { .. }), "{error}");
}

/// Profile with a test of each operation on files, and with a mix.
const FILES: &str = r#"schema = 1
name = "files"
dataset = { files = 4, file_size = "1MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 1 }
durability = { writes = "none" }
[phases]
measure = { warmup = "2s", duration = "9s", runs = 3 }
[[test]]
name = "create"
op = "create"
files = 20000
file_size = "4KiB"
directory = "shared"
threads = [2]
[[test]]
name = "stat"
op = "stat"
pattern = "random"
files = 20000
threads = [2]
[[test]]
name = "rename"
op = "rename"
files = 64
qd = [32]
[[test]]
name = "mix"
pattern = "random"
block = "4KiB"
read_pct = 70
metadata_pct = 5
qd = [4]
"#;

fn on(protocol: Protocol) -> Options {
    Options { protocol: Some(protocol), ..at(Scale::Seed) }
}

#[test]
fn operations_on_files_expand_with_their_files() {
    let spec = parse("files.toml", FILES, &on(Protocol::Dir)).unwrap();
    let [create, stat, rename, mix] = &spec.cells[..] else { panic!("four cells") };
    let of = |files, file_bytes, shared| Some(MetadataSpec::Files { files, file_bytes, shared });
    assert_eq!(create.streams[0].metadata, of(20_000, 4096, true));
    assert_eq!(create.streams[0].op, Some(OpKind::Create));
    assert_eq!((create.warmup_ms, create.duration_ms), (0, 9000), "a warm-up uses up the files");
    assert_eq!(stat.streams[0].metadata, of(20_000, 0, false));
    assert_eq!((stat.warmup_ms, stat.streams[0].access), (2000, Access::Random));
    assert_eq!(rename.streams[0].access, Access::Sequential, "the default");
    let Some(MetadataSpec::Mix { pct, shares }) = &mix.streams[0].metadata else {
        panic!("{mix:?}")
    };
    assert!((pct - 5.0).abs() < 1e-9 && shares.len() == 9, "{shares:?}");
    let described = |line: &&String| line.contains("getattr 26, lookup 24, access 11, setattr 4");
    assert_eq!(spec.assume.iter().filter(described).count(), 1, "{:?}", spec.assume);
    assert!(spec.cells.iter().all(|cell| cell.streams.iter().all(StreamSpec::is_consistent)));
    let smoke = Options { scale: Some(Scale::Smoke), ..on(Protocol::Dir) };
    let smoke = parse("files.toml", FILES, &smoke).unwrap();
    assert_eq!(smoke.cells[0].streams[0].metadata, of(1000, 4096, true));
}

#[test]
fn metadata_operations_are_refused_for_targets_without_files() {
    let only = |name: &str| {
        let (front, tests) = FILES.split_at(FILES.find("[[test]]").unwrap());
        let wanted = format!("name = \"{name}\"");
        let test = tests.split("[[test]]").find(|test| test.contains(&wanted)).unwrap();
        format!("{front}[[test]]{test}")
    };
    for protocol in
        [Protocol::Nbd, Protocol::Iscsi, Protocol::Block, Protocol::File, Protocol::Null]
    {
        for name in ["create", "stat", "rename", "mix"] {
            let refused = parse("files.toml", &only(name), &on(protocol));
            let error = refused.expect_err("it has no files").to_string();
            let words = format!("a target of kind {} has none", protocol.name());
            assert!(error.starts_with("files.toml:") && error.contains(&words), "{error}");
            assert!(error.contains("dir:PATH"), "{error}");
        }
    }
}

#[test]
fn published_mix_runs_on_files_and_is_omitted_elsewhere() {
    let of = |protocol| load("s000-nexenta-vm", &on(protocol)).unwrap();
    let omitted = |spec: &RunSpec| spec.assume.iter().any(|line| line.contains("are omitted"));
    let (dir, nbd) = (of(Protocol::Dir), of(Protocol::Nbd));
    assert!(dir.cells.iter().all(|cell| cell.streams[0].has_mix()) && !omitted(&dir));
    assert!(nbd.cells.iter().all(|cell| cell.streams[0].metadata.is_none()) && omitted(&nbd));
    let data = Options { variant: Some("async1-100pct-data".to_owned()), ..on(Protocol::Dir) };
    let data = load("s000-nexenta-vm", &data).unwrap();
    assert!(data.cells.iter().all(|cell| cell.streams[0].metadata.is_none()));
}

#[test]
fn contradictory_metadata_keys_are_refused() {
    let cases = [
        ("files = 20000\nfile_size", "file_size", "needs `files`"),
        ("files = 20000\nfile_size = \"4KiB\"", "files = 0", "`files` is 0"),
        ("file_size = \"4KiB\"", "file_size = \"64MiB\"", "larger than 16 MiB"),
        ("file_size = \"4KiB\"", "block = \"4KiB\"", "no block size"),
        ("file_size = \"4KiB\"", "metadata_pct = 5", "both `metadata_pct`"),
        ("files = 64", "files = 63", "give at least 64 files"),
        ("metadata_pct = 5", "metadata_pct = 100", "`metadata_pct` is 100"),
        ("metadata_pct = 5", "metadata_pct = nan", "`metadata_pct` is NaN"),
        ("metadata_pct = 5", "files = 5", "no operation on files"),
        ("directory = \"shared\"", "directory = \"mine\"", "`mine` is not known"),
        ("op = \"stat\"", "op = \"stats\"", "did you mean `stat`"),
    ];
    for (from, to, words) in cases {
        let text = FILES.replacen(from, to, 1);
        assert_ne!(text, FILES, "{from}");
        let refused = parse("files.toml", &text, &on(Protocol::Dir));
        let error = refused.expect_err(to).to_string();
        assert!(error.contains(words), "{to}: {error}");
    }
}

#[test]
fn metadata_operations_are_not_exported_to_fio() {
    let spec = parse("files.toml", FILES, &at(Scale::Seed)).unwrap();
    let error = export_fio(&spec).expect_err("fio has none of them").to_string();
    assert_eq!(error.matches("metadata operations").count(), 4, "{error}");
}
