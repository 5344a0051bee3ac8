//! Fuzzes SCSI commands: several nexuses send any command descriptor blocks with any data to two
//! small logical units.
//!
//! `iscsi_session` fuzzes the transport of the commands.
//!
//! Invariants: no panic; a command returns at most its allocation length; a command leaves earlier
//! bytes of the output buffer unchanged; the logical unit continues to respond.

use std::any::Any;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use weir_block::{Block, Export, ExportError, ExportFuture, Extent, OutBuf};
use weir_initiator::cdb::{self, CopyEnd, WriteSame};
use weir_scsi::limits::TRANSFER_BYTES_MAX;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{
    Attribute, Command, Identity, InitiatorPort, Isid, Lun, Management, Medium, Nexus, Options,
    Port, Target, Unit,
};

const SIZE: usize = 128 << 10;

/// Volume in memory. Every other request completes without waiting.
struct Memory(Mutex<(Vec<u8>, bool)>);

impl Memory {
    fn with<T>(&self, run: impl FnOnce(&mut [u8]) -> T) -> T {
        run(&mut self.0.lock().expect("no test panics in here").0)
    }

    fn now(&self) -> bool {
        let mut state = self.0.lock().expect("no test panics in here");
        state.1 = !state.1;
        state.1
    }

    fn place(offset: u64, len: usize) -> std::ops::Range<usize> {
        assert!(offset.is_multiple_of(512) && len.is_multiple_of(512) && len > 0);
        let start = usize::try_from(offset).expect("inside");
        assert!(start + len <= SIZE, "{start} + {len}");
        start..start + len
    }
}

impl Export for Memory {
    fn size_bytes(&self) -> u64 {
        SIZE as u64
    }

    fn block_bytes_preferred(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn description(&self) -> String {
        String::new()
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        let place = Self::place(offset, out.len());
        let now = self.now();
        if now {
            self.with(|bytes| out.copy_from_slice(&bytes[place]));
        }
        Ok(now)
    }

    fn try_share(&self, _: u64, _: u64, _: &mut Vec<Block>) -> Result<bool, ExportError> {
        Ok(false)
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        let place = Self::place(offset, out.len());
        self.with(|bytes| out.copy_from_slice(&bytes[place]));
        async { Ok(()) }.boxed_local()
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError> {
        let place = Self::place(offset, data.len());
        let now = self.now();
        if now {
            self.with(|bytes| bytes[place].copy_from_slice(data));
        }
        Ok(now)
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        let place = Self::place(offset, data.len());
        self.with(|bytes| bytes[place].copy_from_slice(data));
        async { Ok(()) }.boxed_local()
    }

    fn try_write_blocks(&self, _: u64, _: &mut Vec<Block>) -> Result<bool, ExportError> {
        Ok(false)
    }

    fn write_blocks(&self, _: u64, _: Vec<Block>) -> ExportFuture<'_, ()> {
        unreachable!("SCSI writes bytes");
    }

    fn try_zero(&self, offset: u64, len_bytes: u64, _: bool) -> Result<bool, ExportError> {
        let place = Self::place(offset, usize::try_from(len_bytes).expect("inside"));
        self.with(|bytes| bytes[place].fill(0));
        Ok(true)
    }

    fn zero(&self, _: u64, _: u64, _: bool) -> ExportFuture<'_, ()> {
        unreachable!("zeroed at once");
    }

    fn zero_is_fast(&self, _: bool) -> bool {
        true
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        async { Ok(()) }.boxed_local()
    }

    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()> {
        Self::place(offset, usize::try_from(len_bytes).expect("inside"));
        async { Ok(()) }.boxed_local()
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> ExportFuture<'_, Vec<Extent>> {
        Self::place(offset, usize::try_from(len).expect("inside"));
        assert!(max > 0);
        async move { Ok(vec![Extent { len_bytes: len, hole: offset == 0 }]) }.boxed_local()
    }
}

