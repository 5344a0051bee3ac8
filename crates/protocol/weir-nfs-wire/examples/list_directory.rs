//! Lists a directory of 100 names with READDIR replies of at most 512 bytes: the encoder of a
//! server and the decoder of a client (RFC 1813 section 3.3.16).
//!
//! `cargo run -p weir-nfs-wire --example list_directory`
//!
//! The example `null_call` of weir-oncrpc has records and RPC headers.
//!
//! Invariant: the client receives each name once.

#![expect(clippy::print_stdout, reason = "the replies are the result")]

use std::error::Error;

use weir_block::OutBuf;
use weir_nfs_wire::nfs3::{DirectoryReply, Entry, FileName, Nfs3Result, PostOpAttr, ReaddirResok};
use weir_oncrpc::{Encoder, Xdr};

/// Limit of the client for one reply.
const COUNT: u32 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = (0..100).map(|number| format!("file-{number}")).collect();
    let mut received = Vec::new();
    let mut cookie = 0;
    loop {
        // Server: the cookie of an entry is its number, counted from 1.
        let mut out = OutBuf::with_room(COUNT as usize);
        let mut encoder = Encoder::new(&mut out);
        let mut reply = DirectoryReply::readdir(&mut encoder, &None, [0; 8], COUNT)
            .ok_or("the limit is too low for a reply")?;
        let mut eof = true;
        for (number, name) in (1..).zip(&names).skip(cookie as usize) {
            let name = FileName::new(name.as_bytes())?;
            if !reply.push(&Entry { fileid: number, name, cookie: number }) {
                eof = false;
                break;
            }
        }
        reply.finish(eof);

        // Client: continues behind the last entry.
        assert!(out.len() <= 4 + COUNT as usize);
        let result = Nfs3Result::<ReaddirResok<'_>, PostOpAttr>::decode_whole(out.filled())?;
        let listing = result.map_err(|failed| format!("{:?}", failed.status))?;
        let entries = &listing.entries.0;
        println!("{} bytes, {} entries after cookie {cookie}", out.len(), entries.len());
        received.extend(entries.iter().map(|entry| entry.name.bytes().to_vec()));
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        if listing.eof {
            break;
        }
    }
    assert!(received.iter().map(Vec::as_slice).eq(names.iter().map(String::as_bytes)));
    Ok(())
}
