//! Logical unit in memory and iSCSI targets with it, as the storage of the protocol tests.
//!
//! The unit implements only the SCSI commands that clients need; weir-scsi has all commands.
//!
//! Invariants:
//! - a held disk completes no command until the test releases it;
//! - every third command to a slow disk waits, so that responses overtake each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use parking_lot::{Mutex, RwLock};
use weir_base::BLOCK_BYTES;
use weir_block::{Block, OutBuf};
use weir_iscsi::{
    Admission, Applicant, Authentication, Discovered, Portal, Refusal, Sessions, Targets,
};
use weir_iscsi_wire::Credentials;
use weir_scsi::{
    Command, Completion, Lun, Management, Nexus, Sense, Status, TaskManagementResponse,
};

pub(crate) const BLOCK: usize = 512;
const LUN_0: Lun = Lun([0; 8]);

/// Disk in memory.
#[derive(Default)]
pub(crate) struct Disk {
    data: RwLock<Vec<u8>>,
    slow: AtomicBool,
    turn: AtomicU64,
    /// Commands wait while this flag is set.
    pub(crate) held: AtomicBool,
    /// Every command panics while this flag is set.
    pub(crate) panics: AtomicBool,
    /// Last CDB byte of each executed command, in order of execution; `None` disables the record.
    pub(crate) order: Mutex<Option<Vec<u8>>>,
    /// Time for which the next command blocks its thread.
    pub(crate) busy: Mutex<Duration>,
    /// Number of commands that had to wait.
    pub(crate) begun: AtomicU64,
    /// Number of commands that completed.
    pub(crate) done: AtomicU64,
    /// Number of reads that returned shared blocks.
    pub(crate) shared: AtomicU64,
    /// Abort count that every nexus reports.
    pub(crate) aborts: AtomicU64,
    /// TAS bit: if set, aborted tasks end with TASK ABORTED.
    pub(crate) tells_aborted: AtomicBool,
    /// Number of nexuses that exist now.
    pub(crate) nexuses: AtomicU64,
    /// Task management functions that initiators requested.
    pub(crate) managed: Mutex<Vec<Management>>,
}

impl Disk {
    pub(crate) fn new(len: usize) -> Self {
        Self { data: RwLock::new(vec![0; len]), ..Self::default() }
    }

    pub(crate) fn slow(self) -> Self {
        self.slow.store(true, Ordering::Relaxed);
        self
    }

