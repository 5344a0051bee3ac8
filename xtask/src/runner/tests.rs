//! Tests of the runner with shell scripts in place of test programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::build::{Case, names, programs};
use super::process::{End, Job, run};
use super::report::{Ran, Verdict, closing_line, remedies, slowest, unsteady};
use super::times::Times;
use super::{Suite, run_cases, select};

/// Runs a script as a test; returns its result and its log.
fn run_script(script: &str, limit: Duration) -> (End, String) {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("package/test.log");
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder.path());
    let end = run(Job { command, log: &log, limit }).unwrap();
    (end, fs::read_to_string(log).unwrap())
}

const LONG: Duration = Duration::from_mins(1);

#[test]
fn result_has_the_status_and_the_log_of_the_test() {
    let (end, log) = run_script("echo out; echo err >&2", LONG);
    assert_eq!((end.failure, log.as_str()), (None, "out\nerr\n"));
    assert_eq!(run_script("exit 101", LONG).0.failure.as_deref(), Some("a panic"));
    assert_eq!(run_script("exit 3", LONG).0.failure.as_deref(), Some("exit code 3"));
    let (end, _) = run_script("kill -SEGV $$", LONG);
    assert_eq!(end.failure.as_deref(), Some("ended by signal 11"));
}

#[test]
fn hung_test_and_its_processes_are_described_and_killed() {
    // The script starts two processes: a child in the process group of the test, and an orphan in a
    // session of its own, which logs to a file.
    let script =
        "echo begun; sleep 601 & (setsid sh -c 'echo served >&2; sleep 602; :' 2>server.log &)
        wait";
    let start = Instant::now();
    let (end, log) = run_script(script, Duration::from_secs(2));
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    let failure = end.failure.expect("it hangs");
    assert!(failure.starts_with("no exit after "), "{failure}: {log}");
    for part in ["begun", "sleep 601", "sleep 602", "served", "thread ", "no exit after "] {
        assert!(log.contains(part), "no {part} in {log}");
    }
    assert_eq!(still_running("60[12]"), "");
}

#[test]
fn process_that_outlives_its_test_is_named_and_killed() {
    let (end, _) = run_script("(setsid sleep 603 &)", LONG);
    let failure = end.failure.expect("a process is left");
    assert!(failure.starts_with("left a process behind: sleep 603"), "{failure}");
    assert_eq!(still_running("603"), "");
    // A process that the test killed may need some time to exit. The runner must not count this as
    // a failure of the test.
    let (end, _) = run_script("sleep 604 & kill $!", LONG);
    assert_eq!(end.failure, None);
}

fn still_running(seconds: &str) -> String {
    let output =
        Command::new("sh").args(["-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).output();
    let all = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let found = regex::Regex::new(&format!("sleep {seconds} ")).unwrap();
    found.find(&all).map(|found| found.as_str().to_owned()).unwrap_or_default()
}

#[test]
fn cargo_names_the_programs_and_libtest_their_tests() {
    let artifact = |path: &str, name: &str, is_test: bool| {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/bin/weir/Cargo.toml",
            "target": { "name": name, "kind": [if is_test { "test" } else { "bin" }] },
            "profile": { "test": is_test },
            "executable": path,
        })
    };
    let messages = [
        serde_json::json!({ "reason": "build-script-executed" }),
        artifact("/t/weir", "weir", false),
        artifact("/t/all-1", "all", true),
        serde_json::json!({ "reason": "build-finished", "success": true }),
    ];
    let messages = messages.map(|message| message.to_string()).join("\n");
    let found = programs(&messages, " --profile ci").unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].package.as_str(), found[0].target.name.as_str()), ("weir", "all"));
    let list = "crash::a: test\nspeed: benchmark\ncrash::b: test\n";
    assert_eq!(names(list).collect::<Vec<_>>(), ["crash::a", "crash::b"]);
}

fn ran(id: &str, verdict: Verdict, seconds: u64) -> Ran {
    let (log, typed) = (PathBuf::from(format!("/logs/{id}.log")), format!("run {id}"));
    let (time, cpu) = (Duration::from_secs(seconds), Duration::from_millis(500));
    Ran { id: id.to_owned(), verdict, time, cpu, log, typed }
}

#[test]
fn report_names_slow_unsteady_and_failed_tests() {
    let all = [
        ran("a", Verdict::Passed, 1),
        ran("b", Verdict::Failed("a panic".to_owned()), 3),
        ran("c", Verdict::Unsteady, 2),
        ran("d", Verdict::Ignored, 0),
    ];
    assert_eq!(all[0].line(), "test a ... ok (1.0 s)");
    assert_eq!(all[1].line(), "test b ... FAILED (3.0 s)");
    let closing = "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; \
                   finished in 4.00 s";
    assert_eq!(closing_line(&all, Duration::from_secs(4)), closing);
    let slow = slowest(&all);
    assert_eq!(slow[1..], ["     3.0    0.5  b", "     2.0    0.5  c", "     1.0    0.5  a"]);
    assert_eq!(slowest(&[]), Vec::<String>::new());
    assert!(unsteady(&all)[0].contains("/logs/c.first.log"));
    let remedies = remedies(&all).join("\n");
    assert!(remedies.contains("run b") && remedies.contains("/logs/b.log"), "{remedies}");
}

