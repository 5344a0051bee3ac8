//! Limits of the server.
//!
//! Invariant: the comment of each limit contains its reason.

use std::time::Duration;

/// Maximum number of calls of one connection that run at the same time. Linux has at most 64 (the
/// default of `sunrpc.tcp_slot_table_entries` at the start), and further calls wait in the socket.
pub const CALLS_OF_CONNECTION_MAX: usize = 64;

/// Maximum number of connections of one client address. A Linux client has at most 16 for a server
/// (`nconnect`, nfs(5)), so four clients behind one address have enough. With 16 MiB each
/// ([`HELD_BYTES_MAX`]), they hold at most 1 GiB, and the budget of the server may be lower.
pub const CONNECTIONS_OF_ADDRESS_MAX: usize = 64;

/// Number of replies to changing calls that the server remembers for each connection. A client that
/// loses a connection repeats only calls that were in flight.
pub const REPLIES_OF_CONNECTION_MAX: usize = CALLS_OF_CONNECTION_MAX;

/// Time for which the server remembers the replies of a closed connection. A client connects again
/// within a minute.
pub const REPLIES_KEPT: Duration = Duration::from_mins(2);

/// Maximum number of closed connections whose replies the server remembers. The server forgets the
/// connection that closed first. With 1,024 open connections and about 400 bytes for each reply,
/// all remembered replies take at most 33 MiB.
pub const CLOSED_CONNECTIONS_MAX: usize = 256;

/// Maximum length of a remembered reply. The longest reply to a changing call, of RENAME or CREATE,
/// has about 300 bytes; the server does not remember a longer one.
pub const REPLY_BYTES_MAX: usize = 512;

/// Maximum number of bytes of one READ or WRITE: the largest write of weir-fs, and the largest
/// transfer of Linux clients.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Preferred length of a list of a directory (RFC 1813 section 3.3.19, dtpref).
pub const DIRECTORY_BYTES_PREFERRED: u32 = 64 << 10;

/// Maximum length of a list of a directory. It limits the memory of a reply.
pub const DIRECTORY_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of entries of one list, so that a client cannot keep a thread busy with one call.
pub const ENTRIES_MAX: usize = 4096;

/// Maximum number of entries of the list of mounts. The list is only for people, so the server
/// forgets the oldest entry.
pub const MOUNTS_MAX: usize = 4096;

/// Maximum number of clients in the statistics of a share. With [`STATISTICS_BYTES`] for each, and
/// 64 shares, they take 63 MiB.
pub const CLIENTS_OF_SHARE_MAX: usize = 200;

/// Memory of the statistics of one client: three histograms of 1.5 KiB.
pub const STATISTICS_BYTES: usize = 5 << 10;

/// Maximum number of clients of a share whose squashed, refused and stale calls have their own
/// count between two reports. Each takes about 100 bytes.
pub const INCIDENT_CLIENTS_MAX: usize = 64;

/// Memory of these counts for a share.
pub const INCIDENT_BYTES: usize = 16 << 10;

/// Memory of all remembered replies ([`CLOSED_CONNECTIONS_MAX`]).
pub const REPLIES_BYTES_MAX: usize = 33 << 20;

/// Maximum length of a record: the data of a WRITE, and its header with credentials and handle.
pub const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + (64 << 10);

/// Maximum memory of the calls and replies of one connection, so that 16 connections of a client
/// with large writes leave memory to others.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// Memory that each connection may use without asking the budget: some calls without data.
pub const OWN_BYTES: usize = 16 << 10;

/// Memory of the reply to a call without data: attributes, a handle, and the target of a symbolic
/// link.
pub const REPLY_BYTES: usize = 1 << 10;

/// Replies that wait for a send. At this size the connection runs no further call, because its
/// client does not read.
pub const SEND_BYTES: usize = 4 << 20;

/// Shortest data of a READ that the server sends directly from cached blocks. For shorter data, a
/// copy costs less than the additional parts of the send.
pub const SHARE_BYTES_MIN: usize = 64 << 10;

/// Maximum number of blocks of one send. With the bytes between them they are at most 800 parts,
/// and one system call accepts 1,024 (UIO_MAXIOV).
pub const BLOCKS_OF_SEND_MAX: usize = 768;

/// Maximum time for which a call waits for the groups of its user (`manage_gids`). Then the server
/// uses the groups of the call: a client repeats a call only after a minute, and its programs wait.
pub const LOOKUP_WAIT: Duration = Duration::from_secs(1);

