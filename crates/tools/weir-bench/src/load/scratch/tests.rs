//! Tests of metadata operations on a directory: their counts, the check of the files, and the
//! removal of the files.
//!
//! Invariant: no test asserts a speed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::{Offer, ReadChecks, offer};
use super::*;
use crate::load::Generations;
use crate::result::{CellRun, TargetInfo};
use crate::spec::{
    Access, BlockShare, ContentSpec, DatasetSpec, Durability, LoadSpec, MetadataKind,
    MetadataShare, OpKind,
};
use crate::target::{self, Address, Op, Target, null};

const DATASET: DatasetSpec = DatasetSpec { files: 2, file_bytes: 1 << 20 };
/// Names of the files of the dataset.
const DATASET_NAMES: [&str; 2] = ["weir-bench-00000.dat", "weir-bench-00001.dat"];
const WORKERS: u32 = 2;

fn files(op: OpKind, files: u32, file_bytes: u32, shared: bool) -> StreamSpec {
    StreamSpec {
        name: String::new(),
        access: Access::Sequential,
        blocks: Vec::new(),
        read_pct: 0.0,
        op: Some(op),
        metadata: Some(MetadataSpec::Files { files, file_bytes, shared }),
        share: 1,
    }
}

fn mix(pct: f64) -> StreamSpec {
    let share = |op| MetadataShare { op, weight: 1.0 };
    StreamSpec {
        blocks: vec![BlockShare { bytes: 4096, weight: 1 }],
        read_pct: 50.0,
        access: Access::Random,
        op: None,
        metadata: Some(MetadataSpec::Mix { pct, shares: MetadataKind::ALL.map(share).to_vec() }),
        ..files(OpKind::Stat, 1, 0, false)
    }
}

fn directory(path: &Path) -> Box<dyn Target> {
    target::open(&Address::Directory(path.to_owned()), &DATASET).expect("a new directory")
}

fn content() -> Content {
    let spec = ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 3 };
    Content::new(&spec, 4096, DATASET.total_bytes())
}

/// Runs a load with `depth` operations in flight for each worker.
fn run(
    target: &dyn Target,
    streams: &[StreamSpec],
    depth: u32,
    durability: Durability,
    tell: &mut dyn FnMut(Duration) -> bool,
) -> Result<CellRun, TargetError> {
    let content = content();
    let generations = Generations::new(DATASET.total_bytes(), 4096);
    let ground = Ground {
        target,
        dataset: &DATASET,
        content: &content,
        generations: generations.as_ref(),
        durability,
        seed: 1,
        read_checks: ReadChecks::Off,
    };
    let load = LoadSpec::Closed { workers: WORKERS, depth };
    let ends = |stream: &StreamSpec| stream.op.is_some_and(OpKind::ends_with_files);
    // A run that ends with its files needs a limit that it does not reach on a busy machine.
    let ms = if streams.iter().all(ends) { 20_000 } else { 300 };
    let duration = Some(Duration::from_millis(ms));
    let what = Offer { streams, load, warmup: Duration::ZERO, duration, worker_bytes: None };
    offer(&ground, &what, tell)
}

fn whole(target: &dyn Target, stream: StreamSpec, depth: u32) -> CellRun {
    run(target, &[stream], depth, Durability::None, &mut |_| true).expect("the directory is there")
}

/// Names in a directory, without the files of the dataset.
fn left(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap());
    names.filter(|name| !DATASET_NAMES.contains(&name.as_str())).collect()
}

fn ops(run: &CellRun, op: OpKind) -> u64 {
    run.classes.iter().filter(|class| class.op == op).map(|class| class.ops).sum()
}

