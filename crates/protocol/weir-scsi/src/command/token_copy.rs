//! POPULATE TOKEN and WRITE USING TOKEN: copies with ROD tokens (offloaded data transfer, ODX).
//!
//! Tokens are in `rod_tokens`, data movement in `transfer`, queries and aborts in `copy_results`.
//! Spec: SBC-4 4.28, 5.12 and 5.59; SPC-4 5.17.6.
//!
//! Invariants:
//! - an invalid parameter list or ROD token changes nothing;
//! - from the check of a token until its data is copied, no SCSI command changes that data; if a
//!   client of another protocol changes it, the command ends with an error;
//! - only an initiator that may use and read the token's logical unit can use the token;
//! - even with IMMED, the response waits for the end of the copy. RECEIVE ROD TOKEN INFORMATION
//!   then returns the errors of the copy.

use std::cmp::Ordering::{Greater, Less};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::codec::copy_list::{designate, designated};
use crate::codec::operation::Access;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{LIST_LENGTH, Sense, invalid_parameter, key};
use crate::command::block::{check_writable, settle};
use crate::command::copy::UNREACHABLE;
use crate::command::copy_run::{CopyRun, UNDERRUN};
use crate::command::task::Task;
use crate::command::transfer::{self, End, Place, failed};
use crate::fields::{be16, be32, be64, bit, set};
use crate::limits::{
    TOKEN_DATA_BYTES_MAX, TOKEN_RANGES_MAX, TOKEN_STEP_BYTES, TOKEN_TIMEOUT_SECONDS,
    TOKEN_TIMEOUT_SECONDS_MAX,
};
use crate::unit::copies::CopyName;
use crate::unit::logical_unit::Unit;
use crate::unit::range::Range;
use crate::unit::range_lock::{Held, Hold};
use crate::unit::rod_tokens::{
    CHANGE_VULNERABLE, REMOTE, RodToken, TOKEN_BYTES, TOKEN_LENGTH, UNSUPPORTED, WRONG_LENGTH,
};
use crate::unit::token_use::Use;

/// ROD type: point in time copy - any. The created token contains the ROD type that the target
/// chose.
const ANY: u32 = 0x0080_FFFF;
/// ROD type: block device zero (SBC-4 4.28.4).
pub(crate) const ZEROS: u32 = 0xFFFF_0001;

/// IMMED, in byte 2 of the parameter lists of POPULATE TOKEN and WRITE USING TOKEN.
const IMMED: u8 = 0x01;
/// RTV: the ROD TYPE field is valid.
const RTV: u8 = 0x02;
/// DEL_TKN: delete the token after its use.
const DEL_TKN: u8 = 0x02;

/// Offset of the token in the parameter list of WRITE USING TOKEN.
const TOKEN_AT: usize = 16;
/// Offset of the range descriptors in the parameter list of WRITE USING TOKEN.
const WRITTEN_AT: usize = 536;
/// Offset of the range descriptors in the parameter list of POPULATE TOKEN.
const POPULATED_AT: usize = 16;

/// Decodes the block device range descriptors in bytes `at` to `at + len` of a parameter list
/// (SBC-4 5.12.3). Omits empty ranges.
fn ranges(unit: &Unit, list: &[u8], at: usize, len: u16) -> Result<Vec<Range>, Refusal> {
    let rest = list.get(at..).unwrap_or_default();
    let here = rest.get(..usize::from(len)).unwrap_or(rest);
    let (descriptors, _) = here.as_chunks::<16>();
    if descriptors.len() > usize::from(TOKEN_RANGES_MAX) {
        // TOO MANY SEGMENT DESCRIPTORS.
        return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x08).into());
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (place, descriptor) in descriptors.iter().enumerate() {
        let range = unit.range(be64(descriptor, 0), be32(descriptor, 8).into())?;
        total += range.len_bytes();
        if total > TOKEN_DATA_BYTES_MAX {
            return Err(invalid_parameter((at + 16 * place + 8) as u16).into());
        }
        if ranges.iter().any(|other: &Range| other.overlaps(range)) {
            return Err(invalid_parameter((at + 16 * place) as u16).into());
        }
        if !range.is_empty() {
            ranges.push(range);
        }
    }
    Ok(ranges)
}

/// Decoded POPULATE TOKEN request.
struct Population {
    name: CopyName,
    timeout: Duration,
    ranges: Vec<Range>,
}

