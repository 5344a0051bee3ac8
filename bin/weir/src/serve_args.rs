//! The command line of `weir serve`.
//!
//! Not here: the code of the server (weir-server).
//!
//! Invariants:
//! - the program checks all values before the server opens a socket, a directory or a disk;
//! - the server listens only on this machine, unless an option gives an address that other machines
//!   can reach;
//! - over TCP, the server accepts an NBD client only from an allowed address (`--nbd-allow`, or the
//!   list of an export) or with a valid certificate.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_api::peer::PEER_PORT;
use weir_api::place::{
    API_PORT, ISCSI_PORT, NBD_PORT, NBD_SOCKET, NFS_PORT, default_api_socket, default_state_dir,
};
use weir_api::{Address, ApiError};
use weir_base::limits::MEMORY_BYTES_MIN;
use weir_base::{ErrorKind, size};
use weir_net::AllowList;
use weir_server::memory::{self, MemoryPlan};
use weir_server::{NbdClients, PeerOptions, ServeOptions};

/// Default memory of the server, in percent of the machine's memory.
const MEMORY_PERCENT: u64 = 25;

/// Upper limit of the default memory for the dedupe index: 1 GiB, enough for 50 million blocks.
const DEDUPE_BYTES_MAX: u64 = 1 << 30;

/// Directory for the state and the disks of `--demo`, relative to the working directory.
const DEMO_DIR: &str = "weir-demo";

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Directory for the server's state [default: /var/lib/weir for root, else ~/.local/state/weir;
    /// with --demo ./weir-demo]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Address of the management interface; may be repeated. A TCP address is added to the unix
    /// socket, another unix path replaces it [default: unix:/run/weir/api.sock for root, else
    /// unix:$XDG_RUNTIME_DIR/weir/api.sock]
    #[arg(long = "api", id = "serve_api", value_name = "HOST:PORT|unix:PATH")]
    api: Vec<String>,
    /// Address on which NBD listens; may be repeated. Over TCP, including loopback, the server
    /// accepts only clients allowed by --nbd-allow, a client certificate or 'weir export create
    /// --allow' [default: unix:STATE/nbd.sock, and with --nbd-allow or --nbd-tls-client-ca
    /// 127.0.0.1:10809]
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    nbd: Vec<String>,
    /// Addresses that may connect to NBD over TCP and open every export without an allow list of
    /// its own: 127.0.0.1, or networks such as 10.0.0.0/24, separated by commas; may be repeated.
    /// Every user and program at an address is allowed [default: the addresses on the exports'
    /// lists]
    #[arg(long, value_name = "ADDRESS[/BITS]", value_delimiter = ',')]
    nbd_allow: Vec<String>,
    /// Accept NBD clients over TCP only with TLS (STARTTLS); the server uses the certificate of
    /// --tls-cert
    #[arg(long, requires = "tls_cert")]
    nbd_tls: bool,
    /// File with CA certificates (PEM). NBD clients over TCP must present a certificate issued by
    /// one of them; --nbd-allow is then not needed
    #[arg(long, value_name = "FILE", requires = "nbd_tls")]
    nbd_tls_client_ca: Option<PathBuf>,
    /// Group whose members may use the unix sockets of NBD [default: weir, if the group exists]
    #[arg(long, value_name = "GROUP")]
    nbd_group: Option<String>,
    /// Address on which iSCSI listens, a portal of all targets; may be repeated [default: iSCSI is
    /// off]
    #[arg(long, value_name = "HOST:PORT")]
    iscsi: Vec<String>,
    #[command(flatten)]
    files: NfsArgs,
    /// Address on which other servers connect to replicate to this one [default: off]
    #[arg(long, value_name = "HOST:PORT",
        requires_all = ["tls_cert", "tls_key", "peer_secret_file"])]
    peer_listen: Option<String>,
    /// File with the server's certificate (PEM), for callers over TCP and other servers; read again
    /// on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Allow the management interface to listen beyond this machine without TLS; anyone who can
    /// read the network traffic can read the tokens. For test networks only
    #[arg(long)]
    api_open: bool,
    /// Directory whose files callers may use as disks; may be repeated. Root and the server's user
    /// may use any file
    #[arg(long, value_name = "DIR")]
    disk_dir: Vec<PathBuf>,
    /// File with the secret that other servers must present, at least 16 characters
    #[arg(long, value_name = "FILE", requires = "peer_listen")]
    peer_secret_file: Option<PathBuf>,
    /// Memory of the server: a size such as 4GiB, or a percentage of the memory of this machine or
    /// control group such as 50% [default: 25%]. The process uses up to 10% more, plus 128MiB
    /// (another 128MiB with --iscsi, and with --nfs)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Memory limit of the dedupe index, which finds equal blocks in volumes with dedupe, 20 bytes
    /// per block: a size up to a quarter of --memory. The caches shrink as the index grows
    /// [default: a tenth of --memory, at most 1GiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    dedupe_memory: Option<String>,
    /// Time limit for the NBD handshake and the iSCSI login; the server then drops the client
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=300))]
    handshake_timeout: u64,
    /// Lowest severity to log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LogLevel,
    /// Create a demo pool of two sparse files, a volume and an export
    #[arg(long)]
    demo: bool,
}

