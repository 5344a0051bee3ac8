//! Tests with targets that do not respond, respond slowly, or send invalid data.
//!
//! Invariant: with every such target, the caller gets an error within its time limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use weir_initiator::{InitiatorError, LoginOptions, Session, Url, discover};

const LIMIT: Duration = Duration::from_millis(300);

/// Starts a target that runs `does` for each connection to it.
fn target(does: impl Fn(TcpStream, SocketAddr) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            does(stream.unwrap(), address);
        }
    });
    address
}

fn refused(address: SocketAddr) -> InitiatorError {
    let url = Url::parse(&format!("iscsi://{address}/iqn.t/0")).unwrap();
    let options = LoginOptions { login_limit: LIMIT, command_limit: LIMIT, ..Default::default() };
    let began = Instant::now();
    let error = Session::login(&url, &options).err().expect("this is no target");
    assert!(began.elapsed() < 20 * LIMIT, "{:?}", began.elapsed());
    assert!(discover(&address.to_string(), &options).is_err());
    error
}

/// Sends a login response with the ISID and the Initiator Task Tag of the request.
fn answer(stream: &mut TcpStream, flags: u8, status: [u8; 2], text: &[u8]) {
    let mut request = [0; 48];
    stream.read_exact(&mut request).unwrap();
    let len = usize::from(request[6]) << 8 | usize::from(request[7]);
    let mut data = vec![0; len.next_multiple_of(4)];
    stream.read_exact(&mut data).unwrap();
    let mut header = [0; 48];
    (header[0], header[1], header[7]) = (0x23, flags, text.len() as u8);
    header[8..14].copy_from_slice(&request[8..14]);
    (header[15], header[31], header[35]) = (1, 1, 9);
    header[36..38].copy_from_slice(&status);
    // Each request has one response, so StatSN equals the ExpStatSN of the request.
    header[24..28].copy_from_slice(&request[28..32]);
    let padded = [&header[..], text, &vec![0; text.len().next_multiple_of(4) - text.len()]];
    stream.write_all(&padded.concat()).unwrap();
}

#[test]
fn unresponsive_and_slow_targets_end_at_the_limit() {
    let silent = target(|stream, _| {
        thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    assert!(matches!(refused(silent), InitiatorError::Timeout { .. }));
    let slow = target(|mut stream, _| {
        while stream.write_all(&[0x23]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(matches!(
        refused(slow),
        InitiatorError::Timeout { .. } | InitiatorError::Protocol { .. }
    ));
    let closing = target(|stream, _| drop(stream));
    let error = refused(closing);
    let is_gone = matches!(error, InitiatorError::Closed | InitiatorError::Socket { .. });
    assert!(is_gone, "{error:?}");
}

#[test]
fn other_protocols_and_redirection_loops_are_errors() {
    let web = target(|mut stream, _| {
        let text =
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\nand so on, longer than 48";
        drop(stream.write_all(text));
        thread::sleep(LIMIT);
    });
    assert!(matches!(refused(web), InitiatorError::Protocol { .. }));
    let circle = target(|mut stream, address| {
        let text = format!("TargetAddress={address},1\0");
        answer(&mut stream, 0, [1, 1], text.as_bytes());
    });
    let error = refused(circle);
    assert!(error.to_string().contains("redirects too often"), "{error}");
}

#[test]
fn target_that_hangs_after_the_login_times_out() {
    let mute = target(|mut stream, _| {
        answer(&mut stream, 0x81, [0, 0], b"AuthMethod=None\0");
        answer(&mut stream, 0x87, [0, 0], b"");
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest));
    });
    let error = refused(mute);
    assert!(error.to_string().contains("a command"), "{error}");
    let rude = target(|mut stream, _| {
        answer(&mut stream, 0x81, [0, 0], b"AuthMethod=None\0");
        answer(&mut stream, 0x87, [0, 0], b"");
        drop(stream.write_all(&[0x25; 480]));
        thread::sleep(LIMIT);
    });
    assert!(matches!(refused(rude), InitiatorError::Protocol { .. }));
}
