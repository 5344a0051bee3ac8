//! Lists the volumes of a server with their sizes, as `weir volume list` does.
//!
//! `WEIR_API=unix:/run/weir/api.sock cargo run -p weir-api --example list_volumes`
//!
//! Without the variable the example calls the current user's server; if that server does not run,
//! it calls root's server.
//!
//! Invariant: the client reads all pages of the list.

#![expect(clippy::print_stdout, reason = "the list is the result")]

use std::error::Error;

use weir_api::place::{API_PORT, API_VARIABLE, default_server};
use weir_api::types::ListVolumes;
use weir_api::{Address, Client};

fn main() -> Result<(), Box<dyn Error>> {
    let address = match std::env::var(API_VARIABLE) {
        Ok(text) => Address::parse(&text, API_PORT)?,
        Err(_) => default_server(),
    };
    let client = Client::new(address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let list = runtime.block_on(client.call(ListVolumes::default()))?;
    for volume in &list.volumes {
        println!("{} {} bytes", volume.name, volume.size_bytes);
    }
    println!("{} volumes at {}", list.volumes.len(), client.address());
    Ok(())
}
