//! Registers the programs of the server at the rpcbind of this machine, so that clients find their
//! port.
//!
//! Spec: RFC 1833 section 2 (version 4, on the unix socket of rpcbind).
//!
//! Invariants:
//! - an entry of another program is neither replaced nor removed;
//! - each call has a time limit.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use weir_block::OutBuf;
use weir_nfs_wire::{mount, nfs3, nfsacl, nlm4, rquota};
use weir_oncrpc::message::{AcceptStat, Call, OpaqueAuth, Reply, ReplyBody};
use weir_oncrpc::record::{Framed, RecordStart, frame};
use weir_oncrpc::rpcbind::{PROGRAM, Rpcb, RpcbString, rpcbind4, universal_address};
use weir_oncrpc::{Decoder, Encoder, List, Opaque, Xdr};

/// Socket of rpcbind.
pub const SOCKET: &str = "/run/rpcbind.sock";

/// Time limit of a call. Rpcbind waits for nothing.
const LIMIT: Duration = Duration::from_secs(2);

/// Maximum length of a reply. A list of 1,000 entries has 64 KiB.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// Programs and versions of the server.
const PROGRAMS: [(u32, u32); 7] = [
    (nfs3::PROGRAM, nfs3::VERSION),
    (nfsacl::PROGRAM, nfsacl::VERSION),
    (mount::PROGRAM, mount::v1::VERSION),
    (mount::PROGRAM, mount::v3::VERSION),
    (rquota::PROGRAM, rquota::VERSION_1),
    (rquota::PROGRAM, rquota::VERSION_2),
    (nlm4::PROGRAM, nlm4::VERSION),
];

/// Error of a registration.
#[derive(Debug, thiserror::Error)]
pub enum RpcbindError {
    /// Rpcbind does not run, or does not answer.
    #[error("rpcbind at {SOCKET} does not answer: {0}")]
    Io(#[from] io::Error),
    /// The reply of rpcbind is not valid.
    #[error("rpcbind sent a reply that is not valid: {0}")]
    Reply(&'static str),
    /// Another program has the entry.
    #[error(
        "program {program} version {version} is registered at rpcbind for {address} by {owner}"
    )]
    Taken {
        /// Number of the program.
        program: u32,
        /// Version of the program.
        version: u32,
        /// Universal address of the entry.
        address: String,
        /// Owner of the entry.
        owner: String,
    },
}

/// An entry of rpcbind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    program: u32,
    version: u32,
    network_id: String,
    address: String,
    owner: String,
}

impl Entry {
    fn is_for(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.program, of.version, of.network_id.clone());
        key(self) == key(other)
    }

    fn message(&self) -> Option<Rpcb<'_>> {
        fn string(text: &str) -> Option<RpcbString<'_>> {
            Opaque::new(text.as_bytes()).ok()
        }
        Some(Rpcb {
            program: self.program,
            version: self.version,
            network_id: string(&self.network_id)?,
            address: string(&self.address)?,
            owner: string(&self.owner)?,
        })
    }
}

/// The registered programs of a server.
#[derive(Debug)]
pub struct Registration {
    entries: Vec<Entry>,
}

/// A connection to rpcbind.
struct Rpcbind {
    stream: UnixStream,
    xid: u32,
}

