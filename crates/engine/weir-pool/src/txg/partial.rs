//! Stores and reads partial records: the known blocks of a record whose other blocks were lost.
//!
//! The stored form is in weir-format. Replay, which creates partial records, is in weir-dataset.
//! The list of permanent errors is in `state::damage`.
//!
//! Invariants:
//! - a block of a partial record reads as its known content, as the content of the replaced record,
//!   or as an error;
//! - a partial record is damage: a stream never contains it, and the list of permanent errors names
//!   it until the record is rewritten.

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ErrorKind, RecordSize, Txg};
use weir_block::Block;
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockOwner, BlockPtr, Codec, PartialHeader, PtrKind, SegmentClass, TreeRoot};

use crate::error::PoolError;
use crate::state::compression::StoredForm;
use crate::state::pool::Pool;
use crate::tree::radix_tree::Tree;
use crate::txg::write_out::WriteOut;

/// Maximum number of partial records that a read follows to the complete record. Each import that
/// finds damage in the same record adds one partial record; the limit bounds the chains of a forged
/// pool.
const CHAIN_MAX: usize = 8;

/// The known blocks of a record.
///
/// A partial record points to the record that it replaced, and that record stays allocated: if a
/// missing disk or a lost part of the segment table returns, the bytes of the replaced record are
/// readable again. Reads then use these bytes, because the checksum proves that they are the lost
/// bytes. Once the partial record is rewritten or freed, a recount frees the replaced record.
#[derive(Clone, Debug)]
pub struct PartialRecord {
    blocks: Vec<Option<Block>>,
    /// Pointer to the replaced record, or a damage marker above that record, or a hole if the
    /// pointer is unknown.
    rest: BlockPtr,
    /// Index of the record in its volume.
    index: u64,
}

impl PartialRecord {
    /// Creates the record at `index` of a volume without known blocks; `rest` points to the
    /// replaced record or is a damage marker above it.
    pub fn new(size: RecordSize, rest: BlockPtr, index: u64) -> Self {
        Self { blocks: vec![None; size.blocks() as usize], rest, index }
    }

    /// Adds a known block.
    ///
    /// # Panics
    /// `part` is beyond the record.
    pub fn put(&mut self, part: usize, block: Block) {
        self.blocks[part] = Some(block);
    }

    /// Returns all blocks of the record if all are known.
    pub fn whole(&self) -> Option<Vec<Block>> {
        self.blocks.iter().cloned().collect()
    }

    pub(crate) const fn rest(&self) -> BlockPtr {
        self.rest
    }

    fn size(&self) -> RecordSize {
        let bytes = self.blocks.len() * BLOCK_BYTES;
        RecordSize::from_bytes(bytes as u64).expect("it has the blocks of a record")
    }

    fn encode(&self) -> Vec<u8> {
        let mut header = PartialHeader::new(self.rest, self.index);
        let known = || self.blocks.iter().enumerate().filter(|(_, block)| block.is_some());
        known().for_each(|(part, _)| header.put(part));
        let mut stored = header.encode().to_vec();
        self.blocks.iter().flatten().for_each(|block| stored.extend_from_slice(&block[..]));
        stored
    }
}

impl Pool {
    /// Refuses a pointer to a partial record.
    ///
    /// # Errors
    /// `PartLost` for a partial record.
    pub fn refuse_partial(&self, ptr: &BlockPtr) -> Result<(), PoolError> {
        if ptr.is_partial() { Err(self.part_lost()) } else { Ok(()) }
    }

    pub(crate) fn part_lost(&self) -> PoolError {
        PoolError::PartLost { pool: self.name().to_owned() }
    }

    /// Reads the known blocks of the partial record at a pointer.
    ///
    /// # Errors
    /// As [`Self::read_block`].
    pub async fn read_partial(&self, ptr: &BlockPtr) -> Result<PartialRecord, PoolError> {
        assert!(ptr.is_partial(), "{ptr:?} is no partial record");
        let (buf, start) = self.read_stored(ptr, None).await?;
        let stored = &buf[start..start + ptr.stored_bytes()];
        let header = PartialHeader::decode(stored, ptr.record);
        let header = header.map_err(|source| self.bad_block(ptr, "partial record", source))?;
        let (known, _) = stored[PartialHeader::BYTES..].as_chunks();
        let mut record = PartialRecord::new(ptr.record, header.rest, header.index);
        let parts = (0..record.blocks.len()).filter(|part| header.has(*part));
        for (part, block) in parts.zip(known) {
            record.put(part, Block::copy_of(block));
        }
        Ok(record)
    }

