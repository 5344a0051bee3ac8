//! Tests of the four SCSI primitives that hypervisors offload to storage, on two scratch logical
//! units. Each test reads its result back, and compares time and bytes with those of ordinary
//! commands that have the same effect.
//!
//! Not here: the creation of the units (`run`).
//!
//! Invariants:
//! - every result is read back through the target, never assumed;
//! - the ordinary commands are really sent. If these commands would take too long, they cover only
//!   a part of the unit and their figures are scaled; the report states the number of covered
//!   bytes;

use std::time::{Duration, Instant};

use serde::Serialize;
use weir_initiator::cdb::{self, CopySegment, WriteSame};
use weir_initiator::{InitiatorError, LoginOptions, Session, Url, naa_in};

/// Block size of the scratch units; dedupe compares blocks of this size.
pub(super) const BLOCK_BYTES: u32 = 4096;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of each ordinary read and write.
const PIECE_BYTES: u64 = 1 << 20;
/// Maximum number of bytes for ordinary commands. The test scales the time of these commands to the
/// whole unit.
const PLAIN_BYTES_MAX: u64 = 256 << 20;
/// Number of blocks of one WRITE SAME command, and of one segment of a copy.
const RUN_BLOCKS: u64 = 65_535;
/// Number of segments of one EXTENDED COPY command.
const SEGMENTS: usize = 32;
/// Number of blocks that a test reads back, spread over the unit.
const SAMPLES: u64 = 64;
/// Number of increments that each of the two initiators makes in a race.
const RACE_ROUNDS: u64 = 500;
/// Time limit of a command. A copy of 8 GiB is one command.
const COMMAND_LIMIT: Duration = Duration::from_mins(5);
/// Sense key MISCOMPARE: the compared data differs.
const MISCOMPARE: u8 = 0x0E;

/// Measurement of one primitive, and of the ordinary commands with the same effect.
#[derive(Debug, Serialize)]
pub(super) struct Primitive {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Bytes of the logical unit on which the primitive acted.
    pub(super) covered_bytes: u64,
    pub(super) seconds: f64,
    /// Bytes that the primitive sent and received, including protocol headers.
    pub(super) wire_bytes: u64,
    /// Time of the ordinary commands, scaled from the measured bytes `plain_measured_bytes`.
    pub(super) plain_seconds: f64,
    pub(super) plain_wire_bytes: u64,
    pub(super) plain_measured_bytes: u64,
    pub(super) saved_seconds: f64,
    /// Bytes on the wire that the primitive saves; negative if it transfers more than the ordinary
    /// commands.
    pub(super) saved_wire_bytes: i64,
    /// Description of the data that the test read back, as proof of the result.
    pub(super) proof: String,
}

/// Reason why the test of a primitive failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproved {
    #[error(transparent)]
    Initiator(#[from] InitiatorError),
    #[error("{primitive}: {what}")]
    Wrong { primitive: &'static str, what: String },
}

/// Time and bytes on the wire of a series of commands.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    wire_bytes: u64,
}

/// Two scratch logical units of the same size.
///
/// Each test logs in to the units that it uses: a session that sends nothing for a minute would not
/// answer the NOP-In of the target, which then drops it.
pub(super) struct Bench {
    source: Url,
    destination: Url,
    size_bytes: u64,
    pattern: Vec<u8>,
}

impl Bench {
    pub(super) fn open(source: &Url, destination: &Url, bytes: u64) -> Result<Self, Unproved> {
        let mut pattern = vec![0; BLOCK as usize];
        getrandom::fill(&mut pattern).map_err(|_| InitiatorError::NoRandomness)?;
        for url in [source, destination] {
            let mut session = log_in(url)?;
            let capacity = session.read_capacity()?;
            if capacity.block_bytes != BLOCK_BYTES || capacity.bytes() != bytes {
                return Err(wrong("READ CAPACITY", "wrong size"));
            }
            session.logout()?;
        }
        let (source, destination) = (source.clone(), destination.clone());
        Ok(Self { source, destination, size_bytes: bytes, pattern })
    }

