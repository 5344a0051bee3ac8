//! Tests with servers that do not reply, close the connection, or speak another protocol, and with
//! a server that offers no MOUNT.
//!
//! Invariant: with every such server, the caller gets an error within its time limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use weir_block::OutBuf;
use weir_nfs_client::{Buffers, Client, Connection, Identity, NfsError, Request, Url};
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::Args;
use weir_oncrpc::Encoder;
use weir_oncrpc::message::{AcceptStat, Call, Reply};

const LIMIT: Duration = Duration::from_millis(300);

struct Nothing;

impl Buffers for Nothing {
    fn data(&self, _: usize) -> &[u8] {
        &[]
    }

    fn data_mut(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }
}

/// Starts a server that runs `does` for each connection to it.
fn server(does: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| does(stream.unwrap())));
    address
}

fn error_of_a_call(address: SocketAddr) -> NfsError {
    let (host, port) = (address.ip().to_string(), address.port());
    let mut connection = Connection::open(&host, port, None, Identity::none(), 1).unwrap();
    let began = Instant::now();
    let called = connection.call(&Request::Nfs(&Args::Null(())), &mut Nothing, LIMIT);
    assert!(began.elapsed() < 20 * LIMIT, "{:?}", began.elapsed());
    called.expect_err("this is no server")
}

#[test]
fn unresponsive_and_slow_servers_end_at_the_limit() {
    let silent = server(|stream| {
        thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    assert!(matches!(error_of_a_call(silent), NfsError::Timeout { .. }));
    let slow = server(|mut stream| {
        // A record of 1 MiB that arrives byte by byte.
        let mark = [0x80, 0x10, 0, 0];
        for byte in mark.into_iter().chain(std::iter::repeat(0)) {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    let error = error_of_a_call(slow);
    assert!(matches!(error, NfsError::Timeout { .. } | NfsError::Protocol { .. }), "{error}");
    let closing = server(drop);
    let error = error_of_a_call(closing);
    assert!(matches!(error, NfsError::Closed | NfsError::Socket(_)), "{error}");
}

#[test]
fn other_protocols_are_errors() {
    let web = server(|mut stream| {
        drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
        thread::sleep(LIMIT);
    });
    let error = error_of_a_call(web);
    assert!(matches!(error, NfsError::Record(_)), "{error}");
    assert!(error.to_string().contains("violates the protocol"), "{error}");
}

/// Receives one call. Returns its transaction id and its arguments.
fn receive(stream: &mut TcpStream) -> Option<(u32, Vec<u8>)> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).ok()?;
    let (call, args) = Call::decode(&record).unwrap();
    Some((call.xid, args.rest().to_vec()))
}

/// Sends a reply with these results.
fn send(stream: &mut TcpStream, xid: u32, stat: AcceptStat, results: &[u8]) {
    let mut out = OutBuf::default();
    Reply::accepted(xid, stat).encode(&mut Encoder::new(&mut out));
    out.put(results);
    let mark = (1 << 31 | out.len() as u32).to_be_bytes();
    stream.write_all(&[&mark, out.filled()].concat()).unwrap();
}

#[test]
fn error_of_a_mount_has_the_path_of_the_user() {
    // The server refuses /a/b, and knows no other path.
    let nfs = server(|mut stream| {
        while let Some((xid, args)) = receive(&mut stream) {
            let status =
                if args.ends_with(b"/a/b") { Mountstat3::Acces } else { Mountstat3::Noent };
            send(&mut stream, xid, AcceptStat::Success, &(status as u32).to_be_bytes());
        }
    });
    let mount = |path: &str| {
        let url = Url::parse(&format!("nfs://{nfs}{path}?mountport={}", nfs.port())).unwrap();
        Client::mount(&url).err().expect("the server refuses it")
    };
    for (asked, expected) in [("/a/b/c", Mountstat3::Acces), ("/d/e", Mountstat3::Noent)] {
        let error = mount(asked);
        let NfsError::Mount { path, status, .. } = &error else { panic!("{error}") };
        assert_eq!((path.as_str(), *status), (asked, expected));
    }
}

#[test]
fn server_without_mount_is_named() {
    let nfs = server(|mut stream| {
        let (xid, _) = receive(&mut stream).unwrap();
        send(&mut stream, xid, AcceptStat::ProgUnavail, &[]);
        thread::sleep(LIMIT);
    });
    let url = Url::parse(&format!("nfs://{nfs}/export?mountport={}", nfs.port())).unwrap();
    let error = Client::mount(&url).err().expect("no MOUNT");
    assert!(matches!(error, NfsError::Refused { what: "MNT", .. }), "{error}");
    assert!(error.to_string().contains("ProgUnavail"), "{error}");
}
