//! Full pools of every layout: filled until they refuse writes, emptied by TRIM and destroy, and
//! overwritten many times while they are 90 % full.
//!
//! Not here: write amplification (bench-layouts), crashes while the cleaner runs (the simulator).
//!
//! Invariants:
//! - a full pool refuses writes with "no space", with no other error, and loses no data;
//! - every block that is read back has the contents of the last write, which its number and a
//!   sequence number identify;
//! - after each cycle, a scrub and an offline check find no error.
//!
//! `WEIR_FULL_CYCLES` sets the number of cycles; `make soak` runs 24.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::common::nbd::{Client, ENOSPC, WRITE};
use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Ran, Server, WEIR, eventually, fio_output, text};
use serde_json::Value;

const BLOCK: usize = 4096;
const BLOCKS_PER_MIB: usize = MIB as usize / BLOCK;
/// Number of blocks of a long write.
const LONG: usize = 16;
/// Maximum number of writes in flight.
const DEPTH: usize = 16;
/// Number of cycles in a normal run, and number of cycles from one fill of the volume to the next.
const CYCLES: usize = 12;
/// Size of each disk: large enough for segments of 64 rows, because the cleaner requires a gain of
/// at least four rows.
const DISK: u64 = 520 * MIB;
/// Amount that fio writes to a full pool, in MiB: more than the space that commits may free after a
/// refused write.
const FIO_MIB: usize = 64;
/// Time limit until space is reclaimed. A commit runs every five seconds, and the space of a
/// segment is reclaimed three txgs after its last block died.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A volume of the server, and the contents that it should have.
struct Volume {
    client: Client,
    /// For each block, the sequence number of the last acknowledged write; 0 means zeros.
    sequences: Vec<u64>,
    /// For each block whose last write was refused, the sequence number of that write. The volume
    /// may have stored a part of the write, as any disk may.
    refused: HashMap<usize, u64>,
    under_way: HashMap<u64, (Range<usize>, u64)>,
    next: u64,
    rng: Rng,
}

/// Fills a block with random bytes that follow from its number and the sequence number of the
/// write.
fn content(number: usize, sequence: u64, block: &mut [u8]) {
    if sequence == 0 {
        return block.fill(0);
    }
    Rng::new(sequence << 24 ^ number as u64).fill(block);
    block[..8].copy_from_slice(&sequence.to_le_bytes());
    block[8..16].copy_from_slice(&(number as u64).to_le_bytes());
}

impl Volume {
    /// Creates a volume and connects to its export.
    fn new(server: &Server, name: &str, mib: usize, seed: u64) -> Self {
        server.volume(name, &format!("{mib}MiB"));
        Self {
            client: server.client(name),
            sequences: vec![0; mib * BLOCKS_PER_MIB],
            refused: HashMap::new(),
            under_way: HashMap::new(),
            next: 1,
            rng: Rng::new(seed),
        }
    }

    fn blocks(&self) -> usize {
        self.sequences.len()
    }

    /// Sends a write. First waits until fewer than [`DEPTH`] writes are in flight and none overlaps
    /// it.
    fn put(&mut self, blocks: Range<usize>) -> Result<(), u32> {
        let meets = |other: &Range<usize>| other.start < blocks.end && blocks.start < other.end;
        while self.under_way.len() >= DEPTH || self.under_way.values().any(|(r, _)| meets(r)) {
            self.settle()?;
        }
        let sequence = self.next;
        self.next += 1;
        let mut data = vec![0; blocks.len() * BLOCK];
        for (number, block) in blocks.clone().zip(data.chunks_mut(BLOCK)) {
            content(number, sequence, block);
        }
        let offset = (blocks.start * BLOCK) as u64;
        let sent = self.client.send(WRITE, 0, offset, data.len() as u32, &data);
        self.under_way.insert(sent.unwrap(), (blocks, sequence));
        Ok(())
    }

    /// Receives the next reply and records its result.
    fn settle(&mut self) -> Result<(), u32> {
        let answer = self.client.receive().unwrap();
        let (blocks, sequence) = self.under_way.remove(&answer.cookie).expect("it was asked");
        if answer.errno != 0 {
            self.refused.extend(blocks.map(|number| (number, sequence)));
            return Err(answer.errno);
        }
        for number in blocks {
            self.sequences[number] = sequence;
            self.refused.remove(&number);
        }
        Ok(())
    }

    /// Receives the replies to all writes in flight; returns the first error.
    fn drain(&mut self) -> Result<(), u32> {
        let mut done = Ok(());
        while !self.under_way.is_empty() {
            done = done.and(self.settle());
        }
        done
    }

    /// Writes all blocks of a range once, in order, with long writes.
    fn fill(&mut self, blocks: Range<usize>) -> Result<(), u32> {
        let mut done = Ok(());
        for first in blocks.clone().step_by(LONG) {
            done = self.put(first..(first + LONG).min(blocks.end));
            if done.is_err() {
                break;
            }
        }
        done.and(self.drain())
    }