    /// Tests WRITE SAME: overwrites a unit full of data with zeros.
    pub(super) fn write_same(&self) -> Result<Primitive, Unproved> {
        const NAME: &str = "write-same";
        let (mut source, pattern) = (log_in(&self.source)?, &self.pattern);
        fill(&mut source, self.size_bytes, pattern)?;
        self.expect_everywhere(NAME, &mut source, pattern)?;
        let plain_bytes = self.plain_bytes();
        let zeros = vec![0; PIECE_BYTES as usize];
        let plain = timed(&mut source, |session| {
            for at in (0..plain_bytes).step_by(PIECE_BYTES as usize) {
                session.write("WRITE", write_piece(at), &zeros)?;
            }
            Ok(())
        })?;
        fill(&mut source, plain_bytes, pattern)?;
        let size_bytes = self.size_bytes;
        let zero = vec![0; BLOCK as usize];
        let cost = timed(&mut source, |session| {
            for (lba, blocks) in runs(size_bytes) {
                let how = WriteSame::default();
                session.write("WRITE SAME", cdb::write_same16(lba, blocks, how), &zero)?;
            }
            Ok(())
        })?;
        self.expect_everywhere(NAME, &mut source, &zero)?;
        source.logout()?;
        let title = "zero blocks (WRITE SAME)";
        let proof = format!("{SAMPLES} blocks across the range held data before and read as zeros");
        Ok(self.judged(NAME, title, (cost, plain), proof))
    }

    /// Tests EXTENDED COPY: copies the whole source unit to the destination unit.
    pub(super) fn copy(&self) -> Result<Primitive, Unproved> {
        const NAME: &str = "copy";
        let (mut source, pattern) = (log_in(&self.source)?, &self.pattern);
        fill(&mut source, self.size_bytes, pattern)?;
        // Write blocks with unique contents, so that a block copied to a wrong address is found.
        for (number, lba) in self.samples().enumerate() {
            source.write("WRITE", cdb::write16(lba, 1, false), &marked(pattern, number))?;
        }
        let plain_bytes = self.plain_bytes();
        let mut destination = log_in(&self.destination)?;
        let plain = plain_copy(&mut source, &mut destination, plain_bytes)?;
        fill(&mut destination, plain_bytes, &vec![0; BLOCK as usize])?;
        let naa = |session: &mut Session| {
            let names = session.vital_data(0x83)?.unwrap_or_default();
            naa_in(&names).ok_or_else(|| wrong(NAME, "a logical unit has no NAA designator"))
        };
        let (from, to) = (naa(&mut source)?, naa(&mut destination)?);
        let segments: Vec<CopySegment> = runs(self.size_bytes)
            .map(|(lba, blocks)| CopySegment { from: lba, to: lba, blocks: blocks as u16 })
            .collect();
        let cost = timed(&mut destination, |session| {
            for some in segments.chunks(SEGMENTS) {
                let list = cdb::copy_list_of(&from, &to, BLOCK_BYTES, some);
                session.write("EXTENDED COPY", cdb::extended_copy(list.len() as u32), &list)?;
                // Send a command to the source too, so that its session does not become idle.
                source.ready()?;
            }
            Ok(())
        })?;
        for (number, lba) in self.samples().enumerate() {
            let wanted = marked(pattern, number);
            expect(NAME, &mut destination, lba, &wanted)?;
            // The copy must be independent: a write to the source must not change it.
            source.write("WRITE", cdb::write16(lba, 1, false), pattern)?;
            expect(NAME, &mut destination, lba, &wanted)?;
        }
        source.logout()?;
        destination.logout()?;
        let title = "clone blocks (EXTENDED COPY)";
        let proof =
            format!("{SAMPLES} marked blocks are correct, also after the source is overwritten");
        Ok(self.judged(NAME, title, (cost, plain), proof))
    }

