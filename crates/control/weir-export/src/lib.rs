//! Volumes of the engine as exports and as SCSI logical units, and the threads that serve them over
//! NBD and iSCSI.
//!
//! Protocols are in weir-nbd and weir-scsi, the engine is weir-dataset; weir-server saves exports
//! across restarts.
//!
//! Invariant: each client request makes one call of the engine. `examples/serve_volume.rs` is a
//! complete server.

mod data_servers;
mod export_registry;
mod scsi_medium;
mod volume_export;

pub use data_servers::{serve_iscsi, serve_nbd};
pub use export_registry::Registry;
pub use volume_export::OpenVolume;
