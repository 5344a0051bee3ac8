//! A configuration as Iometer saves it, and what is refused.
//!
//! Not here: running it.

use super::super::Options;
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
    Options { scale: Scale::Seed, ..Options::default() }
}

#[test]
fn assigned_access_specifications_become_rows() {
    let spec = import_icf("sql.icf", CONFIG, None, &options()).unwrap();
    assert_eq!(spec.dataset.total_bytes(), 4 << 30, "sectors of 512 bytes");
    let [sql, mixed] = spec.cells.as_slice() else { panic!("two rows") };
    assert_eq!((sql.name.as_str(), sql.duration_ms, sql.warmup_ms), ("SQL 64K", 330_000, 10_000));
    assert_eq!(sql.load, LoadSpec::Closed { workers: 1, depth: 32 });
    assert_eq!((sql.streams[0].access, sql.streams[0].blocks[0].bytes), (Access::Random, 65_536));
    let shares: Vec<(Access, u32)> =
        mixed.streams.iter().map(|stream| (stream.access, stream.share)).collect();
    assert_eq!(shares, [(Access::Random, 7500), (Access::Sequential, 2500)]);
    let weights: Vec<u32> = mixed.streams[0].blocks.iter().map(|block| block.weight).collect();
    assert_eq!(weights, [60, 40]);
}

#[test]
fn a_second_manager_is_a_second_client() {
    let manager = CONFIG.find("'Manager ID").unwrap()..CONFIG.find("'END manager list").unwrap();
    let again = &CONFIG[manager];
    let text = CONFIG.replacen("'END manager list", &format!("{again}'END manager list"), 1);
    let spec = import_icf("two.icf", &text, None, &options()).unwrap();
    assert_eq!((spec.cells.len(), spec.cells[0].clients), (2, 2));
}

#[test]
fn what_would_be_another_load_is_refused_with_its_line() {
    let cases = [
        ("\t32,DISABLED", "\t0,DISABLED", 33, "0 operations outstanding"),
        ("8388608,0,0", "0,0,0", 35, "all of a disk"),
        ("8388608,0,0", "100,0,0", 35, "hold no block"),
        ("65536,100,66,100,0,1,0,0", "65536,100,66,100,5,1,0,0", 15, "a delay of 5 ms"),
        ("65536,100,66,100,0,1,0,0", "65000,100,66,100,0,1,0,0", 15, "65000 bytes"),
        ("65536,100,66,100,0,1,0,0", "65536,100,166,100,0,1,0,0", 15, "over 100 percent"),
        ("65536,100,66,100,0,1,0,0", "65536,100,66", 15, "not 8 numbers"),
        ("4096,60,70", "4096,50,70", 1, "not 100 % together"),
        ("\tNORMAL", "\tCYCLE_OUTSTANDING_IOS", 9, "several loads"),
        ("\tMixed\n'End", "\tMixes\n'End", 39, "no access specification \"Mixes\""),
        ("0          5          30", "0 0 0", 1, "for ever"),
        ("\tDISK", "\tNETWORK,TCP", 30, "of type NETWORK"),
        ("'Manager ID, manager name\n\t1,HOST\n", "", 25, "before any manager"),
    ];
    for (old, new, line, words) in cases {
        assert!(CONFIG.contains(old), "{old}");
        let text = CONFIG.replacen(old, new, 1);
        let error = import_icf("sql.icf", &text, None, &options()).expect_err(new).to_string();
        assert!(error.starts_with(&format!("sql.icf:{line}: ")), "{new}: {error}");
        assert!(error.contains(words), "{new}: {error}");
    }
    let whole = CONFIG.replacen("8388608,0,0", "0,0,0", 1);
    let spec = import_icf("sql.icf", &whole, Some(1 << 30), &options()).unwrap();
    assert_eq!(spec.dataset.total_bytes(), 1 << 30);
    assert!(import_icf("empty.icf", "", None, &options()).is_err());
}
