//! MOUNT: finds the port of the service, and the handle of the directory of an address.
//!
//! `client` creates missing directories and queries the limits of the server.
//!
//! Spec: RFC 1813 section 5.2 (MNT), RFC 1833 section 3 (GETPORT).
//!
//! Invariant: a mount needs at most one MNT call for each component of the path, and one more.

use weir_block::OutBuf;
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::mount::{self, v3};
use weir_oncrpc::message::AcceptStat;
use weir_oncrpc::rpcbind::{self, Mapping, portmap, protocol};
use weir_oncrpc::{Decoder, Encoder, Xdr};

use crate::connection::Connection;
use crate::error::NfsError;
use crate::exchange::{Buffers, Identity, Reply, Request};
use crate::handle::Handle;
use crate::limits::MOUNT_LIMIT;
use crate::refusal::Refusal;
use crate::url::Url;

/// Result of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Path that the server mounted: the path of the address, or its beginning.
    pub path: String,
    /// Handle of that path.
    pub root: Handle,
    /// Port of the MOUNT service.
    pub port: u16,
}

/// Buffers of calls without data in slots.
pub(crate) struct NoBuffers;

impl Buffers for NoBuffers {
    fn data(&self, _: usize) -> &[u8] {
        &[]
    }

    fn data_mut(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }
}

/// Mounts the longest part of the path of a URL that the server allows. `nfs` is the connection to
/// the port of NFS.
pub(crate) fn mount(
    nfs: &mut Connection,
    url: &Url,
    identity: &Identity,
) -> Result<Mounted, NfsError> {
    let open = |port| Connection::open(&url.host, port, url.source(0), identity.clone(), 1);
    if let Some(port) = url.mount_port.filter(|port| *port != url.port) {
        return mount_longest(&mut open(port)?, url, port);
    }
    // Weir and other userspace servers serve MOUNT on the port of NFS; knfsd does not.
    match mount_longest(nfs, url, url.port) {
        Err(NfsError::Refused { refusal, .. })
            if url.mount_port.is_none() && is_unavailable(refusal) =>
        {
            let mut portmap = open(rpcbind::PORT).map_err(|_| NfsError::NoMountPort)?;
            let port = get_port(&mut portmap)?;
            mount_longest(&mut open(port)?, url, port)
        }
        mounted => mounted,
    }
}

/// True if the server does not offer the program or its version.
const fn is_unavailable(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Accept(AcceptStat::ProgUnavail | AcceptStat::ProgMismatch { .. }))
}

/// Calls MNT with the path, then with the path without its last component, and so on. The error has
/// the path of the URL; its status is MNT3ERR_ACCES if the server replied that to any of the paths,
/// and otherwise the status of the whole path.
fn mount_longest(connection: &mut Connection, url: &Url, port: u16) -> Result<Mounted, NfsError> {
    let names: Vec<&str> = url.components().collect();
    let path_of = |len| format!("/{}", names.get(..len).unwrap_or_default().join("/"));
    let mut refused: Option<Mountstat3> = None;
    for len in (0..=names.len()).rev() {
        let path = path_of(len);
        match mnt(connection, &path) {
            Ok(root) => return Ok(Mounted { path, root, port }),
            // A server may refuse a path that exists and then not know a shorter one.
            Err(NfsError::Mount { status: status @ Mountstat3::Acces, .. }) => {
                refused = Some(status);
            }
            Err(NfsError::Mount { status, .. }) => refused = refused.or(Some(status)),
            Err(error) => return Err(error),
        }
    }
    let status = refused.ok_or(NfsError::Protocol { why: "no path of a mount" })?;
    Err(refusal(connection, path_of(names.len()), status))
}

/// Error of a refused mount.
fn refusal(connection: &Connection, path: String, status: Mountstat3) -> NfsError {
    let may_be_port = [Mountstat3::Perm, Mountstat3::Acces].contains(&status);
    let unreserved_port = connection.source().unreserved().filter(|_| may_be_port);
    NfsError::Mount { path, status, unreserved_port }
}

fn mnt(connection: &mut Connection, path: &str) -> Result<Handle, NfsError> {
    let malformed = |source| NfsError::Reply { what: "MNT", source };
    let argument = mount::DirPath::new(path.as_bytes()).map_err(|_| NfsError::Url {
        text: path.to_owned(),
        why: "the path has more than 1,024 bytes".to_owned(),
    })?;
    let (program, version) = (mount::PROGRAM, v3::VERSION);
    let procedure = (program, version, v3::Procedure::Mnt.number());
    let results = other(connection, "MNT", procedure, &argument)?;
    let mut input = Decoder::new(&results);
    let decoded = v3::Results::decode(v3::Procedure::Mnt, &mut input).map_err(malformed)?;
    match decoded {
        v3::Results::Mnt(Ok(mounted)) => Ok(Handle::new(&mounted.handle)),
        v3::Results::Mnt(Err(failed)) => Err(refusal(connection, path.to_owned(), failed.status)),
        _ => Err(NfsError::Protocol { why: "results of another procedure" }),
    }
}

/// Port of MOUNT version 3 over TCP, as portmap returns it.
fn get_port(portmap: &mut Connection) -> Result<u16, NfsError> {
    let (program, version) = (mount::PROGRAM, v3::VERSION);
    let mapping = Mapping { program, version, protocol: protocol::TCP, port: 0 };
    let procedure = (rpcbind::PROGRAM, portmap::VERSION, portmap::GETPORT);
    let results = other(portmap, "GETPORT", procedure, &mapping)?;
    let port = u32::decode_whole(&results);
    let port = port.map_err(|source| NfsError::Reply { what: "GETPORT", source })?;
    u16::try_from(port).ok().filter(|port| *port != 0).ok_or(NfsError::NoMountPort)
}

/// Runs a procedure of a program other than NFS. Returns its encoded results.
fn other<'a>(
    connection: &mut Connection,
    name: &'static str,
    (program, version, procedure): (u32, u32, u32),
    argument: &impl Xdr<'a>,
) -> Result<Vec<u8>, NfsError> {
    let mut args = OutBuf::default();
    argument.encode(&mut Encoder::new(&mut args));
    let args = args.filled();
    let request = Request::Other { program, version, procedure, name, args };
    match connection.call(&request, &mut NoBuffers, MOUNT_LIMIT)?.reply {
        Reply::Other(body) => Ok(body.bytes().to_vec()),
        Reply::Refused(refusal) => {
            let unreserved_port = match refusal {
                Refusal::Auth(_) => connection.source().unreserved(),
                _ => None,
            };
            Err(NfsError::Refused { what: name, refusal, unreserved_port })
        }
        _ => Err(NfsError::Protocol { why: "results of another procedure" }),
    }
}
