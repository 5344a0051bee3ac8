//! Tests that the published rows are consistent, and that a profile has a cell for each row.
//!
//! The tests use no figures of Weir.

use std::collections::BTreeSet;

use super::{Published, Row, load, names};
use crate::profile::{self, Options};
use crate::spec::Scale;

fn published(name: &str) -> Published {
    load(name).unwrap_or_else(|error| panic!("{error}"))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 {
        figures[middle]
    } else {
        f64::midpoint(figures[middle - 1], figures[middle])
    }
}

#[test]
fn every_file_can_be_read_and_is_the_reference_of_a_profile() {
    let mut used = BTreeSet::new();
    for name in profile::names() {
        let spec = profile::load(name, &Options::default()).unwrap();
        if let Some(file) = spec.reference {
            let published = published(&file);
            assert!(!published.rows.is_empty() && !published.notes.is_empty(), "{file}");
            used.insert(file);
        }
    }
    assert_eq!(used, names().into_iter().map(str::to_owned).collect());
    assert!(load("s005.csv").unwrap_err().to_string().contains("s004-exchange.csv"));
}

/// For each published row, the row's variant of the profile has a cell with the row's name, and
/// `rows_for` returns the row for this cell.
#[test]
fn every_row_names_a_cell_of_its_profile() {
    for file in names() {
        let published = published(file);
        for row in &published.rows {
            let name = file.trim_end_matches(".csv");
            let variant = row.variant.clone();
            let options = Options { scale: Some(Scale::Seed), variant, ..Options::default() };
            let spec = profile::load(name, &options).unwrap_or_else(|error| panic!("{error}"));
            if row.cell == "fill" {
                assert_eq!(row.block_kib, Some(f64::from(spec.fill.block_bytes) / 1024.0));
                continue;
            }
            let cell = spec.cells.iter().find(|cell| cell.name == row.cell);
            let cell = cell.unwrap_or_else(|| panic!("{file}: no cell {:?}", row.cell));
            assert!(
                published.rows_for(cell, "file").any(|other| other == row),
                "{file}: {}",
                row.cell
            );
            if let Some(clients) = row.clients {
                assert_eq!(cell.clients, clients, "{file}: {}", row.cell);
            }
            if let Some(read_pct) = row.read_pct {
                let block = cell.streams[0].blocks[0].bytes;
                assert_eq!(row.block_kib, Some(f64::from(block) / 1024.0), "{}", row.cell);
                assert!((cell.streams[0].read_pct - read_pct).abs() < 1e-9, "{}", row.cell);
            }
        }
    }
}

#[test]
fn matrix_rows_obey_littles_law_and_their_mix() {
    let published = published("s000-nexenta-vm.csv");
    assert_eq!(published.rows.len(), 147);
    let (fills, rows): (Vec<&Row>, Vec<&Row>) =
        published.rows.iter().partition(|row| row.cell == "fill");
    for (window, lowest, highest) in [(1, 87.5, 127.5), (4, 181.0, 388.0)] {
        let in_flight = |row: &&&Row| row.window == Some(window);
        let in_flight: Vec<f64> =
            rows.iter().filter(in_flight).map(|row| row.in_flight().unwrap()).collect();
        assert!(in_flight.iter().all(|count| (lowest..=highest).contains(count)), "{in_flight:?}");
    }
    // The document prints latencies to 0.1 ms. Even with the lowest true latency that rounds to the
    // printed latency, more than 125 operations were in flight. So the document did not use one
    // worker for each file, which would be 120 workers.
    let low = |row: &&&Row| row.cell == "random 64KiB read 0%" && row.window == Some(1);
    let low = rows.iter().find(low).unwrap();
    assert!(low.total_ops_s.unwrap() * (low.latency_ms.unwrap() - 0.05) / 1000.0 > 125.0);
    for row in &rows {
        let off = row.mix_pct().unwrap() - row.read_pct.unwrap();
        assert!(off.abs() <= 0.42, "{} {}: off by {off}", row.table, row.cell);
        let share = row.data_ops_s().unwrap() / row.total_ops_s.unwrap();
        let expected = if row.window == Some(1) { 0.9988..0.9991 } else { 0.950..0.952 };
        assert!(expected.contains(&share), "{} {}: {share}", row.table, row.cell);
    }
    assert_eq!(fills.len(), 3, "the fourth is empty in the source");
    for fill in fills {
        assert!((14.0..15.0).contains(&fill.in_flight().unwrap()));
        assert!((270.0..290.0).contains(&fill.overhead_bytes().unwrap()), "64 KiB and a header");
    }
}

