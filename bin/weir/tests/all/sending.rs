//! Streams that end early, because the reader or the server has ended, or a block is damaged.
//!
//! Not here: streams that arrive completely or are resumed (send.rs).
//!
//! Invariants:
//! - an incomplete stream never ends like a complete one: the exit code of the sender shows the
//!   cause;
//! - the session of an incomplete stream ends, so that it blocks no other caller.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Ran, Server, WEIR, code, eventually};
use rustix::process::Signal;

/// Exit code of the error kind `Data`.
const DATA_LOST: i32 = 10;

/// Size of the volume: much more than fits in the buffers between a sender and its reader.
const SIZE: u64 = 96 * MIB;

/// Starts a server that has a snapshot of random data; returns the server and the data.
fn server(dirs: &Dirs) -> (Server, Vec<u8>) {
    dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.weir(&format!("volume create tank/v --size {SIZE}")).ok();
    server.weir("export create nbd tank/v").ok();
    let mut noise = vec![0; SIZE as usize];
    Rng::new(5).fill(&mut noise);
    let mut client = server.client("tank/v");
    for (at, part) in (0..).step_by(MIB as usize).zip(noise.chunks(MIB as usize)) {
        client.write(at, part).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    server.weir("snapshot create tank/v@s").ok();
    (server, noise)
}

/// Starts a sender and reads the first MiB of its stream.
fn begun(dirs: &Dirs) -> (Child, ChildStdout) {
    let mut command = Command::new(WEIR);
    let api = format!("unix:{}", dirs.short("api").display());
    command.args(["send", "tank/v@s"]).env("WEIR_API", api);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sender = command.spawn().unwrap();
    let mut stream = sender.stdout.take().unwrap();
    stream.read_exact(&mut vec![0; MIB as usize]).unwrap();
    (sender, stream)
}

/// Reads the rest of the stream; returns its length and the result of the sender.
fn ended((sender, mut stream): (Child, ChildStdout)) -> (u64, Ran) {
    let rest = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    drop(stream);
    (rest + MIB, Ran::of("send tank/v@s", &sender.wait_with_output().unwrap()))
}

#[test]
fn killed_senders_free_their_sessions() {
    let dirs = Dirs::new();
    let (mut server, _) = server(&dirs);
    // Start three times as many sends as may run at the same time: each must end its session.
    for at in 0..24 {
        let (mut sender, stream) = begun(&dirs);
        sender.kill().unwrap();
        sender.wait().unwrap();
        drop(stream);
        if at % 8 == 7 {
            eventually("a session is free", Duration::from_secs(5), || {
                server.weir("send -n tank/v@s").code == Some(0)
            });
        }
    }
    // If the reader of a stream ends, the sender fails, and its session ends at once.
    for _ in 0..10 {
        let (sender, stream) = begun(&dirs);
        drop(stream);
        let ran = Ran::of("send", &sender.wait_with_output().unwrap());
        ran.fails(code::UNAVAILABLE, &["the stream cannot be written"]);
    }
    let (bytes, ran) = ended(begun(&dirs));
    ran.ok();
    assert!(bytes > SIZE, "{bytes}");
    server.assert_alive();
    server.stop_clean();
}

#[test]
fn killed_or_stopped_server_fails_its_streams() {
    let dirs = Dirs::new();
    let (server, _) = server(&dirs);
    let sender = begun(&dirs);
    server.kill();
    let (bytes, ran) = ended(sender);
    assert!(bytes < SIZE, "{bytes}");
    ran.fails(code::UNAVAILABLE, &["the connection to weir at", "broke", "log"]);

    let server = dirs.start();
    let sender = begun(&dirs);
    let reader = std::thread::spawn(|| ended(sender));
    let (status, took) = server.stop(Signal::TERM);
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(8), "a stream held the server up: {took:?}");
    let (bytes, ran) = reader.join().unwrap();
    // If the stream was already complete when the server ended, the sender succeeds.
    assert!(ran.code != Some(0) || bytes > SIZE, "{bytes}: {}", ran.talk);
}

#[test]
fn damaged_block_fails_the_stream_with_its_cause() {
    let dirs = Dirs::new();
    let (server, noise) = server(&dirs);
    server.stop_clean();
    crate::common::spoil(&dirs.file("a"), &noise[SIZE as usize / 2..][..4096]);
    let mut server = dirs.start();
    // Start more sends than there may be sessions: each failed send must end its session.
    for _ in 0..10 {
        let (bytes, ran) = ended(begun(&dirs));
        assert!(bytes < SIZE, "{bytes}");
        ran.fails(DATA_LOST, &["damaged", "restore"]);
    }
    server.assert_alive();
    server.stop_clean();
}

#[test]
fn stalled_reader_stops_its_stream_but_not_the_server() {
    let dirs = Dirs::new();
    let (mut server, _) = server(&dirs);
    let resting: Vec<_> = (0..4).map(|_| begun(&dirs)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let read = |server: &Server| {
        let status = server.status("tank");
        status["read"]["data_bytes"].as_u64().unwrap()
    };
    let before = read(&server);
    assert!(before < 4 * SIZE / 2, "{before} bytes were read for takers that rest");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(read(&server), before);
    let start = Instant::now();
    server.assert_alive();
    assert!(start.elapsed() < Duration::from_secs(2));
    for sender in resting {
        let (bytes, ran) = ended(sender);
        ran.ok();
        assert!(bytes > SIZE, "{bytes}");
    }
    server.stop_clean();
}
