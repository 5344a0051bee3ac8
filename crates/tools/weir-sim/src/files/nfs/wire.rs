//! Calls and replies of NFSv3, as bytes.
//!
//! `op` has the operations.
//!
//! Invariant: a reply is decoded without knowledge of the model; bytes that are no reply to the
//! call are a violation.

use weir_base::ObjectId;
use weir_block::OutBuf;
use weir_format::files::FileType;
use weir_fs::InodeRef;
use weir_nfs::{Handle, HandleKey, ShareId};
use weir_nfs_wire::nfs3::{
    self, Args, CommitArgs, CreateArgs, CreateHow, DirOpArgs, Fattr3, FileArgs, LinkArgs,
    MkdirArgs, MknodArgs, MknodData, Nfs3Result, Nfsstat3, Procedure, ReadArgs, ReaddirplusArgs,
    RenameArgs, Results, Sattr3, SetattrArgs, StableHow, SymlinkArgs, Verifier, WccData, WriteArgs,
};
use weir_oncrpc::message::{AcceptStat, AuthSys, Call, Gids, OpaqueAuth, Reply, ReplyBody, flavor};
use weir_oncrpc::{Encoder, Opaque, Xdr};

use super::op::{DIRECTORY_MODE, FILE_MODE, How, LINK_MODE, Op, Written};
use crate::files::content::{Data, FILE_BYTES_MAX, Inode};
use crate::files::names::Place;

/// Length of the mark and the header of a reply with results, in bytes (RFC 5531 section 9).
const REPLY_HEADER_BYTES: usize = 28;
/// Maximum length of a list of a directory, in bytes. All names of the model fit.
const LIST_BYTES: u32 = 256 << 10;

/// Handles of a share.
#[derive(Clone, Copy)]
pub(super) struct Handles {
    pub(super) key: HandleKey,
    pub(super) share: ShareId,
    pub(super) fsid: u64,
}

impl Handles {
    /// The handle of an inode.
    pub(super) fn of(&self, (number, generation): Inode) -> [u8; Handle::BYTES] {
        let inode = InodeRef { number: ObjectId(number), generation };
        let Self { share, fsid, .. } = *self;
        self.key.encode(&Handle { share, fsid, inode, snapshot: 0 })
    }

