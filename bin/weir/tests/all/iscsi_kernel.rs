//! iSCSI targets of the real program with the most common initiator: the Linux kernel, with
//! open-iscsi, dm-multipath and sg3-utils.
//!
//! Not here: other initiators (iscsi), tests of each SCSI command (weir-scsi).
//!
//! Invariants:
//! - the initiator is the kernel of a guest ([`crate::common::uml`]); the initiator of this machine
//!   is neither used nor changed;
//! - fio verifies its own writes by the stamps in them; all other data is compared with another
//!   logical unit;
//! - tests wait for conditions, so no result depends on the speed of this machine.

use std::time::Duration;

use crate::common::network::{Network, SUBNETS};
use crate::common::uml::Guest;
use crate::common::{Dirs, GIB, MIB, Server, eventually};
use serde_json::Value;

const TARGET: &str = "iqn.2026-01.org.weir:vms";
const CLIENT: &str = "iqn.2026-01.org.example:linux";
/// Second initiator name of the same guest. The target must treat a session with this name as a
/// session of another initiator.
const OTHER: &str = "iqn.2026-01.org.example:other";
/// Time limit of each wait. If a wait takes longer, the test fails.
const LIMIT: Duration = Duration::from_mins(1);

/// Shell functions that the scripts in the guest use for iSCSI.
const FUNCTIONS: &str = r#"
# The disk of a LUN in the session of an interface of open-iscsi through a portal's address.
disk() {
    local session block
    for session in /sys/class/iscsi_session/*; do
        [ "$(cat "$session/ifacename")" = "$1" ] || continue
        grep -qx "$2" "$session"/device/conn*/iscsi_connection/*/persistent_address || continue
        for block in "$session"/device/target*/*:"$3"/block/*; do
            if [ -e "$block" ]; then echo "/dev/${block##*/}"; fi
        done
    done
}
has_disk() { [ -b "$(disk "$@")" ]; }
# Whether all sessions are logged in. A check that waits starts no process, because the start of a
# process takes a guest much CPU time.
logged_in() {
    local file state
    for file in /sys/class/iscsi_session/*/state; do
        read -r state <"$file" && [ "$state" = LOGGED_IN ] || return 1
    done
}
logged_out() { ! logged_in; }
# A disk's device that takes SCSI commands.
generic() { echo /dev/$(ls "/sys/block/${1#/dev/}/device/scsi_generic"); }
# Writes random blocks and reads them again, past every cache.
verify() {
    fio --name=load --ioengine=libaio --direct=1 --verify=crc32c --verify_state_save=0 "$@"
}
"#;

fn serve(dirs: &Dirs, network: &Network) -> Server {
    let mut command = dirs.serve();
    for subnet in SUBNETS {
        command.args(["--iscsi", &format!("{}:3260", subnet.here)]);
    }
    Server::start(dirs, "", network.inside(&command))
}

/// Starts a server with volumes of these sizes, which are the logical units 0, 1 and so on of a
/// target.
fn served(dirs: &Dirs, network: &Network, sizes: &[&str]) -> Server {
    dirs.disk("a", 4 * GIB);
    let server = serve(dirs, network);
    server.weir("pool create tank a").ok();
    server.weir("target create vms --allow *").ok();
    for (number, size) in sizes.iter().enumerate() {
        server.weir(&format!("volume create tank/vm{number} --size {size}")).ok();
        server.weir(&format!("lun add vms tank/vm{number} --lun {number}")).ok();
    }
    server
}

fn shown(server: &Server) -> Value {
    server.weir("target show vms --json").json()
}

fn counter(server: &Server, lun: usize, name: &str) -> u64 {
    shown(server)["luns"][lun]["counters"][name].as_u64().unwrap()
}

fn used(server: &Server, volume: &str) -> u64 {
    let list = server.weir("volume list --json").json();
    let volumes = list["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|shown| shown["name"] == volume).unwrap();
    volume["used_bytes"].as_u64().unwrap()
}

/// Boots a guest in which iscsid runs with these `settings` and has discovered the target at both
/// portals.
fn initiator(network: &Network, settings: &[(&str, u32)]) -> Guest {
    let mut guest = Guest::boot(network);
    guest.run(&format!("cat >>/run/functions <<'END'\n{FUNCTIONS}\nEND"));
    guest.run("modprobe -a iscsi_tcp sd_mod sg");
    let settings: Vec<String> = settings
        .iter()
        .map(|(name, value)| format!("s/^{}\\b.*/{name} = {value}/;", name.replace('[', "\\[")))
        .collect();
    guest.run(&format!(
        "rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets /etc/iscsi/ifaces
        rm -f /etc/iscsi/initiatorname.iscsi
        echo InitiatorName={CLIENT} >/etc/iscsi/initiatorname.iscsi
        sed -i '{}' /etc/iscsi/iscsid.conf
        iscsid
        iscsiadm -m iface -I other -o new
        iscsiadm -m iface -I other -o update -n iface.initiatorname -v {OTHER}",
        settings.concat()
    ));
    let portal = SUBNETS[0].here;
    let found = guest.run(&format!(
        "until_true iscsiadm -m discovery -t sendtargets -p {portal} -I default -I other
        iscsiadm -m node"
    ));
    for subnet in SUBNETS {
        assert!(found.contains(&format!("{}:3260", subnet.here)), "{found}");
    }
    assert!(found.lines().all(|line| line.ends_with(TARGET)), "{found}");
    guest
}

/// Logs in through the portal in this subnet under the initiator name of `interface`, and waits
/// until the guest has a disk for each LUN.
#[track_caller]
fn log_in(guest: &mut Guest, interface: &str, subnet: usize, luns: usize) {
    let portal = SUBNETS[subnet].here;
    guest.run(&format!(
        "iscsiadm -m node -T {TARGET} -p {portal} -I {interface} --login
        for lun in $(seq 0 {}); do until_true has_disk {interface} {portal} $lun; done",
        luns - 1
    ));
}

/// Defines shell variables for later steps: NAME=DISK, where DISK is the guest's disk for a LUN
/// through the first portal.
fn names(guest: &mut Guest, names: &[(&str, &str, usize)]) {
    let portal = SUBNETS[0].here;
    let line = |(name, interface, lun): &(&str, &str, usize)| {
        format!("echo {name}=$(disk {interface} {portal} {lun}) | tee -a /run/functions\n")
    };
    guest.run(&names.iter().map(line).collect::<Vec<_>>().concat());
}

#[test]
fn kernel_uses_logical_units_as_disks() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let server = served(&dirs, &network, &["256MiB", "64MiB"]);
    server.weir("volume create tank/wide --size 64MiB").ok();
    server.weir("lun add vms tank/wide --lun 2 --block-size 4096").ok();
    let mut guest = initiator(&network, &[]);
    log_in(&mut guest, "default", 0, 3);
    names(&mut guest, &[("ONE", "default", 0), ("TWO", "default", 1), ("WIDE", "default", 2)]);
    limits_are_seen(&mut guest);
    a_file_system_gives_space_back(&server, &mut guest);
    blocks_are_compared_and_unmapped(&mut guest);
    units_are_copied(&server, &mut guest);

    // The sessions of the second initiator use digests.
    guest.run(&format!(
        "for kind in HeaderDigest DataDigest; do
            iscsiadm -m node -T {TARGET} -p {} -I other -o update \
                -n 'node.conn[0].iscsi.'$kind -v CRC32C
        done",
        SUBNETS[0].here
    ));
    log_in(&mut guest, "other", 0, 3);
    names(&mut guest, &[("OTHER", "other", 1)]);
    reservations_keep_others_out(&mut guest);
    digests_cover_data(&server, &mut guest);
    units_change_under_a_session(&server, &mut guest);

    guest.run("iscsiadm -m node --logoutall=all; [ -z \"$(ls /sys/class/iscsi_session)\" ]");
    assert_eq!(shown(&server)["sessions"].as_array().unwrap().len(), 0);
    guest.halt();
    server.stop_clean();
}

