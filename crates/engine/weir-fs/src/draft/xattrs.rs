//! Extended attributes and ACLs of an inode.
//!
//! An attribute is in the inode if it fits there. The other attributes of an inode are a list in an
//! object of their own, whose slot has the state *attributes*. ACLs are always in the inode.
//!
//! Invariants:
//! - an inode has the number of an object of attributes only if this object has attributes;
//! - no attribute is both in the inode and in the object.

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::{Block, BlockMut};
use weir_format::TreeRoot;
use weir_format::files::{Acl, Area, EntryList, FileType, Inode, InodeState, Xattr, XattrList};
use weir_pool::PlantedBug;

use crate::directory::{Blocks, DirectoryTree};
use crate::draft::node::{Draft, new_inode};
use crate::draft::reads::Reads;
use crate::error::FsError;

/// Attribute with the access ACL of an inode (Linux).
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Attribute with the ACL that new entries of a directory inherit (Linux).
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Maximum length of all names with a NUL after each (Linux, `XATTR_LIST_MAX`).
const NAMES_BYTES_MAX: usize = 64 << 10;

/// Decodes an ACL of an inode.
pub(crate) fn stored_acl(number: ObjectId, bytes: Option<&[u8]>) -> Result<Option<Acl>, FsError> {
    let Some(bytes) = bytes else { return Ok(None) };
    let acl = Acl::decode(bytes).map_err(|error| FsError::of_inode(number, &error))?;
    acl.map(Some).ok_or_else(|| FsError::damaged(number, "its ACL has no entries"))
}

/// Decodes the list in the blocks of an object of attributes.
pub(crate) fn list_of(
    object: ObjectId,
    inode: &Inode,
    blocks: &[Block],
) -> Result<XattrList, FsError> {
    let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
    let used = usize::try_from(inode.size).ok().and_then(|used| bytes.split_at_checked(used));
    match used {
        Some((list, rest)) if rest.iter().all(|byte| *byte == 0) => {
            XattrList::decode(list).map_err(|error| FsError::of_inode(object, &error))
        }
        _ => Err(FsError::damaged(object, "its size is not that of its attributes")),
    }
}

/// Checks the slot of the object of attributes of an inode. Returns the number of its blocks.
pub(crate) fn check_object(
    owner: ObjectId,
    object: ObjectId,
    (size, inode): (RecordSize, &Inode),
) -> Result<u64, FsError> {
    let is_object = inode.state == InodeState::Attributes && inode.parent == owner;
    let is_small = inode.size <= XattrList::BYTES_MAX as u64 && size == RecordSize::BLOCK;
    if !(is_object && is_small) {
        return Err(FsError::damaged(object, "it is no object of attributes of its owner"));
    }
    Ok(inode.size.div_ceil(BLOCK_BYTES as u64))
}

/// Reads the large attributes of an inode.
pub(crate) async fn read_list(
    reads: Reads<'_>,
    owner: ObjectId,
    object: ObjectId,
) -> Result<XattrList, FsError> {
    if object.0 == 0 {
        return Ok(XattrList::default());
    }
    let missing = || FsError::damaged(owner, "its object of attributes is missing");
    let (size, inode) = reads.inode(object).await?.ok_or_else(missing)?;
    let mut blocks = Vec::new();
    for index in 0..check_object(owner, object, (size, &inode))? {
        let read = reads.record(object, size, index).await?;
        blocks.extend(read.unwrap_or_else(|| vec![weir_dataset::ZERO_BLOCK.clone()]));
    }
    list_of(object, &inode, &blocks)
}

