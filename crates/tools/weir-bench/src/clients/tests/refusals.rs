//! Tests of refused connections: wrong versions, wrong secrets, malformed input, a second
//! coordinator.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::super::agent::{Agent, AgentError};
use super::super::link::Link;
use super::super::wire::{Answer, Hello, Nonce, Order, PROGRAM, PROTOCOL, Task};
use super::super::{ClientError, Clients, SILENCE_MAX, Secret};
use super::{Running, clients, task};
use crate::spec::LoadSpec;
use crate::target::memory::Memory;

fn hello(protocol: u32, program: &str) -> Hello {
    let (program, nonce) = (program.to_owned(), Nonce([7; 32]));
    Hello { protocol, program, nonce, has_secret: false }
}

#[test]
fn both_sides_refuse_another_version_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let newer = std::thread::spawn(move || {
        let mut link = Link::new(listener.accept().expect("it comes").0).expect("a socket");
        let _: (Hello, _) = link.receive(SILENCE_MAX).expect("it says hello");
        link.send(&hello(PROTOCOL, "weir 99.0.0")).expect("it listens");
    });
    let error = Clients::new(vec![address], "", None).check().expect_err("another version");
    newer.join().expect("it ended");
    assert!(matches!(error, ClientError::OtherVersion { .. }));
    let words = error.to_string();
    assert!(words.contains("weir 99.0.0") && words.contains(PROGRAM), "{words}");

    let agent = Running::new(None, Memory::new(1 << 20));
    let stream = TcpStream::connect(&agent.address).expect("it listens");
    let mut link = Link::new(stream).expect("a socket");
    link.send(&hello(PROTOCOL + 1, PROGRAM)).expect("it listens");
    let (theirs, _): (Hello, _) = link.receive(SILENCE_MAX).expect("its version, to be told");
    assert_eq!((theirs.protocol, theirs.program.as_str()), (PROTOCOL, PROGRAM));
    assert!(link.receive::<Answer>(SILENCE_MAX).is_err(), "it hung up");
    assert!(agent.said(&format!("protocol {}", PROTOCOL + 1)));
}

#[test]
fn coordinator_needs_the_secret() {
    let [right, wrong] = ["the right secret of all", "the wrong secret of all"]
        .map(|text| Secret::new(text).expect("long enough"));
    let agent = Running::new(Some(right.clone()), Memory::new(1 << 20));
    let check = |secret: Option<&Secret>| clients(&[&agent], secret).check();
    assert!(check(Some(&right)).is_ok());
    let refused = check(Some(&wrong)).expect_err("a different secret");
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
    let without = check(None).expect_err("no secret");
    assert!(matches!(without, ClientError::Secret { .. }), "{without}");
    let open = Running::new(None, Memory::new(1 << 20));
    let other = clients(&[&open], Some(&right)).check().expect_err("it has none");
    assert!(matches!(other, ClientError::Secret { .. }), "{other}");
    assert!(agent.said("a different secret") && agent.said("no secret"));
    let texts = format!("{refused} {without} {other} {right:?} {:?}", agent.said.lock());
    assert!(!texts.contains("right secret of"), "{texts}");
    let everywhere: SocketAddr = "0.0.0.0:0".parse().expect("an address");
    let bound = Agent::bind(everywhere, None);
    assert!(matches!(bound, Err(AgentError::SecretNeeded { .. })));
    assert!(Agent::bind(everywhere, Some(right)).is_ok());
}

#[test]
fn malformed_input_ends_only_its_connection() {
    let agent = Running::new(None, Memory::new(1 << 20));
    let frame = |json: &[u8]| [&(json.len() as u32).to_be_bytes()[..], json].concat();
    let greeted = frame(&serde_json::to_vec(&hello(PROTOCOL, PROGRAM)).expect("plain data"));
    let yes = frame(br#"{"Yes":{"proof":null,"host":"x"}}"#);
    let prepare = |task: &Task| {
        let order = Order::Prepare(Box::new(task.clone()));
        [&greeted[..], &yes, &frame(&serde_json::to_vec(&order).expect("plain data"))].concat()
    };
    let huge = Task { load: LoadSpec::Closed { workers: u32::MAX, depth: u32::MAX }, ..task() };
    let random: Vec<u8> = (0_u32..3000).map(|n| (n * n % 251) as u8).collect();
    let all: [Vec<u8>; 9] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        u32::MAX.to_be_bytes().to_vec(),
        frame(b"{\"protocol\":"),
        frame("[".repeat(4000).as_bytes()),
        frame(&[0xff; 100]),
        random,
        [&greeted[..], &frame(b"\"Ping\"")].concat(),
        [&greeted[..], &yes, &frame(b"\"Ping\"")].concat(),
        prepare(&huge),
    ];
    for (number, bytes) in all.iter().enumerate() {
        let mut stream = TcpStream::connect(&agent.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        stream.write_all(bytes).expect("it is taken");
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        let is_open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open, "{number} was not hung up on");
    }
    assert!(agent.said("too large"), "{:?}", agent.said.lock());
    assert!(clients(&[&agent], None).check().is_ok(), "it still serves");
}

#[test]
fn second_coordinator_is_refused() {
    let agent = Running::new(None, Memory::new(1 << 20));
    let one = clients(&[&agent], None);
    let held = one.connect(&agent.address).expect("it is free");
    let words = one.check().expect_err("it is taken").to_string();
    assert!(words.contains("another coordinator"), "{words}");
    drop(held);
    let until = Instant::now() + Duration::from_secs(10);
    while one.check().is_err() {
        assert!(Instant::now() < until, "it stays taken");
        std::thread::sleep(Duration::from_millis(20));
    }
}