#[derive(Debug, Args)]
struct NfsArgs {
    /// Address on which NFS listens; may be repeated. Each share has rules of its own for clients
    /// [default: NFS is off]
    #[arg(long, value_name = "HOST:PORT")]
    nfs: Vec<String>,
    /// Register NFS at the rpcbind of this machine, so that clients need no port: mount HOST:/PATH
    #[arg(long, requires = "nfs")]
    rpcbind: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const fn level(self) -> tracing::Level {
        match self {
            Self::Error => tracing::Level::ERROR,
            Self::Warn => tracing::Level::WARN,
            Self::Info => tracing::Level::INFO,
            Self::Debug => tracing::Level::DEBUG,
            Self::Trace => tracing::Level::TRACE,
        }
    }
}

impl ServeArgs {
    /// Checks the arguments and fills in the defaults.
    pub(crate) fn options(self) -> Result<ServeOptions, ApiError> {
        let state = match (self.state, self.demo) {
            (Some(dir), _) => dir,
            (None, true) => PathBuf::from(DEMO_DIR),
            (None, false) => default_state_dir()?,
        };
        let state_dir = absolute(&state)?;
        let mut api = addresses(&self.api, API_PORT)?;
        let has_socket = api.iter().any(|at| matches!(at, Address::Unix(_)));
        let api_socket = if has_socket { None } else { Some(default_api_socket()?) };
        api.extend(api_socket.iter().cloned().map(Address::Unix));
        let mut nbd = addresses(&self.nbd, NBD_PORT)?;
        let allowed = allow_list(&self.nbd_allow)?;
        let client_ca = self.nbd_tls_client_ca.as_deref().map(absolute).transpose()?;
        if nbd.is_empty() {
            nbd.push(Address::Unix(state_dir.join(NBD_SOCKET)));
            if !allowed.is_empty() || client_ca.is_some() {
                nbd.insert(0, Address::loopback(NBD_PORT));
            }
        }
        let iscsi = tcp_addresses("iSCSI", &self.iscsi, ISCSI_PORT)?;
        let nfs = tcp_addresses("NFS", &self.files.nfs, NFS_PORT)?;
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => Some((absolute(&certificate)?, absolute(&key)?)),
            _ => None,
        };
        let peers = match (self.peer_listen, self.peer_secret_file) {
            (Some(listen), Some(secret)) => Some(PeerOptions {
                listen: Address::parse(&listen, PEER_PORT)?,
                secret: absolute(&secret)?,
            }),
            _ => None,
        };
        let disk_dirs = self.disk_dir.iter().map(|dir| absolute(dir)).collect::<Result<_, _>>()?;
        let listen = peers.iter().map(|peers| &peers.listen);
        refuse_twice(api.iter().chain(&nbd).chain(&iscsi).chain(&nfs).chain(listen))?;
        let (tls_only, group) = (self.nbd_tls, self.nbd_group);
        let nbd_clients = NbdClients { allowed, tls_only, client_ca, group };
        let machine_bytes = machine_bytes();
        let (serves_iscsi, serves_nfs) = (!iscsi.is_empty(), !nfs.is_empty());
        let serves_nbd_tls = tls_only;
        let process_bytes = memory::process_bytes(serves_iscsi, serves_nfs, serves_nbd_tls);
        let total_bytes = memory_bytes(self.memory.as_deref(), machine_bytes, process_bytes)?;
        let dedupe_bytes = dedupe_bytes(self.dedupe_memory.as_deref(), machine_bytes, total_bytes)?;
        let memory =
            MemoryPlan { total_bytes, dedupe_bytes, serves_iscsi, serves_nfs, serves_nbd_tls };
        let (log, demo) = (self.log.level(), self.demo);
        Ok(ServeOptions {
            state_dir,
            api,
            default_api_socket: api_socket,
            nbd,
            nbd_clients,
            iscsi,
            nfs,
            rpcbind: self.files.rpcbind,
            peers,
            tls,
            api_open: self.api_open,
            disk_dirs,
            memory,
            handshake_limit: Duration::from_secs(self.handshake_timeout),
            log,
            demo,
        })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ApiError> {
    std::path::absolute(path).map_err(|error| {
        let message = format!("cannot use the path {}: {error}", path.display());
        ApiError::new(ErrorKind::Invalid, message)
    })
}

fn addresses(given: &[String], port: u16) -> Result<Vec<Address>, ApiError> {
    let one = |text: &String| match Address::parse(text, port)? {
        Address::Unix(path) => Ok(Address::Unix(absolute(&path)?)),
        tcp @ Address::Tcp { .. } => Ok(tcp),
    };
    given.iter().map(one).collect()
}

/// Parses addresses of a protocol that unix sockets cannot carry.
fn tcp_addresses(protocol: &str, given: &[String], port: u16) -> Result<Vec<Address>, ApiError> {
    let all = addresses(given, port)?;
    match all.iter().find(|at| matches!(at, Address::Unix(_))) {
        None => Ok(all),
        Some(unix) => {
            let message = format!("{protocol} cannot listen on {unix}");
            Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action(format!("write an address and a port, such as 127.0.0.1:{port}")))
        }
    }
}