    /// Returns all blocks of a partial record; reads the missing ones from the replaced record.
    ///
    /// # Errors
    /// `PartLost` if no disk has the replaced record any more.
    pub(crate) async fn completed(
        &self,
        mut record: PartialRecord,
    ) -> Result<Vec<Block>, PoolError> {
        for _ in 0..CHAIN_MAX {
            if let Some(whole) = record.whole() {
                return Ok(whole);
            }
            let rest = match self.resolve_replaced(&record).await {
                Err(error) if error.kind() == ErrorKind::Data => return Err(self.part_lost()),
                rest => rest?,
            };
            if rest.is_hole() && record.rest.is_damaged() {
                // The node is readable again and has a hole for the record: the record was never
                // written.
                let zeros = || Block::copy_of(&[0; BLOCK_BYTES]);
                return Ok(record.blocks.into_iter().map(|b| b.unwrap_or_else(zeros)).collect());
            }
            if rest.kind != PtrKind::Data || rest.record != record.size() {
                return Err(self.part_lost());
            }
            let older = if rest.is_partial() {
                self.read_partial(&rest).await
            } else {
                self.read_fresh(&rest).await.map(|blocks| PartialRecord {
                    blocks: blocks.iter().cloned().map(Some).collect(),
                    rest: BlockPtr::HOLE,
                    index: record.index,
                })
            };
            let older = match older {
                Ok(older) => older,
                // This error also occurs if the segment was freed: then no tree refers to the
                // replaced record.
                Err(error) if error.kind() == ErrorKind::Data => return Err(self.part_lost()),
                Err(error) => return Err(error),
            };
            for (block, older) in record.blocks.iter_mut().zip(older.blocks) {
                *block = block.take().or(older);
            }
            record.rest = older.rest;
        }
        Err(self.part_lost())
    }

    /// Returns the pointer to the record that a partial record replaced.
    ///
    /// # Errors
    /// `Damaged` if the node with that pointer still cannot be read.
    pub(crate) async fn resolve_replaced(
        &self,
        record: &PartialRecord,
    ) -> Result<BlockPtr, PoolError> {
        let Some((ptr, height)) = record.rest.damaged_node() else { return Ok(record.rest) };
        let tree = Tree::new(self, TreeRoot { ptr, height });
        tree.resolve(record.rest, 0, record.index).await
    }

    /// Returns the first of the records that a partial record replaced, newest first, for which
    /// `is_it` returns true.
    ///
    /// # Errors
    /// As [`Self::read_block`], if a partial record cannot be read.
    #[boxed(?Send)]
    pub(crate) async fn find_replaced(
        &self,
        ptr: &BlockPtr,
        is_it: &(dyn Fn(&BlockPtr) -> bool + Sync),
    ) -> Result<Option<BlockPtr>, PoolError> {
        let mut ptr = *ptr;
        for _ in 0..CHAIN_MAX {
            if !ptr.is_partial() {
                break;
            }
            let record = self.read_partial(&ptr).await?;
            ptr = self.resolve_replaced(&record).await?;
            if ptr.kind == PtrKind::Data && is_it(&ptr) {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// Handles a partial record that a tree dropped: requests a recount, which frees the replaced
    /// record.
    pub(crate) fn note_partial_gone(&self, ptr: &BlockPtr, txg: Txg) {
        if ptr.is_partial() {
            self.note_lost_node(txg);
            self.want_recount();
        }
    }

    /// Reads one block of a partial record, from the partial record or from the record that it
    /// replaced.
    pub(crate) async fn read_known_part(
        &self,
        ptr: &BlockPtr,
        part: usize,
    ) -> Result<Block, PoolError> {
        let record = self.read_partial(ptr).await?;
        if let Some(Some(block)) = record.blocks.get(part) {
            return Ok(block.clone());
        }
        let whole = self.completed(record).await?;
        Ok(whole[part].clone())
    }
}

impl WriteOut<'_> {
    /// Stores the known blocks of a record and returns the pointer to them.
    ///
    /// # Errors
    /// As [`Self::write_record`].
    pub async fn write_partial(
        &mut self,
        owner: BlockOwner,
        record: &PartialRecord,
    ) -> Result<BlockPtr, PoolError> {
        assert!(record.whole().is_none(), "a record that is known is stored as such");
        let stored = record.encode();
        assert!(stored.len().is_multiple_of(PACK_BYTES) && stored.len() < record.size().bytes());
        let what = (SegmentClass::Data, Some(owner), PtrKind::Data);
        let (stored, how) = (StoredForm::Bytes(&stored), (Codec::Raw, None));
        let ptr = self.store_uncached(what, record.size(), stored, how).await?;
        assert!(ptr.is_partial(), "it is recognised by its length: {ptr:?}");
        self.replaced.insert(ptr.address(), record.rest);
        Ok(ptr)
    }
}