    /// Overwrites `count` random blocks of a range, one block with each write.
    fn overwrite(&mut self, blocks: Range<usize>, count: usize) -> Result<(), u32> {
        for _ in 0..count {
            let number = blocks.start + self.rng.below(blocks.len() as u64) as usize;
            self.put(number..number + 1)?;
        }
        self.drain()
    }

    fn trim(&mut self, blocks: Range<usize>) {
        for first in blocks.clone().step_by(BLOCKS_PER_MIB) {
            let end = (first + BLOCKS_PER_MIB).min(blocks.end);
            let len = (end - first) * BLOCK;
            self.client.trim((first * BLOCK) as u64, len as u32).unwrap();
            self.sequences[first..end].fill(0);
            self.refused.retain(|number, _| !(first..end).contains(number));
        }
    }

    /// Reads all blocks of the volume and compares them with their expected contents.
    fn verify(&mut self, what: &str) {
        let mut wanted = [0; BLOCK];
        for first in (0..self.blocks()).step_by(BLOCKS_PER_MIB) {
            let end = (first + BLOCKS_PER_MIB).min(self.blocks());
            let len = ((end - first) * BLOCK) as u32;
            let data = self.client.read((first * BLOCK) as u64, len);
            let data = data.unwrap_or_else(|errno| panic!("{what}: read at {first}: {errno}"));
            for (number, block) in (first..end).zip(data.chunks(BLOCK)) {
                let sequence = self.sequences[number];
                content(number, sequence, &mut wanted);
                if block == wanted {
                    continue;
                }
                let refused = self.refused.get(&number).copied();
                let refused = refused.unwrap_or_else(|| {
                    let head = &block[..16];
                    panic!("{what}: block {number} is not write {sequence}: {head:02x?}")
                });
                content(number, refused, &mut wanted);
                assert!(block == wanted, "{what}: block {number}: neither before nor after");
                self.sequences[number] = refused;
            }
        }
        self.refused.clear();
    }
}

fn number(status: &Value, name: &str) -> u64 {
    status[name].as_u64().unwrap_or_else(|| panic!("no {name}: {status:#}"))
}

#[track_caller]
fn assert_healthy(server: &Server, when: &str) -> Value {
    let status = server.status("tank");
    assert_eq!(status["state"], "online", "{when}: {status:#}");
    for kind in ["read", "write", "checksum"] {
        assert_eq!(status["errors"][kind], 0, "{when}: {status:#}");
    }
    status
}

/// Fills the pool until the server refuses a write, then tries to write more.
fn fill_beyond(server: &Server, small: &mut Volume, large: &mut Volume) {
    small.fill(0..small.blocks()).unwrap();
    let end = large.fill(0..large.blocks());
    assert_eq!(end, Err(ENOSPC), "more than fits was written");
    let written = large.sequences.iter().filter(|sequence| **sequence != 0).count();
    let status = assert_healthy(server, "full");
    let part = (written + small.blocks()) * BLOCK * 100 / number(&status, "size_bytes") as usize;
    eprintln!("full at {part} % of its size");
    // The pool keeps the remaining space for tree nodes and for the worst case of a commit.
    assert!(part >= 90, "full at {part} % already: {status:#}");
    // The only error is "no space". A single write needs less space than a long one, so it may
    // succeed, and its commit may free the space for further writes. After them, fill again.
    for round in 0..64 {
        let first = round * large.blocks() / 64;
        for blocks in [first..first + 1, first..first + LONG] {
            let done = large.put(blocks).and(large.drain());
            assert!(matches!(done, Ok(()) | Err(ENOSPC)), "{done:?}");
        }
    }
    assert_eq!(large.fill(written..large.blocks()), Err(ENOSPC));
    large.client.flush().unwrap();
    let size = format!("--size={FIO_MIB}m");
    let job = ["--rw=write", "--bs=64k", &size, "--offset=50%", "--iodepth=4"];
    let fio = text(&fio_output(&server.uri("tank/large"), &job));
    assert!(fio.contains("No space left on device"), "{fio}");
    // fio wrote these blocks, and the model does not know their contents, so trim them.
    let half = large.blocks() / 2;
    large.trim(half..half + FIO_MIB * BLOCKS_PER_MIB);
    small.verify("full");
    assert_healthy(server, "beyond full");
}

/// Frees space by destroying a volume and by TRIM, and fills it again.
fn empty(server: &Server, small: Volume, large: &mut Volume) {
    let before = assert_healthy(server, "before TRIM");
    let Volume { client, sequences, .. } = small;
    drop(client);
    server.weir("export delete tank/small").ok();
    server.weir("volume destroy --yes tank/small").ok();
    // Trim the middle half of the range that has data in every block; keep its first and its last
    // quarter. Single blocks after this range may have data too.
    let written = large.sequences.iter().position(|sequence| *sequence == 0).unwrap();
    let gone = written / 4..written * 3 / 4;
    large.trim(gone.clone());
    large.client.flush().unwrap();
    let back = ((sequences.len() + gone.len()) * BLOCK) as u64 * 95 / 100;
    let wanted = number(&before, "free_bytes") + back;
    let start = Instant::now();
    eventually(&format!("{wanted} bytes are free"), TIMEOUT, || {
        number(&server.status("tank"), "free_bytes") >= wanted
    });
    eprintln!("{} MiB came back in {:?}", back / MIB, start.elapsed());
    large.fill(gone).unwrap();
    large.verify("filled again");
    assert_healthy(server, "filled again");
}

