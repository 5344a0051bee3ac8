//! Answers the calls of clients.
//!
//! `procedures` runs the procedures of NFSv3, `mount` the procedures of MOUNT and `acl` the
//! procedures of NFSACL.
//!
//! Spec: RFC 5531 section 9.
//!
//! Invariants:
//! - each call has at most one reply;
//! - a changing call and its repetitions run once.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use weir_base::SystemClock;
use weir_block::OutBuf;
use weir_fs::FileData;
use weir_nfs_wire::nfs3::Nfsstat3;
use weir_nfs_wire::{Effect, mount, nfs3, nfsacl, nlm4, rquota};
use weir_oncrpc::message::{AcceptStat, Call, Reply};
use weir_oncrpc::record::RecordStart;
use weir_oncrpc::xdr::padding;
use weir_oncrpc::{Decoder, Encoder};
use weir_pool::PlantedBug;

use crate::duplicates::{Begun, CacheOptions, ConnectionReplies, Duplicates};
use crate::procedures::at::At;
use crate::procedures::dispatch::{Caller, run};
use crate::programs::mount::{self as mount_program, Mounts};
use crate::programs::outcome::Outcome;
use crate::programs::{acl, quota};
use crate::share::{CallClass, Completed, Groups, Incident, Shares};

/// A server of NFSv3.
pub struct Server {
    /// Shares of the server.
    pub shares: Shares,
    /// Groups of users, for rules with `manage_gids`.
    pub groups: Groups,
    duplicates: Duplicates,
    /// Clients that mounted a share.
    pub mounts: Mounts,
}

/// A connection of a client.
pub struct Client {
    address: SocketAddr,
    replies: ConnectionReplies,
}

impl Server {
    /// Creates a server without shares. `seed` is a random number.
    pub fn new(seed: u64) -> Self {
        let clock = Arc::new(SystemClock::default());
        Self::with_options(CacheOptions { seed, clock, bug: PlantedBug::None })
    }

    /// As [`Self::new`], with other parameters of the duplicate request cache.
    pub fn with_options(options: CacheOptions) -> Self {
        let (shares, duplicates) = (Shares::default(), Duplicates::new(options));
        Self { shares, groups: Groups::default(), duplicates, mounts: Mounts::default() }
    }

    fn caller<'c>(&'c self, client: &Client, call: &Call<'c>) -> Caller<'c> {
        let (address, credential) = (client.address, call.credential);
        Caller { address, credential, groups: &self.groups }
    }

    /// Adds a connection.
    pub fn connect(&self, address: SocketAddr) -> Client {
        let replies = self.duplicates.connect(address.ip().to_canonical());
        Client { address, replies }
    }

    /// Number of open connections of a client.
    pub fn connections(&self, address: IpAddr) -> usize {
        self.duplicates.connections(address)
    }

    /// Runs a call. `record` is its record without marks. Appends the reply with its mark to `out`,
    /// except the data of a READ: the caller sends the returned data behind `out`, with its padding
    /// ([`put_data`]). Returns `None` if the server must close the connection, because the record
    /// is no call.
    ///
    /// # Durability
    /// The changes of the call are as durable as RFC 1813 demands before this returns.
    pub async fn answer(
        &self,
        client: &Client,
        record: &[u8],
        out: &mut OutBuf,
    ) -> Option<FileData> {
        let start = out.len();
        let (call, arguments) = match Call::decode(record) {
            Ok(decoded) => decoded,
            Err(error) => {
                put_reply(&error.reply()?, out);
                return Some(FileData::default());
            }
        };
        let mark = RecordStart::begin(out);
        Reply::accepted(call.xid, AcceptStat::Success).encode(&mut Encoder::new(out));
        let failure = match self.results(client, &call, arguments, out).await {
            Outcome::Done => {
                mark.finish(out, 0);
                return Some(FileData::default());
            }
            Outcome::Data(data) => {
                mark.finish(out, data.len() + padding(data.len()));
                return Some(data);
            }
            Outcome::Failed(stat) => Some(Reply::accepted(call.xid, stat)),
            Outcome::Denied(stat) => Some(Reply::auth_error(call.xid, stat)),
            Outcome::Silent => None,
        };
        out.truncate(start);
        if let Some(reply) = failure {
            put_reply(&reply, out);
        }
        Some(FileData::default())
    }