impl Draft<'_> {
    /// Sets or removes an extended attribute or an ACL. `object`: number for an object of
    /// attributes, if the inode needs a new one.
    pub(crate) async fn set_xattr(
        &mut self,
        number: ObjectId,
        (name, value): (&[u8], Option<&[u8]>),
        object: Option<ObjectId>,
    ) -> Result<(), FsError> {
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return self.set_acl(number, name == DEFAULT_ACL, value, object).await;
        }
        let mut list = self.large_xattrs(number).await?;
        let was_large = list.remove(name);
        let area = &mut self.change(number).await?.area;
        let before = area.xattrs.len();
        area.xattrs.retain(|xattr| &*xattr.name != name);
        let was_small = area.xattrs.len() < before;
        let Some(value) = value else {
            return match (was_large, was_small) {
                (true, _) => self.set_large_xattrs(number, list, object).await,
                (false, true) => Ok(()),
                (false, false) => Err(FsError::NoAttribute),
            };
        };
        let xattr = Xattr { name: name.into(), value: value.into() };
        if self.insert_small(number, &xattr).await? {
            if was_large {
                self.set_large_xattrs(number, list, object).await?;
            }
            return Ok(());
        }
        list.insert(xattr);
        self.set_large_xattrs(number, list, object).await
    }

    /// Inserts an attribute into the inode. If the attribute needs the space of a small file's
    /// content, first moves the content to a record. Returns false if the inode has no space.
    async fn insert_small(&mut self, number: ObjectId, xattr: &Xattr) -> Result<bool, FsError> {
        let Inode { area, .. } = &self.node(number).await?.inode;
        // Three bytes for the head of the item, one byte for the length of the name.
        let needed = 3 + 1 + xattr.name.len() + xattr.value.len();
        let data = area.data.as_ref().map_or(0, |data| data.len() + 3);
        let used = area.encoded_bytes();
        if used + needed > Area::BYTES + data {
            return Ok(false);
        }
        if used + needed > Area::BYTES {
            self.move_out(number).await?;
        }
        let area = &mut self.node(number).await?.inode.area;
        let at = area.xattrs.partition_point(|other| other.name < xattr.name);
        area.xattrs.insert(at, xattr.clone());
        Ok(true)
    }

    /// Reads the large attributes of an inode.
    async fn large_xattrs(&mut self, number: ObjectId) -> Result<XattrList, FsError> {
        let object = self.node(number).await?.inode.attributes;
        if object.0 == 0 {
            return Ok(XattrList::default());
        }
        let node = self.node(object).await?;
        let count = check_object(number, object, (node.size, &node.inode))?;
        let inode = node.inode.clone();
        let mut blocks = Vec::new();
        for index in 0..count {
            let read = self.record(object, index).await?;
            blocks.extend(read.unwrap_or_else(|| vec![weir_dataset::ZERO_BLOCK.clone()]));
        }
        list_of(object, &inode, &blocks)
    }

    /// Writes the large attributes of an inode. Creates or frees the object of attributes.
    async fn set_large_xattrs(
        &mut self,
        number: ObjectId,
        list: XattrList,
        new: Option<ObjectId>,
    ) -> Result<(), FsError> {
        let object = self.node(number).await?.inode.attributes;
        if list.as_slice().is_empty() {
            if object.0 > 0 {
                self.change(number).await?.attributes = ObjectId(0);
                self.free_attributes(number, object).await?;
            }
            return Ok(());
        }
        let names = list.as_slice().iter().map(|xattr| xattr.name.len() + 1).sum::<usize>();
        if list.encoded_bytes() > XattrList::BYTES_MAX || names + Area::BYTES > NAMES_BYTES_MAX {
            return Err(FsError::Full("the inode has too many extended attributes"));
        }
        let object = if object.0 > 0 {
            object
        } else {
            let new = new.ok_or_else(|| FsError::damaged(number, "no object of attributes"))?;
            self.create_attributes(number, new).await?;
            new
        };
        let bytes = list.encode();
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u64;
        self.punch_records(object, blocks..TreeRoot::BLOCKS_MAX).await?;
        for (index, part) in (0..).zip(bytes.chunks(BLOCK_BYTES)) {
            let mut block = BlockMut::zeroed();
            block.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.set_record(object, index, vec![block.freeze()]).await?;
        }
        let inode = self.change(object).await?;
        (inode.size, inode.blocks) = (bytes.len() as u64, blocks);
        Ok(())
    }

    /// Creates the object of attributes of an inode.
    async fn create_attributes(
        &mut self,
        number: ObjectId,
        object: ObjectId,
    ) -> Result<(), FsError> {
        if object < crate::layout::FIRST || self.is_used(object).await? {
            return Err(FsError::damaged(object, "a new object of attributes has this number"));
        }
        let owner = self.change(number).await?;
        owner.attributes = object;
        let (uid, gid, project) = (owner.uid, owner.gid, owner.project);
        let inode = new_inode(FileType::Regular, number, self.stamp);
        let state = InodeState::Attributes;
        let inode = Inode { state, nlink: 0, uid, gid, project, ..inode };
        self.create(object, inode);
        self.set_number(object, true).await
    }

    /// True if an object has the attributes of this inode. On a damaged filesystem, the object may
    /// belong to another inode.
    pub(crate) async fn owns_attributes(
        &mut self,
        owner: ObjectId,
        object: ObjectId,
    ) -> Result<bool, FsError> {
        match self.node(object).await {
            Ok(node) => Ok(check_object(owner, object, (node.size, &node.inode)).is_ok()),
            Err(FsError::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Frees the object of attributes of an inode. An object of another inode stays.
    pub(crate) async fn free_attributes(
        &mut self,
        owner: ObjectId,
        object: ObjectId,
    ) -> Result<(), FsError> {
        if self.owns_attributes(owner, object).await? {
            return self.free_number(object).await;
        }
        tracing::warn!(inode = owner.0, object = object.0, "wrong object of attributes");
        Ok(())
    }

    /// Sets or removes an ACL. An access ACL also sets the permission bits.
    async fn set_acl(
        &mut self,
        number: ObjectId,
        is_default: bool,
        value: Option<&[u8]>,
        object: Option<ObjectId>,
    ) -> Result<(), FsError> {
        let acl = value.map(Acl::decode).transpose();
        let acl = acl.map_err(|_| FsError::Invalid("the ACL has an invalid entry"))?.flatten();
        if acl.as_ref().is_some_and(|acl| acl.entries().len() > Acl::ENTRIES_MAX) {
            return Err(FsError::Full("the ACL has too many entries"));
        }
        let inode = self.change(number).await?;
        match (inode.file_type, is_default) {
            (FileType::SymbolicLink, _) => return Err(FsError::NotSupported("ACLs of links")),
            (FileType::Directory, true) | (_, false) => {}
            (_, true) if acl.is_none() => {}
            (_, true) => return Err(FsError::AccessDenied("only a directory has a default ACL")),
        }
        if is_default {
            inode.area.default_acl = acl.map(|acl| acl.encode().into());
        } else {
            if let Some(acl) = &acl {
                inode.permissions = inode.permissions & !0o777 | acl.mode();
            }
            let acl = acl.filter(|acl| !acl.is_minimal());
            inode.area.access_acl = acl.map(|acl| acl.encode().into());
        }
        self.make_area_fit(number, object).await
    }

    /// Moves the file content, attributes or entries of an inode to blocks, until its area fits.
    async fn make_area_fit(
        &mut self,
        number: ObjectId,
        object: Option<ObjectId>,
    ) -> Result<(), FsError> {
        if self.area_fits(number).await? {
            return Ok(());
        }
        if self.node(number).await?.inode.area.data.is_some() {
            self.move_out(number).await?;
        }
        let has_xattrs = !self.node(number).await?.inode.area.xattrs.is_empty();
        if has_xattrs && !self.area_fits(number).await? {
            let mut list = self.large_xattrs(number).await?;
            let small = std::mem::take(&mut self.node(number).await?.inode.area.xattrs);
            small.into_iter().for_each(|xattr| list.insert(xattr));
            self.set_large_xattrs(number, list, object).await?;
        }
        let inode = &self.node(number).await?.inode;
        if let Some(entries) = inode.area.entries.clone()
            && !self.area_fits(number).await?
        {
            let list = EntryList::parse(&entries);
            let list = list.map_err(|error| FsError::of_inode(number, &error))?;
            let blocks = Blocks::new();
            let changes = DirectoryTree::create(&blocks, &list).into_changes();
            self.write_tree(number, changes).await?;
        }
        let fits = self.area_fits(number).await?;
        if fits { Ok(()) } else { Err(FsError::Full("the inode has no space for this ACL")) }
    }

    async fn area_fits(&mut self, number: ObjectId) -> Result<bool, FsError> {
        Ok(self.node(number).await?.inode.area.encoded_bytes() <= Area::BYTES)
    }

    /// Sets the permission bits of an inode, also in its access ACL (chmod(2)).
    pub(crate) async fn set_permissions(
        &mut self,
        number: ObjectId,
        bits: u32,
    ) -> Result<(), FsError> {
        let inode = self.change(number).await?;
        inode.permissions = bits;
        if self.reads.bug() == PlantedBug::AclMaskKept {
            return Ok(());
        }
        let inode = &mut self.node(number).await?.inode;
        if let Some(mut acl) = stored_acl(number, inode.area.access_acl.as_deref())? {
            acl.set_mode(bits);
            inode.area.access_acl = Some(acl.encode().into());
        }
        Ok(())
    }
}
