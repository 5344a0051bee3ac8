//! Null NBD server as a small loop of its own on the `io-uring` crate.
//!
//! Each connection has one operation in flight: a receive, or the send of the
//! batch of replies. The slot number and the kind of operation are the tag.

use io_uring::{opcode, types::Fd, IoUring};
use std::net::{TcpListener, TcpStream};
use std::os::{
    fd::{AsRawFd, FromRawFd, OwnedFd},
    unix::net::UnixListener,
};
use weir_runtime_bench::{Address, Session, BUF};

const ACCEPT: u64 = u64::MAX;

struct Connection {
    fd: OwnedFd,
    session: Session,
    input: Vec<u8>,
    filled: usize,
    out: Vec<u8>,
    sent: usize,
    open: bool,
    sending: bool,
}

impl Connection {
    fn new(fd: OwnedFd) -> Connection {
        let mut out = Vec::with_capacity(BUF);
        let session = Session::new(&mut out);
        let input = vec![0; BUF];
        Connection { fd, session, input, filled: 0, out, sent: 0, open: true, sending: true }
    }

    /// Take the result of the operation in flight; false ends the connection.
    fn complete(&mut self, result: i32) -> bool {
        if result <= 0 {
            return false;
        }
        if self.sending {
            self.sent += result as usize;
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
                self.sending = false;
            }
            return self.sending || self.open;
        }
        self.filled += result as usize;
        let (used, open) = self.session.feed(&self.input[..self.filled], &mut self.out);
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.open = open;
        self.sending = !self.out.is_empty();
        self.sending || open
    }

    fn next(&mut self, slot: u64) -> io_uring::squeue::Entry {
        let fd = Fd(self.fd.as_raw_fd());
        if self.sending {
            let rest = &self.out[self.sent..];
            let op = opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32);
            op.flags(libc::MSG_NOSIGNAL).build().user_data(slot)
        } else {
            let room = &mut self.input[self.filled..];
            let op = opcode::Recv::new(fd, room.as_mut_ptr(), room.len() as u32);
            op.build().user_data(slot)
        }
    }
}

fn main() -> std::io::Result<()> {
    let (listener, tcp) = match Address::from_args() {
        Address::Unix(path) => (OwnedFd::from(UnixListener::bind(path)?), false),
        Address::Tcp(port) => (OwnedFd::from(TcpListener::bind(("127.0.0.1", port))?), true),
    };
    let null = std::ptr::null_mut();
    let accept = opcode::Accept::new(Fd(listener.as_raw_fd()), null, null.cast());
    let accept = accept.flags(libc::SOCK_CLOEXEC).build().user_data(ACCEPT);
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(256)?;
    let mut slots: Vec<Option<Connection>> = Vec::new();
    let mut todo = vec![accept.clone()];
    let mut done = Vec::new();
    loop {
        // SAFETY: the buffers are owned by `slots` and live, unmoved on the
        // heap, until the one operation that uses them has completed.
        unsafe { ring.submission().push_multiple(&todo) }.expect("fewer than 256 clients");
        todo.clear();
        ring.submit_and_wait(1)?;
        done.extend(ring.completion().map(|c| (c.user_data(), c.result())));
        for (tag, result) in done.drain(..) {
            let slot = if tag == ACCEPT {
                todo.push(accept.clone());
                if result < 0 {
                    continue;
                }
                // SAFETY: the kernel has just given us this descriptor.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                if tcp {
                    TcpStream::from(fd.try_clone()?).set_nodelay(true)?;
                }
                let slot = slots.iter().position(Option::is_none).unwrap_or(slots.len());
                slots.resize_with(slots.len().max(slot + 1), || None);
                slots[slot] = Some(Connection::new(fd));
                slot
            } else {
                let slot = tag as usize;
                if !slots[slot].as_mut().unwrap().complete(result) {
                    slots[slot] = None;
                    continue;
                }
                slot
            };
            todo.push(slots[slot].as_mut().unwrap().next(slot as u64));
        }
    }
}
