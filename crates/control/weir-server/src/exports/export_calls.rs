//! Calls that export volumes and snapshots to clients.
//!
//! The protocol is in weir-nbd; weir-export connects a client to a volume.
//!
//! Invariants:
//! - the server saves an export before it responds to the call. The saved export has the number of
//!   its dataset, so it follows that dataset through renames and promotions;
//! - an export of a snapshot is read-only.

use std::sync::Arc;

use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::types::{
    Export, ExportChange, ExportCreate, ExportDelete, ExportKey, ExportList, ExportSet,
    ListExports, Outcome, Protocol, Removed, ShowExport,
};
use weir_api::{ApiError, Handle};
use weir_base::{DatasetId, ErrorKind, names};
use weir_dataset::{Engine, SnapshotId};

use crate::answer::errors::{api_error, not_found};
use crate::answer::names::{Of, split};
use crate::state::saved_state::KnownExport;
use crate::state::server::{Manager, refuse_above};

/// Maximum number of exports of one server. Each export takes some KiB of memory and a line of the
/// state file, which the server rewrites at every change. A server for 1,000 virtual machines needs
/// a tenth of this number.
const EXPORTS_MAX: usize = 10_000;

/// Opens the volume or snapshot with this full name on its pool.
pub(crate) fn open_dataset(
    engine: &Engine,
    full: &str,
) -> Result<Arc<weir_dataset::Volume>, ApiError> {
    let bad = |error: names::NameError| ApiError::new(ErrorKind::Invalid, error.to_string());
    let (volume, snapshot) = names::dataset(full).map_err(bad)?;
    let (_, own) = split(volume)?;
    let opened = match snapshot {
        None => engine.volume(own),
        Some(name) => engine.open_snapshot(&SnapshotId::new(own, name)),
    };
    let opened = opened.map_err(|error| api_error(&error))?;
    if opened.object_layer().is_some() {
        let message = format!("{full} is a filesystem, and clients can use only volumes");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(format!("weir mount {full} DIRECTORY")));
    }
    Ok(opened)
}

