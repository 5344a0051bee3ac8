//! Fuzzes iSCSI sessions over a socket pair: a valid login, followed by any bytes.
//!
//! `iscsi_login` fuzzes the login itself.
//!
//! Invariants: no panic; the session ends when its input ends; the length of its output is bounded
//! by the number of requested bytes; no command gets more data than it may transfer.

use std::cell::RefCell;
use std::sync::Arc;

use compio::io::{AsyncReadExt, AsyncWriteExt};
use compio::net::UnixStream;
use compio::runtime::Runtime;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weir_base::BLOCK_BYTES;
use weir_block::{Block, OutBuf};
use weir_iscsi::limits::TRANSFER_BYTES_MAX;
use weir_iscsi::{
    Admission, Applicant, Authentication, Discovered, Iscsi, Refusal, Sessions, Targets,
};
use weir_iscsi_wire::Credentials;
use weir_iscsi_wire::pdu::Digests;
use weir_net::{Address, Budget, Peer, PeerKey, Protocol, Watch};
use weir_scsi::{
    Command, Completion, Lun, Management, Nexus, Sense, Status, TaskManagementResponse,
};

use crate::valid;

/// Maximum length of an input. A socket accepts this many bytes before the other side reads.
const INPUT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(weir_device::new_runtime().expect("a runtime"));
}

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    if rest.len() > INPUT_BYTES_MAX {
        return;
    }
    let mut input = login(*choice);
    input.extend_from_slice(rest);
    RUNTIME.with_borrow(|runtime| runtime.block_on(session(input)));
}

/// Requests of each kind after logins with several sets of parameters.
pub fn seeds() -> Vec<Vec<u8>> {
    let with = |choice: u8| {
        let digests = Digests { header: false, data: choice & 4 != 0 };
        [&[choice], &valid::requests(digests)[..]].concat()
    };
    [0, 1, 2, 4, 7].into_iter().map(with).collect()
}

/// Login in one step; `choice` selects its parameters.
fn login(choice: u8) -> Vec<u8> {
    let yes_no = |bit: u8| if choice & bit != 0 { "Yes" } else { "No" };
    let data_digest = if choice & 4 != 0 { "CRC32C" } else { "None" };
    let keys = format!(
        "InitiatorName=i\0TargetName=t\0ImmediateData={}\0InitialR2T={}\0DataDigest={data_digest}\0\
         MaxBurstLength=4096\0MaxRecvDataSegmentLength=512\0MaxOutstandingR2T=3\0",
        yes_no(1),
        yes_no(2),
    );
    valid::pdu(valid::login(1, 3), keys.as_bytes(), Digests::default())
}

async fn session(input: Vec<u8>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let mut ours = UnixStream::from_std(ours).expect("a socket");
    let theirs = UnixStream::from_std(theirs).expect("a socket");
    let local = Address::Unix("/socket".into());
    let peer =
        Peer { name: "peer".to_owned(), local, address: None, port: 0, key: PeerKey::Unknown };
    let targets: Arc<dyn Targets> = Arc::new(One::default());
    let (watch, budget) = (Watch::default(), Budget::new(64 << 10, 4 << 10));
    let asked = input.len();
    let client = async {
        drop(ours.write_all(input).await);
        weir_net::shut(&ours, rustix::net::Shutdown::Write);
        let compio::BufResult(_, got) = ours.read_to_end(Vec::new()).await;
        // The session answers each 48-byte header with a few PDUs and with the data of at most one
        // read.
        assert!(got.len() <= (1 + asked / 48) * (16 << 10) + (64 << 10), "{} bytes", got.len());
    };
    let protocol = Iscsi::new(Arc::clone(&targets), budget);
    let server = protocol.run(theirs, &peer, &watch, None);
    let ((), ended) = futures_util::join!(client, server);
    drop(ended);
    assert!(targets.sessions().list().is_empty());
}

/// List of one iSCSI target.
#[derive(Default)]
struct One {
    sessions: Arc<Sessions>,
}

impl Targets for One {
    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn admit_discovery(&self, _: &Applicant) -> Result<Authentication, Refusal> {
        Ok(Authentication::None)
    }

    fn discover(
        &self,
        _: &Applicant,
        _: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    ) {
        let names = (100..200).map(|n| format!("t{n}")).filter(|name| name.as_str() > after);
        for name in names {
            if !show(Discovered { name, portals: Vec::new() }) {
                break;
            }
        }
    }

    fn admit(&self, _: &Applicant, _: &str) -> Result<Admission, Refusal> {
        let open = Box::new(|_: &_| Ok(Box::new(Echo) as Box<dyn Nexus>));
        Ok(Admission { authentication: Authentication::None, open })
    }
}

/// Nexus whose commands return as many units of 16 bytes as the second byte of the CDB states. A
/// command with an odd operation code waits before it completes.
struct Echo;

impl Echo {
    fn run(command: &Command<'_>, data_in: &mut OutBuf) -> Completion {
        assert!(command.data_out.len() <= TRANSFER_BYTES_MAX);
        let [operation, len, ..] = *command.cdb else { panic!("16 bytes at least") };
        data_in.space(usize::from(len) * 16).fill(operation);
        let sense = Sense::new(5, 0x20, 0).with_information(u64::from(len));
        let (status, sense) = match operation {
            0xf0.. => (Status::CheckCondition, Some(sense)),
            _ => (Status::Good, None),
        };
        Completion { status, sense, wanted_bytes: u64::from(len) * 16 }
    }
}

impl Nexus for Echo {
    fn try_execute(&self, command: &Command<'_>, data_in: &mut OutBuf) -> Option<Completion> {
        let waits = command.cdb.first().is_some_and(|operation| operation & 1 != 0);
        (!waits).then(|| Self::run(command, data_in))
    }

    fn try_share(
        &self,
        command: &Command<'_>,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Option<Completion> {
        if !len_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return None;
        }
        let count = len_bytes as usize / BLOCK_BYTES;
        let operation = *command.cdb.first().filter(|operation| operation.is_multiple_of(4))?;
        blocks.resize_with(count, || Block::copy_of(&[operation; BLOCK_BYTES]));
        Some(Completion { status: Status::Good, sense: None, wanted_bytes: 0 })
    }

    fn execute<'a>(
        &'a self,
        command: Command<'a>,
        data_in: &'a mut OutBuf,
    ) -> LocalBoxFuture<'a, Completion> {
        async move {
            compio::time::sleep(std::time::Duration::ZERO).await;
            Self::run(&command, data_in)
        }
        .boxed_local()
    }

    fn answer_bytes(&self, command: &Command<'_>) -> usize {
        command.cdb.get(1).map_or(0, |len| usize::from(*len) * 16)
    }

    fn manage(&self, lun: Lun, _: Management) -> TaskManagementResponse {
        if lun.0 == [0; 8] {
            TaskManagementResponse::Complete
        } else {
            TaskManagementResponse::NoLun
        }
    }

    fn aborts(&self, _: Lun) -> u64 {
        0
    }
}
