//! Tests of the formats: round trips, hostile bytes, and the printed format documentation.

use proptest::prelude::*;
use weir_base::{BLOCK_BYTES, DatasetId, Guid, Lsn, ObjectId, PsegIndex, RecordSize, Txg, VsegId};

use weir_codec::checksum::xxh3_128;

use super::*;

mod documentation;
mod filesystem;

fn pointer() -> impl Strategy<Value = BlockPtr> {
    let size = (1_u16..=64, 0_u32..(1 << 19) - 64);
    let kind = (any::<bool>(), any::<bool>(), 0_u8..=8, 0_u8..=6);
    (0_u64..1 << 40, size, 0_u64..1 << 44, any::<u128>(), kind).prop_map(
        |(vseg, (stored_units, offset_units), birth, checksum, (node, shared, size, level))| {
            BlockPtr {
                kind: match (node, level) {
                    (false, _) => PtrKind::Data,
                    (true, 0) => PtrKind::Node,
                    (true, level) => PtrKind::Damaged { level },
                },
                vseg: VsegId(vseg),
                offset_units,
                stored_units,
                codec: if node { Codec::Lz4 } else { Codec::Raw },
                record: RecordSize::from_shift(if node { 0 } else { size }).expect("at most 8"),
                birth: Txg(birth),
                shared: shared && !node,
                checksum,
            }
        },
    )
}

fn label() -> Label {
    let leg = |guid| LegConfig { guid: Guid(guid), path: format!("/dev/disk{guid}") };
    let (kind, role, legs) = (VdevKind::Mirror, VdevRole::Data, vec![leg(1), leg(2)]);
    let mirror = VdevConfig { kind, role, disk_bytes: 1 << 30, legs };
    let feature = |bit, needs: &str| Feature { bit, needs: needs.to_owned() };
    Label {
        version: layout::FORMAT_VERSION,
        pool: Guid(77),
        name: "tank".to_owned(),
        disk: Guid(2),
        txg: Txg(4),
        segment_bytes: 1 << 20,
        strip_bytes: 4096,
        log_bytes: 8 << 20,
        vdevs: vec![mirror],
        features: Features {
            incompatible: Vec::new(),
            read_only_compatible: vec![feature(0, "needs weir 0.7"), feature(63, "")],
        },
    }
}

/// The label of [`label`] in format 8, which has no feature flags.
fn label_v8() -> Label {
    Label { version: layout::OLDEST_VERSION, features: Features::default(), ..label() }
}

fn uberblock() -> Uberblock {
    Uberblock {
        version: layout::FORMAT_VERSION,
        pool: Guid(77),
        txg: Txg(9),
        unix_ms: 1,
        log_epoch: 3,
        log_vdev: 0,
        log_batch: 12,
        log_offset: 8192,
        bootstrap: vec![BootstrapCopy { vdev: 0, offset: 65_536 }],
        bootstrap_bytes: 500,
        bootstrap_checksum: 5,
        stale_legs: vec![
            StaleLeg { guid: Guid(3), after: Txg(0) },
            StaleLeg { guid: Guid(4), after: Txg(8) },
        ],
        lineage: vec![
            ImportEpoch { id: Guid(40), first: Txg(7) },
            ImportEpoch { id: Guid(39), first: Txg(1) },
        ],
        unconfirmed_legs: vec![StaleLeg { guid: Guid(5), after: Txg(8) }],
    }
}

fn dataset() -> DatasetRecord {
    DatasetRecord {
        id: DatasetId(3),
        kind: DatasetKind::Volume(Descent {
            origin: Some(Origin { snapshot: DatasetId(2), txg: Txg(9) }),
            lineage: vec![
                Ancestor { until: Txg(3), owner: DatasetId(1) },
                Ancestor { until: Txg(7), owner: DatasetId(5) },
            ],
            inherited_units: 17,
            receiving: Some(Receiving {
                to: 8,
                from: Some(7),
                is_new: true,
                next_object: ObjectId(0),
                next_record: 12,
                snapshot: "monday".to_owned(),
                created_unix_ms: 3,
            }),
        }),
        state: DatasetState::Active,
        name: "vm1".to_owned(),
        size_bytes: 1 << 30,
        properties: Compression::Lz4.into(),
        created_txg: Txg(2),
        created_unix_ms: 5,
        root: TreeRoot { ptr: BlockPtr::HOLE, height: TreeRoot::height_for(1 << 18) },
        record_size: RecordSize::from_shift(3).expect("8 blocks"),
        used_blocks: 1,
        stored_units: 64,
        shared_units: 32,
        tree_units: 65,
        born_units: 66,
        freed_to: 67,
        objects: None,
    }
}

