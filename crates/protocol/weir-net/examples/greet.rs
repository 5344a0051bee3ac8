//! Serves a protocol that sends one line to each client, on a TCP port. Then connects as a client
//! and prints the line.
//!
//! `cargo run -p weir-net --example greet`
//!
//! Invariant: no session runs after `stop` has returned.

#![expect(clippy::print_stdout, reason = "the line is the result")]

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::net::TcpStream;
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = Listener::bind(&Address::parse("127.0.0.1:0", 0)?)?;
    let Address::Tcp(address) = listener.address()? else { return Err("not TCP".into()) };
    let server = serve(vec![listener], Arc::new(Greet), 1)?;
    let mut line = String::new();
    TcpStream::connect(address)?.read_to_string(&mut line)?;
    server.stop();
    print!("{line}");
    Ok(())
}
