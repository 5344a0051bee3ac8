//! Check of a whole filesystem.
//!
//! Invariant: the check changes nothing. Also on a malicious image, the check ends, and finds each
//! violation of the rules in [`Filesystem::check`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_format::TreeRoot;
use weir_format::files::{Area, EntryKey, EntryList, FileType, Inode, InodeState};

use crate::directory::{Blocks, DirectoryError, Entry, SearchName, check as check_tree};
use crate::draft::charge::{Charge, UsageChanges};
use crate::draft::data::blocks_of;
use crate::draft::usage::read_usage;
use crate::draft::xattrs::{read_list, stored_acl};
use crate::error::FsError;
use crate::filesystem::content::{long_target, short_target};
use crate::filesystem::state::Filesystem;
use crate::layout::{BITMAP, FIRST, FIXED, NUMBERS_PER_BLOCK, ORPHANS, ROOT, USAGE, is_fixed};

/// A violation that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Number of the inode.
    pub inode: u64,
    /// Description of the violation.
    pub what: String,
}

/// An inode, with the names that the check found.
struct Known {
    size: RecordSize,
    inode: Inode,
    names: u64,
    subdirectories: u64,
    orphan_names: u64,
    /// Number of inodes that name this object as the object of their attributes.
    attribute_owners: u64,
}

/// State of a check.
#[derive(Default)]
struct Check {
    inodes: BTreeMap<ObjectId, Known>,
    /// Numbers of inodes that damage hides: nothing is known about their names and their usage.
    hidden: Vec<Range<u64>>,
    findings: Vec<Finding>,
}

impl Check {
    fn found(&mut self, inode: ObjectId, what: impl Into<String>) {
        self.findings.push(Finding { inode: inode.0, what: what.into() });
    }

    /// Records an inode that cannot be read.
    fn hide(&mut self, number: ObjectId, what: impl Into<String>) {
        self.hidden.push(number.0..number.0 + 1);
        self.found(number, what);
    }

    fn is_hidden(&self, number: ObjectId) -> bool {
        self.hidden.iter().any(|range| range.contains(&number.0))
    }

    /// Turns damage that ended the check of an inode into a finding.
    fn note(&mut self, inode: ObjectId, checked: Result<(), FsError>) -> Result<(), FsError> {
        match checked {
            Err(error) if error.is_damage() => {
                self.found(inode, error.to_string());
                Ok(())
            }
            checked => checked,
        }
    }
}

impl Filesystem {
    /// Checks the committed state: each name refers to an inode, and each inode has as many names
    /// as its link count; the tree of directories has no cycles; directories, the bitmap of numbers
    /// and the directory of orphans match the inodes; files have as many blocks as their inodes
    /// state, and zeros after their end. No operation may change the filesystem meanwhile.
    ///
    /// # Errors
    /// The errors of the engine, except damage.
    #[boxed(?Send)]
    pub async fn check(&self) -> Result<Vec<Finding>, FsError> {
        let mut check = Check::default();
        self.read_inodes(&mut check).await?;
        let directories: Vec<ObjectId> = check.inodes.keys().copied().collect();
        for number in directories {
            let checked = self.check_inode(&mut check, number).await;
            check.note(number, checked)?;
        }
        check_names(&mut check);
        let checked = self.check_bitmap(&mut check).await;
        check.note(BITMAP, checked)?;
        let checked = self.check_usage(&mut check).await;
        check.note(USAGE, checked)?;
        Ok(check.findings)
    }

    async fn check_inode(&self, check: &mut Check, number: ObjectId) -> Result<(), FsError> {
        self.check_attributes(check, number).await?;
        let known = check.inodes.get(&number).expect("the caller has it");
        if known.inode.state == InodeState::Attributes {
            return Ok(());
        }
        match known.inode.file_type {
            FileType::Directory => self.check_directory(check, number).await,
            FileType::Regular if number != BITMAP && number != USAGE => {
                self.check_file(check, number).await
            }
            FileType::SymbolicLink => self.check_link(check, number).await,
            _ => Ok(()),
        }
    }