fn limits_are_seen(guest: &mut Guest) {
    let told = guest.run(
        "for disk in $ONE $TWO $WIDE; do
            queue=/sys/block/${disk#/dev/}/queue
            echo $(cat /sys/block/${disk#/dev/}/size) $(cd $queue && cat logical_block_size \
                physical_block_size discard_granularity optimal_io_size)
            [ $(cat $queue/discard_max_bytes) -ge 1048576 ]
            [ $(cat $queue/write_zeroes_max_bytes) -ge 1048576 ]
            grep -qx 'write through' /sys/block/${disk#/dev/}/device/scsi_disk/*/cache_type
            grep -qx unmap /sys/block/${disk#/dev/}/device/scsi_disk/*/provisioning_mode
        done",
    );
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(
        told,
        [
            "524288 512 4096 4096 1048576",
            "131072 512 4096 4096 1048576",
            "131072 4096 4096 4096 1048576",
        ]
    );
    let vendor = guest.run("sg_inq $ONE; sg_vpd -p di $ONE; sg_vpd -p lbpv $ONE");
    assert!(vendor.contains("WEIR"), "{vendor}");
}

fn a_file_system_gives_space_back(server: &Server, guest: &mut Guest) {
    guest.run("mkfs.ext4 -q $ONE && mkdir /run/files && mount $ONE /run/files");
    guest.run(
        "verify --directory=/run/files --size=32M --rw=randwrite --bs=8k --iodepth=8 --randseed=1",
    );
    guest.run("sync");
    // Wait for the next commit: the status shows the used space as of the newest committed txg.
    eventually("the file takes space", LIMIT, || used(server, "tank/vm0") > 32 * MIB);
    guest.run("rm /run/files/load* && sync && fstrim -v /run/files");
    eventually("fstrim gives space back", LIMIT, || used(server, "tank/vm0") < 16 * MIB);
    guest.run("umount /run/files && e2fsck -fn $ONE");
}

fn blocks_are_compared_and_unmapped(guest: &mut Guest) {
    guest.run(
        "head -c 512 /dev/zero >/run/zeros
        head -c 512 /dev/urandom >/run/random
        cat /run/zeros /run/random >/run/swap",
    );
    let same = "dd if=$TWO bs=512 skip=8 count=1 iflag=direct status=none | cmp - /run/random";
    guest.run(&format!("sg_compare_and_write --in=/run/swap --lba=8 $TWO && {same}"));
    // The block no longer contains zeros, so this COMPARE AND WRITE returns MISCOMPARE and writes
    // nothing.
    guest.fails(14, "sg_compare_and_write --in=/run/swap --lba=8 $TWO");
    guest.run(same);

    let status = |guest: &mut Guest| {
        guest.run("for lba in 64 128 192; do sg_get_lba_status -bb --lba=$lba $TWO; done")
    };
    guest.run("sg_write_same --in=/run/random --lba=64 --num=192 --xferlen=512 $TWO");
    guest.run(
        "cat $(yes /run/random | head -n 192) >/run/many
        dd if=$TWO bs=512 skip=64 count=192 iflag=direct status=none | cmp - /run/many",
    );
    assert_eq!(status(guest), "0\n0\n0\n", "mapped");
    guest.run("sg_unmap --lba=64 --num=64 --force $TWO");
    guest.run("sg_write_same --unmap --in=/run/zeros --lba=192 --num=64 --xferlen=512 $TWO");
    assert_eq!(status(guest), "1\n0\n1\n", "the first and the last third are not");
    guest.run(
        "{ head -c 32768 /dev/zero; head -c 32768 /run/many; head -c 32768 /dev/zero; } >/run/now
        dd if=$TWO bs=512 skip=64 count=192 iflag=direct status=none | cmp - /run/now",
    );
}

fn units_are_copied(server: &Server, guest: &mut Guest) {
    // Replace the start of the source by new data: its first 32 MiB contain remains of mkfs.
    guest.run(
        "verify --filename=$ONE --offset=16M --size=16M --rw=write --bs=256k --iodepth=4 \
            --randseed=2
        sg_xcopy if=$(generic $ONE) of=$(generic $TWO) bs=512 count=65536
        blockdev --flushbufs $ONE $TWO
        cmp -n 33554432 $ONE $TWO",
    );
    assert_eq!(counter(server, 1, "cloned_bytes"), 32 * MIB);
}

fn reservations_keep_others_out(guest: &mut Guest) {
    guest.run(
        "sg_persist --out --register --param-sark=0xabc $TWO
        sg_persist --out --reserve --param-rk=0xabc --prout-type=5 $TWO",
    );
    let held = guest.run("sg_persist --in --read-reservation $OTHER");
    assert!(held.contains("0xabc") && held.contains("Write Exclusive, registrants only"), "{held}");
    let write = "dd if=/run/random of=$OTHER bs=512 seek=8 count=1 oflag=direct";
    // sg3-utils exits with status 24 for RESERVATION CONFLICT.
    guest.fails(24, "sg_write_same --in=/run/zeros --lba=8 --num=1 --xferlen=512 $OTHER");
    let refused = guest.fails(1, write);
    assert!(refused.contains("error writing"), "{refused}");
    guest.run("dd if=$OTHER of=/dev/null bs=512 count=8 iflag=direct");
    guest.run("dd if=/run/random of=$TWO bs=512 seek=8 count=1 oflag=direct");
    guest.run("sg_persist --out --clear --param-rk=0xabc $TWO");
    guest.run(write);
}

fn digests_cover_data(server: &Server, guest: &mut Guest) {
    let sessions = shown(server)["sessions"].clone();
    let other = |session: &&Value| session["initiator"] == OTHER;
    let other = sessions.as_array().unwrap().iter().find(other).unwrap();
    assert_eq!((&other["header_digest"], &other["data_digest"]), (&true.into(), &true.into()));
    guest.run(
        "verify --filename=$OTHER --size=16M --rw=randrw --bsrange=4k-64k --iodepth=8 \
            --randseed=3",
    );
}

fn units_change_under_a_session(server: &Server, guest: &mut Guest) {
    server.weir("volume resize tank/vm0 --size 320MiB").ok();
    guest.run(
        "is_larger() { [ $(blockdev --getsize64 $ONE) = 335544320 ]; }
        rescan() { iscsiadm -m session --rescan && is_larger; }
        until_true rescan",
    );
    server.weir("lun remove vms 1 --force").ok();
    // The read must fail quickly, with status 1. If the read hung, the time limit would end it with
    // another status.
    let gone = guest.fails(1, "dd if=$TWO of=/dev/null bs=4096 count=1 iflag=direct");
    assert!(gone.contains("error reading"), "{gone}");
    guest.run("verify --filename=$ONE --size=4M --rw=randwrite --bs=4k --iodepth=8 --randseed=4");
    guest.run("verify --filename=$WIDE --size=4M --rw=randwrite --bs=4k --iodepth=8 --randseed=5");
}

/// Starts rounds of verified writes to a disk, which continue until [`end_load`]. Each round writes
/// different content, so that leftovers of an earlier round are found. The rate is limited:
/// otherwise the guest would spend most of its time on starting programs.
fn start_load(server: &Server, guest: &mut Guest, disk: &str) {
    let script = format!(
        "round=1
        until [ -e /run/enough ]; do
            verify --filename={disk} --size=4M --rate=,1m --rw=randwrite --bsrange=4k-32k \
                --iodepth=8 --randseed=$round
            round=$((round + 1))
        done"
    );
    guest.start("load", &script);
    assert_load_continues(server);
}

/// Waits until the server has received more writes of the load. Each round verifies its writes when
/// it ends; [`end_load`] waits for the end of the last round.
#[track_caller]
fn assert_load_continues(server: &Server) {
    let before = counter(server, 0, "writes");
    eventually("the load goes on", LIMIT, || counter(server, 0, "writes") > before + 50);
}

/// Ends the load, and asserts that every round has verified its writes.
#[track_caller]
fn end_load(guest: &mut Guest) {
    guest.run("touch /run/enough");
    let told = guest.join("load", LIMIT);
    assert!(told.contains("err= 0") && !told.contains("verify:"), "{told}");
}

#[test]
fn failed_path_loses_no_write() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let server = served(&dirs, &network, &["64MiB"]);
    let timeouts = [
        ("node.conn[0].timeo.noop_out_interval", 1),
        ("node.conn[0].timeo.noop_out_timeout", 1),
        ("node.session.timeo.replacement_timeout", 1),
    ];
    let mut guest = initiator(&network, &timeouts);
    guest.run(
        "modprobe -a dm-multipath dm-service-time
        cat >/etc/multipath.conf <<END
defaults {
    user_friendly_names yes
    find_multipaths no
    path_grouping_policy group_by_prio
    polling_interval 1
    max_polling_interval 2
    no_path_retry queue
}
END
        rm -rf /etc/multipath
        /lib/systemd/systemd-udevd --daemon
        multipathd
        until_true multipathd show status",
    );
    guest.run(
        "cat >>/run/functions <<'END'
paths() { multipathd show paths raw format '%d %t'; }
is_failed() { paths | grep -q \"^${1#/dev/} *failed\"; }
both_active() { [ $(paths | grep -c ' active') = 2 ]; }
END",
    );
    log_in(&mut guest, "default", 0, 1);
    log_in(&mut guest, "default", 1, 1);
    guest.run("until_true both_active; until_true test -b /dev/mapper/mpatha");
    let map = guest.run("multipath -ll");
    assert!(map.contains("WEIR"), "{map}");
    // multipath gives priority 50 to paths in the ALUA state active/optimized.
    assert_eq!(map.matches("prio=50").count(), 1, "one group of equal paths: {map}");
    start_load(&server, &mut guest, "/dev/mapper/mpatha");
    for subnet in [0, 1] {
        network.cut(subnet);
        let portal = SUBNETS[subnet].here;
        guest.run(&format!(
            "until_true logged_out; until_true is_failed $(disk default {portal} 0)"
        ));
        assert_load_continues(&server);
        network.mend(subnet);
        guest.run("until_true logged_in; until_true both_active");
    }
    end_load(&mut guest);
    guest.run("until_true multipath -F; iscsiadm -m node --logoutall=all");
    guest.halt();
    server.stop_clean();
}

#[test]
fn killed_and_restarted_server_loses_no_write() {
    let (dirs, network) = (Dirs::new(), Network::new());
    let mut server = served(&dirs, &network, &["64MiB"]);
    let mut guest = initiator(&network, &[]);
    log_in(&mut guest, "default", 0, 1);
    names(&mut guest, &[("ONE", "default", 0)]);
    guest.run(
        "sg_persist --out --register --param-sark=0xabc --param-aptpl $ONE
        sg_persist --out --reserve --param-rk=0xabc --prout-type=5 $ONE",
    );
    for round in 1..=2 {
        // Kill the server in the middle of some 700 writes. The guest later reads back and verifies
        // all of them.
        let load = format!("load-{round}");
        let before = counter(&server, 0, "writes");
        guest.start(
            &load,
            &format!(
                "verify --filename=$ONE --size=12M --rate=,3m --rw=randwrite --bsrange=4k-32k \
                    --iodepth=8 --randseed={round}"
            ),
        );
        eventually("it writes", LIMIT, || counter(&server, 0, "writes") > before + 200);
        server.kill();
        guest.run(&format!(
            "until_true logged_out
            [ ! -e /run/{load}.status ]"
        ));
        server = serve(&dirs, &network);
        guest.run("until_true logged_in");
        guest.join(&load, LIMIT);
    }
    guest.run("! dmesg | grep 'I/O error'");
    // The reservation must survive the two kills and still exclude other initiators.
    assert_eq!(shown(&server)["luns"][0]["registrations"], 1);
    log_in(&mut guest, "other", 0, 1);
    names(&mut guest, &[("OTHER", "other", 0)]);
    let held = guest.run("sg_persist --in --read-reservation $OTHER");
    assert!(held.contains("0xabc") && held.contains("Write Exclusive, registrants only"), "{held}");
    let refused = guest.fails(1, "dd if=/dev/zero of=$OTHER bs=4096 count=1 oflag=direct");
    assert!(refused.contains("error writing"), "{refused}");
    guest.run("iscsiadm -m node --logoutall=all");
    guest.halt();
    server.stop_clean();
}
