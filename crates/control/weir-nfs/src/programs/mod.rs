//! Programs of the server: NFS version 3, MOUNT, NFSACL, rquota, NLM.

mod acl;
mod mount;
mod outcome;
mod quota;
mod server;

pub use mount::Mounts;
pub(crate) use server::put_padding;
pub use server::{Client, Server, put_data};
