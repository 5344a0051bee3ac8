//! Medium in memory, for the logical units of tests.
//!
//! `flush` does not make data durable; it records the contents of the medium at that time.
//!
//! Invariants:
//! - an unwritten block is a hole and reads as zeros;
//! - while `waits` is set, no `try_` call succeeds, so that every command takes its waiting path.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt;
use parking_lot::Mutex;
use weir_base::ErrorKind;
use weir_block::{Block, Export, ExportError, ExportFuture, Extent};
use weir_scsi::Medium;

const BLOCK: usize = 4096;

/// Medium in memory.
pub(crate) struct MemoryMedium {
    state: Mutex<(Vec<u8>, Vec<bool>)>,
    pub(crate) waits: AtomicBool,
    pub(crate) read_only: AtomicBool,
    pub(crate) clones: AtomicBool,
    pub(crate) flushes: AtomicU64,
    pub(crate) room: AtomicU64,
    pub(crate) failure: Mutex<Option<ErrorKind>>,
    /// Range of unreadable bytes.
    pub(crate) lost: Mutex<std::ops::Range<u64>>,
    /// Contents of the medium at the last `flush`.
    pub(crate) durable: Mutex<Vec<u8>>,
}

impl MemoryMedium {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            state: Mutex::new((vec![0; size as usize], vec![false; size as usize / BLOCK])),
            waits: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            clones: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
            failure: Mutex::new(None),
            lost: Mutex::new(0..0),
            durable: Mutex::new(Vec::new()),
        }
    }

    /// Returns the whole contents of the medium.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state.lock().0.clone()
    }

    /// Grows the medium to `size` bytes.
    pub(crate) fn grow(&self, size: u64) {
        let mut state = self.state.lock();
        state.0.resize(size as usize, 0);
        state.1.resize(size as usize / BLOCK, false);
    }

    fn check(&self) -> Result<bool, ExportError> {
        match *self.failure.lock() {
            Some(kind) => Err(ExportError::new(kind, "made to fail")),
            None => Ok(!self.waits.load(Ordering::SeqCst)),
        }
    }

    fn fetch(&self, offset: u64, out: &mut [u8]) -> Result<(), ExportError> {
        let (start, lost) = (offset as usize, self.lost.lock().clone());
        if lost.start < offset + out.len() as u64 && offset < lost.end {
            return Err(ExportError::new(ErrorKind::Data, "made to be lost"));
        }
        out.copy_from_slice(&self.state.lock().0[start..start + out.len()]);
        Ok(())
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        let mut state = self.state.lock();
        state.0[start..end].copy_from_slice(data);
        state.1[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
    }

    fn clear(&self, offset: u64, len: u64, punch: bool) {
        let (start, end) = (offset as usize, (offset + len) as usize);
        let mut state = self.state.lock();
        let (data, written) = &mut *state;
        // Skip unwritten blocks, so that a huge hole takes no memory.
        for block in (start / BLOCK..end.div_ceil(BLOCK)).filter(|block| written[*block]) {
            data[start.max(block * BLOCK)..end.min((block + 1) * BLOCK)].fill(0);
        }
        if !punch {
            state.1[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
        } else if start.div_ceil(BLOCK) < end / BLOCK {
            state.1[start.div_ceil(BLOCK)..end / BLOCK].fill(false);
        }
    }

    /// Yields once to other tasks and threads, as I/O would.
    async fn pause(&self) -> Result<(), ExportError> {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if waited {
                return std::task::Poll::Ready(());
            }
            waited = true;
            std::thread::yield_now();
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
        self.check().map(drop)
    }
}

impl Export for MemoryMedium {
    fn size_bytes(&self) -> u64 {
        self.state.lock().0.len() as u64
    }

    fn block_bytes_preferred(&self) -> u32 {
        16 << 10
    }

    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::SeqCst)
    }

    fn description(&self) -> String {
        String::new()
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        assert!(offset.is_multiple_of(512) && out.len().is_multiple_of(512) && !out.is_empty());
        let now = self.check()?;
        if now {
            self.fetch(offset, out)?;
        }
        Ok(now)
    }

    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError> {
        let mut bytes = vec![0; len_bytes as usize];
        let now = self.try_read(offset, &mut bytes)?;
        blocks.extend(bytes.as_chunks().0.iter().map(Block::copy_of));
        Ok(now)
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        async move {
            assert!(offset.is_multiple_of(512) && !out.is_empty());
            self.pause().await?;
            self.fetch(offset, out)
        }
        .boxed_local()
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError> {
        assert!(offset.is_multiple_of(512) && data.len().is_multiple_of(512) && !data.is_empty());
        let now = self.check()?;
        if now {
            self.store(offset, data);
        }
        Ok(now)
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        async move {
            assert!(offset.is_multiple_of(512) && !data.is_empty());
            self.pause().await?;
            self.store(offset, data);
            Ok(())
        }
        .boxed_local()
    }

    fn try_write_blocks(&self, _: u64, _: &mut Vec<Block>) -> Result<bool, ExportError> {
        Ok(false)
    }

    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()> {
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| &block[..]).copied().collect();
        async move { self.write(offset, &bytes).await }.boxed_local()
    }

    fn try_zero(&self, offset: u64, len_bytes: u64, punch: bool) -> Result<bool, ExportError> {
        let now = self.check()?;
        if now {
            self.clear(offset, len_bytes, punch);
        }
        Ok(now)
    }

    fn zero(&self, offset: u64, len_bytes: u64, punch: bool) -> ExportFuture<'_, ()> {
        async move {
            self.pause().await?;
            self.clear(offset, len_bytes, punch);
            Ok(())
        }
        .boxed_local()
    }

    fn zero_is_fast(&self, _: bool) -> bool {
        true
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        async move {
            self.pause().await?;
            self.flushes.fetch_add(1, Ordering::SeqCst);
            *self.durable.lock() = self.bytes();
            Ok(())
        }
        .boxed_local()
    }

    fn cache(&self, _: u64, _: u64) -> ExportFuture<'_, ()> {
        self.pause().boxed_local()
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> ExportFuture<'_, Vec<Extent>> {
        async move {
            self.pause().await?;
            let state = self.state.lock();
            let mut extents: Vec<Extent> = Vec::new();
            let mut at = offset;
            while at < offset + len {
                let hole = !state.1[at as usize / BLOCK];
                let end = (at / BLOCK as u64 + 1) * BLOCK as u64;
                let full = extents.len() == max;
                match extents.last_mut() {
                    Some(last) if last.hole == hole => last.len_bytes += end - at,
                    _ if full => break,
                    _ => extents.push(Extent { len_bytes: end - at, hole }),
                }
                at = end;
            }
            Ok(extents)
        }
        .boxed_local()
    }
}

impl Medium for MemoryMedium {
    fn write_same<'a>(
        &'a self,
        offset: u64,
        len_bytes: u64,
        pattern: &'a [u8],
    ) -> ExportFuture<'a, ()> {
        async move {
            self.pause().await?;
            self.store(offset, &pattern.repeat(len_bytes as usize / pattern.len()));
            Ok(())
        }
        .boxed_local()
    }

    fn clone_from<'a>(
        &'a self,
        source: &'a dyn Medium,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> ExportFuture<'a, bool> {
        async move {
            self.pause().await?;
            let source = source.as_any().downcast_ref::<Self>();
            let Some(source) = source.filter(|_| self.clones.load(Ordering::SeqCst)) else {
                return Ok(false);
            };
            let bytes = source.bytes();
            self.store(to, &bytes[from as usize..(from + len_bytes) as usize]);
            Ok(true)
        }
        .boxed_local()
    }

    fn room_bytes(&self) -> u64 {
        self.room.load(Ordering::SeqCst)
    }

    fn mapped_bytes(&self) -> u64 {
        let mapped = self.state.lock().1.iter().filter(|mapped| **mapped).count();
        (mapped * BLOCK) as u64
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
