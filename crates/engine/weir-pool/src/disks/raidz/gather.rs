//! Reads as many strips of some slices (the same byte range of every strip of a row) as
//! reconstruction needs, without waiting for slow legs.
//!
//! Not here: reading the wanted bytes alone from the legs that hold them (`raidz`), computing
//! strips (`reconstruct`).
//!
//! Invariants:
//! - each strip is read at most once;
//! - if a strip cannot be read, or its read takes far longer than reads of its leg usually take,
//!   another strip is read; the strips that arrive first are used;
//! - a late strip is awaited while the other strips do not suffice, and counts as unread until it
//!   arrives.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use weir_base::clock::Sleep;
use weir_block::IoBuf;
use weir_device::{Device, DeviceError};

use crate::disks::hedge::hedge_delay;
use crate::disks::leg::{Doubt, Leg};
use crate::disks::rows::{Piece, Rows, Slice};
use crate::disks::vdev::Vdev;

/// State of one strip of a slice.
pub(super) enum Strip {
    Unread,
    Asked(Asked),
    /// Strip that was read, with the doubt about its leg at the time when the read was issued: a
    /// resilver may end while other strips are read.
    Read(IoBuf, Doubt),
    /// The leg has no disk, or the read failed.
    Missing,
}

/// Strip with a read in flight.
pub(super) struct Asked {
    device: Arc<dyn Device>,
    doubt: Doubt,
    /// Time after which the read is late; unset until a caller waits for it.
    due: Option<Duration>,
    late: bool,
}

/// Slice and the state of its strips.
pub(super) struct Reading {
    pub(super) slice: Slice,
    pub(super) strips: Vec<Strip>,
}

impl Reading {
    pub(super) fn len(&self) -> usize {
        (self.slice.within.end - self.slice.within.start) as usize
    }

    pub(super) fn read(&self, strip: usize) -> Option<&[u8]> {
        match &self.strips[strip] {
            Strip::Read(buf, _) => Some(buf),
            Strip::Unread | Strip::Asked(_) | Strip::Missing => None,
        }
    }

    /// Strips of the slice that were not read: unread, in flight or missing.
    pub(super) fn unknown(&self) -> Vec<usize> {
        (0..self.strips.len()).filter(|strip| self.read(*strip).is_none()).collect()
    }

    /// Returns the strips that were not read, if a wanted strip is among them and must be
    /// reconstructed. Returns none if all wanted strips were read.
    pub(super) fn lost(&self) -> Vec<usize> {
        let unknown = self.unknown();
        if unknown.iter().any(|strip| self.wants(*strip)) { unknown } else { Vec::new() }
    }

    pub(super) fn wants(&self, strip: usize) -> bool {
        self.slice.pieces.iter().any(|piece| piece.strip == strip)
    }

    /// Byte range of a piece in the slice's buffers.
    pub(super) fn place(&self, piece: &Piece) -> Range<usize> {
        let start = (piece.within.start - self.slice.within.start) as usize;
        start..start + piece.len()
    }

    /// True if every wanted strip is known or can be reconstructed.
    fn is_enough(&self, rows: &Rows) -> bool {
        self.lost().len() <= rows.parity
    }

    fn is_unread(&self, strip: usize) -> bool {
        matches!(self.strips[strip], Strip::Unread)
    }

    /// True if the strip's read is in flight and not late.
    fn is_coming(&self, strip: usize) -> bool {
        matches!(&self.strips[strip], Strip::Asked(asked) if !asked.late)
    }

    fn any_is_coming(&self) -> bool {
        (0..self.strips.len()).any(|strip| self.is_coming(strip))
    }
}

/// Result of one strip's read.
struct Answer {
    reading: usize,
    strip: usize,
    done: Result<(), DeviceError>,
    buf: IoBuf,
}

/// Strips of some slices, with their reads. Dropping this value abandons the reads in flight.
pub(super) struct Gather<'a> {
    vdev: &'a Vdev,
    rows: &'a Rows,
    pub(super) readings: Vec<Reading>,
    /// Read of each strip in state [`Strip::Asked`]. Each read keeps its disk open.
    under_way: FuturesUnordered<LocalBoxFuture<'a, Answer>>,
    /// Indexes of the slow legs that this read did not wait for and already counted.
    bypassed: Vec<usize>,
}

