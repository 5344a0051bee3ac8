//! Starts the server, waits for a signal, and stops it.
//!
//! The options are in `options`, the calls are in the modules of their objects; storage and
//! protocols have their own crates.
//!
//! Invariants:
//! - the server binds all listeners before it opens a disk, so it changes nothing if a port is in
//!   use;
//! - the server locks its state directory and its disks with file locks, so a second server cannot
//!   use them; the kernel releases the locks when the process ends;
//! - a stopping server first sends outstanding responses to clients, then commits the pools;
//!   unresponsive disks delay the stop only for a bounded time.

use std::fs;
use std::io::IsTerminal as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_api::listen::Protection;
use weir_api::place::NFS_PORT;
use weir_api::tls::Tls;
use weir_api::types::EventLevel;
use weir_api::unix_access::{GROUP, socket_group};
use weir_api::{Address, ApiError};
use weir_base::ErrorKind;
use weir_base::private::check_dir;
use weir_base::size::Human;
use weir_nfs::rpcbind::RpcbindError;

use super::{demo, process};
use crate::access::caller_files::{CallerFiles, NamedDirs};
use crate::access::secrets::Secrets;
use crate::access::tokens::Tokens;
use crate::access::{aside, tokens};
use crate::answer::errors::internal;
use crate::answer::names::guid;
use crate::disks::memory::MemoryPlan;
use crate::monitor::pool_monitor;
use crate::pools::vdev_calls;
use crate::record::call_record::Record;
use crate::record::{events, history};
use crate::replication::replication_calls;
use crate::schedules::schedule_calls;
use crate::start::options::{NbdClients, ServeOptions};
use crate::state::nfs_shares::NfsShares;
use crate::state::saved_state::KnownShare;
use crate::state::server::{Clients, Manager};
use crate::state::target_registry::TargetRegistry;
use crate::state::{saved_state, scan_file, seen};
use crate::transfers::receive_calls;

/// Maximum time for which a stopping server waits until events and the last uses of tokens are
/// saved: an unresponsive state directory must not block the stop.
const SAVE_LIMIT: Duration = Duration::from_secs(2);

/// Runs the server until SIGINT or SIGTERM. `say` prints text for the user on standard output.
///
/// # Errors
/// An error if a listener, the state directory or the certificate cannot be used, or if a pool was
/// not closed cleanly.
pub fn run(options: ServeOptions, say: fn(&str)) -> Result<(), ApiError> {
    tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    process::allow_many_descriptors();
    process::keep_files_private();
    let _lock = lock_state_dir(&options.state_dir)?;
    let state = saved_state::StateFile::load(&options.state_dir)?;
    if let Some(dir) = options.default_api_socket.as_deref().and_then(Path::parent) {
        weir_api::listen::prepare_socket_dir(dir)?;
    }
    let tls = options.tls.as_ref().map(|(certificate, key)| Tls::load(certificate, key));
    let tls = tls.transpose()?;
    let protection = Protection { tls: tls.clone(), open: options.api_open };
    let bind_api = |at: &Address| weir_api::Listener::bind_protected(at, &protection);
    let api: Vec<_> = options.api.iter().map(bind_api).collect::<Result<_, _>>()?;
    let bind = |all: &[Address], port, clients: &weir_net::Clients| {
        all.iter().map(|at| bind(at, port, clients.clone())).collect::<Result<Vec<_>, _>>()
    };
    let nbd_clients = nbd_clients(&options.nbd_clients)?;
    let nbd = bind(&options.nbd, weir_nbd::DEFAULT_PORT, &nbd_clients)?;
    // Any address may connect by iSCSI; each target has its own allow list of initiators.
    let anyone = weir_net::Clients::default();
    let iscsi = bind(&options.iscsi, weir_iscsi_wire::DEFAULT_PORT, &anyone)?;
    // Any address may connect by NFS; each share has its own rules of clients.
    let (nfs, rpcbind) = (bind(&options.nfs, NFS_PORT, &anyone)?, options.rpcbind);
    let nbd_tls = tls.as_ref().filter(|_| options.nbd_clients.tls_only);
    let nbd_tls = nbd_tls.map(|tls| tls.data_config(options.nbd_clients.client_ca.as_deref()));
    let named = nbd_clients.addresses.filter(|_| options.nbd_clients.allowed.is_empty());
    if named.is_some() && options.nbd.iter().any(|at| matches!(at, Address::Tcp { .. })) {
        let how = "weir export create --allow, weir export set --allow, or --nbd-allow for all";
        tracing::info!(how, "NBD over TCP accepts only clients whose address an export names");
    }
    let data = Listeners { nbd, nbd_tls: nbd_tls.transpose()?, named, iscsi, nfs, rpcbind };
    // The command line refuses a port for peers without a certificate, so `tls` is set here.
    let peers =
        options.peers.as_ref().zip(tls.as_ref()).map(|(peers, tls)| {
            weir_api::peer::PeerListener::bind(&peers.listen, tls, &peers.secret)
        });
    let peers = peers.transpose()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        backend = %weir_device::io_backend(),
        memory = %Human(options.memory.total_bytes),
        connections = %Human(options.memory.connections_bytes()),
        pools = %Human(options.memory.pools_bytes()),
        dedupe = %Human(options.memory.dedupe_bytes),
        resident_max = %Human(options.memory.resident_max_bytes()),
        state = %options.state_dir.display(),
        "weir starts"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| internal("no runtime for the management interface", &error))?;
    let done = runtime.block_on(serve((options, say), state, api, data, (peers, tls)));
    // A thread that waits for an unresponsive disk must not block the stop.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

