//! `weir volume advise` and `weir dedupe estimate` of the real program, on data whose ratios are
//! known.
//!
//! Not here: how samples are chosen and counted (weir-dataset).
//!
//! Invariant: forecasts differ from the known ratios of the data by at most 5 %.

use std::time::{Duration, Instant};

use crate::common::{Dirs, MIB, Server, code};
use serde_json::Value;
use weir_bench::content::Content;
use weir_bench::spec::ContentSpec;

fn served(dirs: &Dirs) -> Server {
    dirs.disk("a", 512 * MIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server
}

/// Fills a volume with data whose ratios are known.
fn fill(server: &Server, name: &str, mib: u64, spec: &ContentSpec) {
    let content = Content::new(spec, 4096, mib * MIB);
    let mut client = server.client(name);
    let mut buffer = vec![0; MIB as usize];
    for at in 0..mib {
        content.fill(&mut buffer, at * MIB, 1);
        client.write(at * MIB, &buffer).unwrap();
    }
    client.flush().unwrap();
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[track_caller]
fn near(found: f64, truth: f64) {
    assert!((found / truth - 1.0).abs() < 0.05, "{found}, and it is {truth}");
}

#[test]
fn advice_matches_the_known_ratios_of_the_content() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.volume("tank/half", "256MiB");
    server.weir("volume set compression=off tank/half").ok();
    let spec = ContentSpec { compress: 2.0, dedupe_pct: 0.0, ..spec() };
    // A forecast includes new writes at once, even before they are on disk.
    fill(&server, "tank/half", 64, &spec);
    let start = Instant::now();
    let advice = server.weir("volume advise tank/half --json").json();
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert_eq!(advice["job"], Value::Null);
    assert_eq!(advice["data_bytes"].as_u64(), Some(64 * MIB));
    assert_eq!(advice["record_bytes"], 4096);
    let of = |name: &str| {
        let all = advice["settings"].as_array().unwrap();
        all.iter().find(|one| one["compression"] == name).unwrap().clone()
    };
    near(number(&of("off")["ratio"]), 1.0);
    near(number(&of("lz4")["ratio"]), 2.0);
    near(number(&advice["dedupe"]["ratio"]), 1.0);
    for name in ["lz4", "zstd-1", "zstd-3", "zstd-9", "zstd-19"] {
        let one = of(name);
        assert!(number(&one["stored"]["margin"]) < 0.05, "{one}");
        for way in ["write", "read"] {
            let [low, median, high] =
                ["low_us", "median_us", "high_us"].map(|field| number(&one[way][field]));
            assert!(0.0 < low && low <= median && median <= high, "{one}");
        }
    }
    assert!(
        number(&of("zstd-19")["write"]["median_us"]) > number(&of("lz4")["write"]["median_us"])
    );
    let records = advice["records"].as_array().unwrap();
    assert_eq!(records.len(), 10);
    assert_eq!(advice["recommended"], "lz4", "{}", advice["why"]);
    // With the recommended setting, the volume gets the ratio of the forecast.
    server.weir("set compression=lz4 tank/half").ok();
    fill(&server, "tank/half", 64, &spec);
    crate::common::eventually("it is stored so", Duration::from_secs(20), || {
        let shown = server.weir("volume show tank/half --json").json();
        (number(&shown["compression_ratio"]) / number(&of("lz4")["ratio"]) - 1.0).abs() < 0.05
    });
    let people = server.weir("volume advise tank/half").ok().out;
    assert!(people.contains("recommended: lz4") && people.contains("RECORD"), "{people}");
    server.stop_clean();
}

#[test]
fn advice_matches_a_volume_with_large_records() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("volume create tank/large --size 256MiB -b 64KiB -o compression=lz4").ok();
    server.weir("export create nbd tank/large").ok();
    fill(&server, "tank/large", 64, &ContentSpec { compress: 2.0, ..spec() });
    let advice = server.weir("volume advise tank/large --json").json();
    assert_eq!(advice["record_bytes"], 64 << 10);
    assert_eq!(advice["data_bytes"].as_u64(), Some(64 * MIB));
    let named = |list: &str, name: &str, bytes: Option<u64>| {
        let all = advice[list].as_array().unwrap().iter();
        let mut of = all.filter(|one| one["compression"] == name);
        of.find(|one| one["record_bytes"].as_u64() == bytes).unwrap().clone()
    };
    // The forecast for the present settings of the volume matches the ratio that it has now.
    near(number(&named("settings", "lz4", None)["ratio"]), number(&advice["ratio"]));
    let own = named("records", "lz4", Some(64 << 10));
    near(number(&own["ratio"]), number(&advice["ratio"]));
    assert_eq!(own["write_amplification"], 16);
    assert_eq!(named("records", "zstd-3", Some(1 << 20))["write_amplification"], 256);
    let people = server.weir("volume advise tank/large").ok().out;
    assert!(people.contains("now: lz4, records of 64KiB, ratio "), "{people}");
    server.stop_clean();
}

#[test]
fn duplicates_are_counted_in_one_volume_and_across_several() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    let spec = ContentSpec { compress: 1.0, dedupe_pct: 40.0, unit_bytes: 4096, ..spec() };
    for name in ["tank/v", "tank/w"] {
        server.volume(name, "1GiB");
        fill(&server, name, 48, &spec);
    }
    let one = server.weir("dedupe estimate tank/v --json").json();
    assert_eq!((&one["one_in"], &one["job"]), (&1.into(), &Value::Null));
    assert_eq!(one["blocks"].as_u64(), Some(48 * 256));
    near(number(&one["duplicates"]), 0.4 * 48.0 * 256.0);
    near(number(&one["ratio"]), 1.0 / 0.6);
    assert_eq!(one["ratio_low"], one["ratio_high"]);
    let both = server.weir("dedupe estimate tank/v tank/w --json").json();
    assert_eq!(both["blocks"].as_u64(), Some(2 * 48 * 256));
    near(number(&both["ratio"]), 2.0 / 0.6);
    server.weir("snapshot create tank/v@s").ok();
    server.weir("snapshot clone tank/v@s tank/c").ok();
    let cloned = server.weir("dedupe estimate tank/v tank/c --json").json();
    assert_eq!((&cloned["blocks"], &cloned["ratio"]), (&one["blocks"], &one["ratio"]));
    let people = server.weir("dedupe estimate tank/v").ok().out;
    assert!(people.contains("ratio: 1.6") && people.contains("every record counted"), "{people}");
    server.stop_clean();
}

#[test]
fn forecasts_of_empty_and_missing_volumes() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.volume("tank/empty", "1TiB");
    let advice = server.weir("volume advise tank/empty --json").json();
    assert_eq!((&advice["samples"], &advice["recommended"]), (&0.into(), &"lz4".into()));
    let none = server.weir("dedupe estimate tank/empty --json").json();
    assert_eq!((&none["blocks"], &none["ratio"]), (&0.into(), &1.0.into()));
    for (line, code, parts) in [
        ("volume advise tank/none", code::NOT_FOUND, &["tank/none"][..]),
        ("volume advise tank", code::INVALID, &["tank/vm1"]),
        ("dedupe estimate tank/empty tank/none", code::NOT_FOUND, &["tank/none"]),
        ("dedupe estimate tank/empty tank/empty", code::INVALID, &["twice"]),
        ("dedupe estimate tank/empty other/x", code::INVALID, &["same pool"]),
    ] {
        server.weir(line).fails(code, parts);
    }
    server.stop_clean();
}

fn spec() -> ContentSpec {
    ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 1 }
}