/// A dataset with many objects that receives a stream, in the middle of an object.
fn receiving_objects() -> DatasetRecord {
    let mut record = with_objects(dataset());
    if let DatasetKind::Volume(Descent { receiving: Some(receiving), .. }) = &mut record.kind {
        receiving.next_object = ObjectId(77);
    }
    record
}

fn snapshot() -> DatasetRecord {
    let moment = SnapshotFields {
        of: DatasetId(3),
        txg: Txg(8),
        guid: 0x1234,
        holds: vec!["backup".to_owned(), "night".to_owned()],
        unique_units: None,
    };
    DatasetRecord { kind: DatasetKind::Snapshot(moment), ..dataset() }
}

fn with_objects(record: DatasetRecord) -> DatasetRecord {
    let objects = Some(ObjectTable { freed_object: 9, layer: [7; ObjectTable::LAYER_BYTES] });
    DatasetRecord { objects, ..record }
}

fn bookmark() -> DatasetRecord {
    let kind = DatasetKind::Bookmark(Bookmark { of: DatasetId(3), txg: Txg(8), guid: 0x1234 });
    DatasetRecord {
        kind,
        size_bytes: 0,
        root: TreeRoot::default(),
        record_size: RecordSize::BLOCK,
        used_blocks: 0,
        stored_units: 0,
        shared_units: 0,
        tree_units: 0,
        born_units: 0,
        freed_to: 0,
        ..dataset()
    }
}

fn segment() -> SegmentEntry {
    SegmentEntry {
        state: SegmentState::Sealed,
        class: SegmentClass::Data,
        vdev: 1,
        pseg: PsegIndex(5),
        live_bytes: 4096,
        fill_bytes: 8192,
        first_txg: Txg(1),
        last_txg: Txg(2),
        summary: SummaryPlace { at: 4096, bytes: 128, checksum: 11 },
        second_at: 0,
        copy_of: None,
    }
}

fn summary() -> Summary {
    let entry = |n: u32| SummaryEntry {
        vseg: VsegId(9 + u64::from(n)),
        offset_units: n * 64,
        at_units: n * 7,
        stored_units: 64,
        owner: BlockOwner {
            dataset: DatasetId(3),
            object: ObjectId::VOLUME,
            level: n as u8,
            index: 1 << 20,
        },
        birth: Txg(77 + u64::from(n)),
        checksum: u64::MAX - u64::from(n),
    };
    let previous = SummaryPlace { at: 64, bytes: 128, checksum: 12 };
    Summary { vseg: VsegId(9), previous, entries: (0..3).map(entry).collect() }
}

#[test]
fn labels_round_trip_and_name_other_versions() {
    for label in [label(), label_v8()] {
        assert_eq!(Label::decode(&label.encode()), Ok(label));
    }
    assert_eq!(label().place(), Some((0, 1)));
    for (version, part) in [
        (10, "version 10 is newer than 9; use a newer weir"),
        (7, "version 7 is older than 8: the pool was made by an older pre-release"),
        (0, "field version holds the impossible value 0"),
    ] {
        let error = Label::decode(&Label { version, ..label() }.encode()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.is_other_version(), version != 0, "{error}");
        assert_eq!(error.newer_pool(), (version == 10).then_some(Guid(77)), "{error}");
    }
    let flipped = |label: &Label, version| {
        let mut bytes = label.encode();
        bytes[8] = version;
        Label::decode(&bytes)
    };
    let checksum = Err(FormatError::Checksum { what: "label" });
    assert_eq!(flipped(&label(), 8), checksum, "the flags would be ignored");
    assert_eq!(flipped(&label(), 10), checksum);
    assert_eq!(flipped(&label_v8(), 9), checksum);
}

