//! Mounts a directory of an NFS server and prints its names and the limits of the server.
//!
//! `cargo run -p weir-nfs-client --example list -- nfs://HOST/EXPORT/DIR`
//!
//! weir-bench sends many calls at once over a connection.
//!
//! Invariant: the example changes nothing on the server.

#![expect(clippy::print_stdout, reason = "the names are the result")]

use std::error::Error;

use weir_nfs_client::{Client, Url};

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).ok_or("usage: list nfs://HOST/EXPORT/DIR")?;
    let url = Url::parse(&text)?;
    let mut client = Client::mount(&url)?;
    let limits = client.limits()?;
    println!("{} is mounted from port {}", client.mounted().path, client.connection().source().0);
    println!("reads up to {} bytes, writes up to {} bytes", limits.rtmax, limits.wtmax);
    let directory = client.directory(&url, false)?;
    client.list(&directory, &mut |name| println!("{}", String::from_utf8_lossy(name)))?;
    Ok(())
}
