//! Lookups of host names and netgroups by the name services of this machine (nsswitch.conf(5)).
//!
//! Host names: getaddrinfo(3). Netgroups: the program getent(1), because the functions of netgroups
//! (getnetgrent(3)) have one state for the whole process.
//!
//! Invariant: a lookup of a netgroup has limits of time, of output and of hosts.

use std::io::{self, Read as _};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::limits::{GETENT_LIMIT, HOSTS_OF_NAME_MAX, NETGROUP_LIMIT};
use crate::share::clients::{ClientName, is_host};

/// Function that looks up the hosts of a name, and the addresses of each host. It may block.
///
/// # Errors
/// The name services did not find the hosts.
pub type FindHosts = dyn Fn(&ClientName) -> io::Result<Vec<FoundHost>> + Send + Sync;

/// A host of a name, as the name services know it.
#[derive(Debug)]
pub struct FoundHost {
    /// Name of the host.
    pub name: Box<str>,
    /// Its addresses, or the error of their lookup.
    pub addresses: io::Result<Vec<IpAddr>>,
}

/// Maximum output of getent(1): all hosts of a netgroup, with names of 253 bytes.
const OUTPUT_BYTES_MAX: u64 = 512 << 10;
/// Interval at which the server checks whether getent(1) has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Looks up the hosts of a name, and the addresses of each host. Blocks.
///
/// # Errors
/// The netgroup cannot be looked up.
pub(super) fn hosts_of(name: &ClientName) -> io::Result<Vec<FoundHost>> {
    let netgroup = match name {
        ClientName::Host(host) => return Ok(vec![found(host)]),
        ClientName::Netgroup(netgroup) => netgroup,
    };
    let end = Instant::now() + NETGROUP_LIMIT;
    let hosts = members(&getent(netgroup)?);
    let look_up = |host: String| {
        if Instant::now() < end {
            return found(&host);
        }
        let late = io::Error::new(io::ErrorKind::TimedOut, "the netgroup takes too long");
        FoundHost { name: host.into(), addresses: Err(late) }
    };
    Ok(hosts.into_iter().map(look_up).collect())
}

fn found(host: &str) -> FoundHost {
    FoundHost { name: host.into(), addresses: addresses_of(host) }
}

fn addresses_of(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if !is_host(host) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no host name and no address"));
    }
    Ok((host, 0).to_socket_addrs()?.map(|found| found.ip()).collect())
}

/// Hosts of a netgroup, from the output of getent(1): `NAME (HOST,USER,DOMAIN) ...`. An entry
/// without a host names no client: netgroup(5) means any host, which is never intended here.
fn members(output: &str) -> Vec<String> {
    let entries = output.split('(').skip(1);
    let hosts = entries.filter_map(|entry| entry.split([',', ')']).next()).map(str::trim);
    let mut hosts: Vec<String> =
        hosts.filter(|host| !["", "-"].contains(host)).map(str::to_ascii_lowercase).collect();
    hosts.sort_unstable();
    hosts.dedup();
    // The caller reports that there are more.
    hosts.truncate(HOSTS_OF_NAME_MAX + 1);
    hosts
}

/// Output of getent(1) for a netgroup.
fn getent(netgroup: &str) -> io::Result<String> {
    let mut command = Command::new("getent");
    // A name in a rule begins with a letter, a digit or `_`, so it is no option.
    command.args(["netgroup", netgroup]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("getent(1), which looks up netgroups: {error}"))
    })?;
    let out = child.stdout.take();
    let read = std::thread::Builder::new().name("nfs-getent".to_owned()).spawn(move || {
        let mut text = Vec::new();
        let out = out.ok_or(io::ErrorKind::BrokenPipe)?;
        out.take(OUTPUT_BYTES_MAX).read_to_end(&mut text)?;
        io::Result::Ok(text)
    });
    let status = wait(&mut child, GETENT_LIMIT);
    let text = read?.join().map_err(|_| io::Error::other("a thread ended"))??;
    match status?.code() {
        Some(0) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Some(2) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name services know no such netgroup (see netgroup in nsswitch.conf)",
        )),
        _ => Err(io::Error::other("getent(1) failed")),
    }
}

/// Waits for the end of a program, and ends it after a time.
fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            let message = "the name services of netgroups take too long";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_with_a_host_are_members() {
        let output = "admins                (b.example,,) (A.example,root,example) (,anna,) (-,x,)\
                      ( 10.0.0.7 ,,)(b.example,,";
        assert_eq!(members(output), ["10.0.0.7", "a.example", "b.example"]);
        for broken in ["", "admins", "(", "(((", "a ()", ",,,", "(,", ")("] {
            assert_eq!(members(broken), [""; 0], "{broken}");
        }
        let many: Vec<_> = (0..3 * HOSTS_OF_NAME_MAX).map(|at| format!("(h{at},,)")).collect();
        assert_eq!(members(&many.concat()).len(), HOSTS_OF_NAME_MAX + 1);
    }

    #[test]
    fn member_that_is_no_host_name_is_not_looked_up() {
        assert_eq!(addresses_of("10.0.0.7").unwrap(), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        for host in ["a_b", "10.1", "-a", "a b"] {
            let error = addresses_of(host).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{host}");
        }
    }

    #[test]
    fn program_that_hangs_is_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let late = wait(&mut child, Duration::ZERO).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(!child.wait().unwrap().success());
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_hours(1)).unwrap().success());
    }

    #[test]
    fn name_services_know_the_own_machine() {
        let hosts = hosts_of(&ClientName::Host("localhost".into())).unwrap();
        let addresses = hosts[0].addresses.as_ref().unwrap();
        assert!(addresses.iter().any(IpAddr::is_loopback), "{addresses:?}");
        let unknown = hosts_of(&ClientName::Netgroup("weir-no-such-netgroup".into()));
        assert!(unknown.is_err(), "{unknown:?}");
    }
}
