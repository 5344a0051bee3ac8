//! Writes raidz rows with their parity.
//!
//! Not here: reading rows (`raidz`), reconstruction and rewriting of damaged strips (`reconstruct`,
//! `check`).
//!
//! Invariant: a row is written once and as a whole, all strips together. So there is no write hole,
//! and parity is never updated.

use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use futures_util::future::join_all;
use weir_block::IoBuf;
use weir_codec::parity;
use weir_device::Durability;

use crate::disks::rows::Rows;
use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;

impl Vdev {
    /// Writes whole rows, `data[range]`, at an offset of the segment area.
    #[boxed(?Send)]
    pub(in crate::disks) async fn write_raidz(
        &self,
        rows: &Rows,
        offset: u64,
        data: &IoBuf,
        range: Range<usize>,
    ) -> Result<(), PoolError> {
        let row_bytes = rows.row_bytes();
        let whole =
            offset.is_multiple_of(row_bytes) && (range.len() as u64).is_multiple_of(row_bytes);
        assert!(whole, "only whole rows are written");
        let first_row = offset / row_bytes;
        let bufs = self.spread(rows, first_row, &data[range]);
        let at = self.base + rows.leg_offset(first_row, 0);
        let writes = self.legs.iter().zip(bufs).filter_map(|(leg, buf)| {
            let (device, len) = (leg.usable()?, buf.len());
            Some(async move {
                let write = device.write_at(at, Arc::new(buf), 0..len, Durability::Cached);
                leg.judge_write(write.await, &(at..at + len as u64))
            })
        });
        self.enough(&join_all(writes).await)
    }

    /// Builds one buffer for each leg, with its strips of consecutive rows, parity included.
    fn spread(&self, rows: &Rows, first_row: u64, data: &[u8]) -> Vec<IoBuf> {
        let strip_bytes = rows.strip_bytes as usize;
        let count = data.len() / rows.row_bytes() as usize;
        let mut bufs: Vec<IoBuf> =
            (0..rows.strips()).map(|_| IoBuf::zeroed(count * strip_bytes)).collect();
        for (index, row_data) in data.chunks(rows.row_bytes() as usize).enumerate() {
            let row = first_row + index as u64;
            let place = index * strip_bytes..(index + 1) * strip_bytes;
            let mut strips: Vec<&[u8]> = row_data.chunks(strip_bytes).collect();
            for (strip, bytes) in strips.iter().enumerate() {
                bufs[rows.leg(row, strip)][place.clone()].copy_from_slice(bytes);
            }
            if self.bug == PlantedBug::WrongParityStrip {
                strips[0] = strips[rows.data - 1];
            }
            let mut parity: Vec<(usize, &mut [u8])> = bufs
                .iter_mut()
                .enumerate()
                .map(|(leg, buf)| (rows.strip(row, leg), &mut buf[place.clone()]))
                .filter(|(strip, _)| *strip >= rows.data)
                .collect();
            parity.sort_unstable_by_key(|(strip, _)| *strip);
            let mut parity: Vec<&mut [u8]> = parity.into_iter().map(|(_, bytes)| bytes).collect();
            parity::encode(&strips, &mut parity);
        }
        bufs
    }
}
