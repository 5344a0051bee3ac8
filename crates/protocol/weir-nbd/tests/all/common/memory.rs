//! Exports in memory, as the storage of the protocol tests.
//!
//! The exports have no durability: a flush only increments a counter.
//!
//! Invariants:
//! - every third request to a slow export waits, so that replies overtake earlier ones;
//! - a held export completes no request until the test releases it;
//! - unwritten blocks are holes and read as zeros.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::RwLock;
use weir_base::ErrorKind;
use weir_block::{Block, Export, ExportError, ExportFuture, Exports, Extent};

const BLOCK: usize = 4096;
/// Preferred block size that the exports report, different from all other sizes in the tests.
const PREFERRED: u32 = 64 << 10;

/// Volume in memory.
pub(crate) struct Memory {
    data: RwLock<Vec<u8>>,
    /// For each block, true if the block was written.
    written: RwLock<Vec<bool>>,
    size: u64,
    read_only: bool,
    slow: bool,
    turn: AtomicU64,
    /// Requests wait while this flag is set.
    pub(crate) held: AtomicBool,
    /// Number of requests that had to wait.
    pub(crate) begun: AtomicUsize,
    /// Number of executed flushes.
    pub(crate) flushes: AtomicU64,
    /// While this flag is set, every request panics: a request that completes immediately panics at
    /// once, and a request that waits panics in its task.
    pub(crate) panics: AtomicBool,
    /// Error with which every request fails; `None` for no failure.
    pub(crate) failure: RwLock<Option<ErrorKind>>,
}

impl Memory {
    /// Creates a volume of `size` bytes, without written blocks.
    pub(crate) fn new(size: u64) -> Self {
        Self {
            data: RwLock::new(vec![0; size as usize]),
            written: RwLock::new(vec![false; (size as usize).div_ceil(BLOCK)]),
            size,
            read_only: false,
            slow: false,
            turn: AtomicU64::new(0),
            held: AtomicBool::new(false),
            begun: AtomicUsize::new(0),
            flushes: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            failure: RwLock::new(None),
        }
    }

    /// Makes every third request to the volume wait.
    pub(crate) fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Makes the volume read-only.
    pub(crate) fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Returns true if this request must wait. Fails with the injected error, if one is set.
    fn waits(&self) -> Result<bool, ExportError> {
        if let Some(kind) = *self.failure.read() {
            return Err(ExportError::new(kind, "made to fail"));
        }
        let turn = self.slow && self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        let waits = turn || self.held.load(Ordering::SeqCst);
        assert!(waits || !self.panics.load(Ordering::SeqCst), "made to panic");
        Ok(waits)
    }

    async fn pause(&self) -> Result<(), ExportError> {
        let turn = self.turn.load(Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::SeqCst);
        compio::time::sleep(Duration::from_micros(turn % 7 * 50)).await;
        while self.held.load(Ordering::SeqCst) {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!self.panics.load(Ordering::SeqCst), "made to panic");
        self.waits().map(drop)
    }

