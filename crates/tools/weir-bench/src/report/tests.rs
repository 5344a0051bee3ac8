//! Tests of reports that are made from results such as real runs give.

use super::*;
use crate::fixture;
use crate::result::{CellResult, RunResult};
use crate::spec::{LatencyBound, LatencyFigure, OpKind, Requirement, StreamSpec};
use crate::verdict::{Finding, Remark};

fn remark() -> Remark {
    Remark {
        finding: Finding::CacheResident,
        detail: "the dataset is 0.5 of the cache".to_owned(),
        action: "use a dataset of 16GiB".to_owned(),
        latency_only: false,
    }
}

/// Returns a run with three cells: a valid cell, a cell with a remark, and a search.
fn judged() -> JudgedRun {
    let run = |iops| fixture::closed_run(iops, 10, 75, 800, 2500);
    let cells = vec![
        fixture::cell("valid cell", vec![run(1000), run(1010), run(990)]),
        fixture::cell("cached cell", vec![run(9000)]),
        fixture::searched("curve cell", &[200, 400, 800], 500),
    ];
    let mut result = fixture::result(cells);
    result.spec.require = Some(Requirement {
        iops: Some(216.0),
        mib_s: None,
        latency: vec![LatencyBound {
            stream: None,
            op: Some(OpKind::Read),
            figure: LatencyFigure::P99,
            max_us: 20_000.0,
        }],
    });
    JudgedRun::with_remarks(result, vec![Vec::new(), vec![remark()], Vec::new()])
}

#[test]
fn html_starts_with_conclusions_and_loads_nothing() {
    let html = html(&judged()).unwrap();
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} is not there"));
    assert!(place("The requirement: ") < place("The most operations: "));
    assert!(place("The most operations: ") < place("id=\"tables\""));
    assert!(place("server on this machine") < place("id=\"tables\""));
    assert!(place("id=\"tables\"") < place("id=\"verdicts\""));
    assert!(place("id=\"verdicts\"") < place("id=\"cells\""));
    assert!(place("id=\"cells\"") < place("id=\"facts\""));
    assert!(place("+85 %") > 0, "400 of 216 is the highest rate that was reached");
    for outside in ["<script", "http://", "https://", "@import", "url(", " src="] {
        assert!(!html.contains(outside), "{outside}");
    }
    for said in ["use a dataset of 16GiB", "00112233445566778899aabbccddeeff", "queue depth is per"]
    {
        place(said);
    }
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
}

#[test]
fn every_table_row_and_chart_has_its_verdict() {
    let html = html(&judged()).unwrap();
    for body in html.split("<tbody>").skip(1) {
        let body = &body[..body.find("</tbody>").unwrap()];
        for row in body.split("<tr>").skip(1) {
            assert!(row.contains("class=\"chip "), "a row without a verdict: {row}");
        }
    }
    for caption in html.split("<figcaption>").skip(1) {
        let caption = &caption[..caption.find("</figcaption>").unwrap()];
        assert!(caption.contains("valid") || caption.contains("cache-resident"), "{caption}");
    }
    let csv = cells_csv(&judged()).unwrap();
    let mut lines = csv::Reader::from_reader(csv.as_bytes());
    let verdict = lines.headers().unwrap().iter().position(|head| head == "verdict").unwrap();
    let verdicts: Vec<String> =
        lines.records().map(|line| line.unwrap()[verdict].to_owned()).collect();
    let expected = ["valid", "valid", "valid", "cache-resident", "valid", "valid", "valid"];
    assert_eq!(verdicts, expected);
}

#[test]
fn target_name_is_escaped_in_reports() {
    let mut result = judged().result().clone();
    result.target.address = "<script>alert(1)</script>|".to_owned();
    let judged = JudgedRun::with_remarks(result, vec![Vec::new(); 3]);
    let html = html(&judged).unwrap();
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"));
    assert!(!markdown(&judged).contains("| <script"));
}