#[test]
fn unknown_features_are_refused_with_the_version_of_weir_that_is_needed() {
    let mut features = label().features;
    let refused = features.check_writable(Guid(77)).unwrap_err();
    assert!(refused.to_string().ends_with("a feature that this weir lacks: needs weir 0.7"));
    assert_eq!(Features::default().check_writable(Guid(77)), Ok(()));
    features.incompatible.push(Feature { bit: 5, needs: "needs weir 0.4".to_owned() });
    let read = |features: &Features| {
        Label::decode(&Label { features: features.clone(), ..label() }.encode())
    };
    let error = read(&features).unwrap_err();
    assert!(error.to_string().contains("needs weir 0.4"), "{error}");
    assert!(error.is_other_version() && error.newer_pool() == Some(Guid(77)), "{error}");
    for bad in ["x".repeat(65), "needs\nweir".to_owned()] {
        features.incompatible[0].needs = bad;
        let error = read(&features).unwrap_err();
        assert!(error.to_string().contains("needs"), "{error}");
        assert_eq!(error.newer_pool(), None, "{error}");
    }
}

#[test]
fn uberblocks_name_other_versions() {
    let old = Uberblock { version: layout::OLDEST_VERSION, ..uberblock() };
    assert_eq!(Uberblock::decode(&old.encode()), Ok(old));
    for (version, part) in [(10, "10 is newer than 9"), (7, "7 is older than 8"), (0, "impossible")]
    {
        let slot = Uberblock { version, ..uberblock() }.encode();
        let error = Uberblock::decode(&slot).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.newer_pool(), (version == 10).then_some(Guid(77)), "{error}");
    }
}

#[test]
fn raidz_labels_round_trip_and_impossible_shapes_are_refused() {
    let raidz = |kind, legs: u64| {
        let legs =
            (1..=legs).map(|guid| LegConfig { guid: Guid(guid), path: String::new() }).collect();
        let role = VdevRole::Data;
        Label { vdevs: vec![VdevConfig { kind, role, disk_bytes: 1 << 30, legs }], ..label() }
    };
    for (kind, legs) in [(VdevKind::Raidz1, 3), (VdevKind::Raidz2, 6), (VdevKind::Raidz3, 4)] {
        let label = raidz(kind, legs);
        assert_eq!(Label::decode(&label.encode()), Ok(label));
    }
    // Three data strips of 4 KiB: 85 whole rows in 1 MiB, 340 KiB of each leg.
    let uneven = raidz(VdevKind::Raidz2, 5);
    let vdev = &uneven.vdevs[0];
    assert_eq!((uneven.row_bytes(vdev), uneven.vdev_segment_bytes(vdev)), (12_288, 85 * 12_288));
    let area = (1 << 30) - (10 << 20);
    assert_eq!(uneven.segments(vdev), area / (85 * 4096));
    for (kind, legs) in [
        (VdevKind::Disk, 2),
        (VdevKind::Mirror, 0),
        (VdevKind::Mirror, 5),
        (VdevKind::Raidz1, 1),
        (VdevKind::Raidz2, 2),
        (VdevKind::Raidz3, 3),
        (VdevKind::Raidz3, 33),
    ] {
        let mut label = raidz(kind, legs);
        label.disk = Guid(1);
        assert!(Label::decode(&label.encode()).is_err(), "{kind:?} of {legs}");
    }
    let mut narrow = raidz(VdevKind::Raidz1, 32);
    (narrow.segment_bytes, narrow.strip_bytes) = (1 << 20, 64 << 10);
    assert!(Label::decode(&narrow.encode()).is_err(), "a row larger than a segment");
}

#[test]
fn vdev_roles_round_trip_and_impossible_ones_are_refused() {
    let disk = |role, guid| {
        let legs = vec![LegConfig { guid: Guid(guid), path: "/dev/x".to_owned() }];
        VdevConfig { kind: VdevKind::Disk, role, disk_bytes: 1 << 30, legs }
    };
    let mut all = label();
    all.vdevs.push(VdevConfig::REMOVED);
    let roles = [VdevRole::Evacuating, VdevRole::Log, VdevRole::Spare];
    all.vdevs.extend((7..).zip(roles).map(|(guid, role)| disk(role, guid)));
    assert_eq!(Label::decode(&all.encode()).as_ref(), Ok(&all));
    let segments: Vec<u64> = all.vdevs.iter().map(|vdev| all.segments(vdev)).collect();
    assert!(segments[0] > 0 && segments[0] == segments[2] && segments[1] == 0);
    assert_eq!(segments[3..], [0, 0]);

    let nothing_to_hold_segments = Label { vdevs: vec![disk(VdevRole::Log, 2)], ..label() };
    let mut half_removed = all.clone();
    half_removed.vdevs[1].disk_bytes = 1 << 30;
    let mut spare_mirror = all.clone();
    spare_mirror.vdevs[0].role = VdevRole::Spare;
    for bad in [nothing_to_hold_segments, half_removed, spare_mirror] {
        assert!(Label::decode(&bad.encode()).is_err(), "{bad:?}");
    }
}