impl<'a> Gather<'a> {
    /// Creates the slices of `pieces`; issues no read yet. `failed`: unreadable strips, by row and
    /// number. `bypassed`: slow legs that this read already counted.
    pub(super) fn new(
        vdev: &'a Vdev,
        rows: &'a Rows,
        pieces: Vec<Piece>,
        failed: &[(u64, usize)],
        bypassed: Vec<usize>,
    ) -> Self {
        let reading = |slice: Slice| {
            let failed = |strip| failed.contains(&(slice.row, strip));
            let state = |strip| if failed(strip) { Strip::Missing } else { Strip::Unread };
            Reading { strips: (0..rows.strips()).map(state).collect(), slice }
        };
        let readings = Rows::slices(pieces).into_iter().map(reading).collect();
        Self { vdev, rows, readings, under_way: FuturesUnordered::new(), bypassed }
    }

    /// Reads the wanted strips of each slice, and other strips in place of missing or slow ones.
    /// Returns when the strips read suffice to compute the wanted ones, or when no read is in
    /// flight.
    pub(super) async fn enough(&mut self) {
        let (vdev, rows) = (self.vdev, self.rows);
        let replaceable = |reading: &Reading| {
            let usable = |strip| vdev.leg_of(rows, reading.slice.row, strip).usable().is_some();
            let more = |strip: usize| reading.is_unread(strip) && usable(strip);
            !reading.is_enough(rows) && (0..rows.strips()).any(more)
        };
        loop {
            (0..self.readings.len()).for_each(|reading| self.ask_enough(reading));
            let done = self.readings.iter().all(|reading| reading.is_enough(rows));
            if done || self.under_way.is_empty() {
                return;
            }
            if let Some(late) = self.next(replaceable).await {
                late.into_iter().for_each(|leg| self.bypass(leg));
            }
        }
    }

    /// Reads every strip. Waits for each strip until its read is late, and then continues without
    /// it.
    pub(super) async fn all(&mut self) {
        for reading in 0..self.readings.len() {
            for strip in 0..self.rows.strips() {
                if self.readings[reading].is_unread(strip) {
                    self.ask(reading, strip);
                }
            }
        }
        while self.readings.iter().any(Reading::any_is_coming) {
            self.next(|_| true).await;
        }
    }

    /// Waits for one of the late strips; false if there is none.
    pub(super) async fn one_more(&mut self) -> bool {
        let more = !self.under_way.is_empty();
        self.next(|_| false).await;
        more
    }

    /// Counts the legs whose reads are still in flight as slow, because the read completed without
    /// their strips.
    pub(super) fn bypass_rest(&mut self) {
        let mut legs = Vec::new();
        for reading in &self.readings {
            let asked = |strip: &usize| matches!(reading.strips[*strip], Strip::Asked(_));
            let strips = (0..self.rows.strips()).filter(asked);
            legs.extend(strips.map(|strip| self.rows.leg(reading.slice.row, strip)));
        }
        legs.into_iter().for_each(|leg| self.bypass(leg));
    }

