//! Tests of connections over TCP: their limits, and the order of the bytes of long replies.
//!
//! Invariant: the tests of limits send only NULL calls, so that they need no filesystem.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use weir_block::OutBuf;
use weir_fs::NewKind;
use weir_net::{Address, Budget, Listener, ServerHandle};
use weir_nfs::limits::{CONNECTIONS_OF_ADDRESS_MAX, OWN_BYTES};
use weir_nfs::{Nfs, Server};
use weir_nfs_wire::nfs3::{self, Args, Procedure, ReadArgs, Results};
use weir_oncrpc::message::{AuthSys, Call, Gids, OpaqueAuth, Reply, flavor};
use weir_oncrpc::record::RecordStart;
use weir_oncrpc::{Encoder, Opaque, Xdr as _};

use crate::common::{Served, run};

/// Length of the reply to a NULL call, with its record mark.
const REPLY_BYTES: usize = 28;
const LIMIT: Duration = Duration::from_secs(20);

fn serve(budget: &Arc<Budget>) -> (ServerHandle<Nfs>, SocketAddr) {
    serve_shares(Server::new(9), budget, 1)
}

/// Serves the shares of `server` with this number of threads.
pub(crate) fn serve_shares(
    server: Server,
    budget: &Arc<Budget>,
    threads: usize,
) -> (ServerHandle<Nfs>, SocketAddr) {
    let nfs = Nfs::new(Arc::new(server), Arc::clone(budget));
    let listener = Listener::bind(&Address::parse("127.0.0.1:0", 0).unwrap()).unwrap();
    let server = weir_net::serve(vec![listener], Arc::new(nfs), threads).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first().cloned() else {
        panic!("a TCP listener");
    };
    (server, address)
}

/// Connects from the address 127.0.0.`host`.
pub(crate) fn connect_from(host: u8, server: SocketAddr) -> TcpStream {
    let source = SocketAddr::new(IpAddr::from([127, 0, 0, host]), 0);
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&client, &source).unwrap();
    connect(&client, &server).unwrap();
    let client = TcpStream::from(client);
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    client
}

fn null_calls(count: usize) -> Vec<u8> {
    let mut out = OutBuf::default();
    for _ in 0..count {
        let mark = RecordStart::begin(&mut out);
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let call = Call { xid: 7, program, version, procedure: 0, credential, verifier };
        call.encode(&mut Encoder::new(&mut out));
        mark.finish(&mut out, 0);
    }
    out.filled().to_vec()
}

/// Sends a NULL call and receives its reply.
fn call(client: &mut TcpStream) -> io::Result<()> {
    client.write_all(&null_calls(1))?;
    client.read_exact(&mut [0; REPLY_BYTES])
}

/// Record of a call of NFSv3 as root, with its mark.
pub(crate) fn nfs_call(xid: u32, args: &Args<'_>) -> Vec<u8> {
    let mut body = OutBuf::default();
    let machine_name = Opaque::new(b"client").unwrap();
    let sys = AuthSys { stamp: 0, machine_name, uid: 0, gid: 0, gids: Gids::default() };
    sys.encode(&mut Encoder::new(&mut body));
    let body = Opaque::new(body.filled()).unwrap();
    let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body };
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    let (procedure, verifier) = (args.procedure().number(), OpaqueAuth::NONE);
    let mut out = OutBuf::default();
    let mark = RecordStart::begin(&mut out);
    let mut encoder = Encoder::new(&mut out);
    Call { xid, program, version, procedure, credential, verifier }.encode(&mut encoder);
    args.encode(&mut encoder);
    mark.finish(&mut out, 0);
    out.filled().to_vec()
}

/// Record of a READ as root, with its mark.
pub(crate) fn read_call(xid: u32, file: &[u8], offset: u64, count: u32) -> Vec<u8> {
    nfs_call(xid, &Args::Read(ReadArgs { file: Opaque::new(file).unwrap(), offset, count }))
}

/// Receives the record of a reply.
pub(crate) fn reply_record(client: &mut TcpStream) -> Vec<u8> {
    let mut mark = [0; 4];
    client.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    client.read_exact(&mut record).unwrap();
    record
}

