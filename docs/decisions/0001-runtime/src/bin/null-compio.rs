//! Null NBD server on compio, one thread. It prints which driver it got:
//! io_uring, or polling where io_uring is refused.

use compio::{
    driver::ProactorBuilder,
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    runtime::{spawn, RuntimeBuilder},
    BufResult,
};
use weir_runtime_bench::{Address, Session, BUF};

async fn serve(mut stream: impl AsyncRead + AsyncWrite + 'static) -> std::io::Result<()> {
    let mut input = Vec::with_capacity(BUF);
    let mut out = Vec::with_capacity(BUF);
    let mut session = Session::new(&mut out);
    let mut open = true;
    loop {
        if !out.is_empty() {
            let BufResult(res, back) = stream.write_all(out).await;
            res?;
            out = back;
            out.clear();
        }
        if !open {
            return Ok(());
        }
        let BufResult(res, back) = stream.append(input).await;
        input = back;
        if res? == 0 {
            return Ok(());
        }
        let (used, go_on) = session.feed(&input, &mut out);
        input.drain(..used);
        open = go_on;
    }
}

fn main() -> std::io::Result<()> {
    let address = Address::from_args();
    let mut driver = ProactorBuilder::new();
    driver.single_issuer(true).defer_taskrun(true).coop_taskrun(true);
    let runtime = RuntimeBuilder::new().with_proactor(driver).build()?;
    eprintln!("driver: {:?}", runtime.driver_type());
    runtime.block_on(async {
        match address {
            Address::Unix(path) => {
                let listener = UnixListener::bind(path).await?;
                loop {
                    spawn(serve(listener.accept().await?.0)).detach();
                }
            }
            Address::Tcp(port) => {
                let listener = TcpListener::bind(("127.0.0.1", port)).await?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    spawn(serve(stream)).detach();
                }
            }
        }
    })
}