impl Population {
    /// Decodes and checks a parameter list of POPULATE TOKEN (SBC-4 5.12.2).
    fn parse(task: &Task<'_>, list: &[u8]) -> Result<Self, Refusal> {
        if list.len() < POPULATED_AT {
            return Err(LIST_LENGTH.into());
        }
        if be16(list, 0) < 30 {
            return Err(invalid_parameter(0).into());
        }
        let seconds = match be32(list, 4) {
            0 => TOKEN_TIMEOUT_SECONDS,
            seconds @ 1..=TOKEN_TIMEOUT_SECONDS_MAX => seconds,
            _ => return Err(invalid_parameter(4).into()),
        };
        if bit(list, 2, RTV) && !matches!(be32(list, 8), CHANGE_VULNERABLE | ANY) {
            return Err(invalid_parameter(8).into());
        }
        let len = be16(list, 14);
        if len < 16 {
            return Err(invalid_parameter(14).into());
        }
        Ok(Self {
            name: name(task, list),
            timeout: Duration::from_secs(seconds.into()),
            ranges: ranges(task.unit, list, POPULATED_AT, len)?,
        })
    }
}

fn name(task: &Task<'_>, list: &[u8]) -> CopyName {
    CopyName { list: Some(be32(task.cdb, 6)), is_immediate: bit(list, 2, IMMED) }
}

/// Executes POPULATE TOKEN.
pub(crate) async fn populate_token(task: &Task<'_>) -> Outcome {
    let len = be32(task.cdb, 10);
    if len == 0 {
        return Ok(());
    }
    let request = Population::parse(task, task.data(len.into())?)?;
    let run = CopyRun::begin(task, request.name)?;
    let outcome = populate(&run, task, request).await;
    run.end(outcome)
}

async fn populate(run: &CopyRun<'_>, task: &Task<'_>, request: Population) -> Outcome {
    if request.ranges.is_empty() {
        return Ok(());
    }
    let ranges = &task.unit.ranges;
    let steady: Vec<_> = request.ranges.iter().map(|&range| (range, Hold::Stable)).collect();
    let token = RodToken::new(&body(task, &request.ranges), request.ranges)?;
    // Running writes finish before the token becomes valid; later writes cancel the token.
    let _held = ranges.all(&steady).await;
    run.check()?;
    ranges.tokens.publish(&token, request.timeout)?;
    run.advance(0, token.len_bytes());
    run.made(token);
    Ok(())
}

/// Contents of a token before its random bytes (SPC-4 table 112, SBC-4 4.28.5).
fn body(task: &Task<'_>, ranges: &[Range]) -> Vec<u8> {
    let options = &task.unit.options;
    let mut bytes = vec![0; 128];
    set(&mut bytes, 0, &CHANGE_VULNERABLE.to_be_bytes());
    set(&mut bytes, 6, &TOKEN_LENGTH.to_be_bytes());
    set(&mut bytes, 16, &designate(task.unit.naa(), options.block_bytes));
    let len_bytes: u64 = ranges.iter().map(|range| range.len_bytes()).sum();
    set(&mut bytes, 48, &u128::from(len_bytes).to_be_bytes());
    // The next fields equal those of READ CAPACITY (16): block length, blocks per physical block,
    // LBPME and LBPRZ.
    set(&mut bytes, 96, &options.block_bytes.to_be_bytes());
    set(&mut bytes, 100, &[0, (4096 / options.block_bytes).trailing_zeros() as u8, 0xC0]);
    // SCSI name of the target device, if the name fits.
    let name = task.nexus.name.path.target.as_bytes();
    if name.len() < 124 {
        let len = (name.len() + 1).next_multiple_of(4);
        bytes.extend([0x53, 0xA8, 0, len as u8]);
        bytes.extend(name);
    }
    bytes.resize(256, 0);
    bytes
}

/// Decoded WRITE USING TOKEN request.
struct Request<'a> {
    name: CopyName,
    deletes: bool,
    offset_bytes: u64,
    token: &'a [u8],
    ranges: Vec<Range>,
}

impl<'a> Request<'a> {
    /// Decodes and checks a parameter list of WRITE USING TOKEN (SBC-4 5.59.2). Refuses a truncated
    /// list: the initiator does not expect that only a part of its request runs.
    fn parse(task: &Task<'_>, list: &'a [u8]) -> Result<Self, Refusal> {
        if list.len() < WRITTEN_AT {
            return Err(LIST_LENGTH.into());
        }
        if be16(list, 0) < 550 {
            return Err(invalid_parameter(0).into());
        }
        let len = be16(list, 534);
        if len < 16 || usize::from(be16(list, 0)) != usize::from(len) + WRITTEN_AT - 2 {
            return Err(invalid_parameter(534).into());
        }
        if list.len() < WRITTEN_AT + usize::from(len) {
            return Err(LIST_LENGTH.into());
        }
        let offset = be64(list, 8).checked_mul(task.unit.block());
        let token = list.get(TOKEN_AT..TOKEN_AT + TOKEN_BYTES).ok_or(LIST_LENGTH)?;
        Ok(Self {
            name: name(task, list),
            deletes: bit(list, 2, DEL_TKN),
            offset_bytes: offset.ok_or(invalid_parameter(8))?,
            token,
            ranges: ranges(task.unit, list, WRITTEN_AT, len)?,
        })
    }

