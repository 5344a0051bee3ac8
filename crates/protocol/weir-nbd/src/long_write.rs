//! A long write, taken in parts while its payload arrives.
//!
//! Not here: receiving (`session`), what a write does (`connection`).
//!
//! A write of up to [`PART_BYTES`] is one part. Parts of longer ones end where the offset is a
//! multiple of that, as the engine's own pieces do. All but the last are handed over one by one;
//! the last one, with the reply, is a request as any other. After a part that failed the rest is
//! thrown away and the error is the answer.
//!
//! Invariant: memory for a part is set aside before the part is received.

use std::rc::Rc;

use weir_base::BLOCK_BYTES;
use weir_block::{Block, ExportError};
use weir_net::Input;

use crate::connection::Connection;
use crate::limits::PART_BYTES;
use crate::request::{Request, is_whole_blocks};

/// See the file's head.
pub(crate) struct LongWrite {
    /// The rest of the write, not yet taken.
    request: Request,
    is_blocks: bool,
    /// Of the part under way, if it is of whole blocks; else its bytes.
    blocks: Vec<Block>,
    bytes: Vec<u8>,
    /// Bytes of the part that memory was set aside for.
    part_bytes: usize,
    failed: Option<ExportError>,
}

impl LongWrite {
    pub(crate) fn new(request: Request) -> Self {
        let is_blocks = is_whole_blocks(request.offset, request.len);
        let (blocks, bytes) = (Vec::new(), Vec::new());
        Self { request, is_blocks, blocks, bytes, part_bytes: 0, failed: None }
    }

    /// Bytes of the part under way.
    const fn part_len(&self) -> usize {
        let to_end = PART_BYTES - (self.request.offset % PART_BYTES as u64) as usize;
        let left = self.request.len as usize;
        if left <= PART_BYTES { left } else { to_end }
    }

    /// Takes what there is. Returns how many bytes are needed next, or `None` once it is done.
    pub(crate) async fn take(
        &mut self,
        input: &mut Input,
        connection: &Rc<Connection>,
    ) -> Option<usize> {
        loop {
            if let Some(error) = &self.failed {
                let here = input.pending().len().min(self.request.len as usize);
                input.consume(here);
                self.request.len -= here as u32;
                if self.request.len > 0 {
                    return Some((self.request.len as usize).min(input.room()));
                }
                connection.fail_request(&self.request, error);
                return None;
            }
            let part = self.part_len();
            if self.part_bytes == 0 {
                connection.wait_for_memory(part).await;
                self.part_bytes = part;
                connection.hold_part(part);
            }
            if connection.is_broken() {
                return None;
            }
            let need = self.take_part(input, part);
            if need > 0 {
                return Some(need);
            }
            if part == self.request.len as usize {
                self.finish(connection);
                return None;
            }
            self.hand_over(connection).await;
            self.request.offset += part as u64;
            self.request.len -= part as u32;
        }
    }

    /// Takes what there is of a part; returns how much is missing.
    fn take_part(&mut self, input: &mut Input, part: usize) -> usize {
        let have = if self.is_blocks { self.blocks.len() * BLOCK_BYTES } else { self.bytes.len() };
        let missing = part - have;
        let here = input.pending().len().min(missing);
        let pending = input.pending().get(..here).unwrap_or_default();
        let taken = if self.is_blocks {
            let (blocks, _) = pending.as_chunks();
            self.blocks.extend(Block::copies_of(blocks));
            blocks.len() * BLOCK_BYTES
        } else {
            self.bytes.reserve_exact(missing);
            self.bytes.extend_from_slice(pending);
            here
        };
        input.consume(taken);
        (missing - taken).min(input.room())
    }

    /// Hands a part that is not the last one to the export.
    async fn hand_over(&mut self, connection: &Rc<Connection>) {
        let offset = self.request.offset;
        let written = if self.is_blocks {
            connection.write_part(offset, std::mem::take(&mut self.blocks)).await
        } else {
            connection.write_bytes_part(offset, &std::mem::take(&mut self.bytes)).await
        };
        self.failed = written.err();
        self.part_bytes = 0;
        connection.hold_part(0);
    }

    /// Runs the last part, whose reply is the whole request's.
    fn finish(&mut self, connection: &Rc<Connection>) {
        if self.is_blocks {
            connection.run_long_write(self.request, std::mem::take(&mut self.blocks));
        } else {
            connection.run_long_bytes(self.request, std::mem::take(&mut self.bytes));
        }
        // From here on its task counts it, where it has one.
        connection.hold_part(0);
    }
}
