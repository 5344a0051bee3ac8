//! Volumes of the engine as exports and as SCSI logical units, for every block protocol.
//!
//! Not here: protocols (weir-nbd, weir-scsi), the engine (weir-dataset), the server that keeps
//! exports across restarts.
//!
//! Invariant: a request of a client becomes one call of the engine. `examples/serve_volume.rs` is a
//! whole server.

mod export_registry;
mod scsi_medium;
mod volume_export;

pub use export_registry::Registry;
pub use volume_export::OpenVolume;
