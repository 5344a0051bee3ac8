//! Sessions with a client that sends raw messages: errors, limits, and protocol violations.
//!
//! Third-party clients are in real_clients.rs; unit tests cover single messages.
//!
//! Invariants:
//! - each read has a time limit, so that a hanging server fails the test;
//! - after a protocol violation, the server still serves other clients.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::server::{Client, SIZE, Setup, request, setup, setup_limited, setup_with};
use weir_base::ErrorKind;
use weir_nbd::limits;
use weir_net::limits::DRAIN_LIMIT;

#[test]
fn garbage_ends_only_its_connection() {
    let setup = setup("garbage");
    let mut good = setup.client("fast");
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 5000], b"\0\0\0\x03SSH-2.0-OpenSSH_9"]
    {
        let mut bad = setup.connect();
        bad.get(18);
        bad.put(garbage);
        assert!(bad.is_closed());
    }
    let mut bad = setup.client("fast");
    bad.put(&[b'x'; 28]);
    assert!(bad.is_closed());
    let mut bad = setup.client("fast");
    bad.ask(0, 1, 1, 0, (64 << 20) + 512);
    assert!(bad.is_closed(), "a write too long to drain");
    good.ask(0, 0, 9, 0, 512);
    assert_eq!(good.reply(), (0, 9));
    assert_eq!(good.get(512), [0; 512]);
}

#[test]
fn half_open_connection_times_out() {
    const LIMIT: Duration = Duration::from_millis(500);
    let setup = setup_limited("half-open", 256 << 20, LIMIT);
    let start = Instant::now();
    let mut silent = setup.connect();
    silent.get(18);
    let mut partial = setup.connect();
    partial.get(18);
    partial.put(b"\0\0\0\x03IHAVE");
    assert!(silent.is_closed() && partial.is_closed());
    let waited = start.elapsed();
    assert!(waited + Duration::from_millis(50) >= LIMIT && waited < LIMIT * 20, "{waited:?}");
    setup.wait_for_connections(0);
}

#[test]
fn refused_requests_keep_the_stream_in_sync() {
    let setup = setup("refused");
    let mut client = setup.client("fast");
    let payload = vec![1; 1000];
    client.put(&[request(0, 1, 1, 0, 1000), payload].concat());
    assert_eq!(client.reply(), (22, 1), "unaligned");
    client.put(&[request(0, 1, 2, SIZE - 512, 1024), vec![2; 1024]].concat());
    assert_eq!(client.reply(), (28, 2), "write beyond the end");
    client.ask(0, 0, 3, SIZE, 512);
    assert_eq!(client.reply(), (22, 3), "read beyond the end");
    client.ask(0, 77, 4, 0, 0);
    assert_eq!(client.reply(), (22, 4), "unknown command");
    client.put(&request(0, 1, 5, 0, (32 << 20) + 512));
    client.put(&vec![3; (32 << 20) + 512]);
    assert_eq!(client.reply(), (22, 5), "oversized write, drained");
    client.ask(2 | 16, 6, 6, 0, 4096);
    assert_eq!(client.reply(), (95, 6), "NO_HOLE is not fast here");
    for kind in [0, 1, 4, 5, 6] {
        client.ask(0, kind, 7, 0, 0);
        assert_eq!(client.reply(), (0, 7), "length 0, command {kind}");
    }
    client.ask(0, 0, 8, 0, 4096);
    assert_eq!(client.reply(), (0, 8));
    assert_eq!(client.get(4096), vec![0; 4096], "none of the refused writes was run");
}

#[test]
fn storage_errors_reach_the_client() {
    let setup = setup("errors");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        for (kind, errno) in
            [(ErrorKind::NoSpace, 28), (ErrorKind::Data, 5), (ErrorKind::ReadOnly, 1)]
        {
            *setup.exports.volume(export).failure.write() = Some(kind);
            for command in [0, 3, 4, 5, 6] {
                client.ask(0, command, 1, 0, if command == 3 { 0 } else { 4096 });
                assert_eq!(client.reply(), (errno, 1), "{kind:?}, command {command}");
            }
            client.put(&[request(1, 1, 2, 0, 4096), vec![1; 4096]].concat());
            assert_eq!(client.reply(), (errno, 2), "{kind:?}");
        }
        *setup.exports.volume(export).failure.write() = None;
        client.ask(0, 3, 3, 0, 0);
        assert_eq!(client.reply(), (0, 3));
    }
}

