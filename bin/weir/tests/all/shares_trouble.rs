//! NFS shares in trouble: a full pool, exceeded quotas, a pool that is suspended and opened again,
//! and a thousand connections.
//!
//! Not here: clients that never read and connections beyond the limits (weir-nfs), deleted shares
//! and rollbacks under load (shares_kernel).
//!
//! Invariants:
//! - the client is a kernel that we did not write, except for the many connections;
//! - no call hangs: each step has a time limit. A file whose fsync succeeded is whole at the end.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::common::network::Network;
use crate::common::room::Room;
use crate::common::uml::Guest;
use crate::common::{Dirs, GIB, MIB, Server, eventually};
use crate::shares::Served;
use crate::shares_kernel::{client_of, command};

const LIMIT: Duration = Duration::from_mins(1);

const FUNCTIONS: &str = r#"
# Runs dd, and prints the words of its error, or "done".
outcome() {
    if dd "$@" status=none 2>/tmp/error; then echo done; else sed 's/.*: //' /tmp/error; fi
}
"#;

fn server_and_guest(dirs: &Dirs, network: &Network, disk_bytes: u64) -> (Server, Guest) {
    dirs.disk("a", disk_bytes);
    let server = Server::start(dirs, "", network.inside(&command(dirs)));
    server.weir("pool create tank a").ok();
    let mut guest = client_of(&server, network);
    guest.run(&format!("cat >>/run/functions <<'END'\n{FUNCTIONS}\nEND"));
    (server, guest)
}

// A client that fills the pool receives an error at the latest with fsync, and can make room.
#[test]
fn full_pool_returns_enospc_and_files_can_be_removed() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (server, mut guest) = server_and_guest(&dirs, &network, 256 * MIB);
    guest.run(
        "cd /mnt/home; head -c 100000 /dev/urandom >kept; sync kept; sha256sum kept >/tmp/sums",
    );
    let filled = guest.run_within(
        Duration::from_mins(5),
        "cd /mnt/home; number=0; said=done
        while [ \"$said\" = done ]; do
            number=$((number + 1))
            said=$(outcome if=/dev/urandom of=file-$number bs=1M count=8 conv=fsync)
            [ \"$said\" = done ] && sha256sum file-$number >>/tmp/sums
        done
        echo $said; test $number -gt 5",
    );
    assert_eq!(filled, "No space left on device\n");
    // The client reads from the server, not from its own cache.
    let out = guest.run_within(
        Duration::from_mins(3),
        "umount /mnt/home; mount_share /tank/home /mnt/home; cd /mnt/home
        sha256sum --quiet -c /tmp/sums && echo whole
        rm file-*; ls
        until_true dd if=/dev/zero of=again bs=1M count=16 conv=fsync; stat -c %s again",
    );
    assert_eq!(out, "whole\nkept\n16777216\n");
    assert_eq!(server.status("tank")["state"], "online");
    guest.run("umount /mnt/home");
    server.stop_clean();
}

// The quota of a user holds on the server, whatever the client has in its cache.
#[test]
fn exceeded_quota_returns_edquot_and_other_users_continue() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let (server, mut guest) = server_and_guest(&dirs, &network, GIB);
    server.weir("filesystem quota tank/home --user 1000 8MiB").ok();
    guest.run("cd /mnt/home; mkdir of-1000; chown 1000:1000 of-1000");
    let as_user = "as() { id=$1; shift; setpriv --reuid $id --regid $id --clear-groups \"$@\"; }
        export -f outcome; cd /mnt/home";
    let out = guest.run_within(
        Duration::from_mins(3),
        &format!(
            "{as_user}
            put='outcome if=/dev/urandom of=of-1000/$0 bs=1M count=$1 conv=fsync'
            chmod 1777 /tmp; rm -f /tmp/error
            as 1000 bash -c \"$put\" first 4; as 1000 bash -c \"$put\" second 16
            rm -f of-1000/second /tmp/error; as 1000 bash -c \"$put\" third 2
            rm -f /tmp/error; outcome if=/dev/urandom of=of-root bs=1M count=16 conv=fsync"
        ),
    );
    assert_eq!(out, "done\nDisk quota exceeded\ndone\ndone\n");
    let usage = server.weir("filesystem usage tank/home --json").json();
    let owners = usage["owners"].as_array().unwrap();
    let user = owners.iter().find(|one| one["owner"] == "user" && one["id"] == 1000).unwrap();
    let used = user["used_bytes"].as_u64().unwrap();
    assert!((6 * MIB..=8 * MIB).contains(&used), "{user}");
    guest.run("umount /mnt/home");
    server.stop_clean();
}

