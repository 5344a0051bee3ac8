//! Target with logical units in memory, and helpers to send commands.
//!
//! The tests use no transport; commands go directly to a nexus.

mod medium;
pub(crate) mod tokens;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

pub(crate) use medium::MemoryMedium;
use weir_block::OutBuf;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{
    Attribute, Command, Completion, Identity, InitiatorPort, Isid, Lun, Nexus, Options, Port,
    Sense, Status, Target, Unit,
};

/// Size of a volume, in bytes.
pub(crate) const SIZE: u64 = 8 << 20;

/// Waker that unparks a thread, which waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

pub(crate) fn identity(number: u8) -> Identity {
    let mut naa = [0x11; 16];
    naa[0] = 0x60;
    naa[15] = number;
    Identity {
        product: "VOLUME".to_owned(),
        revision: "0.1".to_owned(),
        serial: format!("serial-{number}"),
        naa,
    }
}

pub(crate) fn unit_of(medium: &Arc<MemoryMedium>, number: u8, block_bytes: u32) -> Arc<Unit> {
    let options = Options { block_bytes, ..Options::default() };
    let medium = Arc::<MemoryMedium>::clone(medium);
    Unit::new(medium, identity(number), options, ReservationState::default(), None)
}

pub(crate) fn target() -> Arc<Target> {
    let port = |relative| Port {
        relative,
        name: format!("iqn.2026-01.example:target,t,0x{relative:04x}"),
        group: 1,
    };
    Target::new("iqn.2026-01.example:target", vec![port(1), port(2)], None)
}

pub(crate) fn initiator(number: u8) -> InitiatorPort {
    let name = format!("iqn.2026-01.example:host{number}");
    InitiatorPort { name, isid: Isid([0x40, 0, 0, 0, 0, number]) }
}

/// Response to a command with its Data-In.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) completion: Completion,
    pub(crate) data: Vec<u8>,
}

impl Answer {
    /// Returns the Data-In of a command that ended with GOOD.
    #[track_caller]
    pub(crate) fn good(self) -> Vec<u8> {
        assert_eq!(self.completion.status, Status::Good, "{:?}", self.completion);
        self.data
    }

    /// Returns the sense key, additional sense code and qualifier of a command that failed and
    /// returned no data.
    #[track_caller]
    pub(crate) fn sense(&self) -> (u8, u8, u8) {
        assert_eq!(self.completion.status, Status::CheckCondition);
        assert!(self.data.is_empty());
        let Sense { key, asc, ascq, .. } = self.completion.sense.clone().expect("sense data");
        (key, asc, ascq)
    }

    pub(crate) fn status(&self) -> Status {
        self.completion.status
    }
}

/// Runs a command as a transport does: first on the path that does not wait, then, if necessary, on
/// the waiting path.
pub(crate) fn run_on(nexus: &dyn Nexus, lun: Lun, cdb: &[u8], data_out: &[u8]) -> Answer {
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(cdb);
    let command = Command { lun, cdb: &padded, data_out, attribute: Attribute::Simple };
    let mut out = OutBuf::default();
    out.put(b"before");
    let completion = match nexus.try_execute(&command, &mut out) {
        Some(completion) => completion,
        None => {
            assert_eq!(out.filled(), b"before", "touched by a command that must wait");
            block_on(nexus.execute(command, &mut out))
        }
    };
    let data = out.filled().strip_prefix(b"before").expect("kept").to_vec();
    Answer { completion, data }
}

/// As [`run_on`], with logical unit 0.
pub(crate) fn run(nexus: &dyn Nexus, cdb: &[u8], data_out: &[u8]) -> Answer {
    run_on(nexus, Lun::new(0), cdb, data_out)
}

/// Returns a nexus whose initiator has already received POWER ON from each unit.
pub(crate) fn ready(target: &Arc<Target>, number: u8) -> Box<dyn Nexus> {
    let nexus = Box::new(target.nexus(initiator(number), 1));
    for (lun, _) in target.luns() {
        let told = run_on(&*nexus, Lun::new(lun), &[0; 6], &[]);
        assert_eq!(told.sense(), (6, 0x29, 0));
    }
    nexus
}

/// Returns a target with one logical unit of 512-byte blocks, its medium, and a nexus to it.
pub(crate) fn simple() -> (Arc<MemoryMedium>, Arc<Unit>, Arc<Target>, Box<dyn Nexus>) {
    simple_of(SIZE)
}

/// As [`simple`], with a medium of `size` bytes.
pub(crate) fn simple_of(size: u64) -> (Arc<MemoryMedium>, Arc<Unit>, Arc<Target>, Box<dyn Nexus>) {
    let medium = Arc::new(MemoryMedium::new(size));
    let unit = unit_of(&medium, 1, 512);
    let target = target();
    assert!(target.add_lun(0, Arc::clone(&unit)));
    let nexus = ready(&target, 1);
    (medium, unit, target, nexus)
}

/// Starts a command on its waiting path; the test polls the returned future.
pub(crate) fn begin<'a>(
    nexus: &'a dyn Nexus,
    cdb: &'a [u8],
    data_out: &'a [u8],
    out: &'a mut OutBuf,
) -> impl Future<Output = Completion> + 'a {
    let command = Command { lun: Lun::new(0), cdb, data_out, attribute: Attribute::Simple };
    nexus.execute(command, out)
}

/// Returns the parameter list of UNMAP.
pub(crate) fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let len = ranges.len() as u16 * 16;
    let mut list = (len + 6).to_be_bytes().to_vec();
    list.extend(len.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// Runs UNMAP with `list` as its parameter list.
pub(crate) fn unmap(nexus: &dyn Nexus, list: &[u8]) -> Answer {
    let len = (list.len() as u16).to_be_bytes();
    run(nexus, &[0x42, 0, 0, 0, 0, 0, 0, len[0], len[1], 0], list)
}

/// Returns the CDB of READ (16) or a similar command with operation code, flags, LBA and length.
pub(crate) fn wide(code: u8, flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![code, flags];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(blocks.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}
