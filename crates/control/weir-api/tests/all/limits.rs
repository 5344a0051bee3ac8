//! Tests of many concurrent calls, unread responses, and lists of many pages.
//!
//! `slots`, `call_queue` and `answers` have unit tests of their own.
//!
//! Invariant: the server answers every request that it has read, whatever other clients do.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use weir_api::limits::{
    CONNECTIONS_MAX, PAGE_ENTRIES_MAX, PEER_CONNECTIONS_MAX, PEER_WAITING_MAX, RETRY_AFTER_SECONDS,
    ROOT_SLOTS,
};
use weir_api::types::{
    ListPools, ListSnapshots, ListStreams, PoolCreate, PropertyValues, Stream, StreamCancel,
    StreamDirection, VolumeCreate,
};
use weir_api::{Address, Client};
use weir_base::ErrorKind;

use crate::http::{Server, TOKEN, by_tcp, start, tank};
use crate::peers::StoppedClock;

fn slow() -> PoolCreate {
    PoolCreate { name: "slow".into(), ..tank() }
}

async fn connect(server: &Server) -> TcpStream {
    let Address::Tcp { host, port } = &server.tcp else { unreachable!() };
    TcpStream::connect((host.as_str(), *port)).await.unwrap()
}

/// Returns the text of a request without a body, with the admin's token.
fn request(what: &str) -> String {
    format!("{what} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n")
}