impl Manager {
    /// Makes an export available to clients; returns the number of its dataset.
    pub(crate) fn offer(&self, export: &KnownExport) -> Result<DatasetId, ApiError> {
        let pool = export.volume.split('/').next().unwrap_or_default();
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = open_dataset(&engine, &export.volume)?;
        if let Some(snapshot) = volume.receiving() {
            let message = format!("{} is busy: @{snapshot} is being received", export.volume);
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(
                "wait for the receive to end, or abort it with 'weir receive --abort'",
            ));
        }
        let dataset = volume.dataset();
        self.exports.offer(&export.name, engine, volume, export.read_only, export.allowed()?);
        Ok(dataset)
    }

    /// Updates the saved names of exports, logical units, schedules and replications to the current
    /// names of a pool's datasets. Drops schedules and replications of destroyed volumes.
    pub(crate) fn follow_names(&self, engine: &Engine) -> Result<(), ApiError> {
        let pool = engine.pool().name();
        let guid = engine.pool().guid().0;
        let called = |dataset: u64| match engine.name_of(DatasetId(dataset))? {
            (volume, None) => Some(format!("{pool}/{volume}")),
            (volume, Some(snapshot)) => Some(format!("{pool}/{volume}@{snapshot}")),
        };
        let mut state = self.state.lock();
        let before = state.state.clone();
        for export in &mut state.state.exports {
            if Of::Pool(pool).is(&export.volume)
                && let Some(name) = export.dataset.and_then(called)
            {
                export.volume = name;
            }
        }
        for lun in state.state.targets.iter_mut().flat_map(|target| &mut target.luns) {
            if Of::Pool(pool).is(&lun.volume)
                && let Some(name) = called(lun.dataset)
            {
                lun.volume = name;
            }
        }
        for share in state.state.shares.iter_mut().filter(|of| Of::Pool(pool).is(&of.filesystem)) {
            if let Some(name) = called(share.dataset) {
                share.filesystem = name;
            }
        }
        state.state.schedules.retain_mut(|schedule| {
            let ours = schedule.pool_guid == guid && Of::Pool(pool).is(&schedule.name);
            let Some(dataset) = schedule.dataset.filter(|_| ours) else { return true };
            let Some(name) = called(dataset) else { return false };
            schedule.name = name;
            true
        });
        state.state.replications.retain_mut(|replication| {
            let ours = replication.pool_guid == guid && Of::Pool(pool).is(&replication.volume);
            if !ours {
                return true;
            }
            let Some(name) = called(replication.dataset) else { return false };
            replication.volume = name;
            true
        });
        if state.state == before { Ok(()) } else { state.save() }
    }

    /// Saves the dataset number of an export that an older version of the server saved without a
    /// number.
    pub(crate) fn note_dataset(&self, export: &KnownExport, dataset: DatasetId) {
        if export.dataset == Some(dataset.0) {
            return;
        }
        let noted = self.save(|state| {
            for known in state.exports.iter_mut().filter(|known| known.name == export.name) {
                known.dataset = Some(dataset.0);
            }
        });
        if let Err(error) = noted {
            tracing::warn!(export = %export.name, %error, "the state file could not be written");
        }
    }

    pub(crate) fn withdraw(&self, name: &str) {
        self.exports.withdraw(name);
        if let Some(nbd) = &*self.nbd.read() {
            nbd.disconnect(name);
        }
    }

    /// Returns the names of the exports that the filter selects.
    pub(crate) fn exports_of(&self, of: Of<'_>) -> Vec<String> {
        let state = self.state.lock();
        let exports = state.state.exports.iter().filter(|export| of.is(&export.volume));
        exports.map(|export| export.name.clone()).collect()
    }

    /// Returns an error while a dataset that the filter selects is exported, is a logical unit, is
    /// shared or is mounted.
    pub(crate) fn refuse_in_use(&self, of: Of<'_>) -> Result<(), ApiError> {
        self.refuse_exported(of)?;
        self.refuse_shared(of)?;
        self.refuse_mounted(of)
    }

    pub(crate) fn refuse_exported(&self, of: Of<'_>) -> Result<(), ApiError> {
        if let Some((target, lun)) = self.luns_of(of).first() {
            let number = lun.number;
            let message = format!("{} is LUN {number} of {target}", of.name());
            return Err(ApiError::new(ErrorKind::Busy, message)
                .with_action(format!("remove the LUN first: weir lun remove {target} {number}")));
        }
        let exports = self.exports_of(of);
        let Some(first) = exports.first() else { return Ok(()) };
        let message = format!("{} is exported as {}", of.name(), exports.join(", "));
        Err(ApiError::new(ErrorKind::Busy, message)
            .with_action(format!("delete the export first: weir export delete {first}")))
    }

    /// Returns the volume of an export.
    pub(crate) fn volume_of(&self, export: &ExportKey) -> Option<String> {
        Some(self.known_export(&export.name)?.volume)
    }

    pub(crate) fn describe(&self, export: &KnownExport) -> Export {
        let uri = |address: &String| match address.strip_prefix("unix:") {
            Some(path) => format!("nbd+unix:///{}?socket={path}", export.name),
            None => {
                let place = address.strip_prefix("tcp:").unwrap_or(address);
                let default = format!(":{}", weir_api::place::NBD_PORT);
                let place = place.strip_suffix(&default).unwrap_or(place);
                format!("{}://{place}/{}", self.nbd_scheme, export.name)
            }
        };
        let over_tcp = self.exports.is_over_tcp(!export.allow.is_empty());
        let is_reached = |address: &str| over_tcp || address.starts_with("unix:");
        let addresses = self.nbd_addresses();
        Export {
            name: export.name.clone(),
            protocol: Protocol::Nbd,
            volume: export.volume.clone(),
            read_only: export.read_only,
            allow: export.allow.clone(),
            uris: addresses.iter().filter(|at| is_reached(at)).map(uri).collect(),
            connections: self.exports.connections(&export.name),
        }
    }
}

impl Handle<ExportCreate> for Manager {
    /// Exports a volume or snapshot to clients. Answers `unchanged` for an export that exists.
    async fn handle(&self, request: ExportCreate) -> Result<ExportChange, ApiError> {
        let pool = request.volume.split('/').next().unwrap_or_default();
        let _changes = self.changes.lock(pool).await;
        let ExportKey { name, .. } = request.key();
        let read_only = request.read_only || request.volume.contains('@');
        let (volume, allow) = (request.volume, request.allow);
        let mut new = KnownExport { name, volume, read_only, dataset: None, allow };
        new.spell_addresses()?;
        let known = self.known_export(&new.name);
        new.dataset = known.as_ref().and_then(|known| known.dataset);
        let outcome = match known {
            Some(known) if known == new => Outcome::Unchanged,
            Some(known) if (KnownExport { allow: known.allow.clone(), ..new.clone() }) == known => {
                let name = &new.name;
                let message = format!("export {name} exists already, for other addresses");
                return Err(ApiError::new(ErrorKind::Exists, message).with_action(format!(
                    "change them: weir export set {name} --allow ADDRESSES"
                )));
            }
            Some(_) => {
                let message = format!("export {} exists already, with other settings", new.name);
                return Err(ApiError::new(ErrorKind::Exists, message)
                    .with_action("delete it first, or give this one another --name"));
            }
            None => {
                self.refuse_lun(&new)?;
                let exports = self.state.lock().state.exports.len();
                refuse_above(EXPORTS_MAX, exports, "exports", "weir export delete")?;
                new.dataset = Some(self.offer(&new)?.0);
                self.save(|state| state.exports.push(new.clone()))?;
                Outcome::Created
            }
        };
        Ok(ExportChange { outcome, export: self.describe(&new) })
    }
}

