//! Bad NBD clients and iSCSI initiators: they send invalid requests or garbage, or stop responding.
//!
//! Not here: all protocol errors (the tests of weir-nbd); these tests run the whole program.
//!
//! Invariant: the server answers or disconnects a bad client, and other clients are not affected.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::iscsi::{Initiator, wide};
use crate::common::nbd::{
    Client, EINVAL, ENOSPC, EPERM, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, greeted,
};
use crate::common::rng::Rng;
use crate::common::{Dirs, KIB, MIB, Server, code, run, text};

const SIZE: u64 = 16 * MIB;

fn serve(dirs: &Dirs) -> Server {
    serve_with(dirs, &[])
}

fn serve_with(dirs: &Dirs, options: &[&str]) -> Server {
    dirs.disk("a", 256 * MIB);
    let mut command = dirs.serve();
    command.args(options);
    let server = Server::start(dirs, "", command);
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "16MiB");
    server.weir("export create nbd tank/v --name ro --read-only").ok();
    server
}

/// Well-behaved client of the volume, which the bad clients must not disturb.
struct Good {
    client: Client,
    round: u8,
}

impl Good {
    fn new(server: &Server) -> Self {
        Self { client: server.client("tank/v"), round: 0 }
    }

    /// Asserts that the server serves this well-behaved client without delay.
    fn works(&mut self) {
        self.round += 1;
        let data = vec![self.round; 4096];
        let start = Instant::now();
        self.client.write(8 * MIB, &data).unwrap();
        self.client.flush().unwrap();
        assert_eq!(self.client.read(8 * MIB, 4096).unwrap(), data);
        assert!(start.elapsed() < Duration::from_secs(5), "held up for {:?}", start.elapsed());
    }
}

#[test]
fn unknown_exports_are_refused() {
    let dirs = Dirs::new();
    let mut server = serve(&dirs);
    let mut good = Good::new(&server);
    for name in ["none", "tank/none", "tank", "", "../v", &"x".repeat(4000)] {
        let error = Client::connect(server.nbd(), name).err().expect(name);
        assert!(error.to_string().contains("export"), "{name}: {error}");
    }
    let output = run("nbdinfo", &[&server.uri("tank/none")]);
    assert!(!output.status.success());
    assert!(text(&output).contains("tank/none"), "{}", text(&output));
    let output = run("qemu-img", &["info", &server.uri("tank/none")]);
    assert!(!output.status.success());
    assert!(text(&output).contains("tank/none"), "{}", text(&output));
    good.works();
    server.assert_alive();
}

#[test]
fn invalid_requests_get_an_error_and_change_nothing() {
    let dirs = Dirs::new();
    let mut server = serve(&dirs);
    let mut client = server.client("tank/v");
    let pattern = vec![0x5a; 4096];
    client.write(SIZE - 4096, &pattern).unwrap();
    client.write(0, &pattern).unwrap();
    let data = vec![1; 8192];
    for (what, kind, offset, len, errno) in [
        ("read beyond the end", READ, SIZE, 4096, EINVAL),
        ("read across the end", READ, SIZE - 4096, 8192, EINVAL),
        ("write beyond the end", WRITE, SIZE, 4096, ENOSPC),
        ("write across the end", WRITE, SIZE - 4096, 8192, ENOSPC),
        ("offset that overflows", WRITE, u64::MAX - 4095, 4096, ENOSPC),
        ("read whose end overflows", READ, u64::MAX - 511, 512, EINVAL),
        ("trim across the end", TRIM, SIZE - 4096, 8192, EINVAL),
        ("zeroes across the end", WRITE_ZEROES, SIZE - 4096, 8192, ENOSPC),
        ("read not aligned", READ, 1, 512, EINVAL),
        ("read of a part of a sector", READ, 0, 100, EINVAL),
        ("write not aligned", WRITE, 4095, 512, EINVAL),
        ("write of a part of a sector", WRITE, 0, 1, EINVAL),
        ("trim not aligned", TRIM, 7, 4096, EINVAL),
        ("flush with a range", FLUSH, 4096, 4096, EINVAL),
        ("no such command", 99, 0, 0, EINVAL),
    ] {
        let body = if kind == WRITE { &data[..len as usize] } else { &[] };
        assert_eq!(client.call(kind, 0, offset, len, body).err(), Some(errno), "{what}");
    }
    // The write exceeds the maximum length, but not by much: the server reads its data, discards
    // the data, and replies with an error.
    let long = vec![2; 33 * MIB as usize];
    assert_eq!(client.write(0, &long).err(), Some(EINVAL), "a write of 33 MiB");
    assert!(client.read(0, 33 * MIB as u32).is_err(), "a read of 33 MiB");
    assert_eq!(client.call(READ, 0x8000, 0, 4096, &[]).err(), Some(EINVAL), "unknown flag");
    assert_eq!(client.read(0, 4096).unwrap(), pattern);
    assert_eq!(client.read(SIZE - 4096, 4096).unwrap(), pattern);
    let mut reader = server.client("ro");
    for kind in [TRIM, WRITE_ZEROES] {
        assert_eq!(reader.call(kind, 0, 0, 4096, &[]).err(), Some(EPERM));
    }
    assert_eq!(reader.write(0, &data).err(), Some(EPERM));
    assert_eq!(reader.read(0, 4096).unwrap(), pattern);
    // The write is so long that the server closes its connection. Other connections stay open.
    client.send(WRITE, 0, 0, u32::MAX - 511, &[]).unwrap();
    assert!(client.receive().is_err(), "a write of 4 GiB is no request");
    assert_eq!(reader.read(0, 4096).unwrap(), pattern);
    server.assert_alive();
}

