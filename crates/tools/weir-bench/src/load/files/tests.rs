//! Tests of the choice of metadata operations, and of the states of files.
//!
//! The tests of `scratch` execute the operations on a directory.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::load::Chooser;
use crate::load::access::Choice;
use crate::spec::{Access, BlockShare, DatasetSpec};

const SHARES: [(MetadataKind, f64); 4] = [
    (MetadataKind::Getattr, 26.0),
    (MetadataKind::Lookup, 24.0),
    (MetadataKind::Create, 1.0),
    (MetadataKind::Remove, 1.0),
];

fn mix(pct: f64) -> StreamSpec {
    let share = |(op, weight)| MetadataShare { op, weight };
    let shares = SHARES.map(share).to_vec();
    StreamSpec {
        name: String::new(),
        access: Access::Random,
        blocks: vec![BlockShare { bytes: 4096, weight: 1 }],
        read_pct: 70.0,
        op: None,
        metadata: Some(MetadataSpec::Mix { pct, shares }),
        share: 1,
    }
}

fn files(op: OpKind, access: Access, files: u32) -> StreamSpec {
    let metadata = MetadataSpec::Files { files, file_bytes: 0, shared: false };
    StreamSpec { op: Some(op), access, blocks: Vec::new(), metadata: Some(metadata), ..mix(5.0) }
}

fn chooser(stream: &StreamSpec, seed: u64, worker: u32) -> Chooser {
    let dataset = DatasetSpec { files: 8, file_bytes: 1 << 20 };
    let streams = std::slice::from_ref(stream);
    Chooser::new(streams, &dataset, &(0..8 << 20), (worker, 2), seed, false)
}

/// Draws operations, and settles each as done before the next.
fn drawn(
    stream: &StreamSpec,
    seed: u64,
    worker: u32,
    count: usize,
) -> Vec<(Choice, Option<MetadataCall>)> {
    let mut chooser = chooser(stream, seed, worker);
    let next = || {
        let choice = chooser.next_op()?;
        let call = chooser.take_call();
        assert_eq!(choice.has_call, call.is_some());
        if let Some(call) = &call {
            chooser.settle(choice.stream, call, Outcome::Done);
        }
        Some((choice, call))
    };
    std::iter::from_fn(next).take(count).collect()
}

#[test]
fn equal_seeds_give_equal_metadata_operations() {
    let renames = files(OpKind::Rename, Access::Random, 50);
    let creates = files(OpKind::Create, Access::Random, 500);
    for stream in [mix(5.0), renames, creates] {
        let first = drawn(&stream, 7, 0, 5_000);
        assert_eq!(first, drawn(&stream, 7, 0, 5_000));
        assert_ne!(first, drawn(&stream, 8, 0, 5_000), "another seed");
        assert_ne!(first, drawn(&stream, 7, 1, 5_000), "another worker");
    }
}

#[test]
fn share_of_metadata_operations_and_of_their_kinds_matches_the_specification() {
    const COUNT: usize = 100_000;
    let choices = drawn(&mix(5.0), 7, 0, COUNT);
    let calls: Vec<MetadataCall> = choices.iter().filter_map(|choice| choice.1).collect();
    // Four standard deviations of a binomial share.
    let bound = |share: f64, count: f64| 4.0 * (share * (1.0 - share) / count).sqrt();
    let share = calls.len() as f64 / COUNT as f64;
    assert!((share - 0.05).abs() < bound(0.05, COUNT as f64), "{share}");
    let mut counts: BTreeMap<MetadataKind, f64> = BTreeMap::new();
    calls.iter().for_each(|call| *counts.entry(call.kind().unwrap()).or_default() += 1.0);
    let (all, weights) = (calls.len() as f64, SHARES.iter().map(|share| share.1).sum::<f64>());
    for (kind, weight) in &SHARES[..2] {
        let (found, wanted) = (counts[kind] / all, weight / weights);
        assert!((found - wanted).abs() < bound(wanted, all), "{kind:?}: {found}");
    }
    let changes = (counts[&MetadataKind::Create] + counts[&MetadataKind::Remove]) / all;
    assert!((changes - 2.0 / weights).abs() < bound(2.0 / weights, all), "{changes}");
    let reads = choices.iter().filter(|choice| choice.0.kind == OpKind::Read).count() as f64;
    let reads = reads / (COUNT - calls.len()) as f64;
    assert!((reads - 0.7).abs() < bound(0.7, COUNT as f64 * 0.95), "{reads}");
}

#[test]
fn mix_without_metadata_operations_leaves_the_load_unchanged() {
    let plain = StreamSpec { metadata: None, ..mix(5.0) };
    let calls = drawn(&plain, 7, 0, 1000);
    assert!(calls.iter().all(|choice| choice.1.is_none()));
}