    async fn read_inodes(&self, check: &mut Check) -> Result<(), FsError> {
        let mut next = Some(0);
        while let Some(first) = next {
            let part = self.volume.objects_in_use(first).await?;
            for range in part.unreadable {
                check.found(ObjectId(range.start), "its slot is unreadable");
                check.hidden.push(range);
            }
            for number in part.used.into_iter().flatten().map(ObjectId) {
                match self.reads().inode(number).await {
                    Ok(Some((size, inode))) => {
                        let (names, subdirectories, orphan_names) = (0, 0, 0);
                        let known = Known {
                            size,
                            inode,
                            names,
                            subdirectories,
                            orphan_names,
                            attribute_owners: 0,
                        };
                        check.inodes.insert(number, known);
                    }
                    Ok(None) => check.hide(number, "its slot is used and has no inode"),
                    Err(error) if error.is_damage() => check.hide(number, error.to_string()),
                    Err(error) => return Err(error),
                }
            }
            next = part.next;
        }
        for (fixed, file_type) in FIXED {
            match check.inodes.get(&fixed).map(|known| &known.inode) {
                None => check.found(fixed, "the inode is missing"),
                Some(inode) if !is_fixed(inode, file_type) => {
                    check.found(fixed, "the inode has the wrong type or state");
                }
                Some(_) => {}
            }
        }
        let reserved = check.inodes.range(..FIRST).map(|(number, _)| *number);
        let reserved = reserved.filter(|number| FIXED.iter().all(|(fixed, _)| fixed != number));
        for number in reserved.collect::<Vec<_>>() {
            check.found(number, "the number is reserved");
        }
        Ok(())
    }

    async fn check_directory(&self, check: &mut Check, number: ObjectId) -> Result<(), FsError> {
        let known = check.inodes.get(&number).expect("the caller has it");
        let mut entries = Vec::new();
        let read = self.read_entries(number, &known.inode, &mut entries).await?;
        let (has, expected) = (entries.len() as u64, known.inode.device_or_entries);
        if let Err(what) = read {
            check.found(number, what);
        }
        if has != expected {
            check.found(number, format!("it has {has} entries instead of {expected}"));
        }
        if has_name_twice(&entries) {
            check.found(number, "it has a name twice");
        }
        let mut subdirectories = 0;
        let mut run = Vec::new();
        for Entry { key, inode, file_type, name } in &entries {
            let (inode, file_type) = (*inode, *file_type);
            if let Some(what) = self.name_fault(*key, name, &mut run) {
                check.found(number, what);
            }
            if check.is_hidden(inode) {
                // The check of the inode's slot has reported the damage.
                subdirectories += u64::from(file_type == FileType::Directory);
                continue;
            }
            let Some(child) = check.inodes.get_mut(&inode) else {
                check.found(number, format!("an entry names the unused inode {}", inode.0));
                continue;
            };
            if inode < FIRST {
                check.found(number, format!("an entry names the internal inode {}", inode.0));
                continue;
            }
            let is_other_type = child.inode.file_type != file_type;
            let is_directory = child.inode.file_type == FileType::Directory;
            let is_other_parent = is_directory && child.inode.parent != number;
            if number == ORPHANS {
                child.orphan_names += 1;
            } else {
                child.names += 1;
                subdirectories += u64::from(is_directory);
            }
            if is_other_type {
                check.found(inode, "its entry has another type");
            }
            if is_other_parent && number != ORPHANS {
                check.found(inode, "its parent is another directory");
            }
        }
        check.inodes.get_mut(&number).expect("the caller has it").subdirectories = subdirectories;
        Ok(())
    }