#[test]
fn flipped_bit_in_label_or_uberblock_is_detected() {
    let (config, slot) = (label().encode(), uberblock().encode());
    assert_eq!(Uberblock::decode(&slot), Ok(uberblock()));
    // Change only the used bytes. No decoder reads the padding after the body, and checksums do not
    // include it.
    let used = 32 + u32::from_le_bytes(*config[12..].first_chunk().unwrap()) as usize;
    for at in 0..used {
        let mut bytes = config.clone();
        bytes[at] ^= 1;
        assert!(Label::decode(&bytes).is_err(), "label byte {at}");
    }
    for at in 0..slot.len() {
        let mut bytes = slot;
        bytes[at] ^= 1;
        assert!(Uberblock::decode(&bytes).is_err(), "uberblock byte {at}");
    }
}

#[test]
fn longest_dataset_records_fit_into_a_block() {
    let name = "n".repeat(weir_base::limits::NAME_BYTES_MAX);
    let mut record = DatasetRecord { name, ..with_objects(snapshot()) };
    let value = "v".repeat(USER_BYTES_MAX / 2 - 64);
    let user = ["a:", "b:"].map(|name| (name.repeat(30), value.clone()));
    record.properties.user = user.into();
    assert_eq!(record.properties.user_bytes(), USER_BYTES_MAX);
    let DatasetKind::Snapshot(moment) = &mut record.kind else { panic!("it is one") };
    moment.holds = (0..HOLDS_MAX).map(|n| format!("{n:064}")).collect();
    assert_eq!(DatasetRecord::decode(&record.encode()).as_ref(), Ok(&record));
    let last = Txg(ANCESTORS_MAX as u64);
    let lineage = (1..=last.0).map(|n| Ancestor { until: Txg(n), owner: DatasetId(n) }).collect();
    let origin = Some(Origin { snapshot: DatasetId(1), txg: last });
    let receiving = Some(Receiving {
        to: 8,
        from: Some(7),
        is_new: true,
        next_object: ObjectId(OBJECTS_MAX),
        next_record: 12,
        snapshot: "s".repeat(weir_base::limits::NAME_BYTES_MAX),
        created_unix_ms: 3,
    });
    record.kind = DatasetKind::Volume(Descent { origin, lineage, inherited_units: 1, receiving });
    assert_eq!(DatasetRecord::decode(&record.encode()).as_ref(), Ok(&record));
}

#[test]
fn dataset_record_with_contradicting_or_trailing_bytes_is_refused() {
    let destroying = DatasetRecord { state: DatasetState::Destroying, ..bookmark() };
    let error = DatasetRecord::decode(&destroying.encode()).unwrap_err();
    assert!(error.to_string().contains("bookmark"), "{error}");
    let records = [dataset(), snapshot(), with_objects(dataset()), with_objects(snapshot())];
    for record in records.into_iter().chain([bookmark(), receiving_objects()]) {
        let good = record.encode();
        assert_eq!(DatasetRecord::decode(&good).as_ref(), Ok(&record));
        let name = 26;
        let body = name + 2 + record.name.len();
        let body_len = u16::from_le_bytes(*good[body..].first_chunk().unwrap());
        let properties = body + 2 + usize::from(body_len);
        for (at, what) in [(body, "body"), (properties, "properties"), (BLOCK_BYTES - 1, "zero")] {
            let mut bad = good;
            bad[at] += 1;
            assert!(DatasetRecord::decode(&bad).is_err(), "{what} of {record:?}");
        }
        for kind in [0, 4, 16, 22, 255] {
            let mut bad = good;
            bad[8] = kind;
            let error = DatasetRecord::decode(&bad).unwrap_err();
            assert!(error.to_string().contains("kind"), "{error}");
        }
    }
}