    /// Tests UNMAP: unmaps all blocks of a unit.
    pub(super) fn unmap(&self) -> Result<Primitive, Unproved> {
        const NAME: &str = "unmap";
        let (pattern, size_bytes) = (&self.pattern, self.size_bytes);
        let mut destination = log_in(&self.destination)?;
        fill(&mut destination, size_bytes, pattern)?;
        let plain_bytes = self.plain_bytes();
        let zeros = vec![0; PIECE_BYTES as usize];
        // The alternative to UNMAP is a write of zeros, which frees no space on most targets.
        let plain = timed(&mut destination, |session| {
            for at in (0..plain_bytes).step_by(PIECE_BYTES as usize) {
                session.write("WRITE", write_piece(at), &zeros)?;
            }
            Ok(())
        })?;
        fill(&mut destination, plain_bytes, pattern)?;
        let cost = timed(&mut destination, |session| {
            for (lba, blocks) in runs(size_bytes) {
                let list = cdb::unmap_list(&[(lba, blocks)]);
                session.write("UNMAP", cdb::unmap(list.len() as u16), &list)?;
            }
            Ok(())
        })?;
        let mut lba = 0;
        while lba < size_bytes / BLOCK {
            let cdb = cdb::get_lba_status(lba, 24);
            let data = destination.read("GET LBA STATUS", cdb, 24)?;
            let (first, blocks) = (number(&data, 8, 8), number(&data, 16, 4));
            if first != lba || blocks == 0 || data.get(20).is_none_or(|status| status & 0x0F != 1) {
                return Err(wrong(NAME, &format!("block {lba} is still allocated")));
            }
            lba += blocks;
        }
        for lba in self.samples() {
            expect(NAME, &mut destination, lba, &zeros[..BLOCK as usize])?;
        }
        destination.logout()?;
        let title = "unmap blocks (UNMAP)";
        let proof = format!("all blocks are deallocated (GET LBA STATUS), {SAMPLES} read as zeros");
        Ok(self.judged(NAME, title, (cost, plain), proof))
    }

    /// Tests COMPARE AND WRITE: two initiators increment the same number concurrently.
    pub(super) fn compare_and_write(&self) -> Result<Primitive, Unproved> {
        const NAME: &str = "compare-and-write";
        let mut source = log_in(&self.source)?;
        let zero = vec![0; BLOCK as usize];
        let mut race = |count: fn(&mut Session) -> Result<bool, Unproved>| {
            source.write("WRITE", cdb::write16(0, 1, false), &zero)?;
            let cost = raced(&self.source, count)?;
            let data = source.read("READ", cdb::read16(0, 1, false), BLOCK_BYTES)?;
            match number(&data, 0, 8) {
                counted if counted == 2 * RACE_ROUNDS => Ok(cost),
                counted => {
                    let what = format!(
                        "{} updates returned GOOD, and the block contains {counted}",
                        2 * RACE_ROUNDS
                    );
                    Err(wrong(NAME, &what))
                }
            }
        };
        let cost = race(count_by_compare)?;
        let plain = race(count_by_reserve)?;
        source.logout()?;
        let covered_bytes = 2 * RACE_ROUNDS * BLOCK;
        let proof =
            format!("two initiators made {} updates of one block, none was lost", 2 * RACE_ROUNDS);
        Ok(primitive(
            NAME,
            "lock blocks (COMPARE AND WRITE)",
            (cost, plain),
            (covered_bytes, covered_bytes),
            proof,
        ))
    }

    /// Returns the addresses of the blocks to read back; the first and the last block of the unit
    /// are among them.
    fn samples(&self) -> impl Iterator<Item = u64> + use<> {
        let last = self.size_bytes / BLOCK - 1;
        (0..SAMPLES).map(move |number| last * number / (SAMPLES - 1))
    }

