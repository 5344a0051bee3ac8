//! Every code path that finds no good copy of data or metadata adds an entry to the damage list.
//!
//! `damage` tests later changes of the list, `vdevs` tests evacuation, and bin/weir tests the
//! status and events that the server makes from the list.
//!
//! Invariant: in each test case, the path under test is the first that encounters the loss.

use weir_base::BLOCK_BYTES;
use weir_base::RecordSize;
use weir_block::IoBuf;
use weir_dataset::{SendSpec, SnapshotId, VolumeSize};
use weir_device::Device;
use weir_format::PoolPart;
use weir_pool::{MetadataTree, ScanState};

use crate::common::now;
use crate::metadata_trees::{BLOCK, BLOCKS, Bench, DISK_BYTES, damage, drive, mend_for, places_of};

/// Index of a block that `a` and `b` do not share.
const AT: usize = 1;
/// Maximum number of rounds of writes until the cleaner has processed every segment.
const ROUNDS_MAX: usize = 400;
const RECORD: RecordSize = RecordSize::from_shift(2).expect("four blocks");

/// The entry that a test case expects on the damage list.
enum Lost {
    /// Entry for this block in the head of a volume.
    Block(&'static str, usize),
    /// Entry for this block in the snapshot of `b` only.
    OfSnapshot(usize),
    Part(PoolPart),
    /// Any entry, which the test case checks itself.
    Anything,
}

impl Lost {
    fn is_on_list(&self, bench: &Bench) -> bool {
        let list = bench.engine.damage();
        let holds = |data: &weir_dataset::DamagedData, at: usize| {
            (data.offset_bytes..data.offset_bytes + data.len_bytes).contains(&(at as u64 * BLOCK))
        };
        match self {
            Self::Block(name, at) => list
                .data
                .iter()
                .any(|data| data.in_volume && data.volume == *name && holds(data, *at)),
            Self::OfSnapshot(at) => list
                .data
                .iter()
                .any(|data| !data.in_volume && data.snapshot_count == 1 && holds(data, *at)),
            Self::Anything => !list.data.is_empty(),
            Self::Part(part) => list.parts.iter().any(|known| known.part == *part),
        }
    }
}

/// Damages a record (`level` 0) or leaf (1) of a volume on disk and empties the caches.
fn lose(bench: &mut Bench, name: &str, level: u8, index: u64) {
    let place = now(bench.volume(name).disk_address(level, index)).unwrap().unwrap();
    let start = place.offset as usize;
    bench.disk.corrupt(start..start + place.len, |byte| *byte = !*byte);
    bench.crash();
    assert!(!bench.engine.pool().had_damage(), "an import reads no data of volumes");
}

fn lose_tree(bench: &mut Bench, tree: MetadataTree, level: u8) {
    let places = places_of(&bench.engine, |place| {
        place.tree == tree
            && place.level == level
            && (tree != MetadataTree::Datasets || place.index > 0)
    });
    damage(&bench.disk, &places);
}

fn snapshot() -> SnapshotId {
    SnapshotId::new("b", "s")
}

/// Overwrites blocks of `a` after its first leaf in a full pool, except `kept`, until the damage
/// list has an entry.
fn clean(bench: &mut Bench, kept: usize) {
    bench.fill();
    for _ in 0..ROUNDS_MAX {
        for _ in 0..20 {
            let (at, content) = (128 + bench.random() % (BLOCKS - 128), bench.next);
            if at != kept {
                bench.write("a", at, content);
            }
        }
        now(bench.engine.sync()).unwrap();
        if bench.engine.pool().has_damage() {
            return;
        }
    }
    panic!("the cleaner did not come by");
}

fn read(bench: &mut Bench) {
    lose(bench, "a", 0, AT as u64);
    let mut out = [0; BLOCK_BYTES];
    now(bench.volume("a").read(AT as u64 * BLOCK, &mut out)).unwrap_err();
}

fn extents(bench: &mut Bench) {
    lose(bench, "a", 1, 0);
    now(bench.volume("a").extents(0, BLOCKS as u64 * BLOCK, 16)).unwrap();
}

fn scrub(bench: &mut Bench) {
    lose(bench, "a", 0, AT as u64);
    bench.engine.scrub_start().unwrap();
    mend_for(&bench.engine, |engine| {
        engine.pool().scan_status().is_some_and(|scan| scan.state == ScanState::Finished)
    });
}

fn commit_beside(bench: &mut Bench) {
    lose(bench, "a", 1, 0);
    let content = bench.next;
    bench.write("a", AT + 1, content);
    now(bench.engine.sync()).unwrap();
}

fn commit_over_snapshot(bench: &mut Bench) {
    lose(bench, "b", 1, 0);
    now(bench.volume("b").zero(0, 128 * BLOCK)).unwrap();
    now(bench.engine.sync()).unwrap();
}

fn replay(bench: &mut Bench) {
    let size = VolumeSize { bytes: 16 * BLOCK, record: RECORD };
    now(bench.engine.create_volume_with("r", size, &[])).unwrap();
    let volume = bench.volume("r");
    let bytes: Vec<u8> = (0..16 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
    drive(&bench.engine, volume.write(0, &bytes)).unwrap();
    now(bench.engine.sync()).unwrap();
    // The partial write finds the other blocks of its record in the cache. The import cannot read
    // these blocks.
    drive(&bench.engine, volume.write(BLOCK, &[7; BLOCK_BYTES])).unwrap();
    drive(&bench.engine, bench.engine.flush(&volume)).unwrap();
    let place = now(volume.disk_address(0, 0)).unwrap().unwrap();
    let start = place.offset as usize;
    bench.disk.corrupt(start..start + place.len, |byte| *byte = !*byte);
    bench.crash();
}

fn import_without_records(bench: &mut Bench) {
    lose_tree(bench, MetadataTree::Datasets, 0);
    bench.crash();
}

fn import_without_segments(bench: &mut Bench) {
    lose_tree(bench, MetadataTree::Segments, 0);
    bench.crash();
}

fn import_without_remap_nodes(bench: &mut Bench) {
    lose_tree(bench, MetadataTree::Remaps, 1);
    bench.crash();
}

fn import_without_remap_tables(bench: &mut Bench) {
    lose_tree(bench, MetadataTree::Remaps, 0);
    bench.crash();
}

fn import_without_references(bench: &mut Bench) {
    lose_tree(bench, MetadataTree::References, 1);
    bench.crash();
}

fn lookup_without_remap_tables(bench: &mut Bench) {
    bench.crash();
    bench.engine.pool().set_table_bytes(0);
    lose_tree(bench, MetadataTree::Remaps, 0);
    bench.engine.pool().cache().clear();
    assert!(bench.unreadable() > 0);
}

fn cleaner_at_record(bench: &mut Bench) {
    lose(bench, "a", 0, AT as u64);
    clean(bench, AT);
}

fn cleaner_at_node(bench: &mut Bench) {
    lose(bench, "b", 1, 0);
    clean(bench, AT);
    settle(bench);
}

fn cleaner_at_shared_record(bench: &mut Bench) {
    let (a, b) = (&bench.volumes["a"], &bench.volumes["b"]);
    let at = (128..BLOCKS).find(|at| a[*at] == b[*at]).expect("some are shared");
    lose(bench, "b", 0, at as u64);
    clean(bench, at);
    settle(bench);
    assert!(Lost::Block("b", at).is_on_list(bench) && Lost::Block("a", at).is_on_list(bench));
}

fn send_at_record(bench: &mut Bench) {
    lose(bench, "b", 0, AT as u64);
    send(bench);
}

fn send_at_node(bench: &mut Bench) {
    lose(bench, "b", 1, 0);
    send(bench);
}

fn send(bench: &mut Bench) {
    let spec = SendSpec { snapshot: snapshot(), from: None, resume: None };
    let sending = bench.engine.prepare_send(&spec).unwrap();
    now(bench.engine.send(&sending, async |_| Ok(()))).unwrap_err();
    settle(bench);
}

fn digest(bench: &mut Bench) {
    lose(bench, "b", 0, AT as u64);
    now(bench.engine.digest(&snapshot(), 0, 8)).unwrap_err();
    settle(bench);
}

fn clone_range(bench: &mut Bench) {
    lose(bench, "b", 1, 0);
    let (source, to) = (bench.volume("b"), bench.volume("a"));
    let cloned = bench.engine.clone_range(&source, AT as u64 * BLOCK, &to, 0, BLOCK);
    drive(&bench.engine, cloned).unwrap_err();
}

/// Takes a snapshot of `b` with a leaf that no other version has.
fn snapshot_before_write(bench: &mut Bench) -> SnapshotId {
    let id = SnapshotId::new("b", "t");
    let content = bench.next;
    bench.write("b", AT + 1, content);
    now(bench.engine.sync()).unwrap();
    now(bench.engine.create_snapshots(std::slice::from_ref(&id))).unwrap();
    let content = bench.next;
    bench.write("b", AT + 1, content);
    now(bench.engine.sync()).unwrap();
    id
}

/// Frees a snapshot by a tree diff, which compares it with the next version.
fn free_snapshot(bench: &mut Bench) {
    let id = snapshot_before_write(bench);
    lose(bench, "b", 1, 0);
    now(bench.engine.destroy_snapshots(&id.volume, &[id.name])).unwrap();
    for _ in 0..8 {
        now(bench.engine.sync()).unwrap();
    }
}

fn freed_by(bench: &mut Bench) {
    let id = snapshot_before_write(bench);
    lose(bench, "b", 1, 0);
    now(bench.engine.freed_by("b", &[id.name])).unwrap();
}

/// Damages every summary on the disk. The cleaner reads summaries to find live blocks.
fn cleaner_at_summary(bench: &mut Bench) {
    now(bench.engine.sync()).unwrap();
    let (done, image) = now(bench.disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
    done.unwrap();
    let summaries = image.windows(8).enumerate().filter(|(_, bytes)| *bytes == b"WEIRSUMM");
    let places: Vec<usize> = summaries.map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bench.disk.corrupt(*at..at + 8, |byte| *byte = !*byte));
    bench.crash();
    clean(bench, BLOCKS);
}

/// Runs scans until the engine has found the volumes and snapshots that share the listed data.
fn settle(bench: &mut Bench) {
    let looks = std::cell::Cell::new(0);
    mend_for(&bench.engine, |_| looks.replace(looks.get() + 1) > 3);
}

#[test]
fn every_path_that_finds_lost_data_lists_it() {
    type Row = (&'static str, fn(&mut Bench), Lost);
    let of_a = || Lost::Block("a", AT);
    let of_b = || Lost::Block("b", AT);
    let rows: Vec<Row> = vec![
        ("read", read, of_a()),
        ("block status", extents, of_a()),
        ("scrub", scrub, of_a()),
        ("commit of a neighbour", commit_beside, of_a()),
        ("commit of a TRIM", commit_over_snapshot, Lost::OfSnapshot(AT)),
        ("log replay", replay, Lost::Block("r", 0)),
        ("import: directory", import_without_records, Lost::Part(PoolPart::Directory)),
        ("import: segment table", import_without_segments, Lost::Part(PoolPart::SegmentTable)),
        ("import: remap nodes", import_without_remap_nodes, Lost::Part(PoolPart::RemapTable)),
        ("import: remap tables", import_without_remap_tables, Lost::Part(PoolPart::RemapTable)),
        ("import: references", import_without_references, Lost::Part(PoolPart::ReferenceTable)),
        ("remap table in use", lookup_without_remap_tables, Lost::Part(PoolPart::RemapTable)),
        ("cleaner: record", cleaner_at_record, of_a()),
        ("cleaner: node", cleaner_at_node, of_b()),
        ("cleaner: shared record", cleaner_at_shared_record, Lost::Anything),
        ("send: record", send_at_record, of_b()),
        ("send: node", send_at_node, of_b()),
        ("digest", digest, of_b()),
        ("range clone", clone_range, of_b()),
        ("destroy of a snapshot", free_snapshot, of_b()),
        ("space of snapshots", freed_by, of_b()),
        ("cleaner: summary", cleaner_at_summary, Lost::Part(PoolPart::Summary)),
    ];
    let mut silent = Vec::new();
    for (name, meet, lost) in rows {
        let mut bench = Bench::new();
        meet(&mut bench);
        let pool = bench.engine.pool();
        if !lost.is_on_list(&bench) || !pool.had_damage() || !pool.has_damage() {
            silent.push((name, bench.engine.damage()));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}