#[test]
fn create_and_remove_use_each_file_once_and_then_end() {
    for op in [OpKind::Create, OpKind::Extract, OpKind::Remove] {
        let numbers = |access| -> Vec<u32> {
            let choices = drawn(&files(op, access, 100), 7, 1, usize::MAX);
            let number = |choice: (Choice, Option<MetadataCall>)| match choice.1 {
                Some(
                    MetadataCall::Create { file, .. }
                    | MetadataCall::Extract { file, .. }
                    | MetadataCall::Remove { file },
                ) => {
                    assert_eq!((file.worker, file.directory.worker), (1, Some(1)));
                    file.number
                }
                other => panic!("{other:?}"),
            };
            choices.into_iter().map(number).collect()
        };
        let ascending: Vec<u32> = (0..100).collect();
        assert_eq!(numbers(Access::Sequential), ascending);
        let random = numbers(Access::Random);
        assert_ne!(random, ascending);
        assert_eq!(BTreeSet::from_iter(random), BTreeSet::from_iter(ascending));
    }
}

#[test]
fn file_has_at_most_one_rename_in_flight() {
    for access in [Access::Sequential, Access::Random] {
        let mut chooser = chooser(&files(OpKind::Rename, access, 4), 7, 0);
        let mut draw = || chooser.next_op().and_then(|_| chooser.take_call());
        let calls: Vec<MetadataCall> = std::iter::from_fn(&mut draw).take(10).collect();
        let from = |call: &MetadataCall| match call {
            MetadataCall::Rename { from, to } => {
                assert!(!from.renamed && to.renamed && from.number == to.number);
                from.number
            }
            other => panic!("{other:?}"),
        };
        let numbers: BTreeSet<u32> = calls.iter().map(from).collect();
        assert_eq!((calls.len(), numbers.len()), (4, 4), "each file is busy");
        chooser.settle(0, &calls[2], Outcome::Done);
        let next = chooser.next_op().and_then(|_| chooser.take_call());
        let Some(MetadataCall::Rename { from, to }) = next else { panic!("{next:?}") };
        assert!(from.renamed && !to.renamed, "back to the first name");
    }
}

#[test]
fn outcome_of_a_change_decides_which_names_are_expected() {
    let stream = files(OpKind::Create, Access::Sequential, 5);
    let mut own = Metadata::new(&stream, 0, (0, 1), 1, 7).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    let mut calls = Vec::new();
    while let Drawn::Call(_, call) = own.draw(&mut rng) {
        calls.push(call);
    }
    assert_eq!(calls.len(), 5);
    let outcomes = [Outcome::Done, Outcome::Done, Outcome::Failed, Outcome::NotSent];
    for (call, outcome) in calls.iter().zip(outcomes) {
        own.settle(call, outcome);
    }
    assert_eq!(own.look(0, false), Found::Expected);
    assert_eq!(own.look(0, true), Found::Unexpected, "never renamed");
    assert_eq!(own.look(2, false), Found::Unknown, "failed");
    assert_eq!(own.look(3, false), Found::Unexpected, "not sent");
    assert_eq!(own.look(4, false), Found::Unknown, "no answer");
    assert_eq!(own.look(5, false), Found::Unexpected, "no such number");
    let missing: Vec<u32> = own.missing().iter().map(|file| file.number).collect();
    assert_eq!(missing, [1], "done, and not listed");
}

#[test]
fn mix_removes_only_files_whose_creation_completed() {
    let shares = vec![
        MetadataShare { op: MetadataKind::Create, weight: 1.0 },
        MetadataShare { op: MetadataKind::Remove, weight: 1.0 },
    ];
    let stream =
        StreamSpec { metadata: Some(MetadataSpec::Mix { pct: 100.0, shares }), ..mix(5.0) };
    let mut own = Metadata::new(&stream, 0, (0, 1), 1, 7).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    let first = own.initial().map(|call| match call {
        MetadataCall::Create { file, bytes: 0 } => file,
        other => panic!("{other:?}"),
    });
    let (mut there, mut in_flight): (BTreeSet<FileName>, Vec<MetadataCall>) =
        (first.collect(), Vec::new());
    assert_eq!(there.len(), MIX_FILES_FIRST as usize);
    for _ in 0..10_000 {
        let Drawn::Call(OpKind::Metadata, call) = own.draw(&mut rng) else { panic!("a call") };
        if let MetadataCall::Remove { file } = call {
            assert!(there.remove(&file), "{file}");
        }
        in_flight.push(call);
        if in_flight.len() > 8 {
            let done = in_flight.remove(0);
            own.settle(&done, Outcome::Done);
            if let MetadataCall::Create { file, .. } = done {
                assert!(there.insert(file), "{file}");
            }
        }
        assert!(there.len() <= MIX_FILES_MAX + 8);
    }
    for call in in_flight {
        own.settle(&call, Outcome::NotSent);
        if let MetadataCall::Remove { file } = call {
            there.insert(file);
        }
    }
    assert_eq!(BTreeSet::from_iter(own.missing()), there);
}