    fn expect_everywhere(
        &self,
        name: &'static str,
        session: &mut Session,
        wanted: &[u8],
    ) -> Result<(), Unproved> {
        self.samples().try_for_each(|lba| expect(name, session, lba, wanted))
    }

    fn plain_bytes(&self) -> u64 {
        self.size_bytes.min(PLAIN_BYTES_MAX)
    }

    fn judged(
        &self,
        name: &'static str,
        title: &'static str,
        costs: (Cost, Cost),
        proof: String,
    ) -> Primitive {
        primitive(name, title, costs, (self.size_bytes, self.plain_bytes()), proof)
    }
}

/// Copies with ordinary reads and writes.
fn plain_copy(
    source: &mut Session,
    destination: &mut Session,
    bytes: u64,
) -> Result<Cost, Unproved> {
    let (before, start) = (wire_bytes(source), Instant::now());
    let mut cost = timed(destination, |session| {
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            let blocks = (PIECE_BYTES / BLOCK) as u32;
            let cdb = cdb::read16(at / BLOCK, blocks, false);
            let data = source.read("READ", cdb, PIECE_BYTES as u32)?;
            session.write("WRITE", write_piece(at), &data)?;
        }
        Ok(())
    })?;
    cost.wire_bytes += wire_bytes(source) - before;
    cost.seconds = start.elapsed().as_secs_f64();
    Ok(cost)
}

fn primitive(
    name: &'static str,
    title: &'static str,
    (cost, plain): (Cost, Cost),
    (covered_bytes, plain_measured_bytes): (u64, u64),
    proof: String,
) -> Primitive {
    let scale = covered_bytes as f64 / plain_measured_bytes as f64;
    let plain_seconds = plain.seconds * scale;
    // Multiply before the division, so that the quotient is exact.
    let plain_wire_bytes = (u128::from(plain.wire_bytes) * u128::from(covered_bytes)
        / u128::from(plain_measured_bytes)) as u64;
    Primitive {
        name,
        title,
        covered_bytes,
        seconds: cost.seconds,
        wire_bytes: cost.wire_bytes,
        plain_seconds,
        plain_wire_bytes,
        plain_measured_bytes,
        saved_seconds: plain_seconds - cost.seconds,
        saved_wire_bytes: plain_wire_bytes.cast_signed() - cost.wire_bytes.cast_signed(),
        proof,
    }
}

fn wrong(primitive: &'static str, what: &str) -> Unproved {
    Unproved::Wrong { primitive, what: what.to_owned() }
}

fn log_in(url: &Url) -> Result<Session, Unproved> {
    let options = LoginOptions { command_limit: COMMAND_LIMIT, ..LoginOptions::of(url)? };
    Ok(Session::login(url, &options)?)
}

fn wire_bytes(session: &Session) -> u64 {
    let bytes = session.wire_bytes();
    bytes.sent + bytes.received
}

/// Runs commands and makes their changes durable; returns the time and the bytes.
fn timed(
    session: &mut Session,
    commands: impl FnOnce(&mut Session) -> Result<(), Unproved>,
) -> Result<Cost, Unproved> {
    let (before, start) = (wire_bytes(session), Instant::now());
    commands(session)?;
    session.write("SYNCHRONIZE CACHE", cdb::synchronize_cache16(0, 0), &[])?;
    let wire_bytes = wire_bytes(session) - before;
    Ok(Cost { seconds: start.elapsed().as_secs_f64(), wire_bytes })
}

/// Returns the first block and the number of blocks of each command. Together the commands cover
/// the whole unit.
fn runs(bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    let blocks = bytes / BLOCK;
    (0..blocks).step_by(RUN_BLOCKS as usize).map(move |lba| {
        let run = RUN_BLOCKS.min(blocks - lba);
        (lba, run as u32)
    })
}

fn fill(session: &mut Session, bytes: u64, block: &[u8]) -> Result<(), Unproved> {
    timed(session, |session| {
        for (lba, blocks) in runs(bytes) {
            let cdb = cdb::write_same16(lba, blocks, WriteSame::default());
            session.write("WRITE SAME", cdb, block)?;
        }
        Ok(())
    })
    .map(drop)
}

