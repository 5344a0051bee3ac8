//! Open iSCSI targets, and the bridge from a logical unit to a volume.
//!
//! The protocol is in weir-iscsi, SCSI commands are in weir-scsi; `target_calls` changes and saves
//! targets.
//!
//! Invariants:
//! - a volume has one logical unit, however many targets show it;
//! - the designator of a unit depends only on the numbers of its pool and volume: it stays the same
//!   after a restart, a rename, or an import by another server;
//! - a target accepts only initiators on its allow list;
//! - ROD tokens of a unit end before anyone but its initiators can change the volume: when a target
//!   removes the unit or is closed. A unit with the flag `shared` has no tokens.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use futures_util::future::LocalBoxFuture;
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_api::types::{ANYBODY, EventLevel};
use weir_base::{ErrorKind, replace_file};
use weir_block::ExportError;
use weir_codec::checksum::xxh3_128;
use weir_dataset::{Engine, Volume};
use weir_export::OpenVolume;
use weir_iscsi::{Admission, Applicant, Authentication, Discovered, Portal, Refusal, Sessions};
use weir_iscsi_wire::Credentials;
use weir_net::Address;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{Directory, Identity, InitiatorPort, Options, Port, Target, Unit, UnitStore};

use crate::answer::names::hexadecimal;
use crate::record::events::{Events, NewEvent};
use crate::state::saved_state::KnownLun;

/// Number of the one target port group of all ports, because all paths are equal.
const PORT_GROUP: u16 = 1;
/// Product identification of logical units.
const PRODUCT: &str = "VOLUME";
/// Upper part of a designator: NAA 6h, then an identifier that is marked as not assigned by the
/// IEEE, so that it belongs to no vendor (SPC-4 7.8.6.6.4).
const NAA: u128 = 0x6_025765;
/// Number of designator bits that distinguish volumes from each other.
const NAA_BITS: u32 = 100;

/// Guid of the pool, and number of the volume or snapshot in it.
pub(crate) type DatasetKey = (u64, u64);

/// CHAP credentials of an initiator, and the credentials with which the target authenticates
/// itself.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) initiator: Option<Credentials>,
    pub(crate) target: Option<Credentials>,
}

/// Minimum of [`Table::units_max`].
const UNITS_MIN: usize = 64;

struct Entry {
    scsi: Arc<Target>,
    /// Credentials by initiator name; the name `*` means any initiator.
    terms: BTreeMap<String, Terms>,
}

impl Entry {
    fn terms_of(&self, initiator: &str) -> Option<&Terms> {
        self.terms.get(initiator).or_else(|| self.terms.get(ANYBODY))
    }
}

#[derive(Default)]
struct Table {
    targets: BTreeMap<String, Entry>,
    units: BTreeMap<DatasetKey, Weak<Unit>>,
    /// Size of `units` at which the entries of dropped units are removed. This limit is twice the
    /// size after the previous removal, so that adding a unit takes constant time on average.
    units_max: usize,
}

impl Table {
    /// Adds a logical unit; from time to time removes the entries of units that no target has any
    /// more.
    fn keep(&mut self, key: DatasetKey, unit: &Arc<Unit>) {
        if self.units.len() >= self.units_max {
            self.units.retain(|_, unit| unit.strong_count() > 0);
            self.units_max = UNITS_MIN.max(2 * self.units.len());
        }
        self.units.insert(key, Arc::downgrade(unit));
    }
}

/// All open targets, by name.
pub(crate) struct TargetRegistry {
    /// Addresses of the iSCSI portals; the first has group tag 1.
    portals: Vec<SocketAddr>,
    sessions: Arc<Sessions>,
    state_dir: PathBuf,
    events: Arc<Events>,
    table: RwLock<Table>,
    /// Weak reference to this registry, through which a logical unit finds other units.
    itself: Weak<Self>,
}

/// Returns the NAA designator of a volume or snapshot.
pub(crate) fn naa(key: DatasetKey) -> [u8; 16] {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&key.0.to_le_bytes());
    name[8..].copy_from_slice(&key.1.to_le_bytes());
    let own = xxh3_128(&name) & ((1 << NAA_BITS) - 1);
    (NAA << NAA_BITS | own).to_be_bytes()
}