fn allow_list(entries: &[String]) -> Result<AllowList, ApiError> {
    AllowList::parse(entries.iter().map(String::as_str)).map_err(|error| {
        ApiError::new(error.kind(), format!("--nbd-allow: {error}"))
            .with_action("name clients by address: --nbd-allow 127.0.0.1,10.0.0.0/24")
    })
}

fn refuse_twice<'a>(all: impl Iterator<Item = &'a Address>) -> Result<(), ApiError> {
    let mut seen = HashSet::new();
    for address in all {
        // Port 0 may be given several times: the system then chooses another free port each time.
        let picks = matches!(address, Address::Tcp { port: 0, .. });
        if !picks && !seen.insert(address) {
            let message = format!("the address {address} is given twice");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("give each listener its own address"));
        }
    }
    Ok(())
}

fn memory_bytes(
    text: Option<&str>,
    machine_bytes: u64,
    process_bytes: u64,
) -> Result<u64, ApiError> {
    let most = memory::memory_that_fits(machine_bytes, process_bytes);
    let Some(text) = text else {
        let part = (machine_bytes / 100 * MEMORY_PERCENT).min(most);
        return Ok(part.max(MEMORY_BYTES_MIN));
    };
    let bytes = part_of_memory("--memory", text, machine_bytes)?;
    if bytes < MEMORY_BYTES_MIN {
        let least = format!("at least {} are needed", size::Human(MEMORY_BYTES_MIN));
        return Err(bad_memory("--memory", text, &least));
    }
    if bytes > most {
        let why = format!(
            "the process would use up to {}, and the machine has {}; at most {} fit",
            size::Human(memory::resident_max_bytes(bytes, process_bytes)),
            size::Human(machine_bytes),
            size::Human(most),
        );
        return Err(bad_memory("--memory", text, &why));
    }
    Ok(bytes)
}

