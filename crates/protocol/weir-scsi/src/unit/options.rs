//! Identity, options and state store of a logical unit. The engine supplies them.
//!
//! The logical unit is in `logical_unit`.
//!
//! Invariant: identity and block length do not change while the unit exists.

use futures_util::future::LocalBoxFuture;
use weir_block::ExportError;

use crate::unit::reservation::ReservationState;

/// Identity of a logical unit, equal through every path and after every restart.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Product name: at most 16 ASCII characters.
    pub product: String,
    /// Product revision: at most 4 ASCII characters.
    pub revision: String,
    /// Serial number: at most 200 ASCII characters.
    pub serial: String,
    /// NAA IEEE Registered Extended designator (SPC-4 7.8.6.6.4): begins with 6h.
    pub naa: [u8; 16],
}

/// Options of a logical unit.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Logical block length: 512 or 4096 bytes.
    pub block_bytes: u32,
    /// Initial write cache setting, which MODE SELECT changes. True if a write may complete before
    /// its data is durable.
    pub write_cache: bool,
    /// Write cache setting that MODE SELECT last saved (SP) in the unit's store.
    pub saved_write_cache: Option<bool>,
    /// Soft threshold: if the available space falls below it, the unit raises THIN PROVISIONING
    /// SOFT THRESHOLD REACHED. 0 disables the threshold.
    pub soft_threshold_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_bytes: 512,
            write_cache: true,
            saved_write_cache: None,
            soft_threshold_bytes: 0,
        }
    }
}

/// Store for the state of a logical unit that survives a loss of power: reservations (APTPL, SPC-4
/// 5.13.5) and the saved write cache setting (SPC-4 5.11).
pub trait UnitStore: Send + Sync + 'static {
    /// Replaces the stored reservation state.
    ///
    /// # Durability
    /// If it returns `Ok`, the state is on stable media.
    fn save(&self, state: ReservationState) -> LocalBoxFuture<'_, Result<(), ExportError>>;

    /// Replaces the stored write cache setting.
    ///
    /// # Durability
    /// If it returns `Ok`, the setting is on stable media.
    fn save_write_cache(&self, on: bool) -> LocalBoxFuture<'_, Result<(), ExportError>>;
}