/// Asserts that the cleaner has cleaned segments, and that the status of the pool shows this.
fn assert_cleaner_told(server: &Server, status: &Value) {
    let cleaner = &status["cleaner"];
    for count in ["cleaned_segments", "moved_bytes", "remap_bytes", "segments"] {
        assert!(number(cleaner, count) > 0, "{count}: {status:#}");
    }
    let written = &status["written"];
    assert!(number(written, "cleaner_bytes") >= number(cleaner, "moved_bytes"), "{status:#}");
    assert!(number(written, "data_bytes") > number(written, "node_bytes"), "{status:#}");
    let text = server.weir("pool status -v tank").ok().out;
    assert!(text.contains(" space: ") && text.contains("segments free"), "{text}");
}

/// Works on a pool that is 90 % full. Every twelfth cycle fills the volume again, and every second
/// of the other cycles overwrites one range of it. Each cycle then overwrites random single blocks.
/// Two of the cycles kill the server after a flush.
fn cycles(dirs: &Dirs, mut server: Server) -> Server {
    const STRETCH: usize = 16 * BLOCKS_PER_MIB;
    let size = number(&assert_healthy(&server, "before the cycles"), "size_bytes");
    // The metadata trees take 1 % of the pool's space, so the volume gets 89 %.
    let mut volume = Volume::new(&server, "tank/cycled", (size * 89 / 100 / MIB) as usize, 5);
    let all = 0..volume.blocks();
    let start = Instant::now();
    let cycles = std::env::var("WEIR_FULL_CYCLES").map_or(CYCLES, |text| text.parse().unwrap());
    for cycle in 0..cycles {
        if cycle % CYCLES == 0 {
            volume.trim(all.clone());
            volume.fill(all.clone()).unwrap();
        } else {
            let first = cycle * STRETCH % (all.len() - STRETCH);
            volume.fill(first..first + STRETCH).unwrap();
        }
        volume.overwrite(all.clone(), 512).unwrap();
        volume.client.flush().unwrap();
        let status = assert_healthy(&server, "overwritten");
        let used = number(&status, "allocated_bytes") * 100 / size;
        assert!(used >= 85, "not nearly full: {status:#}");
        if cycle % CYCLES == CYCLES - 1 {
            assert_cleaner_told(&server, &status);
            server.kill();
            server = dirs.start();
            volume.client = server.client("tank/cycled");
            volume.verify(&format!("killed after cycle {cycle}"));
            eprintln!("cycle {cycle}: {used} % used, after {:?}", start.elapsed());
        }
    }
    assert_healthy(&server, "after the cycles");
    server
}

/// Runs all tests of this file on a pool with one layout.
fn prove(layout: &str, disks: &[&str]) {
    let dirs = Dirs::new();
    for name in disks {
        dirs.disk(name, DISK);
    }
    let server = dirs.start();
    server.weir(&format!("pool create tank {layout} {}", disks.join(" "))).ok();
    let mib = (number(&server.status("tank"), "size_bytes") / MIB) as usize;
    let mut small = Volume::new(&server, "tank/small", mib / 4, 3);
    let mut large = Volume::new(&server, "tank/large", mib * 3 / 2, 4);
    let start = Instant::now();
    fill_beyond(&server, &mut small, &mut large);
    empty(&server, small, &mut large);
    drop(large);
    server.weir("export delete tank/large").ok();
    server.weir("volume destroy --yes tank/large").ok();
    eprintln!("{layout}: filled and emptied in {:?}", start.elapsed());

    let mut server = cycles(&dirs, server);
    let scan = &server.weir("pool scrub --wait --json tank").json()["scan"];
    assert_eq!((&scan["errors"], &scan["repaired_bytes"]), (&0.into(), &0.into()), "{scan}");
    assert_eq!(assert_healthy(&server, "scrubbed")["errors"]["checksum"], 0);
    server.assert_alive();
    server.stop_clean();
    let place = dirs.file("").display().to_string();
    let words = ["check", "tank", "-d", &place];
    Ran::of(&words.join(" "), &crate::common::run(WEIR, &words)).ok();
    eprintln!("{layout}: {:?}", start.elapsed());
}

#[test]
fn disk_is_filled_emptied_and_overwritten() {
    prove("", &["a"]);
}

#[test]
fn mirror_is_filled_emptied_and_overwritten() {
    prove("mirror", &["a", "b"]);
}

#[test]
fn raidz1_is_filled_emptied_and_overwritten() {
    prove("raidz1", &["a", "b", "c"]);
}

#[test]
fn raidz2_is_filled_emptied_and_overwritten() {
    prove("raidz2", &["a", "b", "c"]);
}
