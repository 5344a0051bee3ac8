//! An NBD server of known behaviour in this process, for tests of what `weir bench` says of it.
//!
//! Not here: the verdicts. A disk of the machine could be so quick that only the generator would be
//! measured.
//!
//! Spec: NBD proto.md, "Fixed newstyle negotiation", "Simple reply message".
//!
//! Invariant: all connections are of one disk: they share its data, its rate and its stalls.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of the disk.
pub(crate) const BYTES: usize = 8 << 20;

/// A disk as it behaves.
#[derive(Clone, Copy)]
pub(crate) struct Liar {
    /// Time of each operation.
    pub(crate) latency: Duration,
    /// Operations per second, of all clients together.
    pub(crate) rate: f64,
    /// It answers nothing for the second time, in each of the first.
    pub(crate) stalls: Option<(Duration, Duration)>,
    /// It flips a bit in every so many writes that it keeps.
    pub(crate) flips_one_in: Option<u64>,
}

/// State shared by all connections.
struct Disk {
    how: Liar,
    started: Instant,
    data: Vec<u8>,
    free_at: Instant,
    writes: u64,
}

impl Liar {
    /// A disk that does what it says.
    pub(crate) fn honest(latency: Duration, rate: f64) -> Self {
        Self { latency, rate, stalls: None, flips_one_in: None }
    }

    /// Serves it until the test ends; gives its address for `weir bench`.
    pub(crate) fn serve(self, socket: &Path) -> String {
        let listener = UnixListener::bind(socket).unwrap();
        let now = Instant::now();
        let disk = Disk { how: self, started: now, data: vec![0; BYTES], free_at: now, writes: 0 };
        let disk = Arc::new(Mutex::new(disk));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let disk = Arc::clone(&disk);
                // A client that goes away ends it.
                std::thread::spawn(move || serve_one(stream, &disk).ok());
            }
        });
        format!("nbd+unix:///liar?socket={}", socket.display())
    }
}

impl Disk {
    /// When the next operation is answered.
    fn due(&mut self) -> Instant {
        let gap = Duration::from_secs_f64(1.0 / self.how.rate);
        self.free_at = self.free_at.max(Instant::now()) + gap;
        let due = self.free_at + self.how.latency;
        let Some((period, frozen)) = self.how.stalls else { return due };
        let since = due.duration_since(self.started).as_nanos();
        let into = Duration::from_nanos((since % period.as_nanos()) as u64);
        due + frozen.saturating_sub(into)
    }

    fn write(&mut self, start: usize, payload: &[u8]) {
        self.data[start..start + payload.len()].copy_from_slice(payload);
        self.writes += 1;
        if self.how.flips_one_in.is_some_and(|every| self.writes.is_multiple_of(every)) {
            // Behind the stamp that a quick look at a block reads.
            self.data[start + payload.len() / 2] ^= 1;
        }
    }
}

fn serve_one(mut stream: UnixStream, disk: &Mutex<Disk>) -> std::io::Result<()> {
    // Fixed newstyle without zeroes; the one option of our client is GO.
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let mut option = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
    stream.read_exact(&mut option)?;
    let answer = |kind: u32, info: &[u8]| {
        let mut answer = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        answer.extend([7, kind, info.len() as u32].map(u32::to_be_bytes).as_flattened());
        [&answer, info].concat()
    };
    let export = [&[0, 0][..], &(BYTES as u64).to_be_bytes(), &[0, 5]].concat();
    stream.write_all(&[answer(3, &export), answer(1, &[])].concat())?;
    let (replies, to_send) = channel::<(Instant, Vec<u8>)>();
    let mut out = stream.try_clone()?;
    std::thread::spawn(move || {
        to_send.iter().try_for_each(|(due, reply)| {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            out.write_all(&reply)
        })
    });
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let number = |at: usize| u32::from_be_bytes(request[at..at + 4].try_into().unwrap());
        let (start, len) = (number(20) as usize, number(24) as usize);
        let mut reply = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &request[8..16]].concat();
        let payload = if request[7] == 1 { read(&mut stream, len)? } else { Vec::new() };
        let mut disk = disk.lock().unwrap();
        match request[7] {
            0 => reply.extend(&disk.data[start..start + len]),
            1 => disk.write(start, &payload),
            2 => return Ok(()),
            _ => {}
        }
        let due = disk.due();
        drop(disk);
        if replies.send((due, reply)).is_err() {
            return Ok(());
        }
    }
}

fn read(stream: &mut UnixStream, len: usize) -> std::io::Result<Vec<u8>> {
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}
