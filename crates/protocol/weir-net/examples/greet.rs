//! Serves a protocol of one line on a unix socket: the server runs the connections, the protocol
//! only its own bytes. Then connects once and prints the line.
//!
//! `cargo run -p weir-net --example greet`
//!
//! Not here: a block protocol (weir-nbd, weir-iscsi).
//!
//! Invariant: no session runs after `stop` returned.

#![expect(clippy::print_stdout, reason = "the line is the result")]

use std::convert::Infallible;
use std::error::Error;
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use compio::BufResult;
use compio::io::AsyncWriteExt as _;
use weir_net::{Address, Listener, Peer, Protocol, Socket, Watch, serve};

struct Greet;

impl Protocol for Greet {
    type Error = io::Error;
    type Parked = Infallible;
    const MOVES: bool = false;
    const IDLE_GIVES_WAY: bool = false;

    fn name(&self) -> &'static str {
        "greet"
    }

    async fn run<S: Socket>(
        &self,
        mut socket: S,
        peer: &Peer,
        watch: &Watch,
        _parked: Option<Infallible>,
    ) -> io::Result<Option<Infallible>> {
        watch.end_handshake();
        let BufResult(sent, _) = socket.write_all(format!("welcome, {}\n", peer.name)).await;
        sent.map(|()| None)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("greet-{}.sock", std::process::id()));
    let listener = Listener::bind(&Address::Unix(path.clone()))?;
    let server = serve(vec![listener], Arc::new(Greet), 1)?;
    let mut line = String::new();
    UnixStream::connect(&path)?.read_to_string(&mut line)?;
    server.stop();
    print!("{line}");
    assert!(line.starts_with("welcome"));
    Ok(())
}