    fn len_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len_bytes()).sum()
    }
}

/// Executes WRITE USING TOKEN.
pub(crate) async fn write_using_token(task: &Task<'_>) -> Outcome {
    let len = be32(task.cdb, 10);
    if len == 0 {
        return Ok(());
    }
    let request = Request::parse(task, task.data(len.into())?)?;
    check_writable(task.unit)?;
    let run = CopyRun::begin(task, request.name)?;
    let outcome = write(&run, task, &request).await;
    // After a partial copy, the INFORMATION field contains the number of blocks that were written.
    let blocks = run.bytes() / task.unit.block();
    let outcome = outcome.map_err(|refusal| match refusal {
        Refusal::Check(sense) if blocks > 0 => sense.with_information(blocks).into(),
        other => other,
    });
    run.end(outcome)
}

async fn write(run: &CopyRun<'_>, task: &Task<'_>, request: &Request<'_>) -> Outcome {
    if be16(request.token, 6) != TOKEN_LENGTH {
        return Err(WRONG_LENGTH.into());
    }
    match be32(request.token, 0) {
        ZEROS => write_zeros(run, task, request).await,
        CHANGE_VULNERABLE => write_data(run, task, request).await,
        _ => Err(UNSUPPORTED.into()),
    }
}

/// Source and destination range of one step of WRITE USING TOKEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// Source range of the step; `None` for zeros.
    from: Option<Range>,
    to: Range,
}

/// Run of bytes to write: data from a source offset, or zeros if there is no offset.
#[derive(Clone, Copy)]
struct Piece {
    from: Option<u64>,
    len_bytes: u64,
}

/// Maps consecutive pieces onto the destination ranges. Ends when the pieces or the ranges are used
/// up.
fn steps(pieces: &[Piece], ranges: &[Range]) -> Vec<Step> {
    let (mut pieces, mut ranges) = (pieces.iter().copied(), ranges.iter().copied());
    let (mut piece, mut range) = (pieces.next(), ranges.next());
    let mut steps = Vec::new();
    while let (Some(source), Some(to)) = (piece, range) {
        let len = source.len_bytes.min(to.len_bytes()).min(TOKEN_STEP_BYTES);
        steps.push(Step {
            from: source.from.map(|start| Range { start, end: start + len }),
            to: Range { start: to.start, end: to.start + len },
        });
        let rest =
            Piece { from: source.from.map(|start| start + len), len_bytes: source.len_bytes - len };
        let behind = Range { start: to.start + len, ..to };
        piece = if rest.len_bytes > 0 { Some(rest) } else { pieces.next() };
        range = if behind.is_empty() { ranges.next() } else { Some(behind) };
    }
    steps
}

async fn zero(task: &Task<'_>, range: Range) -> Outcome {
    let (medium, len) = (&task.unit.medium, range.len_bytes());
    if !medium.try_zero(range.start, len, true).map_err(failed)? {
        medium.zero(range.start, len, true).await.map_err(failed)?;
    }
    Ok(())
}

async fn write_zeros(run: &CopyRun<'_>, task: &Task<'_>, request: &Request<'_>) -> Outcome {
    let all = Piece { from: None, len_bytes: request.len_bytes() };
    for Step { to, .. } in steps(&[all], &request.ranges) {
        run.check()?;
        {
            let _held = task.unit.ranges.shared(to).await;
            zero(task, to).await?;
        }
        task.unit.counting.zeroed_bytes.fetch_add(to.len_bytes(), Ordering::Relaxed);
        run.advance(0, to.len_bytes());
    }
    settle(task, false).await
}

/// Pieces that cover a token's data from an offset to its end.
fn pieces_of(token: &RodToken, mut offset_bytes: u64) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(token.ranges().len());
    for range in token.ranges() {
        let skipped = offset_bytes.min(range.len_bytes());
        offset_bytes -= skipped;
        if skipped < range.len_bytes() {
            let len_bytes = range.len_bytes() - skipped;
            pieces.push(Piece { from: Some(range.start + skipped), len_bytes });
        }
    }
    pieces
}

