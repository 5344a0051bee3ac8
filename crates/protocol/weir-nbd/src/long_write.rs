//! Long write, which the server executes in parts while its payload arrives.
//!
//! `session` receives the payload, `connection` executes the writes.
//!
//! A write of up to [`PART_BYTES`] is one part. Parts of longer writes end at multiples of
//! `PART_BYTES`, like the pieces of the engine. The parts are written one after the other; the last
//! part, with the reply, runs like any other request. If a part fails, the server discards the rest
//! of the payload and replies with the error.
//!
//! Invariant: memory for a part is reserved before the part is received.

use std::rc::Rc;

use weir_base::BLOCK_BYTES;
use weir_block::{Block, ExportError};
use weir_net::Input;

use crate::connection::Connection;
use crate::limits::PART_BYTES;
use crate::request::{Request, is_whole_blocks};

/// State of a long write, between two receives.
pub(crate) struct LongWrite {
    /// The part of the write that was not passed to the export yet, as a request of its own.
    request: Request,
    is_blocks: bool,
    /// Data of the current part if the write consists of whole blocks. Otherwise the data is in
    /// `bytes`.
    blocks: Vec<Block>,
    bytes: Vec<u8>,
    /// Number of bytes of memory reserved for the current part.
    part_bytes: usize,
    failed: Option<ExportError>,
}

impl LongWrite {
    pub(crate) fn new(request: Request) -> Self {
        let is_blocks = is_whole_blocks(request.offset, request.len);
        let (blocks, bytes) = (Vec::new(), Vec::new());
        Self { request, is_blocks, blocks, bytes, part_bytes: 0, failed: None }
    }

    /// Length of the current part in bytes: up to the next multiple of [`PART_BYTES`], or to the
    /// end.
    const fn part_len(&self) -> usize {
        let to_end = PART_BYTES - (self.request.offset % PART_BYTES as u64) as usize;
        let left = self.request.len as usize;
        if left <= PART_BYTES { left } else { to_end }
    }

    /// Processes the payload that has arrived. Returns the number of bytes to receive next; `None`
    /// when the write is complete or the connection is broken.
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

    /// Moves received payload into the current part. Returns the number of bytes to receive next,
    /// which is 0 when the part is complete.
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

    /// Passes the current part, which is not the last one, to the export.
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

    /// Runs the last part of the write. Its reply answers the whole write.
    fn finish(&mut self, connection: &Rc<Connection>) {
        if self.is_blocks {
            connection.run_long_write(self.request, std::mem::take(&mut self.blocks));
        } else {
            connection.run_long_bytes(self.request, std::mem::take(&mut self.bytes));
        }
        // If the last part became a task, the ticket of the task counts its memory from here on.
        connection.hold_part(0);
    }
}