#[test]
fn fua_flushes_before_the_reply() {
    let setup = setup("fua");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        for round in 1..=9 {
            client.put(&[request(1, 1, round, 4096, 4096), vec![1; 4096]].concat());
            assert_eq!(client.reply(), (0, round));
            let flushes = setup.exports.volume(export).flushes.load(Ordering::SeqCst);
            assert_eq!(flushes, round, "one flush for each write");
        }
        client.ask(1, 6, 10, 0, 4096);
        assert_eq!(client.reply(), (0, 10));
        client.ask(0, 6, 11, 0, 4096);
        assert_eq!(client.reply(), (0, 11));
        assert_eq!(setup.exports.volume(export).flushes.load(Ordering::SeqCst), 10);
    }
}

#[test]
fn concurrent_requests_are_all_answered() {
    let setup = setup("many");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        let mut reader = Client { socket: client.socket.try_clone().unwrap() };
        // The replies are 96 MiB to more than `REQUESTS_MAX` requests, so the connection reaches
        // every limit.
        let (count, len) = (1536_u64, 64 << 10);
        let mut batch = Vec::new();
        for cookie in 0..count {
            batch.extend(request(0, 0, cookie, cookie % 512 * 4096, len));
        }
        let sender = std::thread::spawn(move || {
            client.put(&batch);
            client.ask(0, 2, 0, 0, 0);
            client
        });
        std::thread::sleep(Duration::from_millis(100));
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let (errno, cookie) = reader.reply();
            assert_eq!(errno, 0);
            assert!(!std::mem::replace(&mut seen[cookie as usize], true), "answered twice");
            reader.get(len as usize);
        }
        assert!(reader.is_closed(), "DISC closes once all is answered");
        drop(sender.join().unwrap());
    }
    setup.wait_for_connections(0);
}

#[test]
fn largest_write_and_read_succeed() {
    let setup = setup("largest");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        let len = 32 << 20;
        let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        for round in 0..3 {
            client.put(&request(0, 1, round, 0, len));
            client.put(&data);
            assert_eq!(client.reply(), (0, round));
        }
        client.ask(0, 0, 9, 0, len);
        assert_eq!(client.reply(), (0, 9));
        assert!(client.get(len as usize) == data);
    }
}

#[test]
fn vanished_and_stalled_clients_affect_no_other() {
    let setup = setup("vanish");
    for _ in 0..20 {
        let mut client = setup.client("slow");
        for cookie in 0..50 {
            client.ask(0, 0, cookie, 0, 1 << 20);
        }
    }
    let mut lazy = setup.client("slow");
    for cookie in 0..200 {
        lazy.ask(0, 0, cookie, 0, 1 << 20);
    }
    setup.wait_for_connections(1);
    let mut client = setup.client("slow");
    client.ask(0, 0, 1, 0, 4096);
    assert_eq!(client.reply(), (0, 1));
    let start = Instant::now();
    setup.server.stop();
    assert!(start.elapsed() < DRAIN_LIMIT + Duration::from_secs(5), "the lazy one is cut");
}

#[test]
fn stop_completes_requests_in_flight() {
    let setup = setup("stopping");
    let mut client = setup.client("slow");
    for cookie in 0..32 {
        client.put(&[request(1, 1, cookie, cookie * 4096, 4096), vec![7; 4096]].concat());
    }
    // After the first reply, the server has received all requests of the same send.
    client.reply();
    std::thread::sleep(Duration::from_millis(50));
    setup.server.stop();
    for _ in 1..32 {
        assert_eq!(client.reply().0, 0);
    }
    assert!(client.is_closed());
    assert_eq!(setup.exports.volume("slow").flushes.load(Ordering::SeqCst), 32);
}

#[test]
fn server_can_disconnect_the_clients_of_an_export() {
    let setup = setup("disconnect");
    let (mut fast, mut slow) = (setup.client("fast"), setup.client("slow"));
    for client in [&mut fast, &mut slow] {
        client.ask(0, 5, 1, 0, 4096);
        assert_eq!(client.reply(), (0, 1));
    }
    setup.server.disconnect("slow");
    assert!(slow.is_closed());
    fast.ask(0, 5, 2, 0, 4096);
    assert_eq!(fast.reply(), (0, 2));
    setup.wait_for_connections(1);
}

