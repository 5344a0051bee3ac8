//! Parts of the metadata trees that some imports cannot read: the first import that can read them
//! restores everything below these parts.
//!
//! `metadata_trees` tests the pool while these parts are unreadable; weir-sim tests crashes and
//! load.
//!
//! Invariant: only the administrator abandons data that a later import may be able to read.

use std::collections::BTreeSet;
use std::ops::Range;

use weir_base::ErrorKind;
use weir_dataset::{DatasetError, LostDatasets, Outcome, SnapshotId};
use weir_pool::{MetadataTree, OwnPlace, PlantedBug};

use crate::common::now;
use crate::metadata_trees::{
    BLOCK, BLOCKS, Bench, assert_nothing_is_lost, damage, drive, mend, places_of, reopen,
    try_reopen,
};

/// Regression: if the top node of the directory was unreadable during one import, all volumes were
/// lost, even after the sectors became readable again.
#[test]
fn import_without_the_top_of_the_directory_needs_force() {
    let mut bench = Bench::new();
    let top = places_of(&bench.engine, |p| p.tree == MetadataTree::Datasets && p.level == 1);
    let before = bench.disk_sum();
    damage(&bench.disk, &top);
    for _ in 0..2 {
        let error = try_reopen(&bench.disk, false).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Data);
        let words = error.to_string();
        assert!(words.contains("weir pool import --force tank"), "{words}");
    }
    damage(&bench.disk, &top);
    assert!(bench.disk_sum() == before, "a refused import writes nothing");
    bench.engine = reopen(&bench.disk);
    assert_eq!(bench.unreadable(), 0);

    let top = places_of(&bench.engine, |p| p.tree == MetadataTree::Datasets && p.level == 1);
    damage(&bench.disk, &top);
    bench.engine = try_reopen(&bench.disk, true).unwrap();
    assert!(bench.engine.volumes().is_empty());
    let lost = bench.engine.lost_datasets().numbers;
    assert!(lost.len() == 1 && lost[0].start == 1 && lost[0].end > 3, "{lost:?}");
    let volumes = std::mem::take(&mut bench.volumes);
    bench.make("n");
    bench.fill_some();
    damage(&bench.disk, &top);
    bench.engine = reopen(&bench.disk);
    assert_eq!(bench.engine.lost_datasets(), LostDatasets::default());
    bench.volumes.extend(volumes);
    assert_eq!(bench.unreadable(), 0, "everything is back");
    assert_eq!(bench.unreadable_in_snapshot(), 0);
    mend(&bench.engine);
    bench.crash();
    assert_nothing_is_lost(&bench.engine);
    bench.go_on();
}

/// Returns the range of numbers of unreadable datasets, if there is exactly one such range.
fn only_lost(bench: &Bench) -> Option<Range<u64>> {
    let numbers = bench.engine.lost_datasets().numbers;
    numbers.first().filter(|_| numbers.len() == 1).cloned()
}

/// Regression: the first import that could not read a record of the directory dropped the record.
#[test]
fn datasets_return_when_their_records_become_readable() {
    for number in 1..=3 {
        let mut bench = Bench::new();
        let volumes = bench.volumes.clone();
        let of =
            |p: &OwnPlace| p.tree == MetadataTree::Datasets && (p.level, p.index) == (0, number);
        let places = places_of(&bench.engine, of);
        damage(&bench.disk, &places);
        for _ in 0..3 {
            bench.crash();
            assert_eq!(only_lost(&bench), Some(number..number + 1));
            bench.volumes.retain(|name, _| bench.engine.volume(name).is_ok());
            assert_eq!(bench.unreadable(), 0);
            bench.fill_some();
        }
        assert_eq!(only_lost(&bench), Some(number..number + 1));
        damage(&bench.disk, &places);
        bench.crash();
        assert_eq!(bench.engine.lost_datasets(), LostDatasets::default());
        for (name, contents) in volumes {
            bench.volumes.entry(name).or_insert(contents);
        }
        assert_eq!(bench.unreadable(), 0, "record {number}");
        assert_eq!(bench.unreadable_in_snapshot(), 0, "record {number}");
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        assert_eq!(bench.unreadable_in_snapshot(), 0, "record {number}");
        bench.go_on();
        bench.destroy_all();
    }
}