/// Files of one logical unit: its persistent reservations and its write cache setting.
struct UnitFiles {
    reservations: PathBuf,
    write_cache: PathBuf,
}

impl UnitFiles {
    fn of(state_dir: &Path, naa: [u8; 16]) -> Self {
        let name = hexadecimal(&naa) + ".json";
        Self {
            reservations: state_dir.join("reservations").join(&name),
            write_cache: state_dir.join("write-caches").join(&name),
        }
    }

    fn all(&self) -> [&Path; 2] {
        [&self.reservations, &self.write_cache]
    }

    /// Reads a file; returns the default value if the file is missing.
    fn load<T: Default + DeserializeOwned>(file: &Path) -> Result<T, String> {
        let failed = |why: String| format!("{}: {why}", file.display());
        match std::fs::read(file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Writes a file. The calling thread waits for the write, which is rare and small.
    fn save<T: Serialize>(file: &Path, state: &T) -> Result<(), ExportError> {
        let replace = || -> std::io::Result<()> {
            if let Some(dir) = file.parent() {
                std::fs::create_dir_all(dir)?;
            }
            replace_file(file, &serde_json::to_vec_pretty(state)?)
        };
        replace().map_err(|error| {
            tracing::error!(file = %file.display(), %error, "cannot save a LUN's state");
            ExportError::new(ErrorKind::Unavailable, error.to_string())
        })
    }
}

impl UnitStore for UnitFiles {
    fn save(&self, state: ReservationState) -> LocalBoxFuture<'_, Result<(), ExportError>> {
        let done = Self::save(&self.reservations, &state);
        Box::pin(async move { done })
    }

    fn save_write_cache(&self, on: bool) -> LocalBoxFuture<'_, Result<(), ExportError>> {
        let done = Self::save(&self.write_cache, &Some(on));
        Box::pin(async move { done })
    }
}