impl Rpcbind {
    fn connect(socket: &Path) -> Result<Self, RpcbindError> {
        let stream = uninterrupted(|| UnixStream::connect(socket))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream, xid: 0 })
    }

    /// Makes a call; returns the results.
    fn call(&mut self, procedure: u32, entry: Option<&Entry>) -> Result<Vec<u8>, RpcbindError> {
        self.xid += 1;
        let mut out = OutBuf::default();
        let mark = RecordStart::begin(&mut out);
        let mut encoder = Encoder::new(&mut out);
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let (xid, program, version) = (self.xid, PROGRAM, rpcbind4::VERSION);
        Call { xid, program, version, procedure, credential, verifier }.encode(&mut encoder);
        if let Some(entry) = entry {
            let message = entry.message().ok_or(RpcbindError::Reply("an entry is too long"))?;
            message.encode(&mut encoder);
        }
        mark.finish(&mut out, 0);
        self.stream.write_all(out.filled())?;
        let record = self.read_record()?;
        let bad = |_| RpcbindError::Reply("the header");
        let (reply, results) = Reply::decode(&record).map_err(bad)?;
        match reply.body {
            ReplyBody::Accepted { stat: AcceptStat::Success, .. } if reply.xid == xid => {
                Ok(results.rest().to_vec())
            }
            _ => Err(RpcbindError::Reply("it refused the call")),
        }
    }

    fn read_record(&mut self) -> Result<Vec<u8>, RpcbindError> {
        let mut input = Vec::new();
        loop {
            let bad = |_| RpcbindError::Reply("the record");
            match frame(&mut input, REPLY_BYTES_MAX).map_err(bad)? {
                Framed::Record { record, .. } => return Ok(record.to_vec()),
                Framed::Need { .. } => {
                    let mut part = [0; 4096];
                    let read = uninterrupted(|| self.stream.read(&mut part))?;
                    if read == 0 {
                        return Err(RpcbindError::Reply("the record ends early"));
                    }
                    input.extend_from_slice(part.get(..read).unwrap_or_default());
                }
            }
        }
    }

    fn entries(&mut self) -> Result<Vec<Entry>, RpcbindError> {
        let results = self.call(rpcbind4::DUMP, None)?;
        let list = List::<Rpcb<'_>>::decode(&mut Decoder::new(&results));
        let list = list.map_err(|_| RpcbindError::Reply("the list of entries"))?;
        let text = |of: RpcbString<'_>| String::from_utf8_lossy(of.bytes()).into_owned();
        let entry = |of: &Rpcb<'_>| Entry {
            program: of.program,
            version: of.version,
            network_id: text(of.network_id),
            address: text(of.address),
            owner: text(of.owner),
        };
        Ok(list.0.iter().map(entry).collect())
    }

    fn set(&mut self, entry: &Entry) -> Result<(), RpcbindError> {
        if is_true(&self.call(rpcbind4::SET, Some(entry))?) {
            return Ok(());
        }
        let known = self.entries()?.into_iter().find(|known| known.is_for(entry));
        match known {
            // A server that was killed left its entry.
            Some(known) if known.address == entry.address => Ok(()),
            Some(Entry { program, version, address, owner, .. }) => {
                Err(RpcbindError::Taken { program, version, address, owner })
            }
            None => Err(RpcbindError::Reply("it refused an entry")),
        }
    }
}

/// Repeats an operation that a signal interrupts.
fn uninterrupted<T>(mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Decodes the result of SET and UNSET.
fn is_true(results: &[u8]) -> bool {
    results == 1_u32.to_be_bytes()
}

impl Registration {
    /// Registers the programs of a server that listens on these addresses. `socket`: usually
    /// [`SOCKET`].
    ///
    /// # Errors
    /// Rpcbind does not answer, or another program has an entry. No entry is left behind.
    pub fn new(socket: &Path, addresses: &[SocketAddr]) -> Result<Self, RpcbindError> {
        let mut rpcbind = Rpcbind::connect(socket)?;
        let mut registration = Self { entries: Vec::new() };
        for address in addresses {
            for (program, version) in PROGRAMS {
                let network_id = if address.is_ipv6() { "tcp6" } else { "tcp" }.to_owned();
                let (address, owner) = (universal_address(*address), String::new());
                let entry = Entry { program, version, network_id, address, owner };
                if registration.entries.iter().any(|known| known.is_for(&entry)) {
                    // Rpcbind has one address for each network id: the first.
                    continue;
                }
                if let Err(error) = rpcbind.set(&entry) {
                    // Report the first error.
                    drop(registration.remove(socket));
                    return Err(error);
                }
                registration.entries.push(entry);
            }
        }
        Ok(registration)
    }

    /// Removes the entries, if they still have the addresses of this server.
    ///
    /// # Errors
    /// Rpcbind does not answer.
    pub fn remove(&self, socket: &Path) -> Result<(), RpcbindError> {
        let mut rpcbind = Rpcbind::connect(socket)?;
        for known in rpcbind.entries()? {
            let own = self.entries.iter().find(|own| own.is_for(&known));
            if own.is_some_and(|own| own.address == known.address) {
                rpcbind.call(rpcbind4::UNSET, Some(&known))?;
            }
        }
        Ok(())
    }
}
