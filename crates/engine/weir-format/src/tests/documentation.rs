//! Format documentation: printed from the field tables of each structure.

use std::fmt::Write as _;

use super::*;

fn table(out: &mut String, title: &str, fields: &[Field]) {
    write!(
        out,
        "\n## {title}\n\n| offset | bytes | field | meaning |\n| --- | --- | --- | --- |\n"
    )
    .unwrap();
    let mut offset = Some(0);
    for field in fields {
        let at = offset.map_or_else(|| "..".to_owned(), |o| o.to_string());
        let bytes = if field.bytes == 0 { "..".to_owned() } else { field.bytes.to_string() };
        writeln!(out, "| {at} | {bytes} | {} | {} |", field.name, field.meaning).unwrap();
        offset = offset.filter(|_| field.bytes > 0).map(|o| o + field.bytes);
    }
}

/// Prints `docs/format/README.md`. Refresh it with `UPDATE=1 cargo test -p weir-format`.
#[test]
fn format_documentation_is_up_to_date() {
    use layout::{
        CONFIG_BYTES, LABEL_BYTES, OWNER_OFFSET, PACK_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES,
    };
    let mut text = format!(
        "# On-disk format, version {}\n\nPrinted from the constants in \
         `crates/engine/weir-format` by its \
         tests; do not edit. Integers are little-endian.\n\n## Disk\n\n\
         | where | what |\n| --- | --- |\n\
         | 0 | label A, {LABEL_BYTES} bytes: config copy 1 at 0, copy 2 at {CONFIG_BYTES}, \
         owner slot at {OWNER_OFFSET}, uberblock ring of {RING_SLOTS} slots of {SLOT_BYTES} \
         bytes at {RING_OFFSET}; txg N is in slot N mod {RING_SLOTS} |\n\
         | {LABEL_BYTES} | intent log region, `log_bytes` |\n\
         | {LABEL_BYTES} + log_bytes | segment area: rows from front to back, one strip of each |\n\
         | disk_bytes - {LABEL_BYTES} | label B, laid out as label A |\n\n\
         A row has k data strips and p parity strips of `strip_bytes`: k = 1, p = 0 on a disk or \
         mirror (every leg of a mirror holds the strip), and k = legs - p on raidz1 to raidz3. \
         Strip s of row r, parity behind data, is on leg (s + r) mod legs. A segment is as many \
         whole rows as fit into `segment_bytes`; physical segment i starts at row i x rows. The \
         parity strips P, Q, R are the sums of 1, 2^i, 4^i times data strip i in GF(2^8) modulo \
         0x11d.\n\n\
         Blocks are packed at {PACK_BYTES} bytes inside a segment. A compressed block is its \
         length (u16; u32 if the stored form can exceed 64 KiB) and an LZ4 block or a zstd frame. \
         A tree node is {NODE_FANOUT} block pointers.\n",
        layout::FORMAT_VERSION,
    );
    for (title, fields) in [
        ("Label config", Label::FIELDS),
        ("Owner slot", Owner::FIELDS),
        ("Uberblock", Uberblock::FIELDS),
        ("Bootstrap table", Bootstrap::FIELDS),
        ("Tree root", TreeRoot::FIELDS),
        ("Block pointer", BlockPtr::FIELDS),
        ("Partial record", PartialHeader::FIELDS),
        ("Segment table entry", SegmentEntry::FIELDS),
        ("Segment summary", Summary::FIELDS),
        ("Segment summary entry", SummaryEntry::FIELDS),
        ("Remap table", RemapTable::FIELDS),
        ("Reference table", ReferenceTable::FIELDS),
        ("Dataset record", DatasetRecord::FIELDS),
        ("Dataset record: body", DatasetRecord::BODY_FIELDS),
        ("Dataset record: tree", DatasetRecord::TREE_FIELDS),
        ("Dataset record: descent of a volume", DatasetRecord::DESCENT_FIELDS),
        ("Pool record", PoolRecord::FIELDS),
        ("Damage record", DamageRecord::FIELDS),
        ("Properties", Properties::FIELDS),
        ("Intent log batch header", log::HEADER_FIELDS),
        ("Intent log record", log::RECORD_FIELDS),
        ("Stamp at the end of each 512-byte sector of a log batch", log::STAMP_FIELDS),
        ("Filesystem: the bytes in the dataset record of a filesystem", files::Layout::FIELDS),
        ("Filesystem: inode, the body of an object slot", files::Inode::FIELDS),
        ("Filesystem: directory block", files::DirectoryBlock::FIELDS),
        ("Filesystem: directory entry", files::DirectoryEntry::FIELDS),
        ("Filesystem: POSIX ACL", files::Acl::FIELDS),
        ("Filesystem: object of large extended attributes", files::XattrList::FIELDS),
        ("Filesystem: usage of a user, group or project", files::UsageBlock::FIELDS),
        ("Filesystem: payload of a log record", files::FileRecord::FIELDS),
        ("Send stream: begin frame", stream::BEGIN_FIELDS),
        ("Send stream: a change", stream::CHANGE_FIELDS),
        ("Send stream: an entry of an object frame", stream::ENTRY_FIELDS),
        ("Send stream: end frame", stream::END_FIELDS),
    ] {
        table(&mut text, title, fields);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/format/README.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap_or_default();
    assert!(file == text, "docs/format/README.md is stale: UPDATE=1 cargo test -p weir-format");
}

#[test]
fn field_tables_add_up() {
    let sum = |fields: &[Field]| fields.iter().map(|f| f.bytes).sum::<usize>();
    assert_eq!(sum(BlockPtr::FIELDS), BlockPtr::BYTES);
    assert_eq!(sum(SegmentEntry::FIELDS), SegmentEntry::BYTES);
    assert_eq!(sum(SummaryEntry::FIELDS), SummaryEntry::BYTES);
    assert_eq!(sum(ObjectSlot::FIELDS), ObjectSlot::BYTES);
    assert_eq!(sum(files::Inode::FIELDS), ObjectSlot::BODY_BYTES);
    assert_eq!(sum(files::DirectoryBlock::FIELDS), BLOCK_BYTES);
    assert_eq!(sum(files::DirectoryEntry::FIELDS), files::DirectoryEntry::HEAD_BYTES);
    assert_eq!(sum(files::Layout::FIELDS), ObjectTable::LAYER_BYTES);
    assert_eq!(sum(log::HEADER_FIELDS), log::HEADER_BYTES);
    assert_eq!(sum(log::RECORD_FIELDS), log::RECORD_BYTES);
    assert_eq!(sum(log::STAMP_FIELDS), log::STAMP_BYTES);
}