#[test]
fn tables_round_trip() {
    let mut entries = vec![None; SEGMENT_ENTRIES_PER_BLOCK];
    entries[7] = Some(segment());
    let (class, second_at) = (SegmentClass::Root, 128 << 10);
    entries[8] = Some(SegmentEntry { class, second_at, ..segment() });
    let copy_of = Some(VsegId(11));
    entries[9] = Some(SegmentEntry { class, copy_of, ..segment() });
    let block = SegmentEntry::encode_block(&entries);
    assert_eq!(SegmentEntry::decode_block(&block).unwrap(), entries);
    let records = [dataset(), snapshot(), with_objects(dataset()), with_objects(snapshot())];
    for record in records.into_iter().chain([bookmark(), receiving_objects()]) {
        assert_eq!(DatasetRecord::decode(&record.encode()), Ok(record));
    }
    let bootstrap = Bootstrap {
        txg: Txg(9),
        next_vseg: VsegId(10),
        next_dataset: 2,
        segments: TreeRoot::default(),
        datasets: TreeRoot::default(),
        remaps: TreeRoot { ptr: BlockPtr::HOLE, height: 2 },
        references: TreeRoot { ptr: BlockPtr::HOLE, height: 3 },
        saved_bytes: 8192,
        root_segments: vec![(VsegId(1), segment())],
        free: vec![FreeRun { vdev: 1, first: PsegIndex(7), count: 3 }],
        damaged_since: None,
    };
    let damaged = Bootstrap { damaged_since: Some(Txg(8)), ..bootstrap.clone() };
    for bootstrap in [bootstrap, damaged] {
        assert_eq!(Bootstrap::decode(&bootstrap.encode()), Ok(bootstrap));
    }
}

#[test]
fn summary_of_another_segment_or_with_a_flipped_bit_is_refused() {
    let bytes = summary().encode();
    assert_eq!(bytes.len(), Summary::bytes_for(3, false));
    let named = SummaryPlace::of(4096, &bytes).checksum;
    assert_eq!(Summary::decode(&bytes, VsegId(9), named), Ok(summary()));
    assert!(Summary::decode(&bytes, VsegId(8), named).is_err());
    // An earlier summary of the same segment, still on disk because a write was lost.
    let earlier = Summary { entries: summary().entries.split_off(1), ..summary() }.encode();
    assert!(Summary::decode(&earlier, VsegId(9), named).is_err());
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert!(Summary::decode(&bytes, VsegId(9), named).is_err(), "byte {at}");
    }
}

#[test]
fn summary_has_object_numbers_only_if_an_object_needs_one() {
    let mut summary = summary();
    summary.entries[1].owner.object = ObjectId(OBJECTS_MAX - 1);
    let bytes = summary.encode();
    assert_eq!(bytes.len(), Summary::bytes_for(3, true));
    assert!(bytes.len() > Summary::bytes_for(3, false));
    let decoded =
        |bytes: &[u8]| Summary::decode(bytes, VsegId(9), SummaryPlace::of(4096, bytes).checksum);
    assert_eq!(decoded(&bytes), Ok(summary));
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes[48..64].fill(0);
        let checksum = xxh3_128(&bytes);
        bytes[48..64].copy_from_slice(&checksum.to_le_bytes());
        decoded(&bytes).unwrap_err().to_string()
    };
    assert!(with(28, 3).contains("flags"), "an unknown flag");
    assert!(with(28, 0).contains("count"), "the length needs the flag");
    assert!(with(64 + 40 + 5, 0x10).contains("object"), "more than 44 bits");
}

/// Bytes that LZ4 cannot compress.
fn noise(bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u64 / 16).map(|word| xxh3_128(&word.to_le_bytes()).to_le_bytes());
    words.flatten().collect()
}