// The pool is suspended, because its disk has no more space, and is opened again.
#[test]
fn client_gets_errors_while_the_pool_is_suspended_and_continues_afterwards() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let room = Room::new(&dirs, 256 * MIB);
    room.disk("disk", GIB);
    let server = Server::start(&dirs, "", network.inside(&room.inside(&command(&dirs))));
    server.weir("pool create tank room/disk").ok();
    server.volume("tank/v", "16MiB");
    let mut guest = client_of(&server, &network);
    guest.start(
        "writer",
        "cd /mnt/home; number=0; failed=0; : >/run/names
        until [ -e /run/end ]; do
            number=$((number + 1))
            if { printf %0100000d $number >file-$number && sync file-$number; } 2>/dev/null; then
                echo $number >>/run/names
            else
                failed=$((failed + 1)); echo $failed >/run/failed
            fi
        done",
    );
    let synced = "$(wc -l </run/names)";
    guest.run(&format!("until_true eval '[ {synced} -gt 5 ]'"));
    room.fill_up();
    guest.run("until_true grep -q . /run/failed");
    eventually("the pool is suspended", LIMIT, || server.status("tank")["state"] == "faulted");
    // No fsync succeeds while the pool is suspended, also after the disk works again.
    room.make_room();
    guest.run(&format!(
        "until_true eval '[ $(cat /run/failed) -gt 3 ]'; before={synced}
        until_true eval '[ $(cat /run/failed) -gt 6 ]'; [ {synced} = $before ]"
    ));
    // Of two calls at once, the later one leaves the pool that the other opened.
    let clear = || server.weir("pool clear tank").code;
    let codes = std::thread::scope(|scope| {
        let other = scope.spawn(clear);
        [clear(), other.join().unwrap()]
    });
    assert!(codes.contains(&Some(0)), "{codes:?}");
    assert_eq!(server.status("tank")["state"], "online");
    assert_eq!(server.client("tank/v").read(0, 4096).unwrap(), [0; 4096], "the export is back");
    guest.run(&format!("before={synced}; until_true eval '[ {synced} -gt '$((before + 5))' ]'"));
    guest.run("touch /run/end");
    guest.join("writer", LIMIT);
    let out = guest.run_within(
        Duration::from_mins(3),
        "umount /mnt/home; mount_share /tank/home /mnt/home; cd /mnt/home
        while read -r number; do
            printf %0100000d $number >/tmp/expected; cmp file-$number /tmp/expected
        done </run/names
        cd /; echo whole; umount /mnt/home",
    );
    assert_eq!(out, "whole\n");
    server.stop_clean();
}

/// Connects from the address 127.0.0.`host`.
fn connect_from(host: u8, server: SocketAddr) -> TcpStream {
    let source = SocketAddr::new(IpAddr::from([127, 0, 0, host]), 0);
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&client, &source).unwrap();
    connect(&client, &server).unwrap();
    let client = TcpStream::from(client);
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client
}

/// A NULL call of NFS version 3 with its record mark, in words of 32 bits (RFC 5531): call 7,
/// RPC version 2, program 100003, no credentials.
const NULL_CALL: [u32; 11] = [0x8000_0028, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
/// Length of the reply, with its record mark.
const NULL_REPLY_BYTES: usize = 28;

fn call(client: &mut TcpStream) {
    client.write_all(&NULL_CALL.map(u32::to_be_bytes).concat()).unwrap();
    client.read_exact(&mut [0; NULL_REPLY_BYTES]).unwrap();
}

// Clients with many connections take little memory, and other clients continue to work.
#[test]
fn thousand_connections_are_served_beside_a_client() {
    const HOSTS: u8 = 20;
    const EACH: usize = 50;
    let mut served = Served::new();
    served.share();
    let address = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), served.port);
    assert!(served.write("/tank/home/before", "text").status.success());
    let before = served.server.resident_bytes();
    let hosts = (0..HOSTS).flat_map(|host| std::iter::repeat_n(host + 2, EACH));
    let mut clients: Vec<_> = hosts.map(|host| connect_from(host, address)).collect();
    for round in 0..5 {
        clients.iter_mut().for_each(call);
        let (name, text) = (format!("/tank/home/file-{round}"), format!("round {round}"));
        assert!(served.write(&name, &text).status.success());
        assert_eq!(String::from_utf8_lossy(&served.read(&name).stdout), text);
    }
    let grown = served.server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "{grown} bytes of memory for {} connections", clients.len());
    assert_eq!(served.names("/tank/home").len(), 6);
    drop(clients);
    served.server.assert_alive();
}
