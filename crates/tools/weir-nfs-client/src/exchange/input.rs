//! Input parser: finds the records of replies, and separates the data of READ from its head.
//!
//! `reply` decodes the records.
//!
//! ```text
//! Head -> Data (of a READ, to the buffer of the slot) -> Padding -> Head
//!      \-> Record (incomplete or in fragments)        -/
//! ```
//!
//! Invariants: the parser accepts at most the data that the call requested; it collects at most one
//! record of [`RECORD_BYTES_MAX`].

use std::ops::Range;

use weir_nfs_wire::nfs3::PostOpAttr;
use weir_oncrpc::message::{self, AcceptStat, ReplyBody};
use weir_oncrpc::record::{Framed, MARK_BYTES, RecordError, frame};
use weir_oncrpc::xdr::{UNBOUNDED, padding};
use weir_oncrpc::{Xdr as _, XdrError};

use super::calls::Calls;
use super::reply::{Kind, Reply};
use super::request::Buffers;
use crate::error::NfsError;
use crate::limits::{HEAD_BYTES_MAX, RECORD_BYTES_MAX};

/// Range of a caller's buffer for the next bytes from the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Slot of the buffer.
    pub(crate) slot: usize,
    /// Range of the buffer.
    pub(crate) range: Range<usize>,
}

/// Bit of a record mark: the fragment is the last one (RFC 5531 section 11).
const LAST: u32 = 1 << 31;

/// Stage of the parser.
#[derive(Default)]
enum Stage {
    #[default]
    Head,
    /// A record that is collected; it has at least `bytes` bytes with its marks.
    Record { bytes: usize },
    /// Data of a READ; the range `missing` of the buffer has not arrived yet.
    Data { slot: usize, missing: Range<usize>, then: Ending },
    /// `bytes` padding bytes after the data of a READ have not arrived yet.
    Padding { bytes: usize, then: Ending },
}

/// Call that ends with the current record, and its reply.
#[derive(Clone, Copy)]
struct Ending {
    call: usize,
    data_bytes: u32,
    eof: bool,
}

/// Head of a reply to READ.
enum ReadHead {
    /// The received part of the record ends inside the head.
    Incomplete,
    /// The reply has no data: the call failed.
    NoData,
    /// Data follows the first `bytes` bytes of the record.
    Data { bytes: usize, data_bytes: u32, eof: bool },
}

#[derive(Default)]
pub(super) struct Input {
    stage: Stage,
    /// Received part of a record that is collected, with its marks.
    record: Vec<u8>,
}

impl Input {
    pub(super) fn place(&self) -> Option<Place> {
        match &self.stage {
            Stage::Data { slot, missing, .. } if !missing.is_empty() => {
                Some(Place { slot: *slot, range: missing.clone() })
            }
            _ => None,
        }
    }

    pub(super) fn placed(&mut self, bytes: usize) {
        if let Stage::Data { missing, .. } = &mut self.stage {
            missing.start += bytes.min(missing.len());
        }
    }