fn write_piece(at: u64) -> cdb::Cdb {
    cdb::write16(at / BLOCK, (PIECE_BYTES / BLOCK) as u32, false)
}

/// Returns a block with this pattern that starts with a number.
fn marked(pattern: &[u8], number: usize) -> Vec<u8> {
    let number = (number as u64).to_be_bytes();
    [&number, &pattern[number.len()..]].concat()
}

fn expect(
    name: &'static str,
    session: &mut Session,
    lba: u64,
    wanted: &[u8],
) -> Result<(), Unproved> {
    let found = session.read("READ", cdb::read16(lba, 1, false), BLOCK_BYTES)?;
    if found != wanted {
        return Err(wrong(name, &format!("block {lba} has wrong data")));
    }
    Ok(())
}

/// Returns the big-endian number in `len` bytes at offset `at`; 0 if there are fewer bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Two sessions concurrently increment the number in block 0, `RACE_ROUNDS` times each. Returns the
/// time, and the bytes that both sessions transferred.
fn raced(url: &Url, count: fn(&mut Session) -> Result<bool, Unproved>) -> Result<Cost, Unproved> {
    let mut sessions = [log_in(url)?, log_in(url)?];
    let before: u64 = sessions.iter().map(wire_bytes).sum();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let side = |session: &mut Session| {
            let mut counted = 0;
            while counted < RACE_ROUNDS {
                counted += u64::from(count(session)?);
            }
            Ok::<(), Unproved>(())
        };
        let sides = sessions.each_mut().map(|session| scope.spawn(move || side(session)));
        sides.into_iter().try_for_each(|side| side.join().expect("it only talks to a target"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let wire_bytes = sessions.iter().map(wire_bytes).sum::<u64>() - before;
    sessions.into_iter().try_for_each(Session::logout)?;
    Ok(Cost { seconds, wire_bytes })
}

fn incremented(block: &[u8]) -> Vec<u8> {
    let next = number(block, 0, 8) + 1;
    [&next.to_be_bytes()[..], block.get(8..).unwrap_or_default()].concat()
}

/// Tries to increment the number with COMPARE AND WRITE. Returns false if the other session was
/// faster.
fn count_by_compare(session: &mut Session) -> Result<bool, Unproved> {
    let old = session.read("READ", cdb::read16(0, 1, false), BLOCK_BYTES)?;
    let both = [&old[..], &incremented(&old)].concat();
    let reply = session.insist(cdb::compare_and_write(0, 1, false), &both, 0)?;
    if reply.sense.is_some_and(|sense| sense.key == MISCOMPARE) {
        return Ok(false);
    }
    match reply.status {
        weir_initiator::Status::GOOD => Ok(true),
        status => Err(wrong("compare-and-write", &format!("it returned {status}"))),
    }
}

/// Tries to increment the number under a RESERVE (6), which hypervisors use as a lock if COMPARE
/// AND WRITE is missing. Returns false if the other session holds the reservation.
fn count_by_reserve(session: &mut Session) -> Result<bool, Unproved> {
    let [mut reserve, mut release] = [cdb::Cdb::default(); 2];
    (reserve[0], release[0]) = (0x16, 0x17);
    let reply = session.execute(reserve, &[], 0)?;
    if reply.status == weir_initiator::Status::RESERVATION_CONFLICT {
        return Ok(false);
    }
    if reply.status != weir_initiator::Status::GOOD {
        return Err(wrong("RESERVE", &format!("it returned {}", reply.status)));
    }
    let old = session.read("READ", cdb::read16(0, 1, false), BLOCK_BYTES)?;
    session.write("WRITE", cdb::write16(0, 1, false), &incremented(&old))?;
    session.write("RELEASE", release, &[])?;
    Ok(true)
}
