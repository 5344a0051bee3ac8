//! Tests of rules with host names and netgroups.
//!
//! Invariant: each lookup has ended, or never ends, before a call depends on it.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_nfs::{ClientName, FoundHost, NameWaits, Names, Rules};
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::{Args, FileArgs, Nfsstat3, Results};
use weir_oncrpc::Opaque;

use crate::common::{Served, User};

/// Addresses of names, as a test sets them. A name without an entry cannot be looked up.
type Known = Arc<Mutex<HashMap<&'static str, &'static [&'static str]>>>;

const HOUR: Duration = Duration::from_hours(1);

const LONG: NameWaits = NameWaits { first: HOUR, found: HOUR, call: HOUR, age: HOUR };

fn served(waits: NameWaits) -> (Served, Known) {
    let known = Known::default();
    let all = Arc::clone(&known);
    let find = move |name: &ClientName| {
        let name = name.to_string();
        let found = *all.lock().get(name.as_str()).ok_or(ErrorKind::NotFound)?;
        let addresses = Ok(found.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect());
        Ok(vec![FoundHost { name: name.into(), addresses }])
    };
    let mut served = Served::new(&["192.0.2.1:insecure"]);
    served.server.shares.names = Names::new(Box::new(find), waits);
    (served, known)
}

/// Sets the rules of the share and waits until the server has looked up their names.
fn set(served: &Served, rules: &[&str]) {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let rules = Rules::new(rules).unwrap();
    let shares = &served.server.shares;
    shares.set_rules(shares.all()[0].id, &rules);
    let names: Vec<ClientName> = rules.names().cloned().collect();
    compio::runtime::Runtime::new().unwrap().block_on(shares.names.settle(&names));
}

fn root(served: &Served) -> Vec<u8> {
    let admin = served.user_at("192.0.2.1:700", 0);
    admin.mount("/tank/home").unwrap()
}

fn status(user: &User<'_>, handle: &[u8]) -> Result<(), Nfsstat3> {
    let args = Args::Getattr(FileArgs { object: Opaque::new(handle).unwrap() });
    user.nfs(&args, |results| match results {
        Results::Getattr(Ok(_)) => Ok(()),
        Results::Getattr(Err(failed)) => Err(failed.status),
        other => panic!("{other:?}"),
    })
}

#[test]
fn hosts_and_netgroups_use_the_share() {
    let (served, known) = served(LONG);
    let root = root(&served);
    known.lock().extend([
        ("a.example", &["10.0.0.1", "fd00::1"][..]),
        ("@admins", &["10.0.0.2", "10.0.0.3"][..]),
    ]);
    set(&served, &["A.Example", "@admins"]);
    for client in ["10.0.0.1:700", "[fd00::1]:700", "[::ffff:10.0.0.1]:700", "10.0.0.3:700"] {
        let user = served.user_at(client, 7);
        assert_eq!(status(&user, &root), Ok(()), "{client}");
        assert!(user.mount("/tank/home").is_ok(), "{client}");
    }
    let stranger = served.user_at("10.0.0.4:700", 7);
    assert_eq!(status(&stranger, &root), Err(Nfsstat3::Acces));
    let port = served.user_at("10.0.0.1:40000", 7);
    assert_eq!(status(&port, &root), Err(Nfsstat3::Acces), "an ordinary port");
}

#[test]
fn most_exact_name_of_a_client_decides() {
    let (served, known) = served(LONG);
    known.lock().extend([
        ("a.example", &["10.0.0.1"][..]),
        ("b.example", &["10.0.0.1", "10.0.0.2"][..]),
        ("@all", &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"][..]),
    ]);
    let rules = [
        "*:anonuid=1",
        "10.0.0.0/31:anonuid=2",
        "@all:anonuid=3",
        "a.example:anonuid=4",
        "b.example:anonuid=5",
        "10.0.0.9:anonuid=6",
    ];
    let reversed: Vec<&str> = rules.iter().rev().copied().collect();
    for (rules, of_both) in [(&rules[..], 4), (&reversed[..], 5)] {
        set(&served, rules);
        let share = served.server.shares.all().remove(0);
        let of = |client: &str| share.rules.rights(client.parse().unwrap()).unwrap().anonymous_uid;
        assert_eq!(of("10.0.0.9"), 6, "an address precedes a netgroup");
        assert_eq!(of("10.0.0.2"), 5, "a host precedes a netgroup");
        assert_eq!(of("10.0.0.1"), of_both, "the first of two hosts");
        assert_eq!(of("10.0.0.3"), 3);
        assert_eq!(of("10.0.0.0"), 2, "a network");
        assert_eq!(of("10.0.0.4"), 1);
        assert_eq!(share.rules.clients_of("10.0.0.3".parse().unwrap()).unwrap(), "@all");
    }
}

#[test]
fn name_that_cannot_be_looked_up_grants_nothing() {
    let waits = NameWaits { found: Duration::ZERO, ..LONG };
    let (served, known) = served(waits);
    let root = root(&served);
    set(&served, &["a.example", "10.0.0.0/8:ro"]);
    let (named, stranger) = (served.user_at("10.0.0.1:700", 7), served.user_at("9.0.0.1:700", 7));
    assert_eq!(status(&named, &root), Ok(()), "the other rule");
    assert_eq!(status(&stranger, &root), Err(Nfsstat3::Acces));
    assert_eq!(stranger.mount("/tank/home"), Err(Mountstat3::Acces));
    // An empty answer grants nothing either.
    known.lock().insert("b.example", &[]);
    set(&served, &["b.example"]);
    assert_eq!(status(&named, &root), Err(Nfsstat3::Acces));
}

// After a start of the machine, the name services may answer later than this server. An error
// would reach the programs of a client.
#[test]
fn clients_wait_while_the_first_lookups_fail() {
    let (served, known) = served(LONG);
    let root = root(&served);
    set(&served, &["a.example", "10.0.0.0/8:ro"]);
    let (named, other) = (served.user_at("9.0.0.1:700", 7), served.user_at("10.0.0.1:700", 7));
    assert_eq!(status(&named, &root), Err(Nfsstat3::Jukebox));
    assert_eq!(status(&other, &root), Ok(()), "it has another rule");
    // The server tries again after 2 seconds.
    known.lock().insert("a.example", &["9.0.0.1"]);
    while status(&named, &root) == Err(Nfsstat3::Jukebox) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status(&named, &root), Ok(()));
}

#[test]
fn clients_wait_for_the_first_lookup() {
    let mut served = Served::new(&["192.0.2.1:insecure"]);
    let root = root(&served);
    let waits = NameWaits { call: Duration::from_millis(1), ..LONG };
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let find = move |_: &ClientName| {
        held.lock().recv().ok();
        Ok(Vec::new())
    };
    served.server.shares.names = Names::new(Box::new(find), waits);
    set(&served, &["a.example:ro", "10.0.0.7", "10.0.0.0/8"]);
    let exact = served.user_at("10.0.0.7:700", 7);
    assert_eq!(status(&exact, &root), Ok(()), "the address is more exact");
    for client in ["10.0.0.1:700", "9.0.0.1:700"] {
        let user = served.user_at(client, 7);
        assert_eq!(status(&user, &root), Err(Nfsstat3::Jukebox), "{client}");
    }
    drop(hold);
}
