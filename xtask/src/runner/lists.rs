//! Lists of special tests: tests with a longer time limit, and tests that must run alone.
//!
//! Not here: the code that applies the lists (runner.rs, process.rs).
//!
//! Invariants: every entry has its reason; [`ALONE`] may only become shorter ([`ALONE_MAX`], tidy).

/// Seconds until the runner treats a test as hung.
const LIMIT: u64 = 120;

/// Selects the tests of a package whose names start with this prefix.
struct Tests {
    package: &'static str,
    prefix: &'static str,
}

impl Tests {
    fn have(&self, package: &str, name: &str) -> bool {
        self.package == package && name.starts_with(self.prefix)
    }
}

const fn tests(package: &'static str, prefix: &'static str) -> Tests {
    Tests { package, prefix }
}

/// Limits in seconds of slow tests, each with its reason.
const LONGER: &[(Tests, u64, &str)] = &[
    (tests("weir", "selftest::"), 300, "28 checks of seconds each, all twice if one fails"),
    (
        tests("weir", "iscsi::conformance_suite_passes_except_for_listed_tests"),
        300,
        "starts a client program for each of 200 tests: 50 s beside one busy core",
    ),
    (
        tests("weir", "send::streams_survive_kills_of_either_side"),
        300,
        "a soak starts 100 servers and compares every snapshot: 150 s",
    ),
    (tests("weir", "steady::"), 300, "up to five measurements until one is steady"),
    (tests("weir-sim", "planted_bugs::"), 300, "simulates until the planted bug is noticed"),
];

/// Usual seconds of the slowest tests, which the runner starts first. The runner uses this list in
/// a clean clone, as in CI, which has no times of an earlier run.
const SLOW: &[(Tests, u16)] = &[
    (tests("weir", "iscsi_kernel::failed_path"), 60),
    (tests("weir", "iscsi_kernel::kernel_uses"), 50),
    (tests("weir", "replicate::replica_follows"), 50),
    (tests("weir", "iscsi_kernel::killed"), 45),
    (tests("weir", "guide::commands_of_the_iscsi"), 57),
    (tests("weir", "full::"), 40),
    (tests("weir", "send::streams_survive"), 27),
    (tests("weir", "crash::flushed_changes"), 27),
    (tests("weir", "guide::commands_of_the_operating"), 28),
    (tests("weir", "iscsi::conformance_suite"), 40),
    (tests("weir", "lies::operation_without_a_reply"), 32),
    (tests("weir", "lies::unresponsive_disk"), 32),
    (tests("weir", "liars::requirement_above"), 30),
    (tests("weir", "iscsi_tokens::gigabyte"), 28),
    (tests("weir", "steady::met_requirement"), 30),
    (tests("weir", "replace::"), 25),
    (tests("weir", "steady::disks_that_freeze"), 25),
    (tests("weir", "crash::"), 20),
    (tests("weir", "lies::"), 20),
    (tests("weir", "refusals::"), 20),
    (tests("weir", "memory::"), 20),
    (tests("weir", "healing::"), 18),
    (tests("weir", "bench::killed_run"), 20),
    (tests("weir", "guide::"), 25),
    (tests("weir", "raidz::"), 20),
    (tests("weir-sim", "planted_bugs::engine_passes"), 60),
    (tests("weir-sim", ""), 15),
    (tests("weir-forge", "forged::invalid_fields"), 30),
    (tests("weir-forge", ""), 15),
    (tests("weir-dataset", "raidz::"), 20),
    (tests("weir-dataset", "cleaner::"), 18),
    (tests("weir-bench", "selftest::"), 16),
    (tests("weir-bench", "requirement::simulation::"), 16),
];

/// Tests with assertions on measured time, each with the assertion. The tests run after all other
/// tests of their stage: first the tests of [`PAIRED`] in pairs, then the others one at a time. A
/// test that fails runs once more, alone.
const ALONE: &[(Tests, &str)] = &[
    (tests("weir", "selftest::"), "holds measured rates and latencies against known ones"),
    (tests("weir", "steady::"), "an honest disk must be measured steadily enough to be valid"),
    (tests("weir-device", "flush_probe::tests::"), "32 samples must fit into 300 ms"),
];

/// Tests of [`ALONE`] that may run two at a time. Simulated disks delay most of their operations,
/// so these tests leave the cores idle most of the time, and two of them rarely need a core at the
/// same time.
const PAIRED: &[Tests] = &[
    tests("weir", "steady::disk_slightly_faster"),
    tests("weir", "steady::disks_slower"),
    tests("weir", "steady::disks_that_freeze"),
    tests("weir", "steady::met_requirement"),
];