async fn serve(
    (options, say): (ServeOptions, fn(&str)),
    state: saved_state::StateFile,
    api: Vec<weir_api::Listener>,
    data: Listeners,
    (peers, tls): (Option<weir_api::peer::PeerListener>, Option<Tls>),
) -> Result<(), ApiError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| internal("signals", &e))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| internal("signals", &e))?;
    let events = Arc::new(events::Events::load(&options.state_dir));
    let last_events = Arc::clone(&events);
    let own = (options.state_dir.as_path(), Arc::clone(&events));
    let plan = (options.memory, options.handshake_limit);
    let clients = serve_data(data, own, &state.state.shares, plan)?;
    let record = Record { events, history: Arc::new(history::History::load(&options.state_dir)) };
    let (manager, authority) = manage(&options, state, clients, &record)?;
    manager.reopen_targets().await;
    manager.reopen_pools().await;
    let caretakers = look_after(&manager, &record.events, &authority);
    if let Some(tls) = tls {
        let hangup = signal(SignalKind::hangup()).map_err(|e| internal("signals", &e))?;
        // The reload task is not awaited; it ends with the process.
        drop(tokio::spawn(reload(tls, hangup, Arc::clone(&record.events))));
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving_peers = peers.map(|peers| {
        // The task that serves peers is not awaited, because peers can resume their streams later.
        let control = Arc::clone(&manager);
        tokio::spawn(weir_api::peer::serve_peers(peers, control, std::future::pending()))
    });
    let tokens = Arc::clone(&authority);
    let served = tokio::spawn(weir_api::serve(api, Arc::clone(&manager), authority, async {
        // If the function returns early, `stop` is dropped, which also ends this wait.
        drop(stopped.await);
    }));
    if options.demo {
        demo::set_up(&manager, &options, say).await?;
    }
    let (nbd, iscsi) = (manager.nbd_addresses(), manager.targets.portals());
    tracing::info!(?nbd, ?iscsi, nfs = ?manager.nfs.addresses(), "ready");
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping; repeat the signal to stop at once");
    let hurry = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    caretakers.iter().for_each(tokio::task::JoinHandle::abort);
    manager.stop_replications();
    if let Some(serving) = serving_peers {
        serving.abort();
    }
    let orderly = async {
        manager.transfers.end_sends();
        stop.send(()).ok();
        if let Ok(Err(error)) = served.await {
            tracing::warn!(%error, "the management interface ended with an error");
        }
        manager.transfers.end_all();
        save_last(tokens, last_events).await;
        manager.shut_down().await
    };
    tokio::select! {
        done = orderly => done,
        () = manager.end_of_patience() => {
            tracing::error!("stopped while disks are unresponsive: unflushed writes are lost");
            std::process::exit(i32::from(weir_api::wire::exit_code(ErrorKind::Unavailable)))
        }
        () = hurry => {
            tracing::warn!("stopped at once: unflushed writes are lost");
            std::process::exit(130)
        }
    }
}

/// Saves the last uses of tokens and the last events; gives up after [`SAVE_LIMIT`].
async fn save_last(tokens: Arc<Tokens>, events: Arc<events::Events>) {
    let saved = tokio::task::spawn_blocking(move || {
        tokens.save_uses();
        events.save();
    });
    drop(tokio::time::timeout(SAVE_LIMIT, saved).await);
}

/// Creates the manager and the list of tokens.
fn manage(
    options: &ServeOptions,
    state: saved_state::StateFile,
    clients: Clients,
    record: &Record,
) -> Result<(Arc<Manager>, Arc<Tokens>), ApiError> {
    let tokens = Arc::new(Tokens::load(&options.state_dir, Arc::clone(&record.events))?);
    let secrets = Secrets::of(&options.state_dir);
    secrets.retain_only(&state.state.secret_files());
    let files = CallerFiles { dirs: Arc::new(NamedDirs::new(&options.disk_dirs)?), secrets };
    let own = (Arc::clone(&tokens), files);
    let dir = &options.state_dir;
    let kept = (state, seen::SeenFile::load(dir)?, scan_file::ScanFile::load(dir));
    let manager = Manager::new(options.memory, kept, clients, record.clone(), own);
    Ok((Arc::new(manager), tokens))
}