fn dedupe_bytes(
    text: Option<&str>,
    machine_bytes: u64,
    memory_bytes: u64,
) -> Result<u64, ApiError> {
    let Some(text) = text else {
        return Ok(memory::dedupe_default(memory_bytes).min(DEDUPE_BYTES_MAX));
    };
    let bytes = part_of_memory("--dedupe-memory", text, machine_bytes)?;
    let most = memory::dedupe_max(memory_bytes);
    if bytes > most {
        let (memory, most) = (size::Human(memory_bytes), size::Human(most));
        let why = format!("it comes out of --memory, which is {memory}; at most {most} fit");
        return Err(bad_memory("--dedupe-memory", text, &why));
    }
    Ok(bytes)
}

fn bad_memory(option: &str, text: &str, why: &str) -> ApiError {
    ApiError::new(ErrorKind::Invalid, format!("bad {option} {text:?}: {why}"))
        .with_action("write a size such as 4GiB, or a part of the memory such as 25%")
}

/// Parses a size, or a percentage of the machine's memory, as bytes.
fn part_of_memory(option: &str, text: &str, machine_bytes: u64) -> Result<u64, ApiError> {
    let bad = |why: &str| bad_memory(option, text, why);
    let bytes = match text.trim().strip_suffix('%') {
        Some(number) => match number.trim().parse::<u64>() {
            Ok(percent) if (1..=100).contains(&percent) => machine_bytes / 100 * percent,
            _ => return Err(bad("a part is a whole number from 1% to 100%")),
        },
        None => size::parse(text).map_err(|error| bad(&error.to_string()))?,
    };
    if bytes > machine_bytes {
        return Err(bad(&format!("this machine has {}", size::Human(machine_bytes))));
    }
    Ok(bytes)
}

/// Returns the memory of this machine, or the limit of this process's control group if it is lower.
fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // The types of these fields are C longs, whose size depends on the architecture.
    #[expect(clippy::useless_conversion, reason = "u32 on 32-bit machines")]
    let total = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| fs::read_to_string(file).ok());
    limits.filter_map(|text| text.trim().parse::<u64>().ok()).fold(total, u64::min)
}