    /// The record of a call, without its mark.
    pub(super) fn record(&self, op: &Op, xid: u32, uid: u32) -> Vec<u8> {
        let mut credential = OutBuf::default();
        let machine_name = Opaque::new(b"client").expect("short");
        let gids = Gids::new(&[]).expect("no group");
        AuthSys { stamp: 0, machine_name, uid, gid: uid, gids }
            .encode(&mut Encoder::new(&mut credential));
        let body = Opaque::new(credential.filled()).expect("short");
        let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body };
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        let (mut record, verifier) = (OutBuf::default(), OpaqueAuth::NONE);
        let mut out = Encoder::new(&mut record);
        self.with_args(op, |args| {
            let procedure = args.procedure().number();
            Call { xid, program, version, procedure, credential, verifier }.encode(&mut out);
            args.encode(&mut out);
        });
        record.filled().to_vec()
    }

    fn with_args(&self, op: &Op, run: impl FnOnce(&Args<'_>)) {
        let (first, second) = op.handles();
        let (first, second) = (self.of(first), second.map(|inode| self.of(inode)));
        let second = second.unwrap_or(first);
        let with_mode = |mode| Sattr3 { mode: Some(mode), ..Sattr3::default() };
        let set = |new_attributes| {
            Args::Setattr(SetattrArgs { object: opaque(&first), new_attributes, guard: None })
        };
        match op {
            Op::Create(place, how) => {
                let how = create_how(*how);
                run(&Args::Create(CreateArgs { place: named(&first, place), how }));
            }
            Op::Mkdir(place) => {
                let attributes = with_mode(DIRECTORY_MODE);
                run(&Args::Mkdir(MkdirArgs { place: named(&first, place), attributes }));
            }
            Op::Symlink(place, len) => {
                let (target, attributes) = (vec![b't'; *len], with_mode(LINK_MODE));
                let (place, target) = (named(&first, place), opaque(&target));
                run(&Args::Symlink(SymlinkArgs { place, attributes, target }));
            }
            Op::Mknod(place, file_type) => {
                let attributes = with_mode(FILE_MODE);
                let what = match file_type {
                    FileType::Fifo => MknodData::Fifo(attributes),
                    _ => MknodData::Socket(attributes),
                };
                run(&Args::Mknod(MknodArgs { place: named(&first, place), what }));
            }
            Op::Remove(place) => run(&Args::Remove(named(&first, place))),
            Op::Rmdir(place) => run(&Args::Rmdir(named(&first, place))),
            Op::Rename(from, to) => {
                let (from, to) = (named(&first, from), named(&second, to));
                run(&Args::Rename(RenameArgs { from, to }));
            }
            Op::Link(_, place) => {
                let (file, link) = (opaque(&first), named(&second, place));
                run(&Args::Link(LinkArgs { file, link }));
            }
            Op::SetMode(_, mode) => run(&set(with_mode(*mode))),
            Op::SetSize(_, size) => run(&set(Sattr3 { size: Some(*size), ..Sattr3::default() })),
            Op::Write(_, Written { offset, len, byte }, stable) => {
                let data = vec![*byte; *len as usize];
                let (file, offset, count) = (opaque(&first), *offset, *len as u32);
                let (stable, data) = (*stable, opaque(&data));
                run(&Args::Write(WriteArgs { file, offset, count, stable, data }));
            }
            Op::Commit(_) => {
                run(&Args::Commit(CommitArgs { file: opaque(&first), offset: 0, count: 0 }));
            }
            Op::Read(_) => {
                let count = FILE_BYTES_MAX as u32;
                run(&Args::Read(ReadArgs { file: opaque(&first), offset: 0, count }));
            }
            Op::Getattr(_) => run(&Args::Getattr(FileArgs { object: opaque(&first) })),
            Op::Lookup(place) => run(&Args::Lookup(named(&first, place))),
            Op::List(_) => {
                let (cookie, cookieverf) = (0, [0; 8]);
                let (dir, dircount, maxcount) = (opaque(&first), LIST_BYTES, LIST_BYTES);
                let args = ReaddirplusArgs { dir, cookie, cookieverf, dircount, maxcount };
                run(&Args::Readdirplus(args));
            }
        }
    }
}

fn opaque<const N: usize>(bytes: &[u8]) -> Opaque<'_, N> {
    Opaque::new(bytes).expect("the operations are within the limits of the protocol")
}

fn named<'a>(directory: &'a [u8], (_, name): &'a Place) -> DirOpArgs<'a> {
    DirOpArgs { dir: opaque(directory), name: opaque(name) }
}

fn create_how(how: How) -> CreateHow {
    let with_size = |size| Sattr3 { mode: Some(FILE_MODE), size, ..Sattr3::default() };
    match how {
        How::Unchecked(empties) => CreateHow::Unchecked(with_size(empties.then_some(0))),
        How::Guarded => CreateHow::Guarded(with_size(None)),
        How::Exclusive(verifier) => CreateHow::Exclusive(verifier.to_le_bytes()),
    }
}

/// Size of an inode before and after a change, in bytes (wcc_data, RFC 1813 section 2.6).
pub(super) type Sizes = (Option<u64>, Option<u64>);

/// Results of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Failed(Nfsstat3),
    /// The handle of the object that the call created or opened.
    Created(Vec<u8>),
    /// Names changed.
    Changed,
    /// Attributes changed.
    Set(Sizes),
    Written {
        count: u32,
        committed: StableHow,
        verifier: Verifier,
        sizes: Sizes,
    },
    Committed(Verifier),
    Read {
        data: Data,
        is_end: bool,
    },
    Attributes(Fattr3),
    /// The handle of a name.
    Found(Vec<u8>),
    /// Names of a directory, with the numbers of their inodes.
    Listed(Vec<(Vec<u8>, u64)>),
}