/// Reloads the certificate at each SIGHUP.
async fn reload(tls: Tls, mut hangup: Signal, events: Arc<events::Events>) {
    while hangup.recv().await.is_some() {
        let again = tls.clone();
        let read = move || again.reload().map_err(ApiError::from);
        let (level, message) = match aside::aside("the certificate and its key", read).await {
            Ok(()) => (EventLevel::Info, "the certificate was reloaded".to_owned()),
            Err(error) => {
                let action = &error.action;
                let text = format!("the old certificate stays in use: {error}; try: {action}");
                (EventLevel::Warning, text)
            }
        };
        tracing::info!("{message}");
        let kind = "certificate_reload".to_owned();
        events.add(events::NewEvent { level, kind, pool: None, disk: None, message });
    }
}

/// Starts the background tasks of the server.
fn look_after(
    manager: &Arc<Manager>,
    events: &Arc<events::Events>,
    tokens: &Arc<Tokens>,
) -> [tokio::task::JoinHandle<()>; 6] {
    let (manager, events) = (|| Arc::clone(manager), || Arc::clone(events));
    [
        tokio::spawn(pool_monitor::watch(manager(), events())),
        tokio::spawn(vdev_calls::look_after(manager(), events())),
        tokio::spawn(schedule_calls::run(manager(), events())),
        tokio::spawn(receive_calls::look_after(manager())),
        tokio::spawn(replication_calls::run(manager(), events())),
        tokio::spawn(tokens::look_after(Arc::clone(tokens))),
    ]
}

/// Sockets of the data protocols.
struct Listeners {
    nbd: Vec<weir_net::Listener>,
    /// TLS settings of NBD; without them the server offers NBD unencrypted.
    nbd_tls: Option<Arc<rustls::ServerConfig>>,
    /// The addresses in the allow lists of all exports; set if only these addresses may connect by
    /// NBD.
    named: Option<weir_net::LiveAllowList>,
    iscsi: Vec<weir_net::Listener>,
    nfs: Vec<weir_net::Listener>,
    /// True if NFS is registered at rpcbind.
    rpcbind: bool,
}

/// Starts the threads of the data protocols.
fn serve_data(
    data: Listeners,
    (state_dir, events): (&Path, Arc<events::Events>),
    shares: &[KnownShare],
    (memory, handshake_limit): (MemoryPlan, Duration),
) -> Result<Clients, ApiError> {
    let failed = |error: weir_net::ServeError| ApiError::new(error.kind(), error.to_string());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let exports = Arc::new(weir_export::Registry::new(data.named));
    let listens = !data.iscsi.is_empty();
    // The protocols have separate budgets, so that clients of one protocol cannot use the memory of
    // another protocol.
    let parts = 1 + usize::from(listens) + usize::from(!data.nfs.is_empty());
    let part_bytes = memory.connections_bytes() as usize / parts;
    // A quarter of the memory is not in the shared budget: large receive buffers use it.
    let shared_bytes = part_bytes / 4 * 3;
    let budgets = [
        weir_net::Budget::new(shared_bytes, weir_nbd::limits::OWN_BYTES),
        weir_net::Budget::new(shared_bytes, weir_iscsi::limits::OWN),
        weir_net::Budget::new(shared_bytes, weir_nfs::limits::OWN_BYTES),
    ];
    let offered = Arc::<weir_export::Registry>::clone(&exports);
    let protocol = weir_nbd::Nbd::new(offered, Arc::clone(&budgets[0]));
    let mut protocol = protocol.with_handshake_limit(handshake_limit);
    let nbd_scheme = if data.nbd_tls.is_some() { "nbds" } else { "nbd" };
    if let Some(tls) = data.nbd_tls {
        protocol = protocol.requiring_tls(tls);
    }
    let nbd = weir_export::serve_nbd(data.nbd, protocol, threads).map_err(failed)?;
    let portals = data.iscsi.iter().filter_map(|listener| match listener.address() {
        Ok(weir_net::Address::Tcp(address)) => Some(address),
        _ => None,
    });
    let targets = TargetRegistry::new(portals.collect(), state_dir, events);
    let offered = Arc::<TargetRegistry>::clone(&targets);
    let protocol = weir_iscsi::Iscsi::new(offered, Arc::clone(&budgets[1]));
    let protocol = protocol.with_login_limit(handshake_limit);
    let start = || weir_export::serve_iscsi(data.iscsi, protocol, threads).map_err(failed);
    let iscsi = if listens { Some(start()?) } else { None };
    let nfs = serve_nfs((data.nfs, data.rpcbind), shares, &budgets[2], threads)?;
    Ok(Clients { exports, nbd, nbd_scheme, targets, iscsi, nfs, budgets })
}

