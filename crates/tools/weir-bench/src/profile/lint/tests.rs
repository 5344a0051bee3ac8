//! Tests that each trap is reported for the run that contains it, and that a clean run has none.
//!
//! The tests in `profile/tests` cover refused profiles.

use super::{Machine, Trap, lint};
use crate::profile::{Options, Protocol, load, parse};
use crate::spec::{RunSpec, Scale};

const CLEAN: &str = r#"schema = 1
name = "clean"
dataset = { files = 1, file_size = "64GiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 1 }
durability = { writes = "fua" }
require = { iops = 1000, p99_ms = 10 }
[phases]
precondition = { round = "10s", window = 5, range_pct = 20, slope_pct = 10, max_rounds = 25 }
measure = { warmup = "5s", duration = "60s", runs = 3 }
verify = { sample_pct = 1 }
[[test]]
name = "one"
mode = "open"
rate_of = "require.iops"
pattern = "random"
block = "4KiB"
read_pct = 70
[[variant]]
name = "cold"
cache = "cold"
"#;

const MACHINE: Machine = Machine { memory_bytes: 16 << 30, cores: 4 };

fn spec(text: &str) -> RunSpec {
    let options =
        Options { scale: Some(Scale::Seed), protocol: Some(Protocol::File), ..Options::default() };
    parse("clean.toml", text, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn words(traps: &[Trap]) -> String {
    traps.iter().map(|trap| trap.what.clone() + "\n").collect()
}

#[test]
fn clean_profile_has_no_traps() {
    assert_eq!(words(&lint(&spec(CLEAN), &MACHINE)), "");
}

#[test]
fn each_change_causes_exactly_one_trap() {
    let closed = "mode = \"open\"\nrate_of = \"require.iops\"";
    let changes = [
        ("64GiB", "8GiB", "8GiB of data are used, 16GiB of memory"),
        (
            "file_size = \"64GiB\"",
            "file_size = \"64GiB\", access = \"hotspot\", hot_ops_pct = 90, \
          hot_data_pct = 10",
            "of data are used, 16GiB of memory",
        ),
        ("writes = \"fua\"", "writes = \"none\"", "writes are not durable"),
        (
            "writes = \"fua\"",
            "writes = \"flush\", every_writes = 5000",
            "one flush per 5000 writes",
        ),
        ("writes = \"fua\"", "writes = \"flush\", commit_every = \"65MiB\"", "one flush per 65MiB"),
        ("compress = 1.0", "compress = 2.5", "2.5 times smaller"),
        ("dedupe_pct = 0", "dedupe_pct = 40", "40 % of the data has a duplicate"),
        ("runs = 3", "runs = 1", "fewer than 3 runs"),
        ("duration = \"60s\"", "duration = \"9s\"", "runs of less than 10 s"),
        ("iops = 1000", "iops = 5", "too few operations for the required 99th percentile"),
        (closed, "qd = [1]", "a latency is required, and the loop is closed"),
        ("precondition", "#precondition", "random writes without preconditioning"),
        ("warmup = \"5s\"", "warmup = \"0s\"", "no warm-up"),
        ("sample_pct = 1", "sample_pct = 0", "nothing is verified"),
        ("iops = 1000", "iops = 5000000", "rate is higher than 4 cores"),
        ("name = \"one\"", "name = \"one\"\nclients = 3", "needs 3 clients"),
    ];
    for (old, new, expected) in changes {
        assert!(CLEAN.contains(old), "{old}");
        let traps = lint(&spec(&CLEAN.replacen(old, new, 1)), &MACHINE);
        assert_eq!(traps.len(), 1, "{new}: {}", words(&traps));
        assert!(traps[0].what.contains(expected), "{new}: {}", traps[0].what);
        assert!(!traps[0].why.is_empty() && !traps[0].action.is_empty());
    }
}

#[test]
fn queue_depth_is_reported_per_worker_and_in_total() {
    let text =
        CLEAN.replacen("mode = \"open\"\nrate_of = \"require.iops\"", "workers = 4\nqd = [32]", 1);
    let traps = lint(&spec(&text), &MACHINE);
    assert!(words(&traps).contains("queue depth is 8 per worker, 32 in all"), "{}", words(&traps));
}

#[test]
fn published_profiles_have_their_known_traps() {
    let found = |name: &str, memory_gib: u64, variant: Option<&str>, scale| {
        let variant = variant.map(str::to_owned);
        let options = Options { scale: Some(scale), variant, ..Options::default() };
        let machine = Machine { memory_bytes: memory_gib << 30, cores: 4 };
        words(&lint(&load(name, &options).unwrap(), &machine))
    };
    let matrix = found("s000-nexenta-vm", 256, None, Scale::Seed);
    assert!(matrix.contains("4 per worker, 512 in all"), "{matrix}");
    assert!(!matrix.contains("memory can cache"), "{matrix}");
    assert!(found("s001-storpool", 16, None, Scale::Seed).contains("needs 3 clients"));
    assert!(found("s002-vlab", 16, None, Scale::Seed).contains("3.72GiB of data are used, 16GiB"));
    let softnas = found("s003-softnas", 112, None, Scale::Seed);
    assert!(
        softnas.contains("memory can cache") && softnas.contains("40 % of the data"),
        "{softnas}"
    );
    let exchange = found("s004-exchange", 256, Some("cold"), Scale::Seed);
    assert!(exchange.contains("3.99 times smaller") && exchange.contains("loop is closed"));
    assert!(exchange.contains("a state of the target's caches is declared"), "{exchange}");
    let smoke = found("s002-vlab", 16, None, Scale::Smoke);
    assert!(smoke.contains("smoke scale") && smoke.contains("the file test uses 64MiB"), "{smoke}");
}