    fn leg(&self, reading: usize, strip: usize) -> &'a Leg {
        self.vdev.leg_of(self.rows, self.readings[reading].slice.row, strip)
    }

    /// Issues reads until the strips read and the strips in flight suffice to compute the wanted
    /// ones.
    fn ask_enough(&mut self, index: usize) {
        loop {
            let reading = &self.readings[index];
            if reading.is_enough(self.rows) {
                return;
            }
            let there = |strip: usize| reading.read(strip).is_some() || reading.is_coming(strip);
            let good = |strip: usize| {
                let leg = self.leg(index, strip);
                reading.is_unread(strip) && leg.usable().is_some() && !leg.is_avoided()
            };
            let mut wanted = (0..self.rows.data).filter(|strip| reading.wants(*strip));
            let own = wanted.all(|strip| there(strip) || good(strip));
            let unread = (0..self.rows.strips()).filter(|strip| reading.is_unread(*strip));
            let mut next: Vec<usize> = unread.filter(|s| !own || reading.wants(*s)).collect();
            if !own {
                // Sort order: first the legs that were not slow recently, then the slow ones;
                // within each of these two groups, legs that are up to date come first.
                next.sort_by_cached_key(|strip| {
                    let leg = self.leg(index, *strip);
                    (leg.is_avoided(), leg.doubt(), !reading.wants(*strip))
                });
                let there = (0..self.rows.strips()).filter(|strip| there(*strip)).count();
                next.truncate(self.rows.data.saturating_sub(there));
            }
            // Repeat the selection if the leg of a selected strip turned out to have no disk.
            if next.into_iter().all(|strip| self.ask(index, strip)) {
                return;
            }
        }
    }

    /// Issues the read of one strip; false if its leg has no disk.
    fn ask(&mut self, index: usize, strip: usize) -> bool {
        let leg = self.leg(index, strip);
        let reading = &mut self.readings[index];
        let Some(device) = leg.usable() else {
            reading.strips[strip] = Strip::Missing;
            return false;
        };
        let at = self.rows.leg_offset(reading.slice.row, reading.slice.within.start);
        let (at, buf, disk) =
            (self.vdev.base + at, IoBuf::for_read(reading.len()), Arc::clone(&device));
        self.under_way.push(Box::pin(async move {
            let (done, buf) = disk.read_at(at, buf).await;
            Answer { reading: index, strip, done, buf }
        }));
        let doubt = leg.doubt();
        reading.strips[strip] = Strip::Asked(Asked { device, doubt, due: None, late: false });
        true
    }

    /// Processes one completed read, or returns the legs that are late now. Only slices for which
    /// `hedged` is true have late legs.
    async fn next(&mut self, hedged: impl Fn(&Reading) -> bool) -> Option<Vec<usize>> {
        let mut timer: Option<(Duration, Sleep)> = None;
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = self.under_way.poll_next_unpin(context) {
                return Poll::Ready(Ok(answer));
            }
            if timer.is_none() {
                timer = self.timer(&hedged);
            }
            let Some((due, sleep)) = &mut timer else { return Poll::Pending };
            ready!(sleep.as_mut().poll(context));
            Poll::Ready(Err(*due))
        })
        .await;
        match answer {
            Ok(answer) => {
                if let Some(answer) = answer {
                    self.take(answer);
                }
                None
            }
            Err(due) => Some(self.note_late(due, hedged)),
        }
    }

    /// Timer that expires when the first leg is late; `None` if no slice is `hedged`.
    fn timer(&mut self, hedged: impl Fn(&Reading) -> bool) -> Option<(Duration, Sleep)> {
        let now = self.vdev.clock.monotonic();
        let mut first: Option<Duration> = None;
        for reading in &mut self.readings {
            let hedged = hedged(reading);
            for strip in &mut reading.strips {
                if let Strip::Asked(asked) = strip
                    && !asked.late
                {
                    let due = *asked.due.get_or_insert_with(|| now + hedge_delay(&*asked.device));
                    if hedged {
                        first = Some(first.map_or(due, |first| first.min(due)));
                    }
                }
            }
        }
        let due = first?;
        Some((due, self.vdev.clock.sleep(due.saturating_sub(now))))
    }

    fn take(&mut self, answer: Answer) {
        let Answer { reading, strip, done, buf } = answer;
        let leg = self.leg(reading, strip);
        let read = done.map_err(|error| leg.count_read_error(&error)).is_ok();
        let strip = &mut self.readings[reading].strips[strip];
        *strip = match strip {
            Strip::Asked(asked) if read => Strip::Read(buf, asked.doubt),
            _ => Strip::Missing,
        };
    }

    /// Marks the reads that were due by `due` as late, and returns the legs of these reads.
    fn note_late(&mut self, due: Duration, hedged: impl Fn(&Reading) -> bool) -> Vec<usize> {
        let rows = self.rows;
        let mut legs = Vec::new();
        for reading in &mut self.readings {
            if !hedged(reading) {
                continue;
            }
            for (strip, state) in reading.strips.iter_mut().enumerate() {
                if let Strip::Asked(asked) = state
                    && !asked.late
                    && asked.due.is_some_and(|its| its <= due)
                {
                    asked.late = true;
                    legs.push(rows.leg(reading.slice.row, strip));
                }
            }
        }
        legs
    }

    /// Counts that this read was served without waiting for the leg, because the leg was slow; at
    /// most once for each read.
    fn bypass(&mut self, leg: usize) {
        if !self.bypassed.contains(&leg) {
            self.bypassed.push(leg);
            self.vdev.legs[leg].note_bypass();
        }
    }
}
