//! Tests of the report on several results, with synthetic results.

use super::*;
use crate::fixture;
use crate::result::CellResult;
use crate::spec::{Access, BlockShare};
use crate::verdict::JudgedRun;

/// Cell of the profile of the document 000, with this rate and latency.
fn cell(random: bool, read_pct: u64, iops: u64, us: u64) -> CellResult {
    let run = || fixture::closed_run(iops, 5, read_pct, us, us);
    let word = if random { "random" } else { "seq" };
    let name = format!("{word} 4KiB read {read_pct}%");
    let mut cell = fixture::cell(&name, vec![run(), run(), run()]);
    (cell.spec.table, cell.spec.variant) = (word.to_owned(), Some("mirrors".to_owned()));
    let stream = &mut cell.spec.streams[0];
    stream.access = if random { Access::Random } else { Access::Sequential };
    stream.read_pct = read_pct as f64;
    stream.blocks = vec![BlockShare { bytes: 4096, weight: 1 }];
    cell
}

fn named(name: &str, variant: &str, is_peer: bool, rate: u64) -> Named {
    let mut cells = vec![
        cell(true, 100, 4 * rate, 1000),
        cell(true, 0, rate, 4000),
        cell(false, 100, 2 * rate, 2000),
    ];
    cells.iter_mut().for_each(|cell| cell.spec.variant = Some(variant.to_owned()));
    let mut result = fixture::result(cells);
    result.spec.reference = Some("s000-nexenta-vm.csv".to_owned());
    Named { name: name.to_owned(), run: JudgedRun::of(result), is_peer }
}

#[test]
fn rows_have_the_columns_of_the_document_and_its_figures() {
    let all = [named("twelve", "mirrors", false, 1000)];
    let text = markdown_of_several(&all);
    assert!(text.contains("### twelve, random\n"), "{text}");
    let row = text.lines().find(|line| line.contains("| 4KiB | 100 |")).unwrap();
    assert!(
        row.contains("| 15.62 | 4,000 | 1.00 | 4,000 | - | 1,405 | 353,539 | 1.00 | 335,867 | - |"),
        "{row}"
    );
    let html = html_of_several(&all);
    assert!(html.contains("353,539") && !html.contains("<script"), "{html}");
}

#[test]
fn differences_are_computed_and_published_ones_stand_beside() {
    let all = [
        named("mirrors", "mirrors", false, 1000),
        named("raidz", "raidz2", false, 500),
        named("other", "mirrors", true, 250),
    ];
    let text = markdown_of_several(&all);
    let sequential = "mirrors, sequential by random: rate 0.5 times (0.5 to 0.5, 1 row); \
                      published: 0.958 times";
    assert!(text.contains(sequential), "{text}");
    let reads = "mirrors, random 4KiB, only reads and only writes: 15.62 and 3.91 MiB/s, 4 times; \
                 published: 1,405 and 856.0 MiB/s";
    assert!(text.contains(reads), "{text}");
    assert!(text.contains("raidz by mirrors, row by row: rate 0.5 times (0.5 to 0.5, 3"), "{text}");
    let peer = "mirrors by other, row by row: rate 4 times (4 to 4, 3 rows); mean latency 1 times";
    assert!(text.contains(peer), "{text}");
    // No published figure of another product.
    let conclusion = text.lines().find(|line| line.contains("mirrors by other")).unwrap();
    assert!(!conclusion.contains("published"), "{conclusion}");
    assert!(text.contains("ops/s: mirrors / this"), "{text}");
}

#[test]
fn invalid_rows_are_in_no_difference() {
    let first = named("one", "mirrors", false, 1000);
    let mut result = named("two", "mirrors", true, 100).run.result().clone();
    result.cells[0].runs[0].corrupt = 5;
    result.cells[1].runs.clear();
    let second = Named { name: "two".to_owned(), run: JudgedRun::of(result), is_peer: true };
    let text = markdown_of_several(&[first, second]);
    assert!(text.contains("one by two, row by row: rate 10 times (10 to 10, 1 row)"), "{text}");
    assert!(text.contains("| corrupt |"), "{text}");
}