impl Medium for Memory {
    fn write_same<'a>(&'a self, offset: u64, len: u64, data: &'a [u8]) -> ExportFuture<'a, ()> {
        let place = Self::place(offset, usize::try_from(len).expect("inside"));
        assert_eq!(place.len() % data.len(), 0);
        let filled = data.repeat(place.len() / data.len());
        self.with(|bytes| bytes[place].copy_from_slice(&filled));
        async { Ok(()) }.boxed_local()
    }

    fn clone_from<'a>(
        &'a self,
        _: &'a dyn Medium,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> ExportFuture<'a, bool> {
        let len = usize::try_from(len_bytes).expect("inside");
        assert_eq!(Self::place(from, len).len(), Self::place(to, len).len());
        async { Ok(false) }.boxed_local()
    }

    fn room_bytes(&self) -> u64 {
        1 << 30
    }

    fn mapped_bytes(&self) -> u64 {
        1 << 20
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn unit(number: u8, block_bytes: u32) -> Arc<Unit> {
    let medium = Arc::new(Memory(Mutex::new((vec![0; SIZE], false))));
    let identity = Identity {
        product: "FUZZ".to_owned(),
        revision: "1".to_owned(),
        serial: "s".to_owned(),
        naa: naa(number),
    };
    let options = Options { block_bytes, ..Options::default() };
    Unit::new(medium, identity, options, ReservationState::default(), None)
}

fn execute(nexus: &dyn Nexus, lun: Lun, cdb: &[u8], data_out: &[u8]) -> Vec<u8> {
    let command = Command { lun, cdb, data_out, attribute: Attribute::Simple };
    let mut out = OutBuf::default();
    out.put(b"before");
    let at_once = nexus.try_execute(&command, &mut out);
    if at_once.is_none() {
        assert_eq!(out.filled(), b"before");
        let ended = nexus.execute(command, &mut out).now_or_never();
        assert!(ended.is_some(), "waits for ever: {cdb:x?}");
    }
    assert!(out.filled().starts_with(b"before"));
    let sent = out.len() - 6;
    assert!(sent as u64 <= TRANSFER_BYTES_MAX, "{sent} bytes for {cdb:x?}");
    // Allocation length of the CDB, for the commands whose field is at one of these offsets.
    let asked = match cdb {
        [0x12, _, _, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
        [0x03 | 0x1A, _, _, _, len, ..] => usize::from(*len),
        [0x4D | 0x5A | 0x5E, _, _, _, _, _, _, high, low, ..] => {
            usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => usize::MAX,
    };
    assert!(sent <= asked, "{sent} bytes for {cdb:x?}");
    out.filled()[6..].to_vec()
}

/// Runs POPULATE TOKEN (10h) or WRITE USING TOKEN (11h) with `list` as its parameter list.
fn run_list(nexus: &dyn Nexus, lun: Lun, action: u8, list: &[u8]) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    execute(nexus, lun, &cdb, list);
}

/// Creates a ROD token, because an input could not guess a valid token.
fn make_token(nexus: &dyn Nexus, lun: Lun, list: &[u8]) -> Option<[u8; 512]> {
    run_list(nexus, lun, 0x10, list);
    let cdb = [0x84, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0, 0, 0];
    let told = execute(nexus, lun, &cdb, &[]);
    told.last_chunk().filter(|_| told.len() > 512).copied()
}

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let port = |relative| Port { relative, name: format!("p{relative}"), group: 1 };
    let target = Target::new("t", vec![port(1), port(2)], None);
    assert!(target.add_lun(0, unit(0, 512)) && target.add_lun(1, unit(1, 4096)));
    let nexuses: Vec<_> = (0..3)
        .map(|number| {
            let initiator = InitiatorPort { name: format!("i{number}"), isid: Isid([number; 6]) };
            target.nexus(initiator, 1 + u16::from(number & 1))
        })
        .collect();
    let mut token = [0; 512];
    let mut rest = data;
    // A step of the input: a choice byte, the length of the CDB, the length of the data, the CDB
    // and the data.
    while let [choice, cdb_len, high, low, next @ ..] = rest {
        let nexus = &nexuses[usize::from(choice & 3) % 3];
        let lun = Lun::new(u16::from(choice >> 2 & 3) % 3);
        let (cdb, next) = next.split_at(usize::from(cdb_len % 33).min(next.len()));
        let len = usize::from(u16::from_be_bytes([*high, *low]) % 9000);
        let (data_out, next) = next.split_at(len.min(next.len()));
        match choice >> 4 {
            0 => drop(nexus.manage(lun, Management::LunReset)),
            1 => drop(nexus.manage(lun, Management::ClearTaskSet)),
            2 => drop(target.remove_lun(1)),
            3 => drop(target.add_lun(1, unit(1, 4096))),
            4 => token = make_token(nexus, lun, data_out).unwrap_or(token),
            5 if data_out.len() >= 528 => {
                let mut list = data_out.to_vec();
                list[16..528].copy_from_slice(&token);
                run_list(nexus, lun, 0x11, &list);
            }
            6 => run_list(nexus, lun, 0x10 | choice & 1, data_out),
            _ => drop(execute(nexus, lun, cdb, data_out)),
        }
        rest = next;
    }
    // The unit still works: no command waits, and no reservation remains.
    for nexus in &nexuses {
        nexus.manage(Lun::new(0), Management::LunReset);
    }
    for nexus in &nexuses {
        for _ in 0..12 {
            execute(nexus, Lun::new(0), &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]);
        }
        execute(nexus, Lun::new(0), &[0x12, 0, 0, 0, 96, 0], &[]);
    }
}

/// Commands of each kind, which run one after the other.
pub fn seeds() -> Vec<Vec<u8>> {
    let step = |choice: u8, cdb: &[u8], data: &[u8]| {
        let head = [choice, cdb.len() as u8];
        [&head, &(data.len() as u16).to_be_bytes()[..], cdb, data].concat()
    };
    let all = |steps: &[(&[u8], &[u8])]| {
        steps.iter().flat_map(|(cdb, data)| step(0x70, cdb, data)).collect::<Vec<u8>>()
    };
    let unmap = cdb::unmap_list(&[(0, 8), (16, 1)]);
    let end = |number, lba| (naa(number), lba);
    let (from, to) = (end(0, 0), end(1, 2));
    let copy = cdb::copy_list(
        CopyEnd { naa: &from.0, lba: from.1 },
        CopyEnd { naa: &to.0, lba: to.1 },
        8,
        512,
    );
    // Register key 1, then make a reservation with this key (SPC-4 6.16).
    let register = [&[0; 8][..], &1_u64.to_be_bytes(), &[0; 8]].concat();
    let reserve = [&1_u64.to_be_bytes()[..], &[0; 16]].concat();
    // Create a token for 8 blocks that start at block 0 (SBC-3 5.8).
    let token =
        [&[0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16][..], &[0; 8], &[0, 0, 0, 8], &[0; 4]];
    let token = token.concat();
    vec![
        all(&[
            (&cdb::inquiry(None, 96), &[]),
            (&cdb::inquiry(Some(0x83), 255), &[]),
            (&cdb::mode_sense10(0x3f, 255), &[]),
            (&cdb::report_luns(4096), &[]),
            (&cdb::read_capacity16(32), &[]),
            (&cdb::get_lba_status(0, 255), &[]),
        ]),
        all(&[
            (&cdb::write16(0, 2, true), &[1; 1024]),
            (&cdb::read16(0, 2, false), &[]),
            (&cdb::compare_and_write(0, 1, false), &[1; 1024]),
            (&cdb::write_same16(0, 8, WriteSame::default()), &[3; 512]),
            (&cdb::synchronize_cache16(0, 0), &[]),
            (&cdb::unmap(unmap.len() as u16), &unmap),
        ]),
        all(&[(&cdb::extended_copy(copy.len() as u32), &copy)]),
        all(&[
            (&[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register),
            (&[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], &reserve),
            (&[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[]),
        ]),
        [step(0x40, &[], &token), step(0x00, &[], &[]), step(0x60, &[], &token)].concat(),
    ]
}

/// NAA designator of a logical unit.
const fn naa(number: u8) -> [u8; 16] {
    [0x60, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}
