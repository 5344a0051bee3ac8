//! Tests of importing a configuration that Iometer saved, and of refused configurations.
//!
//! The tests run no load.

use super::super::{Imported, Options};
use super::import_icf;
use crate::spec::{Access, LoadSpec, Scale};

const CONFIG: &str = "Version 1.1.0
'TEST SETUP ====================================================================
'Run Time
'\thours      minutes    seconds
\t0          5          30
'Ramp Up Time (s)
\t10
'Test Type
\tNORMAL
'END test setup
'ACCESS SPECIFICATIONS =========================================================
'Access specification name,default assignment
\tSQL 64K,NONE
'size,% of size,% reads,% random,delay,burst,align,reply
\t65536,100,66,100,0,1,0,0
'Access specification name,default assignment
\tMixed,NONE
'size,% of size,% reads,% random,delay,burst,align,reply
\t4096,60,70,75,0,1,0,0
\t8192,40,70,75,0,1,4096,0
'END access specifications
'MANAGER LIST ==================================================================
'Manager ID, manager name
\t1,HOST
'Manager network address
\t
'Worker
\tWorker 1
'Worker type
\tDISK
'Default target settings for worker
'Number of outstanding IOs,test connection rate,transactions per connection,use fixed seed
\t32,DISABLED,1,DISABLED,0
'Disk maximum size,starting sector,Data pattern
\t8388608,0,0
'End default target settings for worker
'Assigned access specs
\tSQL 64K
\tMixed
'End assigned access specs
'End worker
'End manager
'END manager list
";

fn options() -> Options {
    Options::default()
}

fn imported(text: &str) -> Imported {
    import_icf("sql.icf", text, &options()).unwrap_or_else(|error| panic!("{error}"))
}

fn walk(random_pct: f64, align_bytes: u32) -> Access {
    Access::Walk { random_pct, align_bytes, between: false }
}

#[test]
fn assigned_access_specifications_become_rows() {
    let Imported { spec, traps, .. } = imported(CONFIG);
    assert_eq!(spec.dataset.total_bytes(), 4 << 30, "sectors of 512 bytes");
    let [sql, mixed] = spec.cells.as_slice() else { panic!("two rows") };
    assert_eq!((sql.name.as_str(), sql.duration_ms, sql.warmup_ms), ("SQL 64K", 330_000, 10_000));
    assert_eq!(sql.load, LoadSpec::Closed { workers: 1, depth: 32 });
    assert_eq!((sql.streams[0].access, sql.streams[0].blocks[0].bytes), (Access::Random, 65_536));
    let streams: Vec<(u32, u32, Access)> = mixed
        .streams
        .iter()
        .map(|stream| (stream.share, stream.blocks[0].bytes, stream.access))
        .collect();
    assert_eq!(streams, [(60, 4096, walk(75.0, 4096)), (40, 8192, walk(75.0, 4096))]);
    let named = |words: &str| traps.iter().filter(|trap| trap.what.contains(words)).count();
    assert_eq!((named("aligned to their size"), named("from its own position")), (2, 1));
    assert!(traps.iter().all(|trap| spec.assume.contains(&trap.what)), "{:?}", spec.assume);
}

#[test]
fn configuration_keeps_its_size_and_time() {
    let text = CONFIG.replacen("0          5          30", "2 0 0", 1);
    let text = text.replacen("8388608,0,0", "419430400,0,0", 1);
    let spec = imported(&text).spec;
    assert_eq!((spec.cells[0].duration_ms, spec.dataset.total_bytes()), (7_200_000, 200 << 30));
    assert_eq!((spec.scale, spec.title.as_str()), (Scale::Seed, "Iometer sql.icf"));
    let smoke = Options { scale: Some(Scale::Smoke), ..options() };
    let smoke = import_icf("sql.icf", &text, &smoke).unwrap().spec;
    assert_eq!((smoke.cells[0].duration_ms, smoke.dataset.total_bytes()), (5000, 256 << 20));
}

#[test]
fn sequential_workers_each_use_the_whole_dataset() {
    let text = CONFIG.replacen("65536,100,66,100,0,1,0,0", "65536,100,100,0,0,8,65536,0", 1);
    let access = |text: &str| imported(text).spec.cells[0].streams[0].access;
    assert_eq!(access(&text), Access::Sequential, "a burst without a delay changes nothing");
    let worker = text.find("'Worker\n").unwrap()..text.find("'End manager\n").unwrap();
    let twice = text.replacen("'End manager", &format!("{}'End manager", &text[worker]), 1);
    assert_eq!(access(&twice), walk(0.0, 65_536));
}

#[test]
fn second_manager_is_imported_as_second_client() {
    let manager = CONFIG.find("'Manager ID").unwrap()..CONFIG.find("'END manager list").unwrap();
    let again = &CONFIG[manager];
    let text = CONFIG.replacen("'END manager list", &format!("{again}'END manager list"), 1);
    let spec = imported(&text).spec;
    assert_eq!((spec.cells.len(), spec.cells[0].clients), (2, 2));
}

