//! Tests that fio's output is parsed, that figures are compared, and that both programs run.
//!
//! Only the command itself compares the two programs, because a comparison needs a quiet machine.

use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

/// Complete output of fio 3.33 for the job of the file target.
const RECORDED: &str = include_str!("fio-3.33.json");

#[test]
fn fio_output_is_parsed() {
    let found = fio::read(RECORDED).unwrap();
    assert!((found.iops - 118_554.89).abs() < 0.01);
    assert_eq!((found.p50_us, found.p99_us), (Some(238.592), Some(436.224)));
    // fio used 7.8 % (user) and 28.4 % (system) of 500 ms for 59,396 operations.
    assert!((found.cpu_us - 0.362 * 0.5e6 / 59_396.0).abs() < 1e-9, "{found:?}");
    let noted = format!("fio: a note\n{RECORDED}");
    assert_eq!(fio::read(&noted).unwrap(), found);
    let failed = RECORDED.replacen("\"error\" : 0", "\"error\" : 5", 1);
    assert!(fio::read(&failed).unwrap_err().to_string().contains("error 5"));
    let few = RECORDED.replace("\"total_ios\" : 59396", "\"total_ios\" : 900");
    let few = fio::read(&few).unwrap();
    assert!(few.p50_us.is_some() && few.p99_us.is_none(), "nine beyond it are too few");
    assert!(fio::read("").is_err() && fio::read("{}").is_err());
    let idle = RECORDED.replace("\"total_ios\" : 59396", "\"total_ios\" : 0");
    assert!(fio::read(&idle).unwrap_err().to_string().contains("no operation"));
}

fn runs(iops: [f64; 5]) -> Vec<DriverRun> {
    let run = |iops| DriverRun { iops, p50_us: Some(100.0), p99_us: None, cpu_us: 1e5 / iops };
    iops.map(run).into()
}

#[test]
fn medians_agree_within_three_percent_or_their_interval() {
    let steady = |middle: f64| runs([0.999, 1.0, 1.001, 1.0, 1.0].map(|part| part * middle));
    let iops = |ours: &[DriverRun], fio: &[DriverRun]| agree::compare(Figure::Iops, ours, fio);
    assert_eq!(iops(&steady(1_029.0), &steady(1_000.0)).holds, Some(true));
    assert_eq!(iops(&steady(971.0), &steady(1_000.0)).holds, Some(true));
    assert_eq!(iops(&steady(1_040.0), &steady(1_000.0)).holds, Some(false));
    assert_eq!(iops(&steady(960.0), &steady(1_000.0)).holds, Some(false));
    // The medians of the two programs differ by a tenth, but the runs of each program vary by more.
    let wide = |middle: f64| runs([0.88, 0.95, 1.0, 1.05, 1.12].map(|part| part * middle));
    let noisy = |middle: f64| runs([0.2, 0.9, 1.0, 1.1, 4.0].map(|part| part * middle));
    assert_eq!(iops(&noisy(1_000.0), &noisy(1_000.0)).holds, None, "the runs differ too much");
    let found = iops(&wide(1_100.0), &wide(1_000.0));
    assert_eq!((found.holds, found.ours, found.fio), (Some(true), Some(1_100.0), Some(1_000.0)));
    assert!((found.ratio.unwrap().ratio - 1.1).abs() < 1e-9);
    let p99 = agree::compare(Figure::P99, &steady(1.0), &steady(1.0));
    assert_eq!((p99.holds, p99.ours, p99.ratio), (None, None, None));
    let cost = |ours: &[DriverRun], fio: &[DriverRun]| agree::compare(Figure::Cpu, ours, fio).holds;
    assert_eq!(cost(&steady(1_000.0), &steady(1_000.0)), Some(true));
    assert_eq!(cost(&steady(1_010.0), &steady(1_000.0)), Some(true));
    // If Weir completes fewer operations in the same processor time, each operation costs more.
    assert_eq!(cost(&steady(990.0), &steady(1_000.0)), Some(false));
    assert_eq!(cost(&wide(990.0), &wide(1_000.0)), None, "the runs differ by more");
}