impl TargetRegistry {
    pub(crate) fn new(
        portals: Vec<SocketAddr>,
        state_dir: &Path,
        events: Arc<Events>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            portals,
            sessions: Arc::default(),
            state_dir: state_dir.to_owned(),
            events,
            table: RwLock::default(),
            itself: itself.clone(),
        })
    }

    /// True if the server has an iSCSI portal.
    pub(crate) fn listens(&self) -> bool {
        !self.portals.is_empty()
    }

    /// Returns the portals of a target, for the management interface.
    pub(crate) fn portals(&self) -> Vec<String> {
        self.portals_for(None).iter().map(ToString::to_string).collect()
    }

    /// Opens a target without logical units, unless it is open.
    pub(crate) fn open(&self, name: &str) {
        let ports = (1..).zip(&self.portals).map(|(relative, _)| Port {
            relative,
            name: format!("{name},t,0x{relative:04x}"),
            group: PORT_GROUP,
        });
        let directory: Option<Arc<dyn Directory>> =
            self.itself.upgrade().map(|itself| itself as Arc<dyn Directory>);
        let new = || Entry {
            scsi: Target::new(name, ports.collect(), directory),
            terms: BTreeMap::new(),
        };
        self.table.write().targets.entry(name.to_owned()).or_insert_with(new);
    }

    /// Closes a target and ends its sessions.
    pub(crate) fn close(&self, name: &str) {
        let entry = self.table.write().targets.remove(name);
        self.sessions.end_target(name);
        // Sessions end asynchronously. The units are removed now, so that the sessions lose access
        // before the volumes are changed by other means.
        for scsi in entry.iter().map(|entry| &entry.scsi) {
            for (number, _) in scsi.luns() {
                scsi.remove_lun(number);
            }
        }
    }

    pub(crate) fn allow(&self, name: &str, initiator: &str, terms: Terms) {
        if let Some(entry) = self.table.write().targets.get_mut(name) {
            entry.terms.insert(initiator.to_owned(), terms);
        }
    }

    pub(crate) fn deny(&self, name: &str, initiator: &str) {
        let mut table = self.table.write();
        let Some(entry) = table.targets.get_mut(name) else { return };
        entry.terms.remove(initiator);
        let terms = &entry.terms;
        let may = |who: &str| terms.contains_key(who) || terms.contains_key(ANYBODY);
        self.sessions
            .end(|session| session.target.as_deref() == Some(name) && !may(&session.initiator));
    }

    /// Adds a volume or snapshot to a target as a logical unit; returns false if the number is
    /// taken.
    ///
    /// # Errors
    /// The saved reservations cannot be read.
    pub(crate) fn show(
        &self,
        (name, number): (&str, u16),
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
        lun: &KnownLun,
    ) -> Result<bool, String> {
        let key = (engine.pool().guid().0, volume.dataset().0);
        let mut table = self.table.write();
        let unit = match table.units.get(&key).and_then(Weak::upgrade) {
            Some(unit) => unit,
            None => self.unit(key, engine, volume, lun)?,
        };
        table.keep(key, &unit);
        // A session that is about to end may have kept the removed unit alive, with its ROD tokens.
        unit.revoke_tokens();
        let Some(entry) = table.targets.get(name) else { return Ok(false) };
        let added = entry.scsi.add_lun(number, Arc::clone(&unit));
        if added && lun.shared {
            unit.changes_elsewhere();
        }
        Ok(added)
    }

    fn unit(
        &self,
        key: DatasetKey,
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
        lun: &KnownLun,
    ) -> Result<Arc<Unit>, String> {
        let naa = naa(key);
        let identity = Identity {
            product: PRODUCT.to_owned(),
            revision: env!("CARGO_PKG_VERSION")
                .rsplitn(2, '.')
                .last()
                .unwrap_or_default()
                .to_owned(),
            serial: hexadecimal(&naa),
            naa,
        };
        let store = UnitFiles::of(&self.state_dir, naa);
        let reservations = UnitFiles::load(&store.reservations)?;
        let saved_write_cache = UnitFiles::load(&store.write_cache)?;
        let medium = Arc::new(OpenVolume::new(Arc::clone(engine), Arc::clone(volume)));
        let KnownLun { block_bytes, write_cache, .. } = *lun;
        let options = Options { block_bytes, write_cache, saved_write_cache, ..Options::default() };
        Ok(Unit::new(medium, identity, options, reservations, Some(Arc::new(store))))
    }

    /// Announces a logical unit whose pool is being opened; initiators retry commands to it until
    /// then.
    pub(crate) fn announce(&self, name: &str, number: u16) {
        if let Some(entry) = self.table.read().targets.get(name) {
            entry.scsi.await_lun(number);
        }
    }

    /// Removes a logical unit from a target.
    pub(crate) fn hide(&self, name: &str, number: u16) {
        if let Some(entry) = self.table.read().targets.get(name) {
            entry.scsi.remove_lun(number);
        }
    }

    /// Deletes the saved reservations and write cache setting of a volume that is in no target any
    /// more.
    pub(crate) fn delete_unit(&self, key: DatasetKey) {
        for file in UnitFiles::of(&self.state_dir, naa(key)).all() {
            if let Err(error) = std::fs::remove_file(file)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "state of a LUN not removed");
            }
        }
    }

    /// Returns the logical unit with this number of a target.
    pub(crate) fn shown(&self, name: &str, number: u16) -> Option<Arc<Unit>> {
        self.table.read().targets.get(name)?.scsi.lun(number)
    }

    /// Notifies initiators that the size of a volume has changed.
    pub(crate) fn resized(&self, key: DatasetKey) {
        if let Some(unit) = self.table.read().units.get(&key).and_then(Weak::upgrade) {
            unit.resized();
        }
    }

    /// Returns the portals with addresses that a client that reached `local` can reach.
    fn portals_for(&self, local: Option<SocketAddr>) -> Vec<Portal> {
        let reachable = |listening: &SocketAddr| match local {
            Some(local) if listening.ip().is_unspecified() => {
                SocketAddr::new(local.ip(), listening.port())
            }
            _ => *listening,
        };
        let portal =
            |(group_tag, at): (u16, &SocketAddr)| Portal { address: reachable(at), group_tag };
        (1..).zip(&self.portals).map(portal).collect()
    }

    /// Returns the group tag of the portal to which an initiator has connected.
    fn group_of(&self, applicant: &Applicant) -> Option<u16> {
        let Address::Tcp(local) = applicant.local else { return None };
        let is_it = |at: &SocketAddr| {
            let same_ip = at.ip().is_unspecified() || at.ip() == local.ip().to_canonical();
            at.port() == local.port() && (same_ip || at.ip() == local.ip())
        };
        (1..).zip(&self.portals).find(|(_, at)| is_it(at)).map(|(group, _)| group)
    }
}