#[test]
fn skipped_keys_are_listed_with_their_lines() {
    let text = CONFIG.replacen(
        "'Test Type",
        "'Default Disk Workers to Spawn\n\tNUMBER_OF_CPUS\n'Record Results\n\tALL\n\
         'Worker Cycling\n'\tstart      step       step type\n\t1 1 LINEAR\n'Test Type",
        1,
    );
    let text = text.replacen("32,DISABLED,1,DISABLED,0", "32,DISABLED,1,ENABLED,7", 1);
    let text = text.replacen("8388608,0,0", "8388608,0,1", 1);
    let Imported { traps, skipped, .. } = imported(&text);
    let skipped: Vec<(usize, &str)> =
        skipped.iter().map(|word| (word.line, word.word.as_str())).collect();
    let expected = [
        (8, "Default Disk Workers to Spawn"),
        (10, "Record Results"),
        (32, "Manager network address"),
        (40, "use fixed seed"),
    ];
    assert_eq!(skipped, expected);
    assert!(traps.iter().any(|trap| trap.what == "sql.icf:42: data pattern 1"), "{traps:?}");
}

#[test]
fn key_that_changes_the_load_is_refused_with_its_line() {
    let cases = [
        ("\t32,DISABLED", "\t0,DISABLED", 33, "0 operations outstanding"),
        ("\t32,DISABLED", "\t32,ENABLED", 33, "opened and closed"),
        ("\t32,DISABLED", "\t99999999999999999999,DISABLED", 33, "not 1 numbers"),
        ("8388608,0,0", "0,0,0", 35, "the whole disk"),
        ("8388608,0,0", "100,0,0", 35, "hold no block"),
        ("8388608,0,0", "8388608,2048,0", 35, "begins at sector 2048"),
        ("8388608,0,0", "18446744073709551615,0,0", 35, "larger than 2^64"),
        ("65536,100,66,100,0,1,0,0", "65536,100,66,100,5,1,0,0", 15, "a delay of 5 ms"),
        ("65536,100,66,100,0,1,0,0", "65000,100,66,100,0,1,0,0", 15, "65000 bytes"),
        ("65536,100,66,100,0,1,0,0", "65536,100,166,100,0,1,0,0", 15, "over 100 percent"),
        ("65536,100,66,100,0,1,0,0", "65536,100,66", 15, "not 8 numbers"),
        ("65536,100,66,100,0,1,0,0", "65536,100,66,100,0,1,1000,0", 15, "aligned to 1000"),
        (
            "65536,100,66,100,0,1,0,0",
            "65536,100,66,100,0,1,0,4096",
            15,
            "network tests use a reply",
        ),
        ("4096,60,70", "4096,50,70", 17, "do not add up to 100 %"),
        ("\tMixed,NONE", "\tSQL 64K,NONE", 17, "two access specifications"),
        ("\tNORMAL", "\tCYCLE_OUTSTANDING_IOS", 9, "several loads"),
        ("\tMixed\n'End", "\tMixes\n'End", 39, "no access specification \"Mixes\""),
        ("0          5          30", "0 0 0", 5, "unlimited"),
        ("0          5          30", "99999999 0 0", 5, "more than a year"),
        ("0          5          30", "5", 5, "not 3 numbers"),
        ("\tDISK", "\tNETWORK,TCP", 30, "of type NETWORK"),
        ("'Manager ID, manager name\n\t1,HOST\n", "", 25, "before any manager"),
        ("'Test Type", "'Test Tipe", 8, "unknown key \"Test Tipe\""),
        (
            "'End assigned access specs\n",
            "'End assigned access specs\n'Target\n\tC:\n'Target\n\tD:\n",
            44,
            "several targets",
        ),
    ];
    for (old, new, line, words) in cases {
        assert!(CONFIG.contains(old), "{old}");
        let text = CONFIG.replacen(old, new, 1);
        let error = import_icf("sql.icf", &text, &options()).expect_err(new).to_string();
        assert!(error.starts_with(&format!("sql.icf:{line}: ")), "{new}: {error}");
        assert!(error.contains(words), "{new}: {error}");
    }
    let whole = CONFIG.replacen("8388608,0,0", "0,0,0", 1);
    let asked = Options { size_bytes: Some(1 << 30), ..options() };
    let spec = import_icf("sql.icf", &whole, &asked).unwrap().spec;
    assert_eq!(spec.dataset.total_bytes(), 1 << 30);
    let known = Options { target_bytes: Some(3 << 30), ..options() };
    let spec = import_icf("sql.icf", &whole, &known).unwrap().spec;
    assert_eq!(spec.dataset.total_bytes(), 3 << 30);
    assert!(import_icf("empty.icf", "", &options()).is_err());
}

#[test]
fn unequal_workers_are_refused_with_their_line() {
    let worker = CONFIG.find("'Worker\n").unwrap()..CONFIG.find("'End manager\n").unwrap();
    let other = CONFIG[worker].replacen("\t32,", "\t16,", 1);
    let text = CONFIG.replacen("'End manager", &format!("{other}'End manager"), 1);
    let error = import_icf("sql.icf", &text, &options()).unwrap_err().to_string();
    assert!(error.starts_with("sql.icf:42: workers differ"), "{error}");
}
