//! Identity, options and state storage of a logical unit, as the embedder gives them.
//!
//! Not here: the logical unit (`logical_unit`).
//!
//! Invariant: identity and block length do not change while the unit exists.

use futures_util::future::LocalBoxFuture;
use weir_block::ExportError;

use crate::unit::reservation::ReservationState;

/// How initiators recognise a logical unit, through every path and for ever.
#[derive(Clone, Debug)]
pub struct Identity {
    /// At most 16 characters of ASCII.
    pub product: String,
    /// At most 4 characters of ASCII.
    pub revision: String,
    /// At most 200 characters of ASCII.
    pub serial: String,
    /// NAA IEEE Registered Extended designator (SPC-4 7.8.6.6.4): begins with 6h.
    pub naa: [u8; 16],
}

/// What a logical unit is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Logical block: 512 or 4096 bytes.
    pub block_bytes: u32,
    /// Whether writes may be answered before they are durable, until MODE SELECT says otherwise.
    pub write_cache: bool,
    /// What MODE SELECT said of that for good: what was last given to the store.
    pub saved_write_cache: Option<bool>,
    /// Initiators are told once less room than this is left; 0 for never.
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

/// Where is kept what is to survive a loss of power: reservations (APTPL, SPC-4 5.13.5) and the
/// write cache of saved mode pages (SPC-4 5.11).
pub trait UnitStore: Send + Sync + 'static {
    /// Keeps this state of reservations in the place of the one before.
    ///
    /// # Durability
    /// On `Ok` on stable media.
    fn save(&self, state: ReservationState) -> LocalBoxFuture<'_, Result<(), ExportError>>;

    /// Keeps whether there is a write cache.
    ///
    /// # Durability
    /// On `Ok` on stable media.
    fn save_write_cache(&self, on: bool) -> LocalBoxFuture<'_, Result<(), ExportError>>;
}