/// Regression: the pool freed the space of unreadable datasets without the administrator's consent.
#[test]
fn clearing_lost_datasets_frees_their_space() {
    let mut bench = Bench::new();
    let of = |p: &OwnPlace| p.tree == MetadataTree::Datasets && (p.level, p.index) == (0, 1);
    let places = places_of(&bench.engine, of);
    bench.lose(of);
    bench.volumes.remove("a");
    bench.fill_some();
    let live = |bench: &Bench| bench.engine.pool().space().live_bytes;
    let before = live(&bench);
    assert_eq!(now(bench.engine.discard_lost_datasets()).unwrap(), Outcome::Changed);
    assert_eq!(now(bench.engine.discard_lost_datasets()).unwrap(), Outcome::Unchanged);
    mend(&bench.engine);
    let gain = before - live(&bench);
    assert!(gain > (BLOCKS as u64) * BLOCK / 2, "{gain} bytes came back");
    damage(&bench.disk, &places);
    bench.crash();
    assert!(bench.engine.volume("a").is_err(), "it was given up");
    assert_nothing_is_lost(&bench.engine);
    assert_eq!(bench.unreadable(), 0);
    assert_eq!(bench.unreadable_in_snapshot(), 0);
    bench.destroy_all();
}

/// Regression: an import skipped flushed writes to a volume whose record was unreadable.
#[test]
fn import_that_would_drop_logged_writes_is_refused() {
    // Flushes a write to volume `a`, then damages the record of `a`.
    let log_and_damage = |bench: &mut Bench, seed, block| {
        bench.write("a", seed, block);
        let a = bench.volume("a");
        drive(&bench.engine, bench.engine.flush(&a)).unwrap();
        let is_record =
            |p: &OwnPlace| p.tree == MetadataTree::Datasets && (p.level, p.index) == (0, 1);
        let places = places_of(&bench.engine, is_record);
        damage(&bench.disk, &places);
        places
    };
    let mut bench = Bench::new();
    let places = log_and_damage(&mut bench, 5, 900_000);
    let error = try_reopen(&bench.disk, false).err().expect("refused");
    assert!(error.to_string().contains("numbers 1)"), "{error}");
    damage(&bench.disk, &places);
    bench.engine = reopen(&bench.disk);
    assert_eq!(bench.unreadable(), 0, "the flushed write is there");
    log_and_damage(&mut bench, 6, 900_002);
    bench.engine = try_reopen(&bench.disk, true).unwrap();
    bench.volumes.remove("a");
    assert_eq!(bench.unreadable(), 0, "the other volume is whole");
}

/// Regression: the first commit removed a lost part from the tree of the remap tables.
#[test]
fn remap_tables_are_used_again_when_they_become_readable() {
    let mut bench = Bench::new();
    for level in [0, 1] {
        let of = |p: &OwnPlace| p.tree == MetadataTree::Remaps && p.level == level;
        let places = places_of(&bench.engine, of);
        bench.lose(of);
        let unreadable = bench.unreadable();
        assert!((1..BLOCKS).contains(&unreadable), "{unreadable} blocks");
        let volumes = std::mem::take(&mut bench.volumes);
        let name = format!("n{level}");
        bench.make(&name);
        for _ in 0..3 {
            bench.fill_some();
            bench.crash();
        }
        bench.volumes.extend(volumes);
        for at in 0..20 {
            let content = bench.next;
            bench.write("a", at, content);
            bench.write("b", at, content);
        }
        bench.crash();
        assert!(bench.unreadable() > 0);
        damage(&bench.disk, &places);
        bench.crash();
        assert_eq!(bench.unreadable(), 0, "level {level}");
        assert_eq!(bench.unreadable_in_snapshot(), 0, "level {level}");
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        now(bench.engine.destroy_volume(&name, true)).unwrap();
        bench.volumes.remove(&name);
    }
    bench.go_on();
    bench.destroy_all();
}

