//! Tests the NBD client against servers that accept requests but never answer completely.
//!
//! The tests of the program `weir-bench` measure servers that answer.
//!
//! Invariant: each server thread continues while the client stays connected.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Behaviour of the server on one connection.
type Behaviour = fn(&mut TcpStream) -> io::Result<()>;

/// Starts a server in a thread that ends with the test; returns the address of the server.
fn serve(behaviour: Behaviour) -> NbdAddress {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            std::thread::spawn(move || behaviour(&mut client));
        }
    });
    NbdAddress { server: Server::Tcp("127.0.0.1".to_owned(), port), export: "x".to_owned() }
}

fn greet(client: &mut TcpStream) -> io::Result<()> {
    let mut greeting = MAGIC.to_be_bytes().to_vec();
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    client.write_all(&greeting)
}

fn reply(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [OPT_GO, kind, data.len() as u32] {
        reply.extend(number.to_be_bytes());
    }
    reply.extend(data);
    reply
}

fn agree(client: &mut TcpStream) -> io::Result<()> {
    greet(client)?;
    // Read and discard the client flags, the option header and the option data, which consist of an
    // export name of one byte and one information request.
    let mut option = [0; 4 + 16 + 4 + 1 + 2 + 2];
    client.read_exact(&mut option)?;
    let mut export = INFO_EXPORT.to_be_bytes().to_vec();
    export.extend((1_u64 << 30).to_be_bytes());
    export.extend((1 | EXPORT_FLUSH).to_be_bytes());
    client.write_all(&reply(REP_INFO, &export))?;
    client.write_all(&reply(REP_ACK, &[]))
}

/// Reads and discards all data from the client until the client disconnects.
fn swallow(client: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 4096];
    while client.read(&mut bytes)? > 0 {}
    Ok(())
}

fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Sends export information repeatedly, and never the final reply of the negotiation.
fn negotiate_for_ever(client: &mut TcpStream) -> io::Result<()> {
    greet(client)?;
    loop {
        client.write_all(&reply(REP_INFO, &[0xff; 14]))?;
        pause();
    }
}

/// Sends the first 8 bytes of the greeting (`MAGIC`) repeatedly, one byte per quarter of
/// [`ANSWER_LIMIT`]. A client with only a timeout for each read would never leave this handshake.
fn greet_for_ever(client: &mut TcpStream) -> io::Result<()> {
    for byte in MAGIC.to_be_bytes().into_iter().cycle() {
        client.write_all(&[byte])?;
        std::thread::sleep(ANSWER_LIMIT / 4);
    }
    Ok(())
}

fn say_nothing(client: &mut TcpStream) -> io::Result<()> {
    swallow(client)
}

fn is_no_answer<T>(result: Result<T, TargetError>) -> bool {
    match result {
        Err(TargetError::NoAnswer { seconds, .. }) => seconds == ANSWER_LIMIT.as_secs(),
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

// Regression: a run against a server that negotiates endlessly did not end.
#[test]
fn endless_negotiation_times_out() {
    for behaviour in [negotiate_for_ever, greet_for_ever, say_nothing] as [Behaviour; 3] {
        assert!(is_no_answer(Nbd::open(serve(behaviour))));
    }
}

// The server accepts no connection, so its listen backlog is full after a few clients.
#[test]
fn connect_to_a_full_unix_socket_backlog_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd");
    let family = AddressFamily::UNIX;
    let listener = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = NbdAddress { server: Server::Unix(path), export: "x".to_owned() };
    let clients: Vec<_> =
        (0..2).map(|_| connect_unix(address_path(&address), Instant::now())).collect();
    assert!(clients.iter().any(Result::is_ok), "a queue of one");
    assert!(is_no_answer(Nbd::open(address)));
}

fn address_path(address: &NbdAddress) -> &Path {
    match &address.server {
        Server::Unix(path) => path,
        Server::Tcp(..) => panic!("a unix socket"),
    }
}

fn agree_and_swallow(client: &mut TcpStream) -> io::Result<()> {
    agree(client)?;
    swallow(client)
}

/// Answers a read with the reply header, then sends the data one byte at a time.
fn drip(client: &mut TcpStream) -> io::Result<()> {
    agree(client)?;
    let mut request = [0; REQUEST_BYTES];
    client.read_exact(&mut request)?;
    let mut head = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    head.extend([0; 4]);
    head.extend(&request[8..16]);
    client.write_all(&head)?;
    loop {
        client.write_all(&[0])?;
        pause();
    }
}

/// Completes the negotiation, then reads no request, so that requests fill the buffers of the
/// sockets.
fn agree_and_stop(client: &mut TcpStream) -> io::Result<()> {
    agree(client)?;
    while client.peek(&mut [0; 1])? > 0 {
        pause();
    }
    Ok(())
}

#[test]
fn lane_without_answers_times_out_in_every_wait() {
    let far = Instant::now() + Duration::from_hours(1);
    for behaviour in [agree_and_swallow, drip, agree_and_stop] as [Behaviour; 3] {
        for wait in [Wait::One, Wait::Until(far)] {
            let target = Nbd::open(serve(behaviour)).unwrap();
            let mut lane = target.lane(4, 8 << 20).unwrap();
            // Wait before the next operation: the idle time of a lane must not count towards the
            // limit.
            std::thread::sleep(ANSWER_LIMIT / 2);
            for slot in 0..4 {
                let (kind, len_bytes) = match slot {
                    0 => (OpKind::Read, 1 << 20),
                    _ => (OpKind::Write, 8 << 20),
                };
                let op = Op { kind, offset: 0, len_bytes, durable: false, source: 0 };
                lane.submit(slot, &op).unwrap();
            }
            let began = Instant::now();
            assert!(is_no_answer(lane.reap(wait, &mut Vec::new())));
            assert!(began.elapsed() >= ANSWER_LIMIT / 2);
        }
    }
}