#[test]
fn storage_panic_ends_only_its_connection() {
    let setup = setup("panic");
    let mut good = setup.client("fast");
    for export in ["fast", "slow"] {
        let mut bad = setup.client(export);
        setup.exports.volume(export).panics.store(true, Ordering::SeqCst);
        bad.ask(0, 0, 1, 0, 4096);
        assert!(bad.is_closed(), "{export}");
        setup.exports.volume(export).panics.store(false, Ordering::SeqCst);
    }
    good.ask(0, 5, 2, 0, 4096);
    assert_eq!(good.reply(), (0, 2));
    setup.wait_for_connections(1);
}

/// Asserts that the memory of all connections never exceeds the budget while `work` runs.
fn within_budget(setup: &Setup, limit_bytes: usize, work: impl FnOnce()) {
    let done = std::sync::atomic::AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::SeqCst) {
                most = most.max(setup.budget.used_bytes());
                std::thread::sleep(Duration::from_micros(200));
            }
            most
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::SeqCst);
        let most = watch.join().expect("it only looks");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        most
    });
    // The budget may be exceeded a little: connections report rounded sizes, and the buffers of
    // replies have spare capacity.
    let slack = 1 << 20;
    assert!(most <= limit_bytes + slack, "{most} bytes were held");
}

// Regression: each of 100 clients requested large reads, received nothing, and so held 64 MiB of
// the server's memory. A server with `--memory 256MiB` grew to 6.3 GiB.
#[test]
fn stalled_clients_stay_within_the_budget() {
    let limit = 8 << 20;
    let setup = setup_with("greedy", limit);
    within_budget(&setup, limit, || {
        let mut greedy: Vec<Client> = Vec::new();
        for n in 0..60 {
            let mut client = setup.client(if n % 2 == 0 { "fast" } else { "slow" });
            for cookie in 0..40 {
                client.ask(0, 0, cookie, 0, if n % 3 == 0 { 16 << 20 } else { 1 << 20 });
            }
            greedy.push(client);
        }
        let mut good = setup.client("slow");
        let data: Vec<u8> = (0_u32..1 << 20).map(|n| (n % 251) as u8).collect();
        for round in 0..20 {
            good.put(&[request(0, 1, round, 0, 1 << 20), data.clone()].concat());
            assert_eq!(good.reply(), (0, round));
            good.ask(0, 0, round, 0, 1 << 20);
            assert_eq!(good.reply(), (0, round));
            assert!(good.get(1 << 20) == data);
        }
        drop(greedy);
    });
    setup.wait_for_connections(0);
    setup.wait_for_memory();
}

#[test]
fn half_sent_writes_are_dropped_if_others_need_memory() {
    let limit = 4 << 20;
    let setup = setup_with("half-sent", limit);
    within_budget(&setup, limit, || {
        let half = vec![1; 300 << 10];
        let mut stalled: Vec<Client> = Vec::new();
        // The half-sent writes hold as much of the budget as they can get. The server must free
        // this memory for the client below.
        for n in 0..4 {
            let mut client = setup.client("fast");
            // The writes have complete and partial blocks, in one or several parts.
            let (offset, len) = [(0, 1 << 20), (512, 700 << 10), (0, 32 << 20)][n % 3];
            client.put(&request(0, 1, 1, offset, len));
            client.put(&half);
            stalled.push(client);
        }
        let mut good = setup.client("fast");
        let data = vec![2; 1 << 20];
        good.put(&[request(0, 1, 1, 0, 1 << 20), data.clone()].concat());
        assert_eq!(good.reply(), (0, 1), "it gets the memory of those that stall");
        good.ask(0, 0, 2, 0, 1 << 20);
        assert_eq!(good.reply(), (0, 2));
        assert!(good.get(1 << 20) == data);
    });
}

#[test]
fn requests_are_answered_with_an_empty_budget() {
    let setup = setup_with("no-memory", 0);
    let len = 3 << 20;
    let data: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        for (round, offset) in [0, 512, 4096, (1 << 20) - 512].into_iter().enumerate() {
            let cookie = round as u64;
            client.put(&[request(0, 1, cookie, offset, len), data.clone()].concat());
            assert_eq!(client.reply(), (0, cookie));
            let fifth = [request(0, 0, 7, offset, len), request(0, 0, 8, offset, 512)].concat();
            client.put(&fifth);
            for _ in 0..2 {
                let (errno, cookie) = client.reply();
                assert_eq!(errno, 0);
                let len = if cookie == 7 { len } else { 512 };
                assert!(client.get(len as usize) == data[..len as usize], "{export}, {offset}");
            }
        }
        *setup.exports.volume(export).failure.write() = Some(ErrorKind::Data);
        client.put(&[request(0, 1, 3, 0, len), data.clone()].concat());
        assert_eq!(client.reply(), (5, 3), "the rest of a write that failed is thrown away");
        client.ask(0, 0, 4, 0, len);
        assert_eq!(client.reply(), (5, 4));
        *setup.exports.volume(export).failure.write() = None;
        client.ask(0, 3, 5, 0, 0);
        assert_eq!(client.reply(), (0, 5));
    }
}