/// Parts of the segment table that are unreadable are never dropped.
#[test]
fn segments_are_used_again_when_their_entries_become_readable() {
    for level in [0, 1] {
        let mut bench = Bench::new();
        let of = |p: &OwnPlace| p.tree == MetadataTree::Segments && p.level == level;
        let places = places_of(&bench.engine, of);
        bench.lose(of);
        assert!(bench.unreadable() > 0);
        let volumes = std::mem::take(&mut bench.volumes);
        bench.make("n");
        for _ in 0..3 {
            bench.fill_some();
            bench.crash();
        }
        damage(&bench.disk, &places);
        bench.crash();
        bench.volumes.extend(volumes);
        assert_eq!(bench.unreadable(), 0, "level {level}");
        assert_eq!(bench.unreadable_in_snapshot(), 0, "level {level}");
        mend(&bench.engine);
        bench.crash();
        assert_nothing_is_lost(&bench.engine);
        bench.go_on();
        bench.destroy_all();
    }
}

/// Cleans segments while one part of the segment table is unreadable. Returns the number of blocks
/// that stay unreadable after this part is readable again.
fn lost_by_cleaning(bug: PlantedBug) -> usize {
    let mut bench = Bench::new();
    bench.fill_with("full", 10_800);
    bench.overwrite_some("full", 12_000);
    let is_part = |p: &OwnPlace| p.tree == MetadataTree::Segments && p.level == 0;
    let parts: BTreeSet<u64> =
        places_of(&bench.engine, is_part).iter().map(|part| part.index).collect();
    // The last parts describe the open segments. The part before them describes segments to which
    // the cleaner moved blocks.
    let part = *parts.iter().nth_back(2).unwrap();
    let places = places_of(&bench.engine, |p| is_part(p) && p.index == part);
    bench.bug = bug;
    damage(&bench.disk, &places);
    bench.crash();
    assert!(bench.unreadable() > 0);
    bench.overwrite_some("full", 1_000);
    damage(&bench.disk, &places);
    bench.crash();
    bench.unreadable() + bench.unreadable_in_snapshot()
}

#[test]
fn cleaner_preserves_the_locations_of_blocks_in_unreadable_segments() {
    assert_eq!(lost_by_cleaning(PlantedBug::None), 0);
}

#[test]
fn lost_locations_of_blocks_in_unreadable_segments_are_detected() {
    assert!(lost_by_cleaning(PlantedBug::RunsIntoUnreadDropped) > 0);
}

/// Regression: a rollback past a snapshot with an unreadable record, or a promotion above such a
/// snapshot, moved this snapshot to a wrong position in its chain. After the record became readable
/// and a user destroyed a neighbouring snapshot, the pool freed blocks in use.
#[test]
fn snapshot_chains_with_unreadable_snapshots_are_not_changed() {
    let of = |name: &str| SnapshotId::new("b", name);
    for (name, number) in [("s", 3), ("s2", 5), ("s3", 7)] {
        let mut bench = Bench::new();
        for newer in ["s2", "s3"] {
            bench.fill_some();
            now(bench.engine.create_snapshots(&[of(newer)])).unwrap();
            if newer == "s2" {
                now(bench.engine.clone_snapshot(&of(newer), "c")).unwrap();
                bench.volumes.insert("c".to_owned(), bench.volumes["b"].clone());
            }
        }
        let record =
            |p: &OwnPlace| p.tree == MetadataTree::Datasets && (p.level, p.index) == (0, number);
        let places = places_of(&bench.engine, record);
        bench.lose(record);
        let roll = |bench: &Bench, to| now(bench.engine.rollback(&of(to), true));
        let refused = |done: Result<Outcome, DatasetError>| {
            let error = done.unwrap_err().to_string();
            assert!(error.contains("weir pool clear --lost tank"), "{error}");
        };
        match name {
            "s" => refused(drive(&bench.engine, bench.engine.promote("c"))),
            "s2" => refused(roll(&bench, "s")),
            _ => refused(roll(&bench, "s2")),
        }
        damage(&bench.disk, &places);
        bench.crash();
        assert_eq!(bench.unreadable(), 0, "{name}");
        assert_eq!(bench.unreadable_in_snapshot(), 0, "{name}");
    }
}