/// Decodes a reply with its mark.
///
/// # Errors
/// The bytes are no reply to the call.
pub(super) fn decode(op: &Op, xid: u32, bytes: &[u8]) -> Result<Done, String> {
    let wrong = |what: &dyn std::fmt::Debug| format!("the reply to {op:?} is wrong: {what:?}");
    let (mark, bytes) = bytes.split_first_chunk::<4>().ok_or_else(|| wrong(&"no mark"))?;
    if u32::from_be_bytes(*mark) as usize != bytes.len() | 1 << 31 {
        return Err(wrong(mark));
    }
    let (reply, mut input) = Reply::decode(bytes).map_err(|error| wrong(&error))?;
    match reply.body {
        ReplyBody::Accepted { stat: AcceptStat::Success, .. } if reply.xid == xid => {}
        _ => return Err(wrong(&reply)),
    }
    let procedure = procedure_of(op);
    let results = Results::decode(procedure, &mut input).map_err(|error| wrong(&error))?;
    input.finish().map_err(|error| wrong(&error))?;
    done(results).ok_or_else(|| wrong(&"its results"))
}

/// Length of the results in a reply, in bytes.
pub(super) fn results_bytes(reply: &[u8]) -> usize {
    reply.len().saturating_sub(REPLY_HEADER_BYTES)
}

fn procedure_of(op: &Op) -> Procedure {
    match op {
        Op::Create(..) => Procedure::Create,
        Op::Mkdir(_) => Procedure::Mkdir,
        Op::Symlink(..) => Procedure::Symlink,
        Op::Mknod(..) => Procedure::Mknod,
        Op::Remove(_) => Procedure::Remove,
        Op::Rmdir(_) => Procedure::Rmdir,
        Op::Rename(..) => Procedure::Rename,
        Op::Link(..) => Procedure::Link,
        Op::SetMode(..) | Op::SetSize(..) => Procedure::Setattr,
        Op::Write(..) => Procedure::Write,
        Op::Commit(_) => Procedure::Commit,
        Op::Read(_) => Procedure::Read,
        Op::Getattr(_) => Procedure::Getattr,
        Op::Lookup(_) => Procedure::Lookup,
        Op::List(_) => Procedure::Readdirplus,
    }
}

/// `None`: the reply lacks a handle.
fn done(results: Results<'_>) -> Option<Done> {
    Some(match results {
        Results::Create(result)
        | Results::Mkdir(result)
        | Results::Symlink(result)
        | Results::Mknod(result) => match result {
            Ok(created) => Done::Created(created.object?.bytes().to_vec()),
            Err(failed) => Done::Failed(failed.status),
        },
        Results::Setattr(result) => of(result, |wcc| Done::Set(sizes(&wcc))),
        Results::Remove(result) | Results::Rmdir(result) => of(result, |_| Done::Changed),
        Results::Rename(result) => of(result, |_| Done::Changed),
        Results::Link(result) => of(result, |_| Done::Changed),
        Results::Write(result) => of(result, |written| Done::Written {
            count: written.count,
            committed: written.committed,
            verifier: written.verifier,
            sizes: sizes(&written.wcc),
        }),
        Results::Commit(result) => of(result, |committed| Done::Committed(committed.verifier)),
        Results::Read(result) => {
            of(result, |read| Done::Read { data: Data::of(read.data.bytes()), is_end: read.eof })
        }
        Results::Getattr(result) => of(result, |found| Done::Attributes(found.attributes)),
        Results::Lookup(result) => of(result, |found| Done::Found(found.object.bytes().to_vec())),
        Results::Readdirplus(result) => of(result, |list| {
            let entries = list.entries.0.iter();
            Done::Listed(entries.map(|one| (one.name.bytes().to_vec(), one.fileid)).collect())
        }),
        _ => return None,
    })
}

fn sizes(wcc: &WccData) -> Sizes {
    (wcc.before.map(|before| before.size), wcc.after.map(|after| after.size))
}

fn of<T, F>(result: Nfs3Result<T, F>, done: impl FnOnce(T) -> Done) -> Done {
    match result {
        Ok(result) => done(result),
        Err(failed) => Done::Failed(failed.status),
    }
}