// Regression: of 200 concurrent calls, 104 lost their connection after they had sent the request,
// although the server had carried out six of these calls.
#[tokio::test]
async fn two_hundred_concurrent_calls_run_once_each() {
    let server = start();
    for client in [Client::new(server.unix.clone()), by_tcp(&server)] {
        let begun = server.fake.slow_begun.load(Ordering::SeqCst);
        let mut calls = JoinSet::new();
        for _ in 0..200 {
            // Each call uses a connection of its own.
            let address = client.address().clone();
            let fresh = if matches!(address, Address::Unix(_)) {
                Client::new(address)
            } else {
                by_tcp(&server)
            };
            calls.spawn(async move { fresh.call(slow()).await });
        }
        let (mut made, mut refused) = (0, 0);
        while let Some(call) = calls.join_next().await {
            match call.unwrap() {
                Ok(_) => made += 1,
                // On a slow machine, a call may wait too long for its permit; such a call has done
                // nothing.
                Err(error) if error.message.contains("nothing was done") => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        let calls_made = server.fake.slow_begun.load(Ordering::SeqCst) - begun;
        assert_eq!((made + refused, calls_made), (200, made));
        assert!(made >= 100, "{made} of 200");
    }
}

/// Takes all slots of one user and all its positions in the queue, with calls that never end.
async fn fill_queue(path: &Path) -> Vec<UnixStream> {
    let stuck = "GET /v1/pools/stuck HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..ROOT_SLOTS + PEER_CONNECTIONS_MAX + PEER_WAITING_MAX {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(stuck.as_bytes()).await.unwrap();
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn connection_beyond_the_queue_gets_503_with_retry_after() {
    let server = start();
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let _held = fill_queue(path).await;
    for _ in 0..10 {
        let mut stream = UnixStream::connect(path).await.unwrap();
        // The server responds before it reads any byte of this request.
        drop(stream.write_all(b"GET /v1/pools HTTP/1.1\r\nhost: x\r\n\r\n").await);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains(&format!("retry-after: {RETRY_AFTER_SECONDS}")), "{answer}");
        assert!(answer.contains("nothing was done"), "{answer}");
    }
    // The listener for TCP has slots of its own, so a call over TCP succeeds.
    by_tcp(&server).call(ListPools {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn excess_refused_connections_are_closed_without_response() {
    let server = start();
    let clock = StoppedClock::new();
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let _held = fill_queue(path).await;
    // The client keeps each refused connection open, so the server waits for the client to close
    // it.
    let mut refused = Vec::new();
    for _ in 0..80 {
        refused.push(UnixStream::connect(path).await.unwrap());
    }
    let mut answered = 0;
    for stream in &mut refused {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        answered += usize::from(!answer.is_empty());
    }
    assert_eq!(answered, 64);
    // The first 64 responses with 503 end at their time limit, so later connections get a 503
    // again.
    tokio::time::advance(Duration::from_secs(2)).await;
    let mut answer = String::new();
    for _ in 0..100 {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        if !answer.is_empty() {
            break;
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert!(answer.starts_with("HTTP/1.1 503 "), "none is answered after 2 s");
    clock.go_on().await;
}

#[tokio::test(start_paused = true)]
async fn event_polls_end_early_beyond_the_limit_of_a_caller() {
    let server = start();
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let ask = "GET /v1/events?after=3&wait_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut waits = Vec::new();
    for _ in 0..9 {
        let mut stream = UnixStream::connect(path).await.unwrap();
        let begun = tokio::time::Instant::now();
        waits.push(tokio::spawn(async move {
            stream.write_all(ask.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
            begun.elapsed().as_millis()
        }));
    }
    let mut took = Vec::new();
    for wait in waits {
        took.push(wait.await.unwrap() / 100);
    }
    took.sort_unstable();
    assert_eq!(took, [5, 40, 40, 40, 40, 40, 40, 40, 40], "tenths of a second");
}

// Regression: one token that kept 64 connections in long polls for events prevented an admin's
// call.
#[tokio::test]
async fn long_polls_delay_no_call() {
    let server = start();
    let poll = request("GET /v1/events?after=3&wait_ms=4000");
    let mut polls = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = connect(&server).await;
        stream.write_all(poll.as_bytes()).await.unwrap();
        polls.push(stream);
    }
    for _ in 0..20 {
        let begun = Instant::now();
        by_tcp(&server).with_timeout(Duration::from_secs(20)).call(ListPools {}).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    // The long polls that the server ended early must have got a response.
    let mut answered = 0;
    for mut stream in polls {
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut answer));
        answered += usize::from(matches!(read.await, Ok(Ok(_))) && answer == *b"HTTP/1.1 200");
    }
    assert!(answered >= PEER_CONNECTIONS_MAX - 1, "{answered} answers");
}

/// Starts a server with `count` snapshots of one volume.
async fn with_snapshots(count: usize) -> (Server, Client) {
    let server = start();
    let client = Client::new(server.unix.clone());
    client.call(tank()).await.unwrap();
    let volume = VolumeCreate {
        name: "tank/vm1".into(),
        size_bytes: 1 << 30,
        record_bytes: 4096,
        properties: PropertyValues::default(),
    };
    client.call(volume).await.unwrap();
    for n in 0..count {
        server.fake.state().take(&format!("tank/vm1@s{n:05}")).unwrap();
    }
    (server, client)
}

#[tokio::test]
async fn client_joins_the_pages_of_a_long_list() {
    let (server, client) = with_snapshots(2500).await;
    let all = client.call(ListSnapshots::default()).await.unwrap();
    assert_eq!((all.snapshots.len(), all.next), (2500, None));
    assert!(all.snapshots.is_sorted_by_key(|snapshot| snapshot.name.clone()));
    let mut stream = connect(&server).await;
    let ask = request("GET /v1/snapshots?of=tank&limit=10").replacen(
        "\r\n",
        "\r\nconnection: close\r\n",
        1,
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["snapshots"].as_array().unwrap().len(), 10);
    assert_eq!(body["next"], "tank/vm1@s00009");
    const { assert!(PAGE_ENTRIES_MAX < 2500, "the list has several pages") };
    let error = client.call(ListSnapshots::from(Some("tank/none@x".to_owned()))).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
}

// Regression: 60 connections that each requested 12 MB and read nothing held 819 MiB, and their
// slots.
#[tokio::test]
async fn unread_responses_delay_no_call() {
    let (server, _) = with_snapshots(2000).await;
    let mut held = Vec::new();
    for _ in 0..PEER_CONNECTIONS_MAX {
        let mut stream = connect(&server).await;
        // The responses do not fit in the kernel's buffers, so the server waits for the client to
        // read.
        for _ in 0..20 {
            stream.write_all(request("GET /v1/snapshots").as_bytes()).await.unwrap();
        }
        held.push(stream);
    }
    let begun = Instant::now();
    by_tcp(&server).with_timeout(Duration::from_secs(30)).call(ListPools {}).await.unwrap();
    // The server can evict these connections after 5 s; without eviction it would close them after
    // 30 s.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(held);
}

#[tokio::test]
async fn streams_are_listed_and_cancelled() {
    let server = start();
    let stream = Stream {
        id: 3,
        direction: StreamDirection::Send,
        name: "tank/vm1@a".into(),
        caller: "token ci".into(),
        begun_unix_ms: 1,
        moved_bytes: 2,
        idle_ms: 3,
    };
    server.fake.state().streams.push(stream.clone());
    let client = by_tcp(&server);
    assert_eq!(client.call(ListStreams {}).await.unwrap().streams, [stream]);
    let key = StreamCancel { id: 3 };
    assert_eq!(client.call(key).await.unwrap().name, "tank/vm1@a");
    assert_eq!(client.call(key).await.unwrap_err().kind, ErrorKind::NotFound);
}
