//! A volume as seen by a block protocol: implements the trait `Export` with calls of the engine.
//!
//! Operations that only SCSI needs are in `scsi_medium`, the names of exports in `export_registry`.
//!
//! Invariant: an export counts each connection until that connection ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use weir_base::BLOCK_BYTES;
use weir_block::{Block, ExportError, ExportFuture, Extent};
use weir_dataset::{DatasetError, Engine, TrafficKind, Volume};

/// A volume that clients of a block protocol have open.
pub struct OpenVolume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) read_only: bool,
    /// Counts the client's connection while this value exists.
    pub(crate) _connection: Option<Connected>,
}

impl OpenVolume {
    /// Opens a volume without counting a connection.
    pub fn new(engine: Arc<Engine>, volume: Arc<Volume>) -> Self {
        Self { engine, volume, read_only: false, _connection: None }
    }
}

/// Number of connections of an export by the address of the client; the address is `None` on a
/// unix socket.
#[derive(Default)]
pub(crate) struct Connections(Mutex<BTreeMap<Option<IpAddr>, u32>>);

impl Connections {
    pub(crate) fn count(&self) -> u32 {
        self.0.lock().values().sum()
    }

    pub(crate) fn addresses(&self) -> Vec<Option<IpAddr>> {
        self.0.lock().keys().copied().collect()
    }
}

/// One connection in the counters of an export; dropping the value removes the connection from the
/// counters.
pub(crate) struct Connected {
    all: Arc<Connections>,
    from: Option<IpAddr>,
}

impl Connected {
    pub(crate) fn new(all: &Arc<Connections>, from: Option<IpAddr>) -> Self {
        let from = from.map(|from| from.to_canonical());
        *all.0.lock().entry(from).or_default() += 1;
        Self { all: Arc::clone(all), from }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.from);
            }
        }
    }
}

fn bytes_of(blocks: &[Block]) -> u64 {
    (blocks.len() * BLOCK_BYTES) as u64
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
pub(crate) fn refused(error: DatasetError) -> ExportError {
    ExportError::new(error.kind(), error.to_string())
}

impl OpenVolume {
    /// Counts a completed request of the client. `begun` is the start time of the request; `None`
    /// if the request is not in the sample for latencies.
    fn count(
        &self,
        kind: TrafficKind,
        begun: Option<Instant>,
        bytes: u64,
        done: Result<bool, DatasetError>,
    ) -> Result<bool, ExportError> {
        if let Ok(true) = done {
            let traffic = self.engine.traffic();
            traffic.end(kind, begun);
            match kind {
                TrafficKind::Read => traffic.read(bytes),
                TrafficKind::Write => traffic.wrote(bytes),
                TrafficKind::Flush => traffic.flushed(),
            }
        }
        done.map_err(refused)
    }

    fn begin(&self, kind: TrafficKind) -> Option<Instant> {
        self.engine.traffic().begin(kind)
    }
}

impl weir_block::Export for OpenVolume {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn block_bytes_preferred(&self) -> u32 {
        u32::try_from(self.volume.record_size().bytes()).expect("a record is at most 1 MiB")
    }

    fn read_only(&self) -> bool {
        self.read_only || self.volume.is_read_only()
    }

    fn description(&self) -> String {
        format!("volume {}/{}", self.engine.pool().name(), self.volume.info().name)
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        let bytes = out.len() as u64;
        let begun = self.begin(TrafficKind::Read);
        self.count(TrafficKind::Read, begun, bytes, self.volume.try_read(offset, out))
    }

    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError> {
        let begun = self.begin(TrafficKind::Read);
        let done = self.volume.try_share(offset, len_bytes, blocks);
        self.count(TrafficKind::Read, begun, len_bytes, done)
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        Box::pin(async move {
            let bytes = out.len() as u64;
            let begun = self.begin(TrafficKind::Read);
            let done = self.volume.read(offset, out).await;
            self.count(TrafficKind::Read, begun, bytes, done.map(|()| true)).map(|_| ())
        })
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError> {
        let begun = self.begin(TrafficKind::Write);
        let bytes = data.len() as u64;
        self.count(TrafficKind::Write, begun, bytes, self.volume.try_write(offset, data))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        Box::pin(async move {
            let begun = self.begin(TrafficKind::Write);
            let done = self.volume.write(offset, data).await.map(|()| true);
            self.count(TrafficKind::Write, begun, data.len() as u64, done).map(|_| ())
        })
    }

    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError> {
        let bytes = bytes_of(blocks);
        let begun = self.begin(TrafficKind::Write);
        let done = self.volume.try_write_blocks(offset, blocks);
        self.count(TrafficKind::Write, begun, bytes, done)
    }

    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()> {
        Box::pin(async move {
            let bytes = bytes_of(&blocks);
            let begun = self.begin(TrafficKind::Write);
            let done = self.volume.write_blocks(offset, blocks).await;
            self.count(TrafficKind::Write, begun, bytes, done.map(|()| true)).map(|_| ())
        })
    }

    fn try_zero(&self, offset: u64, len_bytes: u64, _punch: bool) -> Result<bool, ExportError> {
        // Ignore `_punch`, which is false if the client asked to keep the space allocated (NBD's
        // NO_HOLE). A thin volume stores no zeros, so there is no space to keep; a later write gets
        // space like any other write.
        self.volume.try_zero(offset, len_bytes).map_err(refused)
    }

    fn zero(&self, offset: u64, len_bytes: u64, _punch: bool) -> ExportFuture<'_, ()> {
        Box::pin(async move { self.volume.zero(offset, len_bytes).await.map_err(refused) })
    }

    fn zero_is_fast(&self, _punch: bool) -> bool {
        true
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        Box::pin(async move {
            let begun = self.begin(TrafficKind::Flush);
            let done = self.engine.flush(&self.volume).await.map(|()| true);
            self.count(TrafficKind::Flush, begun, 0, done).map(|_| ())
        })
    }

    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()> {
        Box::pin(async move { self.volume.prefetch(offset, len_bytes).await.map_err(refused) })
    }

    fn extents(&self, offset: u64, len_bytes: u64, max: usize) -> ExportFuture<'_, Vec<Extent>> {
        Box::pin(async move {
            let extents = self.volume.extents(offset, len_bytes, max).await.map_err(refused)?;
            let convert = |e: weir_dataset::Extent| Extent { len_bytes: e.len, hole: e.hole };
            Ok(extents.into_iter().map(convert).collect())
        })
    }
}