#[test]
fn operations_on_files_are_counted_and_leave_nothing_behind() {
    let path = tempfile::tempdir().unwrap();
    let target = directory(path.path());
    for (depth, shared, file_bytes) in
        [(1, false, 0), (1, true, 5000), (8, false, 5000), (8, true, 0)]
    {
        for op in OpKind::ALL.into_iter().filter(|op| op.is_of_files()) {
            let what = format!("{op:?} depth {depth} shared {shared}");
            let run = whole(&*target, files(op, 20, file_bytes, shared), depth);
            let [class] = &run.classes[..] else { panic!("{what}: {:?}", run.classes) };
            assert!(class.op == op && class.errors.is_empty(), "{what}: {:?}", class.errors);
            let files = 20 * u64::from(WORKERS);
            let check = run.files.clone().expect("it has files");
            let listed = if op == OpKind::Remove { 0 } else { files };
            assert_eq!((check.missing, check.unexpected, check.listed), (0, 0, listed), "{what}");
            if op.ends_with_files() {
                assert_eq!(class.ops, files, "{what}");
            } else {
                assert!(class.ops > 0, "{what}");
            }
            let bytes = if op.creates_files() { files * u64::from(file_bytes) } else { 0 };
            assert_eq!(class.bytes, bytes, "{what}");
            assert_eq!(left(path.path()), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn created_files_have_their_size_and_contents() {
    let path = tempfile::tempdir().unwrap();
    let target = directory(path.path());
    let tree = target.files().expect("a directory has files");
    tree.make_directory(&Directory::root(0)).unwrap();
    let directory = Directory { client: 0, stream: 0, worker: Some(0) };
    tree.make_directory(&directory.to_string()).unwrap();
    let file = |number| FileName { directory, worker: 0, number, renamed: false };
    let calls = [(1, 0), (2, 100), (3, 8192)]
        .map(|(number, bytes)| MetadataCall::Create { file: file(number), bytes });
    let content = content();
    let mut lane = tree.lane(IN_FLIGHT, IN_FLIGHT, 8192).unwrap();
    let mut fill = |call: &MetadataCall, buffer: &mut [u8]| fill(&content, call, buffer);
    execute(&mut *lane, calls.into_iter(), &mut fill, &mut || true).unwrap();
    let read = |number| std::fs::read(path.path().join(file(number).to_string())).unwrap();
    assert_eq!([1, 2, 3].map(|number| read(number).len()), [0, 100, 8192]);
    assert!(read(3).chunks(512).all(|part| part.iter().any(|byte| *byte != 0)));
    assert_ne!(read(3)[..100], read(2)[..], "each file has its own contents");
}

#[test]
fn mix_has_its_share_of_metadata_operations() {
    for (depth, durability) in
        [(1, Durability::None), (8, Durability::Flush { every_writes: 50 }), (4, Durability::Fua)]
    {
        let path = tempfile::tempdir().unwrap();
        let target = directory(path.path());
        let run = run(&*target, &[mix(50.0)], depth, durability, &mut |_| true).unwrap();
        assert!(run.classes.iter().all(|class| class.errors.is_empty()), "{:?}", run.classes);
        let metadata = ops(&run, OpKind::Metadata);
        let data = ops(&run, OpKind::Read) + ops(&run, OpKind::Write);
        let share = metadata as f64 / (metadata + data) as f64;
        let deviation = (0.25 / (metadata + data) as f64).sqrt();
        assert!((share - 0.5).abs() < 5.0 * deviation + 0.01, "{metadata} of {data} more");
        assert_eq!(run.metadata_ops.values().sum::<u64>(), metadata);
        assert!(run.metadata_ops.len() > 3, "{:?}", run.metadata_ops);
        let check = run.files.expect("it creates files");
        assert_eq!((check.missing, check.unexpected), (0, 0), "{check:?}");
        assert_eq!(left(path.path()), Vec::<String>::new());
    }
}

type IsLost = fn(&MetadataCall) -> bool;

/// Target that acknowledges the first operation for which `is_lost` is true without executing it.
struct Faulty {
    inner: Box<dyn Target>,
    is_lost: IsLost,
    was_lost: Arc<AtomicBool>,
}

impl Faulty {
    fn at(path: &Path, is_lost: IsLost) -> Self {
        Self { inner: directory(path), is_lost, was_lost: Arc::default() }
    }
}

struct FaultyLane {
    inner: Box<dyn Lane>,
    is_lost: IsLost,
    was_lost: Arc<AtomicBool>,
}

impl Target for Faulty {
    fn info(&self) -> &TargetInfo {
        self.inner.info()
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        self.inner.lane(slots, buffer_bytes)
    }

    fn files(&self) -> Option<&dyn FileTree> {
        Some(self)
    }
}

impl FileTree for Faulty {
    fn lane(
        &self,
        slots: usize,
        depth: usize,
        buffer_bytes: usize,
    ) -> Result<Box<dyn Lane>, TargetError> {
        let tree = self.inner.files().expect("it is a directory");
        let inner = tree.lane(slots, depth, buffer_bytes)?;
        let was_lost = Arc::clone(&self.was_lost);
        Ok(Box::new(FaultyLane { inner, is_lost: self.is_lost, was_lost }))
    }

    fn make_directory(&self, path: &str) -> Result<(), TargetError> {
        self.inner.files().expect("it is a directory").make_directory(path)
    }

    fn remove_directory(&self, path: &str) -> Result<(), TargetError> {
        self.inner.files().expect("it is a directory").remove_directory(path)
    }

    fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, TargetError> {
        self.inner.files().expect("it is a directory").list(path, each)
    }
}

impl Lane for FaultyLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.inner.buffer(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        self.inner.submit(slot, op)
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        let is_lost = (self.is_lost)(&op.call) && !self.was_lost.swap(true, Ordering::AcqRel);
        let call = if is_lost { MetadataCall::Fsstat } else { op.call };
        self.inner.submit_metadata(slot, &MetadataOp { call, ..*op })
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        self.inner.reap(wait, done)
    }
}

/// True for the creation of the file of number 3 of the first worker.
fn third_create(call: &MetadataCall) -> bool {
    match call {
        MetadataCall::Create { file, .. } => (file.number, file.worker) == (3, 0),
        _ => false,
    }
}

#[test]
fn lost_creates_and_removes_are_noticed() {
    let remove: IsLost = |call| match call {
        MetadataCall::Remove { file } => (file.number, file.worker) == (3, 0),
        _ => false,
    };
    let cases = [
        (OpKind::Create, third_create as IsLost, (1, 0), "f0000-00000003 is missing"),
        (OpKind::Remove, remove, (0, 1), "f0000-00000003 should not exist"),
    ];
    for (op, is_lost, wanted, words) in cases {
        for (depth, shared) in [(1, false), (1, true), (4, false)] {
            let path = tempfile::tempdir().unwrap();
            let faulty = Faulty::at(path.path(), is_lost);
            let run = whole(&faulty, files(op, 20, 0, shared), depth);
            let check = run.files.expect("it has files");
            assert_eq!((check.missing, check.unexpected), wanted, "{op:?}: {check:?}");
            assert_eq!(check.examples.len(), 1, "{op:?}: {check:?}");
            assert!(check.examples[0].ends_with(words), "{op:?}: {check:?}");
            assert_eq!(left(path.path()), Vec::<String>::new(), "{op:?}");
        }
    }
}

#[test]
fn lost_rename_makes_the_next_rename_of_the_file_fail() {
    let path = tempfile::tempdir().unwrap();
    let faulty = Faulty::at(path.path(), |call| matches!(call, MetadataCall::Rename { .. }));
    let run = whole(&faulty, files(OpKind::Rename, 4, 0, false), 1);
    let errors: u64 = run.classes.iter().flat_map(|class| class.errors.values()).sum();
    assert_eq!(errors, 1, "{:?}", run.classes);
}

#[test]
fn directory_that_lists_a_wrong_number_of_files_fails_the_operation() {
    let path = tempfile::tempdir().unwrap();
    let faulty = Faulty::at(path.path(), third_create);
    let run = whole(&faulty, files(OpKind::Readdir, 20, 0, false), 1);
    let errors: Vec<&String> = run.classes.iter().flat_map(|class| class.errors.keys()).collect();
    assert_eq!(errors, ["the directory lists 19 files instead of 20"]);
}

#[test]
fn stopped_load_removes_its_files() {
    let path = tempfile::tempdir().unwrap();
    let target = directory(path.path());
    for (op, stop_after) in [(OpKind::Create, 3), (OpKind::Stat, 0), (OpKind::Stat, 40)] {
        let stream = files(op, 20_000, 0, false);
        let mut calls = 0;
        let mut tell = |_| {
            calls += 1;
            calls <= stop_after
        };
        run(&*target, &[stream], 1, Durability::None, &mut tell).expect("it stops");
        assert_eq!(left(path.path()), Vec::<String>::new(), "{op:?} {stop_after}");
    }
}

#[test]
fn files_of_a_killed_run_are_removed_and_foreign_files_are_not() {
    let path = tempfile::tempdir().unwrap();
    let target = directory(path.path());
    let root = path.path().join(Directory::root(0));
    let old = root.join("s3-w0009");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("f0009-00000001"), "old").unwrap();
    let run_once = || whole(&*target, files(OpKind::Create, 5, 0, false), 1);
    assert_eq!(run_once().files.expect("it has files").listed, 10);
    assert_eq!(left(path.path()), Vec::<String>::new());
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("letter"), "from somebody else").unwrap();
    let stream = files(OpKind::Create, 5, 0, false);
    let refused = run(&*target, &[stream], 1, Durability::None, &mut |_| true);
    let error = refused.expect_err("a foreign file").to_string();
    assert!(error.contains("s3-w0009") && error.contains("not empty"), "{error}");
    assert_eq!(std::fs::read_to_string(old.join("letter")).unwrap(), "from somebody else");
}

#[test]
fn target_without_files_is_refused() {
    let stream = files(OpKind::Create, 5, 0, false);
    let refused = run(&null(), &[stream], 1, Durability::None, &mut |_| true);
    assert!(matches!(refused, Err(TargetError::NoFiles { .. })), "{refused:?}");
}