async fn write_data(run: &CopyRun<'_>, task: &Task<'_>, request: &Request<'_>) -> Outcome {
    let naa = designated(request.token.get(16..48).unwrap_or_default()).ok_or(REMOTE)?;
    let source = End::find(task, naa).ok_or(REMOTE)?;
    let used = Use::begin(&source.unit, request.token)?;
    if !source.allows(task, Access::Read) {
        return Err(UNREACHABLE.into());
    }
    let available = used.token().len_bytes().checked_sub(request.offset_bytes);
    let available = available.filter(|bytes| *bytes > 0).ok_or(invalid_parameter(8))?;
    // Refuse to write to the ranges that the token represents: the write would cancel the token
    // while this command uses it.
    let is_same = std::ptr::eq(&raw const *source.unit, task.unit);
    let stands_for = |range: &Range| used.token().ranges().iter().any(|own| own.overlaps(*range));
    if is_same && request.ranges.iter().any(stands_for) {
        return Err(invalid_parameter(WRITTEN_AT as u16).into());
    }
    // The token's data may end within a destination block; the rest of that block is filled with
    // zeros.
    let mut pieces = pieces_of(used.token(), request.offset_bytes);
    let behind = available.next_multiple_of(task.unit.block()) - available;
    if behind > 0 {
        pieces.push(Piece { from: None, len_bytes: behind });
    }
    {
        let _held = hold(task.unit, &used, &request.ranges).await;
        used.check()?;
        for step in steps(&pieces, &request.ranges) {
            run.check()?;
            write_step(run, task, &source.unit, step).await?;
        }
        // The lock excludes SCSI commands, but a client of another protocol may have changed the
        // source during the copy. The written data is then not the data that the token represented.
        used.check()?;
    }
    settle(task, false).await?;
    if request.deletes {
        used.delete();
    }
    if request.len_bytes() > run.bytes() { Err(UNDERRUN.into()) } else { Ok(()) }
}

async fn write_step(run: &CopyRun<'_>, task: &Task<'_>, source: &Unit, step: Step) -> Outcome {
    let Step { from, to } = step;
    match from {
        Some(from) => {
            let from = Place { unit: source, range: from };
            transfer::copy(run, from, Place { unit: task.unit, range: to }, true).await?;
        }
        None => zero(task, to).await?,
    }
    task.unit.counting.cloned_bytes.fetch_add(to.len_bytes(), Ordering::Relaxed);
    run.advance(0, to.len_bytes());
    Ok(())
}

/// Locks the token's ranges as stable, and the destination ranges as a shared writer. All commands
/// lock units in the same order, so that two copies in opposite directions cannot deadlock.
async fn hold<'a>(destination: &'a Unit, used: &'a Use, ranges: &[Range]) -> Vec<Held<'a>> {
    let written = ranges.iter().map(|&range| (range, Hold::Shared));
    let read = used.token().ranges().iter().map(|&range| (range, Hold::Stable));
    let (there, here) = (&used.unit().ranges, &destination.ranges);
    let (written, read): (Vec<_>, Vec<_>) = (written.collect(), read.collect());
    let (mut first, second) = match there.place().cmp(&here.place()) {
        Less => (there.all(&read).await, here.all(&written).await),
        Greater => (here.all(&written).await, there.all(&read).await),
        std::cmp::Ordering::Equal => return here.all(&[read, written].concat()).await,
    };
    first.extend(second);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn pieces_map_onto_ranges_in_order() {
        let body = [0; 16];
        let token = RodToken::new(&body, vec![range(0, 1000), range(5000, 5500)]).unwrap();
        let mut pieces = pieces_of(&token, 300);
        pieces.push(Piece { from: None, len_bytes: 100 });
        let laid = steps(&pieces, &[range(9000, 9600), range(20_000, 22_000)]);
        let step = |from: Option<Range>, to: Range| Step { from, to };
        let expected = [
            step(Some(range(300, 900)), range(9000, 9600)),
            step(Some(range(900, 1000)), range(20_000, 20_100)),
            step(Some(range(5000, 5500)), range(20_100, 20_600)),
            step(None, range(20_600, 20_700)),
        ];
        assert_eq!(laid, expected);
        assert!(pieces_of(&token, 1500).is_empty());
        let long = Piece { from: Some(0), len_bytes: 3 * TOKEN_STEP_BYTES };
        let laid = steps(&[long], &[range(0, 3 * TOKEN_STEP_BYTES - 1)]);
        assert_eq!(laid.len(), 3);
        assert_eq!(laid[2].to.len_bytes(), TOKEN_STEP_BYTES - 1);
    }
}