    pub(crate) fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        self.data.read()[from..from + len].to_vec()
    }

    pub(crate) fn fill(&self, from: usize, bytes: &[u8]) {
        self.data.write()[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn run(&self, command: &Command<'_>, out: &mut OutBuf) -> Completion {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        self.done.fetch_add(1, Ordering::Relaxed);
        let busy = std::mem::take(&mut *self.busy.lock());
        if !busy.is_zero() {
            std::thread::sleep(busy);
        }
        if let Some(order) = self.order.lock().as_mut() {
            order.extend(command.cdb.last());
        }
        let cdb = command.cdb;
        let blocks = self.data.read().len() / BLOCK;
        if command.lun != LUN_0 && !matches!(cdb[0], 0x12 | 0xa0) {
            return failed(5, 0x25, 0);
        }
        match cdb[0] {
            0x00 | 0x35 | 0x91 | 0x1b => good(0),
            0x12 => cut(out, &inquiry(cdb), u16::from_be_bytes([cdb[3], cdb[4]]).into()),
            0x1a => cut(out, &[3, 0, 0, 0], cdb[4].into()),
            0x5a => {
                cut(out, &[0, 6, 0, 0, 0, 0, 0, 0], u16::from_be_bytes([cdb[7], cdb[8]]).into())
            }
            0x25 => {
                let mut data = (blocks as u32 - 1).to_be_bytes().to_vec();
                data.extend((BLOCK as u32).to_be_bytes());
                cut(out, &data, 8)
            }
            0x9e if cdb[1] & 0x1f == 0x10 => {
                let mut data = (blocks as u64 - 1).to_be_bytes().to_vec();
                data.extend((BLOCK as u32).to_be_bytes());
                data.resize(32, 0);
                cut(out, &data, number(&cdb[10..14]))
            }
            0xa0 => {
                let mut data = vec![0; 16];
                data[3] = 8;
                cut(out, &data, number(&cdb[6..10]))
            }
            0x28 | 0x2a | 0x88 | 0x8a => {
                let (at, len) = range(cdb);
                if at + len > blocks * BLOCK {
                    return failed(5, 0x21, 0);
                }
                if matches!(cdb[0], 0x28 | 0x88) {
                    out.put(&self.data.read()[at..at + len]);
                    return good(0);
                }
                let len_here = len.min(command.data_out.len());
                self.data.write()[at..at + len_here].copy_from_slice(&command.data_out[..len_here]);
                good(len as u64)
            }
            _ => failed(5, 0x20, 0),
        }
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn range(cdb: &[u8]) -> (usize, usize) {
    let (at, len) = if cdb[0] < 0x80 {
        let at = number(&cdb[2..6]);
        (at, u16::from_be_bytes([cdb[7], cdb[8]]) as usize)
    } else {
        let at = number(&cdb[2..10]);
        (at, number(&cdb[10..14]))
    };
    (at * BLOCK, len * BLOCK)
}

fn good(wanted_bytes: u64) -> Completion {
    Completion { status: Status::Good, sense: None, wanted_bytes }
}

fn failed(key: u8, asc: u8, ascq: u8) -> Completion {
    let sense = Some(Sense::new(key, asc, ascq));
    Completion { status: Status::CheckCondition, sense, wanted_bytes: 0 }
}

fn cut(out: &mut OutBuf, data: &[u8], max: usize) -> Completion {
    out.put(&data[..data.len().min(max)]);
    good(0)
}

fn inquiry(cdb: &[u8]) -> Vec<u8> {
    if cdb[1] & 1 == 0 {
        let mut data = vec![0, 0, 6, 2, 31, 0, 0, 2];
        data.extend(b"WEIR    MEMORY          0001");
        return data;
    }
    match cdb[2] {
        0x00 => vec![0, 0, 0, 3, 0, 0x80, 0x83],
        0x80 => b"\x00\x80\x00\x04WEIR".to_vec(),
        _ => b"\x00\x83\x00\x0c\x02\x01\x00\x08WEIRDISK".to_vec(),
    }
}

struct DiskNexus {
    disk: Arc<Disk>,
}

impl Drop for DiskNexus {
    fn drop(&mut self) {
        self.disk.nexuses.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Nexus for DiskNexus {
    fn try_execute(&self, command: &Command<'_>, data_in: &mut OutBuf) -> Option<Completion> {
        let disk = &self.disk;
        let turn = disk.turn.fetch_add(1, Ordering::Relaxed);
        let waits = disk.slow.load(Ordering::Relaxed) && turn.is_multiple_of(3);
        if waits || disk.held.load(Ordering::Relaxed) {
            return None;
        }
        Some(disk.run(command, data_in))
    }

    fn try_share(
        &self,
        command: &Command<'_>,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Option<Completion> {
        let disk = &self.disk;
        let (at, len) = range(command.cdb);
        let is_whole = len as u64 == len_bytes && len.is_multiple_of(BLOCK_BYTES);
        let is_read = matches!(command.cdb[0], 0x28 | 0x88);
        if !is_read
            || !is_whole
            || disk.held.load(Ordering::Relaxed)
            || at + len > disk.data.read().len()
        {
            return None;
        }
        blocks.extend(disk.data.read()[at..at + len].as_chunks().0.iter().map(Block::copy_of));
        disk.shared.fetch_add(1, Ordering::Relaxed);
        Some(good(0))
    }

    fn execute<'a>(
        &'a self,
        command: Command<'a>,
        data_in: &'a mut OutBuf,
    ) -> LocalBoxFuture<'a, Completion> {
        async move {
            self.disk.begun.fetch_add(1, Ordering::Relaxed);
            loop {
                compio::time::sleep(Duration::from_millis(1)).await;
                if !self.disk.held.load(Ordering::Relaxed) {
                    return self.disk.run(&command, data_in);
                }
            }
        }
        .boxed_local()
    }

    fn answer_bytes(&self, command: &Command<'_>) -> usize {
        if matches!(command.cdb[0], 0x28 | 0x88) { range(command.cdb).1 } else { 0 }
    }

    fn manage(&self, lun: Lun, function: Management) -> TaskManagementResponse {
        self.disk.managed.lock().push(function);
        if lun == LUN_0 || function == Management::TargetReset {
            TaskManagementResponse::Complete
        } else {
            TaskManagementResponse::NoLun
        }
    }

    fn tells_aborted(&self, _: Lun) -> bool {
        self.disk.tells_aborted.load(Ordering::Relaxed)
    }

    fn aborts(&self, _: Lun) -> u64 {
        self.disk.aborts.load(Ordering::Relaxed)
    }
}

/// Name of the target that every initiator may use.
pub(crate) const TARGET: &str = "iqn.2026-01.org.example:disk";

/// Targets with one disk.
pub(crate) struct MemoryTargets {
    pub(crate) disk: Arc<Disk>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) authentication: Mutex<Authentication>,
    pub(crate) discovery: Mutex<Authentication>,
    pub(crate) targets: Mutex<Vec<Discovered>>,
    pub(crate) quiet_limit: Mutex<Duration>,
    /// Number of wrong CHAP responses that the iSCSI server reported.
    pub(crate) wrong_responses: Mutex<usize>,
}

impl MemoryTargets {
    pub(crate) fn new(disk: Disk) -> Arc<Self> {
        Self::with_sessions(disk, Sessions::default())
    }

    pub(crate) fn with_sessions(disk: Disk, sessions: Sessions) -> Arc<Self> {
        Arc::new(Self {
            disk: Arc::new(disk),
            sessions: Arc::new(sessions),
            authentication: Mutex::new(Authentication::None),
            discovery: Mutex::new(Authentication::None),
            targets: Mutex::default(),
            quiet_limit: Mutex::new(weir_iscsi::limits::QUIET_LIMIT),
            wrong_responses: Mutex::default(),
        })
    }

    /// Sets the portals of the disk's target.
    pub(crate) fn set_portals(&self, addresses: &[std::net::SocketAddr]) {
        let portals = addresses.iter().map(|at| Portal { address: *at, group_tag: 1 }).collect();
        *self.targets.lock() = vec![Discovered { name: TARGET.to_owned(), portals }];
    }
}

impl Targets for MemoryTargets {
    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn quiet_limit(&self) -> Duration {
        *self.quiet_limit.lock()
    }

    fn admit_discovery(&self, _: &Applicant) -> Result<Authentication, Refusal> {
        Ok(self.discovery.lock().clone())
    }

    fn discover(
        &self,
        _: &Applicant,
        _: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    ) {
        let targets = self.targets.lock().clone();
        for target in targets.into_iter().filter(|target| target.name.as_str() > after) {
            if !show(target) {
                break;
            }
        }
    }

    fn guessed(&self, _: &str) {
        *self.wrong_responses.lock() += 1;
    }

    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal> {
        if applicant.port.name.ends_with(":stranger") {
            return Err(Refusal::Forbidden);
        }
        if target != TARGET {
            return Err(Refusal::NotFound);
        }
        let disk = Arc::clone(&self.disk);
        Ok(Admission {
            authentication: self.authentication.lock().clone(),
            open: Box::new(move |_| {
                disk.nexuses.fetch_add(1, Ordering::SeqCst);
                Ok(Box::new(DiskNexus { disk }))
            }),
        })
    }
}