/// Starts the threads of NFS. The clients of saved shares wait until their pools are open.
fn serve_nfs(
    (listeners, rpcbind): (Vec<weir_net::Listener>, bool),
    shares: &[KnownShare],
    budget: &Arc<weir_net::Budget>,
    threads: usize,
) -> Result<NfsShares, ApiError> {
    let server = Arc::new(weir_nfs::Server::new(guid().0));
    let mut nfs = NfsShares::new(Arc::clone(&server), shares);
    if !listeners.is_empty() {
        let protocol = Arc::new(weir_nfs::Nfs::new(server, Arc::clone(budget)));
        let serving = weir_net::serve(listeners, protocol, threads);
        let failed = |error: weir_net::ServeError| ApiError::new(error.kind(), error.to_string());
        nfs.serve(serving.map_err(failed)?);
    }
    if rpcbind {
        nfs.register().map_err(|error| rpcbind_error(&error))?;
    }
    Ok(nfs)
}

fn rpcbind_error(error: &RpcbindError) -> ApiError {
    let (kind, action) = match error {
        RpcbindError::Taken { .. } => (
            ErrorKind::Busy,
            "stop the other NFS server (rpcinfo lists it), or start this one without --rpcbind",
        ),
        RpcbindError::Io(_) | RpcbindError::Reply(_) => (
            ErrorKind::Unavailable,
            "apt-get install rpcbind, and start it, or start this server without --rpcbind",
        ),
    };
    ApiError::new(kind, error.to_string()).with_action(action)
}

/// Returns the clients that may connect by NBD, with the GID whose members may use the Unix
/// sockets.
fn nbd_clients(clients: &NbdClients) -> Result<weir_net::Clients, ApiError> {
    let group = match &clients.group {
        // If the server cannot give the sockets to the default group, only the user of the server
        // can use them.
        None => socket_group(GROUP),
        Some(name) => Some(socket_group(name).ok_or_else(|| {
            let message = format!("--nbd-group {name}: this server cannot assign sockets to it");
            ApiError::new(ErrorKind::Invalid, message).with_action(format!(
                "groupadd --system {name}, and start the server as root or with that group"
            ))
        })?),
    };
    // Without an allow list of the server, clients need either a certificate or an address in the
    // list of an export.
    let by_certificate = clients.allowed.is_empty() && clients.client_ca.is_some();
    let addresses = (!by_certificate).then(|| clients.allowed.clone().into());
    Ok(weir_net::Clients { addresses, group })
}

fn bind(
    address: &Address,
    port: u16,
    clients: weir_net::Clients,
) -> Result<weir_net::Listener, ApiError> {
    let address = match address {
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Tcp { .. } => format!("tcp:{address}"),
    };
    weir_net::Address::parse(&address, port)
        .and_then(|address| weir_net::Listener::bind_for(&address, clients))
        .map_err(|error| {
            let refused = ApiError::new(error.kind(), error.to_string());
            match error.action() {
                Some(action) => refused.with_action(action),
                None => refused,
            }
        })
}

/// Refuses a state directory that other users can read, or that belongs to another user, who could
/// replace the files of the directory with links.
fn refuse_open_dir(dir: &Path) -> Result<(), ApiError> {
    check_dir(dir).map_err(|error| {
        ApiError::new(error.kind(), error.to_string()).with_action(error.action())
    })?;
    let own = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(dir).map_or(own, |meta| meta.uid());
    let dir = dir.display();
    if owner == own {
        return Ok(());
    }
    let message = format!("state directory {dir} belongs to user {owner}, not to user {own}");
    Err(ApiError::new(ErrorKind::Permission, message)
        .with_action(format!("chown -R {own} {dir}, or give another directory with --state")))
}

/// Creates the state directory and locks it; the kernel releases the lock when the process ends.
fn lock_state_dir(dir: &Path) -> Result<fs::File, ApiError> {
    let failed = |what: &str, error: &std::io::Error| {
        let kind = ErrorKind::of_file(error.kind());
        ApiError::new(kind, format!("state directory {}: {what}: {error}", dir.display()))
            .with_action("give another directory with --state")
    };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| failed("cannot be created", &error))?;
    refuse_open_dir(dir)?;
    let lock = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("lock"))
        .map_err(|error| failed("cannot be locked", &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(ApiError::new(
            ErrorKind::Busy,
            format!("another weir process uses the state directory {}", dir.display()),
        )
        .with_action("stop it first, or give another directory with --state")),
        Err(fs::TryLockError::Error(error)) => Err(failed("cannot be locked", &error)),
    }
}