impl weir_iscsi::Targets for TargetRegistry {
    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn admit_discovery(&self, applicant: &Applicant) -> Result<Authentication, Refusal> {
        let table = self.table.read();
        let secrets = |entry: &Entry| {
            let terms = entry.terms_of(&applicant.port.name)?;
            Some((terms.initiator.clone()?, terms.target.clone()))
        };
        let candidates: Vec<_> = table.targets.values().filter_map(secrets).collect();
        let asks = |entry: &Entry| entry.terms.values().any(|terms| terms.initiator.is_some());
        if table.targets.values().any(asks) {
            // Offer CHAP also to an initiator that has no secret on this server. Otherwise the
            // response would reveal which initiator names have a secret.
            return Ok(Authentication::Offered(candidates));
        }
        Ok(Authentication::None)
    }

    fn discover(
        &self,
        applicant: &Applicant,
        proven: Option<&Credentials>,
        after: &str,
        show: &mut dyn FnMut(Discovered) -> bool,
    ) {
        let local = match applicant.local {
            Address::Tcp(local) => Some(local),
            Address::Unix(_) => None,
        };
        let table = self.table.read();
        let may_know = |entry: &Entry| {
            let terms = entry.terms_of(&applicant.port.name);
            terms.is_some_and(|terms| match (&terms.initiator, proven) {
                (None, _) => true,
                (Some(asked), Some(proven)) => {
                    asked.name == proven.name && asked.secret.is_same(&proven.secret)
                }
                (Some(_), None) => false,
            })
        };
        let rest = table.targets.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let portals = self.portals_for(local);
        for (name, _) in rest.filter(|(_, entry)| may_know(entry)) {
            if !show(Discovered { name: name.clone(), portals: portals.clone() }) {
                break;
            }
        }
    }

    fn portal_group_tag(&self, applicant: &Applicant) -> Result<u16, Refusal> {
        self.group_of(applicant).ok_or(Refusal::Unavailable)
    }

    fn guessed(&self, address: &str) {
        let message =
            format!("a login from {address} had a wrong CHAP secret; further logins are delayed");
        let (level, kind) = (EventLevel::Warning, "chap_refused".to_owned());
        self.events
            .count("chap_refused", NewEvent { level, kind, pool: None, disk: None, message });
    }

    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal> {
        let portal_group_tag = self.portal_group_tag(applicant)?;
        let table = self.table.read();
        let entry = table.targets.get(target).ok_or(Refusal::NotFound)?;
        let terms = entry.terms_of(&applicant.port.name).ok_or(Refusal::Forbidden)?.clone();
        let authentication = match terms.initiator {
            None => Authentication::None,
            Some(initiator) => Authentication::Chap { initiator, target: terms.target },
        };
        let scsi = Arc::clone(&entry.scsi);
        let open = Box::new(move |port: &InitiatorPort| {
            let nexus: Box<dyn weir_scsi::Nexus> =
                Box::new(scsi.nexus(port.clone(), portal_group_tag));
            Ok(nexus)
        });
        Ok(Admission { authentication, open })
    }
}

impl Directory for TargetRegistry {
    fn find(&self, initiator: &InitiatorPort, naa: [u8; 16]) -> Option<Arc<Unit>> {
        let table = self.table.read();
        let may_use = table.targets.values().filter(|e| e.terms_of(&initiator.name).is_some());
        may_use.flat_map(|e| e.scsi.luns()).map(|(_, unit)| unit).find(|unit| unit.naa() == naa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designators_have_naa_6_and_are_unique() {
        let (one, other) = (naa((1, 2)), naa((1, 3)));
        assert_eq!(one[0] >> 4, 6);
        assert_eq!(hexadecimal(&one)[..7], *"6025765");
        assert_ne!(one, other);
        assert_eq!(one, naa((1, 2)));
    }
}