    /// Describes the fault of an entry's name, if any. `run`: the names before it with the same
    /// hash, because the entries come in the order of their keys.
    fn name_fault<'e>(
        &self,
        key: EntryKey,
        name: &'e [u8],
        run: &mut Vec<SearchName<'e>>,
    ) -> Option<&'static str> {
        let Some(search) = self.hash.search(name) else {
            return Some("the name of an entry is not UTF-8");
        };
        let first = search.first_key();
        if !key.has_hash_of(first) {
            return Some("an entry has the key of another name");
        }
        run.retain(|before| before.first_key() == first);
        let is_twice = run.iter().any(|before| before.is_equal(name));
        run.push(search);
        is_twice.then_some("two entries have the same name")
    }

    /// Reads all entries of a directory. The inner error describes damage of the directory.
    async fn read_entries(
        &self,
        number: ObjectId,
        inode: &Inode,
        entries: &mut Vec<Entry>,
    ) -> Result<Result<(), String>, FsError> {
        if inode.size == 0 {
            let list = EntryList::parse(inode.area.entries.as_deref().unwrap_or_default());
            return Ok(list
                .map(|list| entries.extend(list.from(0).map(Entry::from)))
                .map_err(|error| error.to_string()));
        }
        let mut blocks = Blocks::new();
        for record in self.data_records(number, RecordSize::BLOCK).await? {
            let read = self.reads().record(number, RecordSize::BLOCK, record).await?;
            if let (Ok(block), Some([content])) = (u32::try_from(record), read.as_deref()) {
                blocks.insert(block, content.clone());
            }
        }
        Ok(match check_tree(&blocks, |entry| entries.push(Entry::from(*entry))) {
            Ok(checked) if checked.lost > 0 => Err(format!("{} blocks are lost", checked.lost)),
            Ok(_) => Ok(()),
            Err(DirectoryError::Missing(block)) => Err(format!("block {block} is missing")),
            Err(error) => Err(error.to_string()),
        })
    }

    async fn check_file(&self, check: &mut Check, number: ObjectId) -> Result<(), FsError> {
        let known = check.inodes.get(&number).expect("the caller has it");
        let (size, bytes, expected) = (known.size, known.inode.size, known.inode.blocks);
        let mut blocks = 0;
        for record in self.data_records(number, size).await? {
            let counted = blocks_of(bytes, size, record);
            blocks += counted;
            if counted == 0 {
                check.found(number, format!("record {record} is after its end"));
            }
        }
        if blocks != expected {
            check.found(number, format!("it has {blocks} blocks instead of {expected}"));
        }
        let record_bytes = size.bytes() as u64;
        if !bytes.is_multiple_of(record_bytes)
            && let Some(last) = self.reads().record(number, size, bytes / record_bytes).await?
        {
            let content = last.iter().flat_map(|block| block.iter());
            if content.skip((bytes % record_bytes) as usize).any(|byte| *byte != 0) {
                check.found(number, "bytes after its end are not zero");
            }
        }
        Ok(())
    }

    /// Checks the ACLs and the object of attributes of an inode.
    async fn check_attributes(&self, check: &mut Check, number: ObjectId) -> Result<(), FsError> {
        let inode = &check.inodes.get(&number).expect("the caller has it").inode;
        let Area { access_acl, default_acl, xattrs, .. } = inode.area.clone();
        let (object, permissions) = (inode.attributes, inode.permissions);
        match (stored_acl(number, access_acl.as_deref()), access_acl) {
            (Ok(None), _) => {}
            (Ok(Some(acl)), Some(bytes)) if acl.encode() == *bytes && !acl.is_minimal() => {
                if acl.mode() != permissions & 0o777 {
                    check.found(number, "its permission bits are not those of its ACL");
                }
            }
            _ => check.found(number, "its access ACL is damaged"),
        }
        if stored_acl(number, default_acl.as_deref()).is_err() {
            check.found(number, "its default ACL is damaged");
        }
        if object.0 == 0 {
            return Ok(());
        }
        let Some(known) = check.inodes.get_mut(&object) else {
            check.found(number, "its object of attributes is missing");
            return Ok(());
        };
        known.attribute_owners += 1;
        if object < FIRST {
            check.found(number, "its object of attributes is an internal inode");
            return Ok(());
        }
        let blocks = self.data_records(object, RecordSize::BLOCK).await?;
        let last = blocks.last().map_or(0, |last| last + 1);
        let known = check.inodes.get(&object).expect("just found");
        if known.inode.blocks != known.inode.size.div_ceil(BLOCK_BYTES as u64)
            || last > known.inode.blocks
        {
            check.found(object, "its number of blocks is wrong");
        }
        match read_list(self.reads(), number, object).await {
            Ok(list) if list.as_slice().is_empty() => check.found(object, "it has no attributes"),
            Ok(list) if xattrs.iter().any(|xattr| list.get(&xattr.name).is_some()) => {
                check.found(number, "it has an attribute twice");
            }
            Ok(_) => {}
            Err(error @ FsError::Damaged { .. }) => check.found(number, error.to_string()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn check_link(&self, check: &mut Check, number: ObjectId) -> Result<(), FsError> {
        let inode = check.inodes.get(&number).expect("the caller has it").inode.clone();
        let (blocks, is_valid) = match &inode.area.target {
            Some(target) => (0, short_target(&inode, target).is_some()),
            None => {
                let block = self.reads().record(number, RecordSize::BLOCK, 0).await?;
                let block = block.as_deref().and_then(<[_]>::first);
                (1, long_target(&inode, block).is_some())
            }
        };
        if !is_valid || inode.blocks != blocks {
            check.found(number, "the target of the symbolic link is damaged");
        }
        Ok(())
    }

    /// Numbers of all records with data.
    async fn data_records(
        &self,
        number: ObjectId,
        size: RecordSize,
    ) -> Result<BTreeSet<u64>, FsError> {
        let (mut found, mut next) = (BTreeSet::new(), Some(0));
        while let Some(first) = next {
            let range = first..TreeRoot::BLOCKS_MAX;
            let part = self.reads().data_records(number, size, range).await?;
            found.extend(part.records);
            next = part.next;
        }
        Ok(found)
    }

    /// Compares the usage of all owners with the sums over the inodes.
    async fn check_usage(&self, check: &mut Check) -> Result<(), FsError> {
        let mut expected = UsageChanges::new();
        for (number, known) in &check.inodes {
            let charge = Charge::of(*number, &known.inode);
            charge.iter().for_each(|charge| charge.add_to(&mut expected, 1));
        }
        for block in self.data_records(USAGE, RecordSize::BLOCK).await? {
            let content = match read_usage(self.reads(), block).await {
                Ok(content) => content,
                Err(error @ FsError::Damaged { .. }) => {
                    check.found(USAGE, error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (owner, usage) in content.owners(block) {
                let sums = expected.remove(&owner).unwrap_or_default();
                let is_equal = (usage.blocks.cast_signed(), usage.inodes.cast_signed()) == sums;
                // Without a hidden inode, the sums are complete.
                if !is_equal && check.hidden.is_empty() {
                    check
                        .found(USAGE, format!("the usage of {owner:?} is {usage:?}, not {sums:?}"));
                }
            }
        }
        expected.retain(|_, sums| *sums != (0, 0) && check.hidden.is_empty());
        for owner in expected.keys() {
            check.found(USAGE, format!("the usage of {owner:?} is missing"));
        }
        Ok(())
    }

    async fn check_bitmap(&self, check: &mut Check) -> Result<(), FsError> {
        let mut indexes = self.data_records(BITMAP, RecordSize::BLOCK).await?;
        indexes.extend(check.inodes.keys().map(|number| number.0 / NUMBERS_PER_BLOCK));
        for index in indexes {
            let block = self.reads().record(BITMAP, RecordSize::BLOCK, index).await?;
            let zeros = [0; BLOCK_BYTES];
            let bytes = block.as_ref().and_then(|block| block.first()).map_or(&zeros, |b| &**b);
            for (at, byte) in bytes.iter().enumerate() {
                for bit in 0..8 {
                    let number = ObjectId(index * NUMBERS_PER_BLOCK + at as u64 * 8 + bit);
                    let is_used = number < FIRST || check.inodes.contains_key(&number);
                    if (byte >> bit & 1 == 1) != is_used && !check.is_hidden(number) {
                        check.found(number, "its bit in the bitmap of numbers is wrong");
                    }
                }
            }
        }
        Ok(())
    }
}

/// True if two entries have the same name. `entries`: in ascending order of their keys. Equal names
/// have equal hashes.
fn has_name_twice(entries: &[Entry]) -> bool {
    let pairs = entries.iter().enumerate().flat_map(|(at, entry)| {
        let later = entries.iter().skip(at + 1);
        let equal = later.take_while(|later| later.key.has_hash_of(entry.key));
        equal.map(move |later| (entry, later))
    });
    pairs.into_iter().any(|(one, other)| one.name == other.name)
}

/// Checks the link counts and states of inodes, and that each directory is below the root.
fn check_names(check: &mut Check) {
    let mut below_root = BTreeSet::from([ROOT]);
    let mut findings = Vec::new();
    for (number, known) in &check.inodes {
        let Known { inode, names, subdirectories, orphan_names, attribute_owners, .. } = known;
        let mut found = |what: &str| {
            findings.push(Finding { inode: number.0, what: what.to_owned() });
        };
        if *number < FIRST {
            if *number == ROOT && u64::from(inode.nlink) != subdirectories + 2 {
                found("its number of links is wrong");
            }
            continue;
        }
        let expected_links = match (inode.file_type, inode.state) {
            (FileType::Directory, InodeState::Named) => subdirectories + 2,
            (FileType::Directory, _) => 0,
            _ => *names,
        };
        if u64::from(inode.nlink) != expected_links {
            found("its number of links is wrong");
        }
        match inode.state {
            InodeState::Attributes if *attribute_owners != 1 || *names + *orphan_names > 0 => {
                found("the object of attributes has a name or lacks its owner");
            }
            InodeState::Named | InodeState::Orphan | InodeState::Freeing
                if *attribute_owners > 0 =>
            {
                found("it is the object of attributes of an inode");
            }
            InodeState::Named if *names == 0 => found("no directory has its name"),
            InodeState::Named if *orphan_names > 0 => found("it has a name and is an orphan"),
            InodeState::Orphan | InodeState::Freeing if *names > 0 || *orphan_names != 1 => {
                found("it is an orphan with a name, or the list of orphans lacks it");
            }
            _ => {}
        }
        if inode.file_type != FileType::Directory || inode.state != InodeState::Named {
            continue;
        }
        if *names > 1 {
            found("the directory has several names");
        }
        // Follow the parents up to a directory that is known to be below the root.
        let (mut path, mut last) = (BTreeSet::new(), *number);
        while !below_root.contains(&last) && path.insert(last) {
            let Some(known) = check.inodes.get(&last) else { break };
            last = known.inode.parent;
        }
        if below_root.contains(&last) {
            below_root.extend(path);
        } else {
            found("the directory is not below the root");
        }
    }
    check.findings.extend(findings);
}