/// Receives the reply to a READ. Returns its xid and its data.
fn read_reply(client: &mut TcpStream) -> (u32, Vec<u8>, bool) {
    let record = reply_record(client);
    let (reply, mut results) = Reply::decode(&record).unwrap();
    match Results::decode(Procedure::Read, &mut results).unwrap() {
        Results::Read(Ok(read)) => {
            results.finish().unwrap();
            (reply.xid, read.data.bytes().to_vec(), read.eof)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn long_replies_arrive_whole_among_short_ones() {
    const MIB: usize = 1 << 20;
    let served = Served::new(&["*:no_root_squash,insecure"]);
    let inode = served.create(served.root, "f", (NewKind::File, 0o600), 0);
    let data: Vec<u8> = (0..2 * MIB + 4321).map(|at| (at / 4096 + at % 251) as u8).collect();
    for (at, part) in data.chunks(MIB).enumerate() {
        let offset = (at * MIB) as u64;
        run(&served.engine, served.files.write(inode.number, offset, part, false)).unwrap();
    }
    let handle = served.handle(inode);
    let budget = Budget::new(64 << 20, OWN_BYTES);
    let (server, address) = serve_shares(served.server, &budget, 1);
    let mut client = connect_from(1, address);
    let ranges = [
        (0, MIB),
        (5, MIB),
        (4096, 64 << 10),
        (7, 3),
        (4095, (64 << 10) + 2),
        (2 * MIB, MIB),
        (MIB + 1, MIB),
        (MIB - 4096, MIB),
        (4 * MIB, 9),
        (2 * MIB + 4000, 321),
    ];
    let calls = ranges.iter().zip(0..);
    let calls = calls.map(|((at, len), xid)| read_call(xid, &handle, *at as u64, *len as u32));
    client.write_all(&calls.collect::<Vec<_>>().concat()).unwrap();
    for _ in ranges {
        let (xid, read, eof) = read_reply(&mut client);
        let (at, len) = ranges[xid as usize];
        let end = (at + len).min(data.len());
        assert!(read == data.get(at..end).unwrap_or_default(), "{len} bytes at {at}");
        assert_eq!(eof, at + len >= data.len(), "{len} bytes at {at}");
    }
    drop(client);
    server.stop();
}

#[test]
fn connection_65_of_one_address_is_refused() {
    assert_eq!(CONNECTIONS_OF_ADDRESS_MAX, 64);
    let budget = Budget::new(64 << 20, OWN_BYTES);
    let (server, address) = serve(&budget);
    let mut clients: Vec<_> = (0..64).map(|_| connect_from(1, address)).collect();
    clients.iter_mut().for_each(|client| call(client).unwrap());
    assert!(call(&mut connect_from(1, address)).is_err(), "the 65th connection");
    assert!(call(&mut connect_from(2, address)).is_ok(), "another address");
    clients.iter_mut().for_each(|client| call(client).unwrap());
    clients.pop();
    let begun = Instant::now();
    while call(&mut connect_from(1, address)).is_err() {
        assert!(begun.elapsed() < LIMIT, "a closed connection leaves room");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(clients);
    server.stop();
}

#[test]
fn clients_that_read_no_replies_take_limited_memory_and_others_are_served() {
    const LIMIT_BYTES: usize = 16 << 20;
    let budget = Budget::new(LIMIT_BYTES, OWN_BYTES);
    let (server, address) = serve(&budget);
    let calls = null_calls(10_000);
    let silent: Vec<_> = (0..8)
        .map(|_| {
            let mut client = connect_from(1, address);
            // The server stops to read after some time, and the client cannot send more.
            let sent = (0..1000).take_while(|_| client.write_all(&calls).is_ok()).count();
            assert!(sent < 1000, "the server reads without a limit");
            client
        })
        .collect();
    let mut other = connect_from(2, address);
    (0..10).for_each(|_| call(&mut other).unwrap());
    let own = silent.len() + 1;
    assert!(budget.used_bytes() <= LIMIT_BYTES + own * OWN_BYTES, "{}", budget.used_bytes());
    drop((silent, other));
    server.stop();
}
