//! NFS clients of a filesystem, whose calls and replies a simulated network loses, repeats and
//! delays, while the server crashes.

mod answer;
mod cache;
mod client;
mod host;
mod machine;
mod op;
mod run;
mod scenario;
mod site;
mod view;
mod wire;

pub use run::run_nfs;
pub use scenario::{NfsCounts, NfsScenario};