    /// Advances the parser by one stage. Returns the number of bytes used, or `None` if the stage
    /// needs more bytes.
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        calls: &mut Calls,
        buffers: &mut impl Buffers,
    ) -> Result<Option<usize>, NfsError> {
        match &mut self.stage {
            Stage::Head => self.take_head(bytes, calls, buffers),
            Stage::Record { bytes: needed } => {
                let missing = needed.saturating_sub(self.record.len());
                let now = missing.min(bytes.len());
                self.record.extend_from_slice(bytes.get(..now).unwrap_or_default());
                if now < missing {
                    return Ok((now > 0).then_some(now));
                }
                self.take_collected(calls, buffers)?;
                Ok(Some(now))
            }
            Stage::Data { slot, missing, then } => {
                let now = missing.len().min(bytes.len());
                let place = missing.start..missing.start + now;
                if let Some(place) = buffers.data_mut(*slot).get_mut(place) {
                    place.copy_from_slice(bytes.get(..now).unwrap_or_default());
                }
                missing.start += now;
                if missing.start == missing.end {
                    let bytes = padding(then.data_bytes as usize);
                    self.stage = Stage::Padding { bytes, then: *then };
                    return Ok(Some(now));
                }
                Ok((now > 0).then_some(now))
            }
            Stage::Padding { bytes: needed, then } => {
                if bytes.len() < *needed {
                    return Ok(None);
                }
                let (needed, Ending { call, data_bytes, eof }) = (*needed, *then);
                self.stage = Stage::Head;
                calls.end(call, Reply::Read { bytes: data_bytes, eof });
                Ok(Some(needed))
            }
        }
    }

    fn take_head(
        &mut self,
        bytes: &[u8],
        calls: &mut Calls,
        buffers: &mut impl Buffers,
    ) -> Result<Option<usize>, NfsError> {
        let Some(mark) = bytes.first_chunk::<MARK_BYTES>() else { return Ok(None) };
        let mark = u32::from_be_bytes(*mark);
        let (len, is_last) = ((mark & !LAST) as usize, mark & LAST != 0);
        if len > RECORD_BYTES_MAX {
            return Err(RecordError::TooLong { bytes: len, max: RECORD_BYTES_MAX }.into());
        }
        let received = bytes.get(MARK_BYTES..).unwrap_or_default();
        let received = received.get(..len.min(received.len())).unwrap_or_default();
        if is_last && len >= 4 {
            let Some(xid) = received.first_chunk() else { return Ok(None) };
            let call = calls.find(u32::from_be_bytes(*xid))?;
            match read_head(calls, call, received, len)? {
                ReadHead::Incomplete => return Ok(None),
                ReadHead::NoData => {}
                ReadHead::Data { bytes, data_bytes, eof } => {
                    self.begin_data(calls, Ending { call, data_bytes, eof });
                    return Ok(Some(MARK_BYTES + bytes));
                }
            }
            if received.len() == len {
                calls.take_record(received, buffers)?;
                return Ok(Some(MARK_BYTES + len));
            }
        }
        self.record.clear();
        self.stage = Stage::Record { bytes: MARK_BYTES };
        Ok(Some(0))
    }

    fn begin_data(&mut self, calls: &Calls, then: Ending) {
        let Some(Kind::Read { slot, range }) = calls.kind(then.call) else { return };
        let missing = range.start..range.start + then.data_bytes as usize;
        self.stage = Stage::Data { slot: *slot, missing, then };
    }

    /// Decodes the collected record if it is complete. Otherwise sets its known length.
    fn take_collected(
        &mut self,
        calls: &mut Calls,
        buffers: &mut impl Buffers,
    ) -> Result<(), NfsError> {
        let mut collected = std::mem::take(&mut self.record);
        match frame(&mut collected, RECORD_BYTES_MAX)? {
            Framed::Need { bytes, .. } => {
                self.stage = Stage::Record { bytes };
                self.record = collected;
            }
            Framed::Record { record, .. } => {
                calls.take_record(record, buffers)?;
                self.stage = Stage::Head;
            }
        }
        Ok(())
    }
}

/// Decodes the head of a reply to READ from the received part of a record of `len` bytes.
fn read_head(
    calls: &Calls,
    call: usize,
    received: &[u8],
    len: usize,
) -> Result<ReadHead, NfsError> {
    let Some(Kind::Read { range, .. }) = calls.kind(call) else {
        return Ok(ReadHead::NoData);
    };
    let head = match decode_head(received) {
        Ok(head) => head,
        Err(XdrError::Truncated) if received.len() < len.min(HEAD_BYTES_MAX) => {
            return Ok(ReadHead::Incomplete);
        }
        Err(source) => return Err(NfsError::Reply { what: "READ", source }),
    };
    if let ReadHead::Data { bytes, data_bytes, .. } = head {
        let data = data_bytes as usize;
        if data > range.len() {
            return Err(NfsError::Protocol { why: "more data than a READ requested" });
        }
        if bytes + data + padding(data) != len {
            let why = "the record of a READ is longer or shorter than its data";
            return Err(NfsError::Protocol { why });
        }
    }
    Ok(head)
}

/// Decodes the head of a reply to READ.
fn decode_head(received: &[u8]) -> Result<ReadHead, XdrError> {
    let (reply, mut input) = message::Reply::decode(received)?;
    let ReplyBody::Accepted { stat: AcceptStat::Success, .. } = reply.body else {
        return Ok(ReadHead::NoData);
    };
    if input.clone().u32()? != 0 {
        return Ok(ReadHead::NoData);
    }
    input.u32()?;
    PostOpAttr::decode(&mut input)?;
    let (data_bytes, eof) = (input.u32()?, input.bool()?);
    let len = input.length(UNBOUNDED)?;
    if len != data_bytes as usize {
        return Err(XdrError::WrongCount { len, count: data_bytes as usize });
    }
    Ok(ReadHead::Data { bytes: received.len() - input.rest().len(), data_bytes, eof })
}