#[test]
fn batch_is_compressed_if_that_saves_a_unit() {
    let packed_batch = |payload: &[u8]| {
        let mut builder = log::BatchBuilder::default();
        builder.push_write(Lsn(1), Txg(5), DatasetId(2), 8192, [payload].into_iter());
        let packed = builder.pack();
        let mut out = vec![0; packed.batch_bytes()];
        packed.finish(LOG_BATCH, 8192, &mut out);
        out
    };
    // One block with 500 zeros: compression makes the batch one unit shorter, so the records are
    // compressed. Three blocks with 40 zeros: no unit is saved, so the records are stored raw.
    let mut nearly_noise = noise(BLOCK_BYTES);
    nearly_noise[..500].fill(0);
    let out = packed_batch(&nearly_noise);
    let batch = log::decode_batch(&out, 8192).unwrap();
    assert_eq!((out.len(), batch.records().len()), (4096, 1));
    assert_eq!(batch.records()[0].op, log::LogOp::Write(&nearly_noise));
    let mut too_little = noise(3 * BLOCK_BYTES);
    too_little[..40].fill(0);
    let batch = log::decode_batch(&packed_batch(&too_little), 8192).unwrap();
    assert_eq!((batch.header().packed_bytes, batch.header().batch_bytes), (0, 16384));

    let hostile = |at: usize, value: u32| {
        let mut out = out.clone();
        out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        stamp(&mut out[..log::SECTOR_BYTES], 16);
        log::decode_batch(&out, 8192)
    };
    let raw_bytes = batch_field("raw_bytes");
    for (at, value) in [(raw_bytes, u32::MAX), (raw_bytes, 4000), (raw_bytes + 4, 3857)] {
        assert!(matches!(hostile(at, value), Err(FormatError::Field { .. })), "{at} {value}");
    }
    assert!(hostile(raw_bytes + 4, 0).is_err(), "packed bytes taken for raw ones");
}

const LOG_BATCH: log::BatchId = log::BatchId { pool: Guid(77), epoch: 3, batch: 12 };

