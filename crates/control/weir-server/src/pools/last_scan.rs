//! Records the last scan of each pool.
//!
//! weir-pool performs the scans (scrubs and resilvers); `scan_file` writes the file.
//!
//! Invariant: `scans.json` has one entry for each pool.

use weir_api::types::{EventLevel, ScanKind, ScanState};
use weir_base::size::Human;
use weir_dataset::Engine;

use crate::record::events::NewEvent;
use crate::state::scan_file::Stored;
use crate::state::server::Manager;

impl Manager {
    /// Restores the last recorded scan of a pool. An interrupted scrub resumes.
    pub(crate) fn restore_scan(&self, engine: &Engine) {
        let stored = self.scans.lock().0.pools.get(&engine.pool().guid().0).copied();
        let Some(stored) = stored else { return };
        engine.restore_scan(stored.status(), stored.place());
        if (stored.kind, stored.state) == (ScanKind::Scrub, ScanState::Running) {
            let pool = engine.pool().name().to_owned();
            let (done, all) = (Human(stored.examined_bytes), Human(stored.total_bytes));
            let message = format!("the scrub of pool {pool} resumes: {done} of {all} are done");
            let (level, kind) = (EventLevel::Info, "scrub_resumed".to_owned());
            self.record.events.add(NewEvent { level, kind, pool: Some(pool), disk: None, message });
        }
    }

    /// Records the scan of a pool that is being closed, even if less than 10 s have passed since
    /// the scan was last recorded.
    pub(crate) fn record_last_scan(&self, engine: &Engine) {
        self.scans.lock().0.hurry(engine.pool().guid().0);
        self.record_scan(engine);
    }

    /// Records the scan of an open pool if its state has changed.
    pub(crate) fn record_scan(&self, engine: &Engine) {
        if let Some(status) = engine.pool().scan_status() {
            let scan = Stored::of(&status, engine.scan_place());
            self.scans.lock().record(engine.pool().guid().0, scan);
        }
    }
}