#[test]
fn markdown_has_tables_of_equal_width_with_verdicts() {
    let markdown = markdown(&judged());
    let mut columns = 0;
    for line in markdown.lines() {
        let bars = line.replace("\\|", "").matches('|').count();
        match (bars, columns) {
            (0, _) => columns = 0,
            (_, 0) => columns = bars,
            _ => assert_eq!(bars, columns, "{line}"),
        }
    }
    assert!(markdown.contains("| cached cell | cache-resident | 4KiB | 75 |"), "{markdown}");
    assert!(markdown.contains("| fill (wrote 1GiB) | not judged | 1MiB | 0 |"), "{markdown}");
    assert!(markdown.contains("Of 3 cells: 2 valid, 1 cache-resident."), "{markdown}");
}

#[test]
fn cell_without_runs_states_the_reason() {
    let failed = CellResult {
        failure: Some("the target went away".to_owned()),
        ..fixture::cell("lost cell", Vec::new())
    };
    let mut result: RunResult = fixture::result(vec![failed]);
    result.complete = false;
    let judged = JudgedRun::with_remarks(result, vec![vec![remark()]]);
    let html = html(&judged).unwrap();
    assert!(html.contains("the target went away") && html.contains("run is incomplete"));
    assert!(markdown(&judged).contains("NOT COMPLETE"));
    let csv = cells_csv(&judged).unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(csv.ends_with(",the target went away\n"), "{csv}");
}

/// The report has the columns of the reference document `004`: operations and latencies of each
/// stream.
#[test]
fn each_stream_has_its_own_columns() {
    let mut cell = fixture::cell("jetstress", vec![fixture::closed_run(1100, 10, 60, 5900, 3400)]);
    let log = StreamSpec { name: "log".to_owned(), read_pct: 0.0, ..cell.spec.streams[0].clone() };
    cell.spec.streams[0].name = "db".to_owned();
    cell.spec.streams.push(log);
    cell.runs[0].classes.iter_mut().for_each(|class| class.stream = "db".to_owned());
    let mut written = fixture::closed_run(110, 10, 0, 1, 970).classes;
    written[0].stream = "log".to_owned();
    cell.runs[0].classes.append(&mut written);
    let markdown =
        markdown(&JudgedRun::with_remarks(fixture::result(vec![cell]), vec![Vec::new()]));
    let row = |text: &str| -> Vec<String> {
        let line = markdown.lines().rev().find(|line| line.starts_with(text)).expect(text);
        line.split(" | ").map(str::to_owned).collect()
    };
    let (heads, figures) = (row("| cell | verdict | IO size"), row("| jetstress | valid | 4KiB"));
    let figure =
        |head: &str| figures[heads.iter().position(|found| found == head).expect(head)].as_str();
    assert_eq!(
        (figure("db IOPS"), figure("log IOPS"), figure("IOPS")),
        ("1,100", "110.0", "1,210")
    );
    assert_eq!((figure("db read ms"), figure("db write ms")), ("5.90", "3.40"));
    assert_eq!(figure("log write ms"), "0.970");
    assert!(!heads.iter().any(|head| head == "log read ms"), "it never reads");
    assert_eq!(figure("IO size"), "4KiB + 4KiB");
}

#[test]
fn ten_preconditioning_rounds_give_a_chart() {
    let mut result = judged().result().clone();
    let mut phase = result.phases[0].clone();
    phase.name = "precondition".to_owned();
    phase.note = "steady after 5 rounds".to_owned();
    phase.rounds_iops = vec![900.0, 500.0, 480.0, 490.0, 485.0];
    result.phases.push(phase);
    let page = |result: &RunResult| {
        html(&JudgedRun::with_remarks(result.clone(), vec![Vec::new(); 3])).unwrap()
    };
    let few = page(&result);
    assert!(!few.contains("by round of precondition"), "a table shows five points as well");
    assert!(few.contains("precondition, operations per second by round: 900.0, 500.0, 480.0"));
    result.phases[1].rounds_iops.extend([485.0; 5]);
    let many = page(&result);
    assert!(many.contains("by round of precondition") && many.contains("(steady after 5 rounds)"));
}