#[test]
fn invalid_options_are_refused_before_any_run() {
    let run = |options: &Options| run(options, &mut |_| panic!("nothing runs")).unwrap_err();
    let missing = run(&Options { fio: "/no/such/fio".into(), ..Options::default() });
    assert!(missing.to_string().contains("/no/such/fio") && missing.action().contains("install"));
    let few = run(&Options { runs: 4, ..Options::default() });
    assert!(matches!(few, CalibrateError::FewRuns { runs: 4 }));
    for uri in ["file:/tmp/x", "nbd://host/x\nfilename=/etc/passwd", "http://host/"] {
        let other = run(&Options { nbd: Some(uri.to_owned()), ..Options::default() });
        assert!(matches!(other, CalibrateError::Run(RunError::Target(_))), "{uri}: {other}");
    }
    let odd = run(&Options { bytes: (1 << 20) + 4096, ..Options::default() });
    assert!(matches!(odd, CalibrateError::Run(RunError::Block { .. })), "{odd}");
    let fio = Fio::find(Path::new("fio")).expect("the program fio belongs to a test machine");
    let bad = fio.run("bad", "[bad]\nioengine=nothing\n", None).unwrap_err();
    assert!(matches!(&bad, FioError::Failed { said, .. } if !said.is_empty()), "{bad}");
}

#[test]
fn storage_reads_are_also_measured_with_verification() {
    let sides = |place| cells::of(place).iter().map(move |cell| Side::of(place, cell).len());
    assert_eq!(sides(Place::Null).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(sides(Place::File).collect::<Vec<_>>(), [3, 3, 3, 2], "the last writes");
    let mut found = CellReport::begin(&Options::default(), Place::File, &cells::of(Place::File)[0]);
    (found.fio, found.ours) = (runs([1_000.0; 5]), runs([1_000.0; 5]));
    found.verified = runs([800.0; 5]);
    found.compare();
    let ratio = found.verification.expect("five runs each").ratio;
    assert!((ratio - 1.25).abs() < 1e-9, "{ratio}");
    assert_eq!(found.cost.and_then(|cost| cost.holds), Some(true), "fio verifies nothing");
}

#[test]
fn fio_parses_every_job() {
    let directory = tempfile::tempdir().unwrap();
    let nbd = Some("nbd+unix:///v?socket=/tmp/none".to_owned());
    let options = Options { nbd, run_ms: 1_500, ..Options::default() };
    for place in [Place::Null, Place::File, Place::Nbd] {
        for cell in cells::of(place) {
            let job = fio::job(&options, place, cell);
            let mut fio = Command::new("fio");
            fio.args(["--parse-only", "-"]).current_dir(directory.path());
            fio.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = fio.spawn().expect("the program fio belongs to a test machine");
            let mut stdin = child.stdin.take().unwrap();
            std::io::Write::write_all(&mut stdin, job.as_bytes()).unwrap();
            drop(stdin);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{job}{said}");
        }
    }
}

#[test]
fn both_programs_run_in_turns_and_are_reported() {
    let options = Options { run_ms: 100, bytes: 16 << 20, ..Options::default() };
    let mut steps = Vec::new();
    let tell = &mut |step: &Step| {
        steps.push(step.what.clone());
        true
    };
    let report = run(&options, tell).expect("fio belongs to a test machine");
    assert!(report.complete && report.cells.len() == 2 && steps.len() == 20);
    assert!(steps[0].ends_with("fio, run 1 of 5") && steps[1].ends_with("weir, run 1 of 5"));
    assert!(steps[2].ends_with("weir, run 2 of 5") && steps[3].ends_with("fio, run 2 of 5"));
    for cell in &report.cells {
        assert_eq!((cell.fio.len(), cell.ours.len(), cell.results.len()), (5, 5, 0));
        assert!(cell.verified.is_empty(), "nothing keeps data");
        let cost = cell.cost.expect("of a whole cell");
        assert!(cost.fio.unwrap() > 0.0 && cost.ours.unwrap() > 0.0, "{cost:?}");
    }
    let text = report.markdown();
    assert!(text.contains("### CPU time per operation") && text.contains("refill_buffers=1"));
    assert!(!text.contains("### Results of both programs"), "a null target finds nothing");
    assert!(serde_json::to_string(&report).unwrap().contains("\"cost\""));
    assert!(!text.contains("### CPU time of read verification"), "nothing is verified");
    let mut left = 3;
    let ended = run(&options, &mut |_| {
        left -= 1;
        left >= 0
    });
    let ended = ended.unwrap();
    assert!(!ended.complete && ended.markdown().contains("stopped early"));
}
