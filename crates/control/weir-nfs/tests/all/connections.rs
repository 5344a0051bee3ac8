//! Tests of the limits of connections, over TCP.
//!
//! Invariant: the clients send only NULL calls, so no test needs a filesystem.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use weir_block::OutBuf;
use weir_net::{Address, Budget, Listener, ServerHandle};
use weir_nfs::limits::{CONNECTIONS_OF_ADDRESS_MAX, OWN_BYTES};
use weir_nfs::{Nfs, Server};
use weir_nfs_wire::nfs3;
use weir_oncrpc::Encoder;
use weir_oncrpc::message::{Call, OpaqueAuth};
use weir_oncrpc::record::RecordStart;

/// Length of the reply to a NULL call, with its record mark.
const REPLY_BYTES: usize = 28;
const LIMIT: Duration = Duration::from_secs(20);

fn serve(budget: &Arc<Budget>) -> (ServerHandle<Nfs>, SocketAddr) {
    let nfs = Nfs::new(Arc::new(Server::new(9)), Arc::clone(budget));
    let listener = Listener::bind(&Address::parse("127.0.0.1:0", 0).unwrap()).unwrap();
    let server = weir_net::serve(vec![listener], Arc::new(nfs), 1).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first().cloned() else {
        panic!("a TCP listener");
    };
    (server, address)
}

/// Connects from the address 127.0.0.`host`.
fn connect_from(host: u8, server: SocketAddr) -> TcpStream {
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