/// Sends bytes and reads until the server closes the connection or sends nothing for 200 ms.
fn send_nonsense(stream: &mut UnixStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    // The server may close the connection before all bytes are sent.
    drop(stream.write_all(bytes));
    let mut answer = [0; 4096];
    while let Ok(1..) = stream.read(&mut answer) {}
}

#[test]
fn garbage_on_the_port_affects_no_other_client() {
    let dirs = Dirs::new();
    let mut server = serve(&dirs);
    let mut good = Good::new(&server);
    let mut rng = Rng::from_env("WEIR_GARBAGE_SEED");
    let mut messages: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(),
        vec![0xff; 64 << 10],
        vec![0; 64 << 10],
        // Valid client flags, then an option that claims to have 4 GiB of data.
        [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 7, 255, 255, 255, 255]].concat(),
        // Valid client flags, then EXPORT_NAME with a name that is not valid UTF-8.
        [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 2, 0xc3, 0x28]].concat(),
    ];
    for _ in 0..20 {
        let mut noise = vec![0; 1 + rng.below(8192) as usize];
        rng.fill(&mut noise);
        messages.push(noise);
    }
    for message in &messages {
        send_nonsense(&mut UnixStream::connect(server.nbd()).unwrap(), message);
        good.works();
        // Send the same garbage in the middle of a valid session.
        let mut session = server.client("tank/v");
        drop(session.send(READ, 0, 0, 4096, message));
        good.works();
    }
    server.assert_alive();
}

#[test]
fn idle_handshakes_time_out_and_delay_no_other_client() {
    let dirs = Dirs::new();
    let mut server = serve_with(&dirs, &["--handshake-timeout", "2"]);
    let mut good = Good::new(&server);
    let start = Instant::now();
    let silent: Vec<UnixStream> =
        (0..200).map(|_| UnixStream::connect(server.nbd()).unwrap()).collect();
    let mut half = greeted(server.nbd()).unwrap();
    half.write_all(&3_u32.to_be_bytes()).unwrap();
    half.write_all(b"IHAVEOPT\0\0").unwrap();
    // A third client sends half of a write request in a session; the server waits for the rest.
    let mut session = server.client("tank/v");
    session.send(WRITE, 0, 0, 64 * KIB as u32, &[9; 100]).unwrap();
    good.works();
    Good::new(&server).works();
    let mut last = Duration::ZERO;
    for mut stream in silent.into_iter().chain([half]) {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        // A connection reset counts as the end of the connection.
        drop(stream.read_to_end(&mut rest));
        last = start.elapsed();
    }
    assert!(last > Duration::from_millis(1_900), "dropped before the limit: {last:?}");
    assert!(last < Duration::from_secs(20), "not dropped: {last:?}");
    good.works();
    drop(session);
    good.works();
    assert_eq!(good.client.read(0, 4096).unwrap(), vec![0; 4096], "half a write was done");
    server.weir("export delete none").fails(code::NOT_FOUND, &["none"]);
    server.assert_alive();
}

/// Initiators that send many read commands and receive no data must delay no other session.
#[test]
fn initiators_that_stop_receiving_delay_no_other_session() {
    const TARGET: &str = "iqn.2026-01.org.weir:vms";
    const CLIENT: &str = "iqn.2026-01.org.example:client";
    let dirs = Dirs::new();
    dirs.disk("a", 256 * MIB);
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let mut server = Server::start(&dirs, "", command);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 64MiB").ok();
    server.weir("target create vms --allow *").ok();
    server.weir("lun add vms tank/v --write-cache on").ok();
    let shown = server.weir("target show vms --json").json();
    let portal = shown["portals"][0].as_str().unwrap();
    let portal = portal.split(',').next().unwrap().to_owned();
    let log_in = |isid| {
        let session = Initiator::log_in(&portal, CLIENT, isid, TARGET).unwrap();
        let mut session = session.expect("a session");
        session.ready(0);
        session
    };
    let mut good = log_in(0);
    let mut works = |round: u64| {
        let start = Instant::now();
        let data = vec![round as u8; 4096];
        good.run(0, &wide(0x8A, 0, 8 * round, 8), &data, 0).unwrap().good();
        good.run(0, &wide(0x91, 0, 0, 0), &[], 0).unwrap().good();
        assert_eq!(good.run(0, &wide(0x88, 0, 8 * round, 8), &[], 4096).unwrap().good(), data);
        start.elapsed()
    };
    works(0);
    let before = server.resident_bytes();
    let mut greedy: Vec<Initiator> = (1..=16).map(log_in).collect();
    for hog in &mut greedy {
        for at in 0..64 {
            // The initiator sends read commands of 1 MiB each and receives no data.
            hog.send_command(0, &wide(0x88, 0, at * 2048 % 65536, 2048), &[], MIB as u32).unwrap();
        }
    }
    // Wait until the server has accepted as many commands as it allows one initiator.
    std::thread::sleep(Duration::from_secs(1));
    let longest = (1..200).map(&mut works).max().unwrap();
    assert!(longest < Duration::from_secs(5), "held up for {longest:?}");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 512 * MIB, "{grown} bytes more, of 1 GiB that was asked for");
    drop(greedy);
    works(1);
    server.assert_alive();
}