#[test]
fn times_persist_and_unknown_tests_start_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/times.json");
    let mut times = Times::read(&path);
    assert!((times.of("a", 3.0) - 3.0).abs() < 1e-9, "no test has a record");
    times.note(&ran("a", Verdict::Passed, 7));
    times.note(&ran("d", Verdict::Ignored, 0));
    times.write(&path).unwrap();
    let times = Times::read(&path);
    assert!((times.of("a", 3.0) - 7.0).abs() < 1e-9 && times.of("d", 3.0).is_infinite());
}

#[test]
fn case_has_a_name_a_log_and_a_command() {
    let unit = Case::planted("weir-pool", "lib", "/w/a".into(), "log::a");
    assert_eq!(unit.id(), "weir-pool::log::a");
    assert_eq!(unit.log("/l".as_ref()), PathBuf::from("/l/weir-pool/log.a.log"));
    let typed = "cargo test --profile ci --package weir-pool --lib -- --exact log::a --nocapture";
    assert_eq!(unit.typed(), typed);
    let whole = Case::planted("weir", "test", "/w/b".into(), "crash::a").in_round(2);
    assert_eq!(whole.id(), "weir::all::crash::a");
    assert_eq!(whole.log("/l".as_ref()), PathBuf::from("/l/weir/all/crash.a.2.log"));
    assert_eq!(whole.typed(), "make e2e FILTER=weir::all::crash::a");
}

#[test]
fn tests_are_selected_by_package_and_name() {
    let cases = || {
        let case = |package, name| Case::planted(package, "lib", "/w/a".into(), name);
        vec![case("a", "log::a"), case("a", "log::ab"), case("b", "log::a")]
    };
    let chosen = |filter: Option<&str>, packages: Option<&[&str]>, repeat| {
        let filter = filter.map(str::to_owned);
        let packages = packages.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let suite = Suite { packages, filter, repeat, ..Suite::new("unit", "", 1) };
        let chosen = select(cases(), &suite).map_err(|error| error.to_string());
        chosen.map(|cases| cases.iter().map(Case::id).collect::<Vec<_>>())
    };
    assert_eq!(chosen(None, None, 1).unwrap().len(), 3);
    assert_eq!(chosen(None, None, 2).unwrap().len(), 6);
    assert_eq!(chosen(Some("log::ab"), None, 1).unwrap(), ["a::log::ab"]);
    assert_eq!(chosen(Some("a::log::a"), None, 1).unwrap(), ["a::log::a"], "a whole name");
    assert_eq!(chosen(Some("::log"), Some(&["b"]), 1).unwrap(), ["b::log::a"]);
    assert!(chosen(Some("none"), None, 1).unwrap_err().contains("none"));
}

#[test]
fn only_a_test_that_measures_time_runs_again() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    // The runner calls this program with `--exact NAME --nocapture`. The script makes every test
    // fail in its first run and pass in its second.
    fs::write(&program, "#!/bin/sh\necho $2 >>order\n[ -e $2 ] && exit 0\n>$2\nexit 101\n")
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let case = |name| Case::planted("weir", "test", program.clone(), name);
    let gone = Case::planted("weir", "test", folder.path().join("gone"), "gone");
    let mut ignored = case("ignored");
    ignored.is_ignored = true;
    let paired = case("steady::disks_slower");
    let cases = vec![case("selftest::a"), paired, case("short"), case("long"), gone, ignored];
    let mut times = Times::read("/no/such/file".as_ref());
    times.note(&ran("weir::all::short", Verdict::Passed, 1));
    times.note(&ran("weir::all::long", Verdict::Passed, 9));
    let mut done = run_cases(cases, &folder.path().join("logs"), 1, &times);
    done.sort_by(|a, b| a.id.cmp(&b.id));
    let verdicts: Vec<_> = done.iter().map(|ran| ran.verdict.clone()).collect();
    let panic = || Verdict::Failed("a panic".to_owned());
    let [Verdict::Failed(gone), rest @ ..] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert!(gone.starts_with("cannot be run"), "{gone}");
    let unsteady = Verdict::Unsteady;
    assert_eq!(rest, [Verdict::Ignored, panic(), unsteady.clone(), panic(), unsteady]);
    let order = fs::read_to_string(folder.path().join("order")).unwrap();
    let order: Vec<&str> = order.lines().collect();
    let paired = "steady::disks_slower";
    let wanted = ["long", "short", paired, paired, "selftest::a", "selftest::a"];
    assert_eq!(order, wanted, "longest first, pairs next, alone last");
}
