//! Null NBD server on tokio's current-thread runtime (epoll).

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
};
use weir_runtime_bench::{Address, Session, BUF};

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut input = Vec::with_capacity(BUF);
    let mut out = Vec::with_capacity(BUF);
    let mut session = Session::new(&mut out);
    let mut open = true;
    loop {
        if !out.is_empty() {
            stream.write_all(&out).await?;
            out.clear();
        }
        if !open || stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let (used, go_on) = session.feed(&input, &mut out);
        input.drain(..used);
        open = go_on;
    }
}

fn main() -> std::io::Result<()> {
    let address = Address::from_args();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        match address {
            Address::Unix(path) => {
                let listener = UnixListener::bind(path)?;
                loop {
                    tokio::task::spawn_local(serve(listener.accept().await?.0));
                }
            }
            Address::Tcp(port) => {
                let listener = TcpListener::bind(("127.0.0.1", port)).await?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    tokio::task::spawn_local(serve(stream));
                }
            }
        }
    }))
}
