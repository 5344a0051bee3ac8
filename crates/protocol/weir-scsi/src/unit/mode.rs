//! Changeable mode parameters and their meaning.
//!
//! MODE SENSE and MODE SELECT are in `command::mode`.
//!
//! Invariant: saved mode parameters survive a restart.

use std::sync::atomic::{AtomicU8, Ordering};

/// WCE (write cache enabled): caching mode page, byte 2.
pub(crate) const WCE: u8 = 0x04;

/// D_SENSE (descriptor format sense data): control mode page, byte 2.
pub(crate) const D_SENSE: u8 = 0x04;

/// SWP (software write protect): control mode page, byte 4.
pub(crate) const SWP: u8 = 0x08;

/// TAS (task aborted status): control mode page, byte 5.
pub(crate) const TAS: u8 = 0x40;

/// Set of changeable mode parameters; each parameter is one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings(pub(crate) u8);

impl Settings {
    pub(crate) const WRITE_CACHE: u8 = 1;
    pub(crate) const DESCRIPTOR_SENSE: u8 = 2;
    pub(crate) const WRITE_PROTECT: u8 = 4;
    pub(crate) const TELLS_ABORTED: u8 = 8;
    pub(crate) const ALL: Self = Self(15);

    pub(crate) const fn has(self, setting: u8) -> bool {
        self.0 & setting != 0
    }

    /// Returns `mask` if the setting is on, else 0.
    pub(crate) const fn flag(self, setting: u8, mask: u8) -> u8 {
        if self.has(setting) { mask } else { 0 }
    }

    pub(crate) const fn with(self, setting: u8, on: bool) -> Self {
        Self(if on { self.0 | setting } else { self.0 & !setting })
    }
}

/// Mode parameters of a logical unit.
pub(crate) struct Mode {
    pub(crate) current: AtomicU8,
    pub(crate) saved: AtomicU8,
    pub(crate) default: Settings,
}

impl Mode {
    pub(crate) fn new(write_cache: bool, saved_write_cache: Option<bool>) -> Self {
        let default = Settings(0).with(Settings::WRITE_CACHE, write_cache);
        let saved = default.with(Settings::WRITE_CACHE, saved_write_cache.unwrap_or(write_cache));
        Self { current: AtomicU8::new(saved.0), saved: AtomicU8::new(saved.0), default }
    }

    pub(crate) fn saved(&self) -> Settings {
        Settings(self.saved.load(Ordering::SeqCst))
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings(self.current.load(Ordering::SeqCst))
    }

    /// Returns true if a write may complete before its data is durable.
    pub(crate) fn write_cache(&self) -> bool {
        self.settings().has(Settings::WRITE_CACHE)
    }

    /// True if sense data uses the descriptor format.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.settings().has(Settings::DESCRIPTOR_SENSE)
    }

    /// True if an initiator set software write protection.
    pub(crate) fn software_write_protect(&self) -> bool {
        self.settings().has(Settings::WRITE_PROTECT)
    }

    /// True if a task that another nexus aborted ends with TASK ABORTED.
    pub(crate) fn tells_aborted(&self) -> bool {
        self.settings().has(Settings::TELLS_ABORTED)
    }

    /// Restores the saved mode parameters. A write cache that an initiator turned off stays off:
    /// the initiator may not check the setting after the reset, and may rely on durable writes.
    pub(crate) fn reset(&self) {
        let saved = self.saved();
        let cache = saved.has(Settings::WRITE_CACHE) && self.write_cache();
        let begun = saved.with(Settings::WRITE_CACHE, cache);
        self.current.store(begun.0, Ordering::SeqCst);
    }
}