    /// Appends the results of a call.
    async fn results(
        &self,
        client: &Client,
        call: &Call<'_>,
        input: Decoder<'_>,
        out: &mut OutBuf,
    ) -> Outcome {
        const NFS: (u32, u32) = (nfs3::PROGRAM, nfs3::VERSION);
        const ACL: (u32, u32) = (nfsacl::PROGRAM, nfsacl::VERSION);
        const MOUNT3: (u32, u32) = (mount::PROGRAM, mount::v3::VERSION);
        const MOUNT1: (u32, u32) = (mount::PROGRAM, mount::v1::VERSION);
        const QUOTA1: (u32, u32) = (rquota::PROGRAM, rquota::VERSION_1);
        const QUOTA2: (u32, u32) = (rquota::PROGRAM, rquota::VERSION_2);
        const NLM: (u32, u32) = (nlm4::PROGRAM, nlm4::VERSION);
        let mismatch = |low, high| Outcome::Failed(AcceptStat::ProgMismatch { low, high });
        match (call.program, call.version) {
            NFS => match nfs3::Procedure::from_number(call.procedure) {
                Some(procedure) => self.nfs(client, call, (procedure, input), out).await,
                None => Outcome::Failed(AcceptStat::ProcUnavail),
            },
            ACL => match nfsacl::Procedure::from_number(call.procedure) {
                Some(procedure) => self.acl(client, call, (procedure, input), out).await,
                None => Outcome::Failed(AcceptStat::ProcUnavail),
            },
            MOUNT3 | MOUNT1 => {
                let caller = self.caller(client, call);
                let call = (call.version, call.procedure);
                let place = (&self.shares, &self.mounts);
                mount_program::run(place, &caller, call, input, &mut Encoder::new(out)).await
            }
            QUOTA1 | QUOTA2 => {
                let caller = self.caller(client, call);
                let call = (call.version, call.procedure);
                quota::run(&self.shares, &caller, call, input, &mut Encoder::new(out)).await
            }
            NLM => refuse_lock(call, input, out),
            (nfs3::PROGRAM, _) => mismatch(nfs3::VERSION, nfs3::VERSION),
            (nfsacl::PROGRAM, _) => mismatch(nfsacl::VERSION, nfsacl::VERSION),
            (mount::PROGRAM, _) => mismatch(mount::v1::VERSION, mount::v3::VERSION),
            (rquota::PROGRAM, _) => mismatch(rquota::VERSION_1, rquota::VERSION_2),
            (nlm4::PROGRAM, _) => mismatch(nlm4::VERSION, nlm4::VERSION),
            _ => Outcome::Failed(AcceptStat::ProgUnavail),
        }
    }