/// Gives a sector of [`LOG_BATCH`] the right checksum.
fn stamp(sector: &mut [u8], number: u64) {
    let is_first = u64::from(number == 16);
    let key = [LOG_BATCH.pool.0, LOG_BATCH.epoch, LOG_BATCH.batch, number, is_first];
    let key = key.map(u64::to_le_bytes);
    let (content, stamp) = sector.split_at_mut(log::SECTOR_CONTENT_BYTES);
    let checksum = weir_codec::checksum::xxh3_64(&[content, key.as_flattened()]);
    stamp[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Offset of a field of the log batch header.
fn batch_field(name: &str) -> usize {
    let before = log::HEADER_FIELDS.iter().take_while(|field| field.name != name);
    before.map(|field| field.bytes).sum()
}

#[test]
fn log_batches_round_trip_and_torn_ones_are_refused() {
    let mut builder = log::BatchBuilder::default();
    let payload = noise(BLOCK_BYTES);
    builder.push_write(Lsn(1), Txg(5), DatasetId(2), 8192, [&payload[..]].into_iter());
    builder.push_zero(Lsn(2), Txg(5), DatasetId(2), 0, 4096);
    let packed = builder.pack();
    let mut out = vec![0; packed.batch_bytes()];
    packed.finish(LOG_BATCH, 8192, &mut out);
    let mut torn = out.clone();
    let batch = log::decode_batch(&out, 8192).unwrap();
    let (header, records) = (batch.header(), batch.records());
    assert_eq!(header.packed_bytes, 0, "noise is stored raw");
    assert_eq!((header.id(), header.batch_bytes), (LOG_BATCH, 8192));
    assert_eq!(records[0].op, log::LogOp::Write(&payload));
    assert_eq!((records[1].lsn, records[1].op), (Lsn(2), log::LogOp::Zero(4096)));
    torn[4096..].fill(0);
    let checksum = FormatError::Checksum { what: "log batch" };
    assert_eq!(log::decode_batch(&torn, 8192), Err(checksum.clone()));
    assert_eq!(log::decode_batch(&out, 4096), Err(checksum), "a batch in another place");
}

#[test]
fn log_sector_is_classified_as_intact_absent_or_damaged() {
    let encoded = |id| {
        let packed = log::BatchBuilder::default().pack();
        let mut out = vec![0; packed.batch_bytes()];
        packed.finish(id, 0, &mut out);
        out
    };
    let (new, old) = (encoded(LOG_BATCH), encoded(log::BatchId { batch: 11, ..LOG_BATCH }));
    let second = log::SectorPlace { number: 1, is_first: false };
    let part = |bytes: &[u8]| LOG_BATCH.part(bytes, second);
    let sector = |bytes: &[u8]| <[u8; 512]>::try_from(&bytes[512..1024]).unwrap();
    let (new, old) = (sector(&new), sector(&old));
    assert_eq!(part(&new), log::Part::Whole);
    for before in [[0; 512], old] {
        assert_eq!(part(&before), log::Part::Absent);
        // A torn sector write leaves the first bytes of the new content.
        for cut in 0..512 {
            let mut torn = before;
            torn[..cut].copy_from_slice(&new[..cut]);
            assert_ne!(part(&torn), log::Part::Damaged, "{cut}");
        }
    }
    for bit in 0..512 * 8 {
        let mut flipped = new;
        flipped[bit / 8] ^= 1 << (bit % 8);
        // The checksum also proves the batch number, so that a bit flip in the stamp's number is
        // harmless.
        let expected = if bit < 496 * 8 { log::Part::Damaged } else { log::Part::Whole };
        assert_eq!(part(&flipped), expected, "{bit}");
    }
    let scribbled: [u8; 512] = noise(512).try_into().unwrap();
    assert_eq!(part(&scribbled), log::Part::Damaged);
    let third = log::SectorPlace { number: 2, is_first: false };
    assert_eq!(LOG_BATCH.part(&new, third), log::Part::Damaged, "in another place");
    let first = log::SectorPlace { number: 1, is_first: true };
    assert_eq!(LOG_BATCH.part(&new, first), log::Part::Damaged, "no batch begins there");
    assert_eq!(log::stamped_batch(Guid(77), &new, 1), Some((LOG_BATCH, false)));
    assert_eq!(log::stamped_batch(Guid(77), &new, 2), None);
}

/// Regression: client data imitated a batch header at an offset where a batch could begin. After a
/// torn batch that began at 0, replay read the client's bytes as a batch.
#[test]
fn payload_that_imitates_a_batch_is_refused() {
    let mut inner = log::BatchBuilder::default();
    inner.push_zero(Lsn(9), Txg(5), DatasetId(3), 0, 1 << 20);
    let packed = inner.pack();
    let mut imitation = vec![0; packed.batch_bytes()];
    packed.finish(LOG_BATCH, 4096, &mut imitation);
    let (sectors, _) = imitation.as_chunks::<{ log::SECTOR_BYTES }>();
    let content: Vec<u8> =
        sectors.iter().flat_map(|sector| &sector[..log::SECTOR_CONTENT_BYTES]).copied().collect();
    // Offset in the payload that is stored at the start of the second 4 KiB unit of the outer
    // batch.
    let before = 8 * log::SECTOR_CONTENT_BYTES - log::HEADER_BYTES - log::RECORD_BYTES;
    let mut payload = noise(3 * BLOCK_BYTES);
    let len = log::HEADER_BYTES + log::RECORD_BYTES;
    payload[before..before + len].copy_from_slice(&content[..len]);
    let mut outer = log::BatchBuilder::default();
    outer.push_write(Lsn(1), Txg(5), DatasetId(2), 0, [&payload[..]].into_iter());
    let packed = outer.pack();
    let mut bytes = vec![0; packed.batch_bytes()];
    packed.finish(LOG_BATCH, 0, &mut bytes);
    assert!(log::decode_batch(&bytes, 0).is_ok());
    assert!(log::decode_header(&bytes[4096..8192]).is_ok(), "it looks like one");
    let checksum = FormatError::Checksum { what: "log batch" };
    assert_eq!(log::decode_batch(&bytes[4096..8192], 4096), Err(checksum));
}

proptest! {
    #[test]
    fn pointers_round_trip(ptr in pointer()) {
        prop_assert_eq!(BlockPtr::decode(&ptr.encode()), Ok(ptr));
    }

    /// Blocks of any sizes with gaps between them, which move to two hosts in order.
    #[test]
    fn remap_table_translates_moved_blocks_only(
        blocks in proptest::collection::vec((1_u32..=64, 0_u32..3, any::<bool>()), 1..400),
    ) {
        let (mut old, mut new, mut runs, mut gaps) = (0, [0; 2], Vec::new(), Vec::new());
        for (units, gap, second) in blocks {
            let host = usize::from(second);
            runs.push(RemapRun { old, units, host: VsegId(100 + host as u64), new: new[host] });
            new[host] += units;
            old += units;
            gaps.extend(old..old + gap);
            old += gap;
        }
        let table = RemapTable::new(runs.iter().rev().copied().collect());
        for run in &runs {
            prop_assert_eq!(table.translate(run.old, run.units), Some((run.host, run.new)));
        }
        for gap in gaps {
            prop_assert_eq!(table.translate(gap, 1), None);
        }
        prop_assert_eq!(table.translate(old, 1), None);
        let mut bytes = table.encode(VsegId(5));
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        prop_assert_eq!(RemapTable::decode(&bytes, VsegId(5)), Ok(table));
        prop_assert!(RemapTable::decode(&bytes, VsegId(6)).is_err());
    }

    /// Compares the reference table with a map of counts. A step shares several blocks or drops
    /// single references.
    #[test]
    fn references_are_counted(
        steps in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(0_u32..40, 1..12)), 1..30),
    ) {
        let (mut table, mut model) = (ReferenceTable::default(), std::collections::BTreeMap::new());
        for (share, mut offsets) in steps {
            offsets.sort_unstable();
            if share {
                table.share(&offsets);
                for offset in offsets {
                    *model.entry(offset).or_insert(1_u32) += 1;
                }
            } else {
                for offset in offsets {
                    let left = model.get_mut(&offset).map(|count| { *count -= 1; *count });
                    prop_assert_eq!(table.give_up(offset), left);
                    if left == Some(0) {
                        model.remove(&offset);
                    }
                }
            }
            prop_assert!(table.entries().eq(model.iter().map(|(at, count)| (*at, *count))));
        }
        for offset in 0..41 {
            prop_assert_eq!(table.count(offset), model.get(&offset).copied());
        }
        let mut bytes = table.encode(VsegId(5));
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        prop_assert_eq!(ReferenceTable::decode(&bytes, VsegId(5)), Ok(table));
        prop_assert!(ReferenceTable::decode(&bytes, VsegId(6)).is_err());
    }

    /// Lowering a count gives the same table as if fewer references had been counted.
    #[test]
    fn lowered_counts_are_as_if_never_higher(
        counts in proptest::collection::btree_map(0_u32..40, 2_u32..9, 1..12),
        offset in 0_u32..40,
        to in 0_u32..12,
    ) {
        let shared = |counts: &std::collections::BTreeMap<u32, u32>| {
            let mut table = ReferenceTable::default();
            for (offset, count) in counts {
                table.share(&vec![*offset; *count as usize - 1]);
            }
            table
        };
        let mut table = shared(&counts);
        table.lower(offset, to);
        let mut expected = counts;
        if let Some(count) = expected.get_mut(&offset) {
            *count = to.min(*count);
        }
        expected.retain(|_, count| *count > 0);
        prop_assert!(table.entries().eq(expected.into_iter()));
    }

    #[test]
    fn decoders_survive_anything(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(Label::decode(&bytes).is_err());
        prop_assert!(Uberblock::decode(&bytes).is_err());
        prop_assert!(Bootstrap::decode(&bytes).is_err());
        prop_assert!(log::decode_batch(&bytes, 0).is_err());
        prop_assert!(Summary::decode(&bytes, VsegId(1), 0).is_err());
        prop_assert!(RemapTable::decode(&bytes, VsegId(1)).is_err());
        prop_assert!(ReferenceTable::decode(&bytes, VsegId(1)).is_err());
        if let Some(block) = bytes.first_chunk::<BLOCK_BYTES>() {
            for slot in 0..NODE_FANOUT {
                if let Ok(ptr) = node_pointer(block, slot) {
                    prop_assert!(ptr.is_hole() || ptr.stored_units > 0);
                }
            }
        }
    }
}

#[test]
fn damaged_owner_slot_is_detected() {
    let owner = Owner {
        pool: Guid(1),
        import_epoch: Guid(2),
        is_closed: false,
        machine: "m".repeat(OWNER_TEXT_BYTES_MAX),
        host: "host".into(),
        boot: "boot".into(),
        pid_namespace: 3,
        pid: 4,
        pid_start: 5,
        beat: 6,
        unix_ms: 7,
        txg: Txg(8),
    };
    let slot = owner.encode();
    assert_eq!(Owner::decode(&slot), Ok(owner));
    for at in 0..slot.len() {
        let mut bad = slot;
        bad[at] ^= 1;
        assert!(Owner::decode(&bad).is_err(), "byte {at}");
    }
    assert!(Owner::decode(&[0; 4096]).is_err() && Owner::decode(&slot[..100]).is_err());
}