impl Manager {
    /// Refuses a writable export of a volume that initiators use, unless the logical unit is
    /// shared.
    fn refuse_lun(&self, export: &KnownExport) -> Result<(), ApiError> {
        let luns = self.luns_of(Of::Dataset(&export.volume));
        let Some((target, lun)) = luns.iter().find(|(_, lun)| !lun.shared) else { return Ok(()) };
        if export.read_only {
            return Ok(());
        }
        let message = format!("{} is LUN {} of {target}", export.volume, lun.number);
        Err(ApiError::new(ErrorKind::Busy, message).with_action(
            "remove the LUN first, or add it with --shared, if clients and initiators coordinate \
             their writes",
        ))
    }

    pub(crate) fn known_export(&self, name: &str) -> Option<KnownExport> {
        let state = self.state.lock();
        state.state.exports.iter().find(|export| export.name == name).cloned()
    }
}

impl Handle<ExportSet> for Manager {
    /// Sets the addresses from which clients may open an export over TCP. The server disconnects
    /// clients from other addresses.
    async fn handle(&self, request: ExportSet) -> Result<ExportChange, ApiError> {
        // This call waits for no disk, so that clients of an unresponsive pool can be disconnected.
        let ExportSet { name, allow, .. } = request;
        let missing = || not_found("export", &name);
        let old = self.known_export(&name).ok_or_else(missing)?;
        let mut new = KnownExport { allow, ..old.clone() };
        let allowed = new.spell_addresses()?;
        if new == old {
            return Ok(ExportChange { outcome: Outcome::Unchanged, export: self.describe(&new) });
        }
        self.save(|state| {
            for known in state.exports.iter_mut().filter(|known| known.name == name) {
                known.allow.clone_from(&new.allow);
                // The saved state and the active export change under the same lock, so that the
                // later of two concurrent calls decides both the saved list and the active list.
                self.exports.allow(&name, allowed.clone());
            }
        })?;
        if let (Some(nbd), Some(allowed)) = (&*self.nbd.read(), &allowed) {
            nbd.disconnect_all_but(&name, allowed);
        }
        Ok(ExportChange { outcome: Outcome::Changed, export: self.describe(&new) })
    }

    async fn authorize(&self, call: &ExportSet, scope: &Scope) -> Result<(), ApiError> {
        lookup::export(self, call.key(), scope).await
    }

    fn about(&self, call: &ExportSet) -> String {
        // The request names only the export, so look up its volume.
        self.volume_of(&call.key()).unwrap_or_default()
    }
}

impl Handle<ExportDelete> for Manager {
    /// Deletes an export. With `force` the server disconnects its clients.
    ///
    /// # Errors
    /// `Busy` while clients are connected, without `force`.
    async fn handle(&self, call: ExportDelete) -> Result<Removed, ApiError> {
        if !call.force {
            self.wait_for_clients(&call.name).await?;
        }
        // This call waits for no disk, so that clients of an unresponsive pool can be disconnected.
        self.known_export(&call.name).ok_or_else(|| not_found("export", &call.name))?;
        self.withdraw(&call.name);
        self.save(|state| state.exports.retain(|export| export.name != call.name))?;
        Ok(Removed { outcome: Outcome::Removed, name: call.name })
    }

    async fn authorize(&self, call: &ExportDelete, scope: &Scope) -> Result<(), ApiError> {
        lookup::export(self, call.key(), scope).await
    }

    fn about(&self, call: &ExportDelete) -> String {
        // The request does not name the volume, so `about` runs before the call, while the export
        // still exists.
        self.volume_of(&call.key()).unwrap_or_default()
    }
}

impl Handle<ListExports> for Manager {
    /// Lists exports by name.
    async fn handle(&self, _call: ListExports) -> Result<ExportList, ApiError> {
        let mut known = self.state.lock().state.exports.clone();
        known.sort_by(|a, b| a.name.cmp(&b.name));
        let exports = known.iter().map(|export| self.describe(export)).collect();
        Ok(ExportList { exports, next: None })
    }
}

impl Handle<ShowExport> for Manager {
    /// Shows one export.
    async fn handle(&self, call: ShowExport) -> Result<Export, ApiError> {
        let known = self.known_export(&call.name);
        let known = known.ok_or_else(|| not_found("export", &call.name))?;
        Ok(self.describe(&known))
    }

    async fn authorize(&self, call: &ShowExport, scope: &Scope) -> Result<(), ApiError> {
        lookup::export(self, call.key(), scope).await
    }
}