/// Maximum length of [`ALONE`]. If the list becomes shorter, lower this number; never raise it.
const ALONE_MAX: usize = 3;

/// Returns the time limit of a test in seconds.
pub(super) fn limit(package: &str, name: &str) -> u64 {
    let longer = LONGER.iter().find(|(tests, ..)| tests.have(package, name));
    longer.map_or(LIMIT, |(_, seconds, _)| *seconds)
}

/// Returns the usual seconds of a test, which are 0 for most tests.
pub(super) fn usual_seconds(package: &str, name: &str) -> f64 {
    let slow = SLOW.iter().find(|(tests, _)| tests.have(package, name));
    slow.map_or(0.0, |(_, seconds)| f64::from(*seconds))
}

/// Returns true if a test runs after the concurrent tests, and once more after a failure.
pub(super) fn is_alone(package: &str, name: &str) -> bool {
    ALONE.iter().any(|(tests, _)| tests.have(package, name))
}

/// Returns true if a test of [`ALONE`] may run concurrently with one other such test.
pub(super) fn is_paired(package: &str, name: &str) -> bool {
    PAIRED.iter().any(|tests| tests.have(package, name))
}

/// Checks the length of [`ALONE`], and that each module in it has a file. Returns the errors.
///
/// `is_there(package, path)` returns true if the package has a file at this path in its folder.
pub(crate) fn check_alone(is_there: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let modules: Vec<_> = ALONE.iter().map(|(tests, _)| (tests.package, tests.prefix)).collect();
    check(&modules, ALONE_MAX, is_there)
}

fn check(
    modules: &[(&str, &str)],
    max: usize,
    is_there: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if modules.len() > max {
        wrong.push(format!("ALONE has {} entries and may have {max}", modules.len()));
    } else if modules.len() < max {
        wrong.push(format!("ALONE_MAX can shrink to {}", modules.len()));
    }
    for (package, prefix) in modules {
        let module = prefix.trim_end_matches("::").replace("::", "/");
        let files = ["src", "tests", "tests/all"].into_iter().flat_map(|folder| {
            [format!("{folder}/{module}.rs"), format!("{folder}/{module}/mod.rs")]
        });
        if !prefix.ends_with("::") || !files.into_iter().any(|file| is_there(package, &file)) {
            wrong.push(format!("ALONE names {prefix} of {package}, which is no module"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, PAIRED, check, is_alone, is_paired, limit, usual_seconds};

    #[test]
    fn lists_match_package_and_module() {
        assert_eq!(limit("weir", "selftest::a"), 300);
        assert_eq!(limit("weir", "crash::selftest::a"), LIMIT);
        assert_eq!(limit("weir-bench", "selftest::a"), LIMIT);
        assert!(is_alone("weir", "selftest::a") && !is_alone("weir-bench", "selftest::a"));
        assert!(is_paired("weir", "steady::disks_slower") && !is_paired("weir", "selftest::a"));
        assert!(!is_paired("weir", "steady::honest_disks_are_valid_on_a_busy_machine"));
    }

    #[test]
    fn every_paired_test_measures_time() {
        assert!(PAIRED.iter().all(|tests| is_alone(tests.package, tests.prefix)));
    }

    #[test]
    fn slow_tests_are_known_without_a_run() {
        assert!(usual_seconds("weir", "crash::flushed_changes_survive_sigkill") > 25.0);
        assert!(usual_seconds("weir", "crash::a") < 25.0);
        assert!(usual_seconds("weir-base", "a::b").abs() < 1e-9);
    }

    #[test]
    fn list_of_tests_alone_only_shrinks() {
        let is_there = |package: &str, file: &str| (package, file) == ("a", "tests/all/x/y.rs");
        assert_eq!(check(&[("a", "x::y::")], 1, is_there), Vec::<String>::new());
        assert_eq!(check(&[("a", "x::y::")], 0, is_there).len(), 1);
        assert_eq!(check(&[("a", "x::y::")], 2, is_there), ["ALONE_MAX can shrink to 1"]);
        for no_module in [("b", "x::y::"), ("a", "x::z::"), ("a", "x::y")] {
            assert_eq!(check(&[no_module], 1, is_there).len(), 1, "{no_module:?}");
        }
    }
}