/// A user may have edited `result.json`: the report accepts any number in the file.
#[test]
fn absurd_numbers_still_give_a_report() {
    for absurd in [1e308, -1e308, 5e-324, 0.0, -1.0] {
        let mut result = judged().result().clone();
        for run in result.cells.iter_mut().flat_map(|cell| &mut cell.runs) {
            run.intervals[2].p99_us = absurd;
            run.cpu_s = (absurd, absurd);
            run.offered_iops = Some(absurd);
        }
        result.cells[0].runs[1].seconds = absurd;
        result.phases[0].rounds_iops = vec![absurd, 1.0, absurd];
        result.environment.core_score = absurd;
        let judged = JudgedRun::with_remarks(result, vec![Vec::new(); 3]);
        assert!(html(&judged).unwrap().contains("</html>"));
        assert!(!markdown(&judged).is_empty() && !cells_csv(&judged).unwrap().is_empty());
        let compared = crate::compare::Comparison::of(&judged, &judged);
        assert!(!compared.text().is_empty() && !compared.json().is_empty());
    }
}

/// Issue 4: a report of 60 cells must be smaller than 3 MB.
#[test]
fn report_of_sixty_cells_stays_below_3_mb() {
    let cell = |index: u64| {
        let run = |base: u64| {
            let mut run = fixture::closed_run(10, 600, 50, 800, 2500);
            run.offered_iops = Some(100.0);
            for (second, interval) in run.intervals.iter_mut().enumerate() {
                // Add noise, so that the points of a line do not lie on a straight line.
                let noise = (second as u64 * 7919 + base * 104_729) % 101;
                interval.ops = 1000 + noise * 7;
                interval.p99_us = 500.0 + (noise * noise) as f64;
                interval.backlog = noise;
            }
            for class in &mut run.classes {
                (1..3000).for_each(|step| class.latency.record_ns(step * step * 1000));
            }
            run
        };
        // Give each cell ten runs, so that its confidence interval is narrow.
        fixture::cell(&format!("cell {index}"), (index..index + 10).map(run).collect())
    };
    let result = fixture::result((0..60).map(cell).collect());
    let html = html(&JudgedRun::with_remarks(result, vec![Vec::new(); 60])).unwrap();
    assert_eq!(html.matches("<svg").count(), 60 * 4);
    assert!(html.len() < 3_000_000, "{} bytes", html.len());
}

#[test]
fn error_names_the_file_that_was_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let paths = write(&judged(), directory.path()).unwrap();
    assert!(paths.len() == 3 && paths.iter().all(|path| path.is_file()), "{paths:?}");
    let error = write(&judged(), &directory.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("cells.csv") && error.contains("again from result.json"), "{error}");
}

#[test]
fn bonnie_table_includes_the_published_rows() {
    use crate::bonnie::{BonnieResult, BonnieRun, Figure, Phase};
    let figure =
        |phase| Figure { phase, rate: 191_266.0, cpu_pct: 12.5, latency_us: 2500.0, seconds: 30.0 };
    let run = BonnieRun { figures: Phase::ALL.map(figure).to_vec(), bad_blocks: 0 };
    let mut result = fixture::result(Vec::new());
    result.spec.reference = Some("s002-vlab.csv".to_owned());
    result.bonnie = Some(BonnieResult {
        directory: "/data".to_owned(),
        file_bytes: 48 << 30,
        memory_bytes: 16 << 30,
        files: 16_384,
        runs_asked: 3,
        runs: vec![run.clone(), run.clone(), run],
        notes: vec!["note of <ours>".to_owned()],
        failure: None,
    });
    let run = JudgedRun::of(result);
    let markdown = markdown(&run);
    // In bonnie++, output means writes. The median of the eight published runs is twice the median
    // of this run.
    let line = "| sequential output block (write) | valid | KiB/s | 191,266 | 191,266 to 191,266 | \
                0 | 12.50 | 2.50 | 3 | 381,614 | 379,416 to 387,046 | 85.00 | 370.0 | 0.501 |";
    assert!(markdown.contains(line), "{markdown}");
    assert!(markdown.contains("| sequential stat (read) | valid | per s |"));
    assert!(markdown.contains("too fast to be timed | - |"));
    assert!(markdown.contains("shape, not rank") && markdown.contains("source swaps them"));
    let html = html(&run).unwrap();
    assert!(html.contains("note of &lt;ours&gt;") && html.contains("random seeks (read, a tenth"));
    let csv = cells_csv(&run).unwrap();
    let lines: Vec<&str> = csv.lines().filter(|line| line.starts_with("bonnie,")).collect();
    assert_eq!(lines.len(), 36);
    assert!(
        lines[1].contains("sequential output block (write),1,valid,")
            && lines[1].contains(",186.783,")
    );
    assert!(lines[5].contains(",191266,"));
}