    fn fetch(&self, offset: u64, out: &mut [u8]) {
        let start = offset as usize;
        out.copy_from_slice(&self.data.read()[start..start + out.len()]);
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        self.data.write()[start..end].copy_from_slice(data);
        self.written.write()[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
    }

    fn clear(&self, offset: u64, len: u64, punch: bool) {
        let (start, end) = (offset as usize, (offset + len) as usize);
        self.data.write()[start..end].fill(0);
        let mut written = self.written.write();
        if punch && start.div_ceil(BLOCK) < end / BLOCK {
            written[start.div_ceil(BLOCK)..end / BLOCK].fill(false);
        } else if !punch {
            written[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
        }
    }
}

fn bytes_of(blocks: &[Block]) -> Vec<u8> {
    blocks.iter().flat_map(|block| &block[..]).copied().collect()
}

impl Export for Memory {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn block_bytes_preferred(&self) -> u32 {
        PREFERRED
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn description(&self) -> String {
        "a volume in memory".to_owned()
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        let waits = self.waits()?;
        if !waits {
            self.fetch(offset, out);
        }
        Ok(!waits)
    }

    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError> {
        let mut bytes = vec![0; len_bytes as usize];
        let here = self.try_read(offset, &mut bytes)?;
        blocks.extend(bytes.as_chunks().0.iter().map(Block::copy_of));
        Ok(here)
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        async move {
            self.pause().await?;
            self.fetch(offset, out);
            Ok(())
        }
        .boxed_local()
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError> {
        let waits = self.waits()?;
        if !waits {
            self.store(offset, data);
        }
        Ok(!waits)
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        async move {
            self.pause().await?;
            self.store(offset, data);
            Ok(())
        }
        .boxed_local()
    }

    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError> {
        self.try_write(offset, &bytes_of(blocks))
    }

    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()> {
        async move { self.write(offset, &bytes_of(&blocks)).await }.boxed_local()
    }

    fn try_zero(&self, offset: u64, len_bytes: u64, punch: bool) -> Result<bool, ExportError> {
        let waits = self.waits()?;
        if !waits {
            self.clear(offset, len_bytes, punch);
        }
        Ok(!waits)
    }

    fn zero(&self, offset: u64, len_bytes: u64, punch: bool) -> ExportFuture<'_, ()> {
        async move {
            self.pause().await?;
            self.clear(offset, len_bytes, punch);
            Ok(())
        }
        .boxed_local()
    }

    fn zero_is_fast(&self, punch: bool) -> bool {
        punch
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        async move {
            self.pause().await?;
            self.flushes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed_local()
    }

    fn cache(&self, _offset: u64, _len_bytes: u64) -> ExportFuture<'_, ()> {
        self.pause().boxed_local()
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> ExportFuture<'_, Vec<Extent>> {
        async move {
            self.pause().await?;
            let written = self.written.read();
            let mut extents: Vec<Extent> = Vec::new();
            let mut at = offset;
            while at < offset + len {
                let hole = !written[at as usize / BLOCK];
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

/// Exports in memory, by name.
#[derive(Default)]
pub(crate) struct MemoryExports {
    volumes: BTreeMap<String, Arc<Memory>>,
    /// Export that only clients at one address may open.
    reserved: Option<(String, IpAddr)>,
    /// Number of exports that clients have opened.
    pub(crate) opened: AtomicUsize,
}

impl MemoryExports {
    /// Adds a volume.
    pub(crate) fn with(mut self, name: &str, volume: Memory) -> Self {
        self.volumes.insert(name.to_owned(), Arc::new(volume));
        self
    }

    /// Shows the named volume only to clients at one address.
    pub(crate) fn reserve(mut self, name: &str, address: IpAddr) -> Self {
        self.reserved = Some((name.to_owned(), address));
        self
    }

    fn shows(&self, name: &str, from: Option<IpAddr>) -> bool {
        let reserved = self.reserved.as_ref().filter(|(reserved, _)| reserved == name);
        reserved.is_none_or(|(_, address)| from == Some(*address))
    }

    /// Returns the named volume.
    pub(crate) fn volume(&self, name: &str) -> Arc<Memory> {
        Arc::clone(&self.volumes[name])
    }
}

impl Exports for MemoryExports {
    fn names_after(&self, after: &str, from: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool) {
        let rest = self.volumes.keys().filter(|name| name.as_str() > after);
        for name in rest.filter(|name| self.shows(name, from)) {
            if !show(name) {
                break;
            }
        }
    }

    fn open(&self, name: &str, from: Option<IpAddr>) -> Result<Arc<dyn Export>, ExportError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        match self.volumes.get(name).filter(|_| self.shows(name, from)) {
            Some(volume) => Ok(Arc::<Memory>::clone(volume)),
            None => Err(ExportError::new(ErrorKind::NotFound, format!("no export {name:?}"))),
        }
    }
}