#[test]
fn structured_read_without_memory_is_split_unless_df_is_set() {
    let setup = setup_with("parts", 0);
    let mut client = setup.connect();
    client.get(18);
    client.put(b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0");
    client.get(20);
    client.put(b"IHAVEOPT\0\0\0\x01\0\0\0\x04fast");
    client.get(10);
    let len: u32 = 1 << 20;
    let data: Vec<u8> = (0..len).map(|n| (n % 247) as u8).collect();
    client.put(&[request(0, 1, 1, 0, len), data.clone()].concat());
    client.get(16);
    for (flags, whole) in [(0, false), (4, true)] {
        client.ask(flags, 0, 2, 0, len);
        let mut got = vec![0; len as usize];
        let mut parts = 0;
        loop {
            let head = client.get(20);
            assert_eq!(head[..4], [0x66, 0x8e, 0x33, 0xef]);
            assert_eq!((head[7], head[15]), (1, 2), "data, to this request");
            let size = u32::from_be_bytes(head[16..].try_into().expect("4 bytes")) as usize - 8;
            let at = u64::from_be_bytes(client.get(8).try_into().expect("8 bytes")) as usize;
            got[at..at + size].copy_from_slice(&client.get(size));
            parts += 1;
            if head[5] == 1 {
                break;
            }
        }
        assert!(got == data);
        assert_eq!(parts == 1, whole, "{parts} parts");
    }
}

/// Alternates reads and writes of `len` bytes, 16 in flight, and receives each reply at once.
fn mix(setup: &Setup, export: &str, len: u32, count: u64) {
    let mut client = setup.client(export);
    let mut replies = Client { socket: client.socket.try_clone().expect("a descriptor") };
    let (permits, permitted) = std::sync::mpsc::sync_channel::<()>(16);
    let sender = std::thread::spawn(move || {
        let payload = vec![5; len as usize];
        for cookie in 0..count {
            permits.send(()).expect("the test goes on");
            let offset = cookie * u64::from(len) % (SIZE - u64::from(len) + 1) / 4096 * 4096;
            let kind = (cookie % 2) as u16;
            client.ask(0, kind, cookie, offset, len);
            if kind == 1 {
                client.put(&payload);
            }
        }
    });
    for _ in 0..count {
        let (errno, cookie) = replies.reply();
        assert_eq!(errno, 0);
        if cookie % 2 == 0 {
            replies.get(len as usize);
        }
        permitted.recv().expect("a request was sent");
    }
    sender.join().expect("all was sent");
}

// Regression: a client that sent reads and writes of 1 MiB waited forever for memory that the
// buffers of its own replies held.
#[test]
fn mixed_requests_of_each_size_are_answered_with_little_memory() {
    // Budget of all connections if the server runs with the smallest value of `--memory`.
    let limit = 8 << 20;
    for export in ["fast", "slow"] {
        let setup = setup_with("mixed", limit);
        for shift in 12..=25 {
            let len = 1_u32 << shift;
            mix(&setup, export, len, if len > 1 << 20 { 12 } else { 64 });
        }
        // Run two clients at the same time.
        std::thread::scope(|scope| {
            for len in [1 << 20, 3 << 19] {
                let setup = &setup;
                scope.spawn(move || mix(setup, export, len, 40));
            }
        });
        setup.wait_for_connections(0);
        setup.wait_for_memory();
    }
}

#[test]
fn stop_ends_a_connection_that_waits_for_memory() {
    let limit = 1 << 20;
    let setup = setup_with("stop-waiting", limit);
    let holder = setup.budget.grant();
    assert!(holder.ask(limits::OWN_BYTES, limit));
    holder.hold(limits::OWN_BYTES + limit);
    let mut client = setup.client("fast");
    client.put(&[request(0, 1, 1, 0, 1 << 20), vec![1; 1 << 20]].concat());
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    setup.server.stop();
    assert!(start.elapsed() < DRAIN_LIMIT + Duration::from_secs(5));
    assert!(client.is_closed());
    drop(holder);
}