#[test]
fn bandwidth_of_the_matrix_is_mib_on_the_wire() {
    let published = published("s000-nexenta-vm.csv");
    let tables: BTreeSet<&str> = published.rows.iter().map(|row| row.table.as_str()).collect();
    assert_eq!(tables.len(), 5);
    for table in tables {
        let of_table = |row: &&Row| row.table == table && row.cell != "fill";
        let of_table = published.rows.iter().filter(of_table);
        let overhead = median(of_table.map(|row| row.overhead_bytes().unwrap()).collect());
        assert!((271.0..=288.0).contains(&overhead), "{table}: {overhead} bytes");
    }
}

#[test]
fn bonnie_output_is_write_and_the_published_means_match() {
    let published = published("s002-vlab.csv");
    assert_eq!(published.bonnie.len(), 8);
    let mean = |figure: fn(&super::BonnieRow) -> Option<f64>| {
        published.bonnie.iter().filter_map(figure).sum::<f64>() / 8.0
    };
    assert!((mean(|row| row.out_block_kib_s) - 382_299.0).abs() < 1.0);
    assert!((mean(|row| row.rewrite_kib_s) - 259_071.0).abs() < 1.0);
    assert!((mean(|row| row.in_block_kib_s) - 573_591.0).abs() < 1.0);
    assert!((mean(|row| row.seeks_s) - 7_731.0).abs() < 1.0);
    assert!(published.bonnie.iter().all(|row| row.out_block_kib_s < row.in_block_kib_s));
    assert!(published.bonnie_notes.iter().any(|note| note.contains("source swaps them")));
    assert_eq!(published.bonnie[0].seq_stat_s, None, "plus signs are no figure");
}

#[test]
fn sizing_and_compression_rows_match_their_documents() {
    let softnas = published("s003-softnas.csv");
    assert_eq!(softnas.sizing.len(), 6);
    let cap = |row: &super::SizingRow| row.mb_s_to * 1024.0 / row.block_kib;
    let exact = softnas.sizing.iter().filter(|row| (cap(row) - row.iops_to).abs() < 1.0);
    assert_eq!(exact.count(), 5, "all but the largest, which is cut from 16384 to 16000");
    let exchange = published("s004-exchange.csv");
    let ops = |test: usize| exchange.rows[test - 1].total_ops_s.unwrap();
    assert!((ops(3) / ops(1) - 1.94).abs() < 0.005);
    assert!((ops(6) / ops(1) - 1.81).abs() < 0.005);
    assert!((ops(7) / ops(6) - 2.071).abs() < 0.001);
    assert!(exchange.notes.iter().any(|note| note.contains("94 %")));
}

/// A run over NFS used to show the published rows of iSCSI and SMB too.
#[test]
fn cell_gets_only_the_rows_of_its_protocol() {
    let published = published("s003-softnas.csv");
    for (variant, reads_s) in [(None, 12_800.0), (Some("premium"), 14_000.0)] {
        let variant = variant.map(str::to_owned);
        let options = Options { scale: Some(Scale::Seed), variant, ..Options::default() };
        let spec = profile::load("s003-softnas", &options).unwrap();
        let cell = spec.cells.iter().find(|cell| cell.name == "seq 32KiB read 100%").unwrap();
        let of = |target| published.rows_for(cell, target).collect::<Vec<_>>();
        let media = spec.cells[0].variant.as_deref();
        let over_nfs: Vec<_> =
            of("nfs").into_iter().filter(|r| r.variant.as_deref() == media).collect();
        let [row] = over_nfs[..] else { panic!("{over_nfs:?}") };
        assert_eq!((row.protocol.as_deref(), row.read_ops_s), (Some("nfs3"), Some(reads_s)));
        assert!(of("iscsi").iter().all(|row| row.protocol.as_deref() == Some("iscsi")));
        assert!(of("file").len() >= 3, "no protocol of the document: all rows");
    }
}