/// Returns the paths of the files with the memory limits of the control groups in a
/// `/proc/PID/cgroup` and of their ancestors: `memory.max` for version 2, `memory.limit_in_bytes`
/// for version 1. The ancestors are needed because a container may see its innermost group as the
/// root of the hierarchy.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            one if one.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(path.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn options(line: &[&str]) -> Result<ServeOptions, ApiError> {
        let words = std::iter::once("serve").chain(line.iter().copied());
        Line::try_parse_from(words).expect("a line clap can read").serve.options()
    }

    #[test]
    fn defaults_stay_on_this_machine() {
        let options = options(&["--state", "/s"]).unwrap();
        let text =
            |all: &[Address]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let socket = default_api_socket().unwrap();
        assert_eq!(text(&options.api), format!("unix:{}", socket.display()));
        assert_eq!(options.default_api_socket, Some(socket));
        assert_eq!(text(&options.nbd), "unix:/s/nbd.sock");
        assert_eq!((options.log, options.demo), (tracing::Level::INFO, false));
        assert!(options.memory.total_bytes >= MEMORY_BYTES_MIN);
    }

    #[test]
    fn given_addresses_replace_the_defaults() {
        let other = options(&["--state", "/s", "--api", "unix:/s/a"]).unwrap();
        assert_eq!(other.api, [Address::Unix("/s/a".into())]);
        let line = ["--demo", "--nbd", "unix:n", "--nbd", "0.0.0.0", "--api", "[::1]:1"];
        let options = options(&[&line[..], &["--nbd-allow", "10.0.0.0/8"]].concat()).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(options.state_dir, here.join("weir-demo"));
        assert_eq!(options.nbd[0], Address::Unix(here.join("n")));
        assert_eq!(options.nbd[1].to_string(), "0.0.0.0:10809");
        // A TCP address is added to the unix socket.
        assert_eq!(options.api.len(), 2);
        assert_eq!(options.api[0].to_string(), "[::1]:1");
    }

    #[test]
    fn allow_list_enables_nbd_over_tcp() {
        let allowed = options(&["--state", "/s", "--nbd-allow", "127.0.0.1,10.0.0.0/24"]).unwrap();
        assert_eq!(allowed.nbd_clients.allowed.to_string(), "127.0.0.1/32,10.0.0.0/24");
        let listens: Vec<_> = allowed.nbd.iter().map(ToString::to_string).collect();
        assert_eq!(listens, ["127.0.0.1:10809", "unix:/s/nbd.sock"]);
    }

    #[test]
    fn invalid_values_are_named_in_errors() {
        for (line, part) in [
            (["--api", "host:x"], "host:x"),
            (["--nbd", "unix:"], "unix:"),
            (["--nbd-allow", "10.0.0.7/24"], "10.0.0.0/24"),
            (["--memory", "10GG"], "10GG"),
            (["--memory", "0"], "64MiB"),
            (["--memory", "-1"], "negative"),
            (["--memory", "0%"], "0%"),
            (["--memory", "101%"], "101%"),
            (["--memory", "9PiB"], "this machine has"),
            (["--memory", "100%"], "fit"),
            (["--dedupe-memory", "50%"], "comes out of --memory"),
        ] {
            let error = options(&["--state", "/s", line[0], line[1]]).expect_err(part);
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains(part), "{error}");
        }
    }

    fn with(text: Option<&str>, machine_bytes: u64) -> Result<u64, ApiError> {
        memory_bytes(text, machine_bytes, memory::process_bytes(false, false, false))
    }

    #[test]
    fn memory_is_a_size_or_a_percentage() {
        let machine = 16 << 30;
        assert_eq!(with(None, machine), Ok(machine / 100 * 25));
        assert_eq!(with(Some("50%"), machine), Ok(machine / 100 * 50));
        assert_eq!(with(Some("1GiB"), machine), Ok(1 << 30));
        // If 25 % of the machine's memory is less than the minimum, the default is the minimum.
        assert_eq!(with(None, 100 << 20), Ok(MEMORY_BYTES_MIN));
    }

    #[test]
    fn memory_above_the_maximum_is_refused() {
        let machine = 1 << 30;
        let error = with(Some("1000MiB"), machine).expect_err("128 MiB come on top");
        assert!(error.message.contains("at most 814.55MiB fit"), "{error}");
        assert!(with(Some("814MiB"), machine).is_ok());
    }

    // Regression: the default size of the dedupe index was 5 % of the machine's memory, whatever
    // the value of --memory. With --memory 64MiB the index took 1.1 GiB.
    #[test]
    fn dedupe_memory_is_part_of_the_server_memory() {
        let mib = 1 << 20;
        assert_eq!(dedupe_bytes(None, 1 << 40, 100 * mib), Ok(10 * mib));
        assert_eq!(dedupe_bytes(None, 1 << 40, 1 << 39), Ok(1 << 30));
        assert_eq!(dedupe_bytes(Some("16MiB"), 1 << 40, 100 * mib), Ok(16 * mib));
        assert!(dedupe_bytes(Some("0%"), 1 << 40, 1 << 39).is_err());
        let error = dedupe_bytes(Some("64MiB"), 1 << 40, 100 * mib).expect_err("too much");
        assert!(error.message.contains("25MiB"), "{error}");
    }

    #[test]
    fn memory_limits_of_parent_groups_apply() {
        let show = |groups: &str| {
            let files = limit_files(groups);
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            show("0::/system.slice/weir.service\n"),
            "/sys/fs/cgroup/system.slice/weir.service/memory.max \
             /sys/fs/cgroup/system.slice/memory.max /sys/fs/cgroup/memory.max"
        );
        assert_eq!(show("0::/\n"), "/sys/fs/cgroup/memory.max");
        assert_eq!(
            show("5:cpu:/a\n4:memory:/docker/x\n"),
            "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes \
             /sys/fs/cgroup/memory/docker/memory.limit_in_bytes \
             /sys/fs/cgroup/memory/memory.limit_in_bytes"
        );
    }
}