    async fn nfs(
        &self,
        client: &Client,
        call: &Call<'_>,
        (procedure, mut input): (nfs3::Procedure, Decoder<'_>),
        out: &mut OutBuf,
    ) -> Outcome {
        let bytes = input.rest();
        let Ok(args) = nfs3::Args::decode(procedure, &mut input) else {
            return Outcome::Failed(AcceptStat::GarbageArgs);
        };
        let caller = self.caller(client, call);
        let results = async |out: &mut OutBuf| {
            let (begun, start) = (Instant::now(), out.len());
            match run(&self.shares, &caller, &args, &mut Encoder::new(out)).await {
                Ok(at) => {
                    let results = out.filled().get(start..).unwrap_or_default();
                    let Some(at) = at else { return Outcome::Done };
                    count(&at, (&caller, procedure), begun, results);
                    let data = at.data.take();
                    if data.is_empty() { Outcome::Done } else { Outcome::Data(data) }
                }
                Err(stat) => Outcome::Denied(stat),
            }
        };
        once((client, call, bytes), procedure.effect(), out, results).await
    }

    async fn acl(
        &self,
        client: &Client,
        call: &Call<'_>,
        (procedure, mut input): (nfsacl::Procedure, Decoder<'_>),
        out: &mut OutBuf,
    ) -> Outcome {
        let bytes = input.rest();
        let Ok(args) = nfsacl::Args::decode(procedure, &mut input) else {
            return Outcome::Failed(AcceptStat::GarbageArgs);
        };
        let caller = self.caller(client, call);
        let results = async |out: &mut OutBuf| match acl::run(
            &self.shares,
            &caller,
            &args,
            &mut Encoder::new(out),
        )
        .await
        {
            Ok(()) => Outcome::Done,
            Err(stat) => Outcome::Denied(stat),
        };
        once((client, call, bytes), procedure.effect(), out, results).await
    }
}

/// Runs a call that may change files at most once: a repetition gets the reply of the first call.
async fn once(
    (client, call, arguments): (&Client, &Call<'_>, &[u8]),
    effect: Effect,
    out: &mut OutBuf,
    results: impl AsyncFnOnce(&mut OutBuf) -> Outcome,
) -> Outcome {
    if effect == Effect::Reads {
        return results(out).await;
    }
    let running = match client.replies.begin(client.replies.key(call, arguments)) {
        Begun::New(running) => running,
        Begun::Repeated(reply) => {
            out.put(&reply);
            return Outcome::Done;
        }
        Begun::Waits(waiting) => {
            let Some(reply) = waiting.reply().await else { return Outcome::Silent };
            out.put(&reply);
            return Outcome::Done;
        }
    };
    let start = out.len();
    let outcome = results(out).await;
    if let Outcome::Done = outcome {
        running.finish(out.filled().get(start..).unwrap_or_default());
    }
    outcome
}

/// Counts a call in the statistics of its share.
fn count(
    at: &At,
    (caller, procedure): (&Caller<'_>, nfs3::Procedure),
    begun: Instant,
    results: &[u8],
) {
    let now = Instant::now();
    let class = match procedure {
        nfs3::Procedure::Read => CallClass::Read,
        nfs3::Procedure::Write | nfs3::Procedure::Commit => CallClass::Write,
        _ => CallClass::Metadata,
    };
    let (bytes, latency) = (at.bytes.get(), now.duration_since(begun));
    let call = Completed { class, bytes, latency, has_failed: has_failed(results) };
    let client = caller.address.ip();
    at.share.statistics.add(client, &call, now);
    if status_of(results) == Some(Nfsstat3::Stale as u32) {
        at.share.statistics.incidents.add(client, Incident::Stale);
    }
}

/// Status at the start of results.
fn status_of(results: &[u8]) -> Option<u32> {
    results.first_chunk::<4>().map(|status| u32::from_be_bytes(*status))
}

/// True if these results show a failure of the server.
fn has_failed(results: &[u8]) -> bool {
    use Nfsstat3 as S;
    let failures = [S::Io, S::Nxio, S::Nospc, S::Serverfault];
    status_of(results)
        .is_some_and(|status| failures.iter().any(|failure| *failure as u32 == status))
}

/// Appends the data of a READ and its padding to a reply.
pub fn put_data(data: &FileData, out: &mut OutBuf) {
    data.parts().for_each(|part| out.put(part.bytes()));
    put_padding(data, out);
}

/// Appends the padding that follows the data of a READ.
pub(crate) fn put_padding(data: &FileData, out: &mut OutBuf) {
    out.space(padding(data.len())).fill(0);
}

/// Appends a reply without results.
fn put_reply(reply: &Reply<'_>, out: &mut OutBuf) {
    let mark = RecordStart::begin(out);
    reply.encode(&mut Encoder::new(out));
    mark.finish(out, 0);
}

/// Refuses a call of the lock manager, so that clients without `nolock` do not wait for it.
fn refuse_lock(call: &Call<'_>, mut input: Decoder<'_>, out: &mut OutBuf) -> Outcome {
    let Some(procedure) = nlm4::Procedure::from_number(call.procedure) else {
        return Outcome::Failed(AcceptStat::ProcUnavail);
    };
    match nlm4::Refusal::of(procedure, &mut input) {
        Ok(refusal) => {
            refusal.encode(&mut Encoder::new(out));
            Outcome::Done
        }
        Err(_) => Outcome::Failed(AcceptStat::GarbageArgs),
    }
}
