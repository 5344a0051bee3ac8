//! The network of one test: a network namespace with a tap device that has two addresses.
//!
//! Not here: the programs that use the network.
//!
//! Invariants:
//! - the network namespace has no name, so the networks of two tests are separate. The namespace
//!   ends with the process that holds it: when the guard is dropped, or when the test program ends
//!   for any reason;
//! - if the machine does not allow the namespace, the test fails and names the missing permission.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{is_root, text};

/// Name of the tap device inside the namespace.
pub(crate) const TAP: &str = "tap0";

/// One of the two IP networks on the tap device: the address of this host, and the address of the
/// guest (RFC 5737).
pub(crate) struct Subnet {
    pub(crate) here: &'static str,
    pub(crate) there: &'static str,
}

pub(crate) const SUBNETS: [Subnet; 2] = [
    Subnet { here: "192.0.2.1", there: "192.0.2.2" },
    Subnet { here: "198.51.100.1", there: "198.51.100.2" },
];

pub(crate) struct Network {
    holder: Child,
}

impl Network {
    pub(crate) fn new() -> Self {
        let tun = Path::new("/dev/net/tun");
        assert!(tun.exists(), "this test needs tap devices, and {} is missing", tun.display());
        // Require root and use no user namespace: in a user namespace, the guest's setuid program
        // `mount` would not belong to root and would fail.
        assert!(is_root(), "this test needs root, to make a network and to boot a guest");
        let mut command = Command::new("unshare");
        // When this program ends, the input of `cat` ends, so `cat` and the namespace end too.
        let script = "ip link set lo up && ip tuntap add \"$1\" mode tap && \
            ip link set \"$1\" up && echo made && exec cat";
        command.args(["--net", "sh", "-c", script, "sh", TAP]);
        command.env("PATH", super::path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("unshare of util-linux");
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let network = Self { holder };
        assert_eq!(
            line, "made\n",
            "this test makes a network namespace with a tap device, as root"
        );
        for subnet in 0..SUBNETS.len() {
            network.mend(subnet);
        }
        network
    }

    /// Returns a command that runs inside the namespace. `nsenter` and `setpriv` replace themselves
    /// by the program, so the child process is the program itself. The program ends when this
    /// thread ends.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.holder.id())).arg("--net");
        command.args(["setpriv", "--pdeathsig", "KILL", program]).env("PATH", super::path());
        command
    }

    /// Returns `command`, changed to run inside the namespace.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = self.command(command.get_program().to_str().unwrap());
        inside.args(command.get_args());
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Removes the host's address in this network. The host then drops packets to that address
    /// without a reply.
    pub(crate) fn cut(&self, subnet: usize) {
        self.address("del", subnet);
    }

    pub(crate) fn mend(&self, subnet: usize) {
        self.address("add", subnet);
    }

    fn address(&self, verb: &str, subnet: usize) {
        let mut command = self.command("ip");
        let address = format!("{}/24", SUBNETS[subnet].here);
        let output = command.args(["address", verb, &address, "dev", TAP]).output().unwrap();
        assert!(output.status.success(), "ip address {verb} {address}: {}", text(&output));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}