/// Time for which the server remembers the groups of a user: a user who leaves a group loses the
/// rights of the group after this time. rpc.mountd(8) remembers them for 30 minutes.
pub const LOOKUPS_KEPT: Duration = Duration::from_mins(5);

/// Time for which the server remembers a failed lookup, so that not every call waits for a
/// directory service that does not answer.
pub const LOOKUPS_FAILED_KEPT: Duration = Duration::from_secs(10);

/// Maximum number of unfinished lookups. A client can name any user number in each of its calls.
pub const LOOKUPS_MAX: usize = 1024;

/// Maximum number of threads for lookups. More of them would not make a slow directory service
/// faster.
pub const LOOKUP_THREADS_MAX: usize = 4;

/// Maximum number of users whose groups the server remembers. Each takes about 150 bytes, without
/// its groups.
pub const GROUPS_USERS_MAX: usize = 4096;

/// Maximum number of groups of one user (NGROUPS_MAX of Linux).
pub const GROUPS_OF_USER_MAX: usize = 64 << 10;

/// Maximum number of groups of all remembered users: 4 MiB.
pub const GROUPS_MAX: usize = 1 << 20;

/// Maximum length of a host name (RFC 1123 section 2.1).
pub const HOST_BYTES_MAX: usize = 253;

/// Maximum length of a part of a host name (RFC 1035 section 2.3.4).
pub const HOST_LABEL_BYTES_MAX: usize = 63;

/// Maximum length of the name of a netgroup. Names in use have at most some dozen characters.
pub const NETGROUP_BYTES_MAX: usize = 128;

/// Maximum number of host names and netgroups in the rules of a share: each call of a client on the
/// share searches all of them. A netgroup has more hosts.
pub const NAMES_OF_SHARE_MAX: usize = 64;

/// Maximum number of host names and netgroups of a server: 64 shares with the maximum of each.
pub const NAMES_MAX: usize = 64 * NAMES_OF_SHARE_MAX;

/// Maximum number of hosts of a netgroup.
pub const HOSTS_OF_NAME_MAX: usize = 1024;

/// Maximum number of addresses of one host.
pub const ADDRESSES_OF_HOST_MAX: usize = 64;

/// Maximum number of addresses of all names. Each takes about 60 bytes.
pub const ADDRESSES_MAX: usize = 64 << 10;

/// Maximum length of the description of a failed lookup.
pub const PROBLEM_CHARS_MAX: usize = 200;

/// Memory of all names: [`NAMES_MAX`] names of about 900 bytes with their descriptions, and
/// [`ADDRESSES_MAX`] addresses.
pub const NAMES_BYTES_MAX: usize = 8 << 20;

/// Interval of the lookups of a name: a host that moves to another address can use a share after
/// this time, and its old address can no longer.
pub const NAME_REFRESH: Duration = Duration::from_mins(5);

/// Pause after a failed lookup. Name services that restart answer again within a minute.
pub const NAME_RETRY: Duration = Duration::from_secs(30);

/// Pause after a failed lookup while clients wait for the first result ([`NAME_FOUND_WAIT`]).
pub const NAME_RETRY_FIRST: Duration = Duration::from_secs(2);

/// Time for which a host keeps its addresses while its lookups fail, so that a failure of the name
/// services does not stop clients. A host without a record in the name services keeps its access
/// for this time too.
pub const ANSWERS_KEPT: Duration = Duration::from_hours(1);

/// Time for which clients that a name may concern wait for its first lookup. getaddrinfo(3) asks
/// the next DNS server after 5 seconds.
pub const NAME_FIRST_WAIT: Duration = Duration::from_secs(5);

/// Time for which clients without another rule wait for the first successful lookup of a name.
/// After a start of the machine, the name services may answer later than this server.
pub const NAME_FOUND_WAIT: Duration = Duration::from_mins(1);

/// Maximum time for which a call of MOUNT or of the management interface waits for lookups.
pub const NAME_WAIT: Duration = Duration::from_secs(3);

/// Maximum number of calls that wait for lookups. Further calls do not wait.
pub const NAME_WAITS_MAX: usize = 1024;

/// Minimum age of a lookup that a call of MOUNT repeats, so that a client without rights causes at
/// most one lookup of each name in this time.
pub const NAME_AGE_MIN: Duration = Duration::from_secs(10);

/// Maximum time of getent(1), which lists the hosts of a netgroup.
pub const GETENT_LIMIT: Duration = Duration::from_secs(10);

/// Time after which a lookup of a netgroup looks up no further hosts.
pub const NETGROUP_LIMIT: Duration = Duration::from_mins(1);
