//! Persistent reservations: registrations, the reservation, and the effect of each request on them.
//!
//! Commands and their parameter data are in `command::persistent`. This module has only plain data;
//! it knows no nexuses.
//!
//! Spec: SPC-4 5.13.
//!
//! Invariants:
//! - a path is registered at most once, and its reservation key is not 0;
//! - a reservation exists only while at least one path is registered. Its holder is registered,
//!   unless all registrants hold the reservation.

use serde::{Deserialize, Serialize};

use crate::limits::REGISTRATIONS_MAX;

/// I_T nexus as persistent reservations store it: an initiator port at a target port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// Name of the initiator port: `name,i,0x<ISID>`.
    pub initiator_port: String,
    /// SCSI device name of the target.
    pub target: String,
    /// Relative target port identifier.
    pub relative_port: u16,
}

/// Registered path with its reservation key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Registered path.
    pub path: Path,
    /// Reservation key; never 0.
    pub key: u64,
}

/// Types of persistent reservations (SPC-4 6.15.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The holder may write; all nexuses may read.
    WriteExclusive = 1,
    /// Only the holder may read and write.
    ExclusiveAccess = 3,
    /// Registrants may write; all nexuses may read.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registrants may read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// All registrants hold the reservation and may write; all nexuses may read.
    WriteExclusiveAllRegistrants = 7,
    /// All registrants hold the reservation; only they may read and write.
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    /// Decodes a type code.
    pub const fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// True if all registrants hold the reservation.
    pub const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// True if registrants have access even if they do not hold the reservation.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// True if all nexuses may read.
    const fn admits_readers(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Type of the reservation.
    pub kind: Kind,
    /// Path that made the reservation. This path is the holder, unless all registrants hold the
    /// reservation.
    pub holder: Path,
}

/// Complete state of persistent reservations of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationState {
    /// Number of requests that changed registrations (PRGENERATION).
    pub generation: u32,
    /// True if the state survives a loss of power (APTPL).
    pub persists: bool,
    /// All registrations.
    pub registrations: Vec<Registration>,
    /// The reservation, if one exists.
    pub reservation: Option<Reservation>,
}

/// Request of a PERSISTENT RESERVE OUT command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Registers a path, changes its key, or unregisters it (new key 0).
    Register {
        /// New reservation key; 0 to unregister.
        new_key: u64,
        /// True to skip the check of the path's current key (REGISTER AND IGNORE EXISTING KEY).
        ignores_key: bool,
        /// True if the reservation state survives a loss of power from now on (APTPL).
        persists: bool,
        /// Additional paths to register with the same key.
        others: Vec<Path>,
    },
    /// Creates a reservation.
    Reserve(Kind),
    /// Releases the reservation.
    Release(Kind),
    /// Removes the reservation and all registrations.
    Clear,
    /// Removes all registrations with a key, and takes over the reservation if its holder has that
    /// key.
    Preempt {
        /// Key of the registrations to remove.
        victims: u64,
        /// Type of the reservation that replaces the preempted reservation.
        kind: Kind,
    },
    /// Registers another path and moves the reservation to it.
    Move {
        /// Reservation key of the path that receives the reservation.
        new_key: u64,
        /// Path that receives the reservation.
        to: Path,
        /// True to unregister the path that sends the request.
        leaves: bool,
        /// True if the reservation state survives a loss of power from now on (APTPL).
        persists: bool,
    },
}

/// Reason for a refused request, which changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// RESERVATION CONFLICT.
    Conflict,
    /// INVALID FIELD IN PARAMETER LIST, at this byte.
    Parameter(u16),
    /// INVALID FIELD IN CDB, at this byte.
    Block(u16),
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    Release,
    /// INSUFFICIENT REGISTRATION RESOURCES.
    Room,
}

/// Result of a request: the new state, and the paths that receive a unit attention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Reservation state after the request.
    pub state: ReservationState,
    /// Paths that receive RESERVATIONS RELEASED.
    pub released: Vec<Path>,
    /// Paths that receive RESERVATIONS PREEMPTED.
    pub cleared: Vec<Path>,
    /// Paths that receive REGISTRATIONS PREEMPTED. PREEMPT AND ABORT aborts their tasks.
    pub preempted: Vec<Path>,
}

impl ReservationState {
    /// Reservation key of a path, if it is registered.
    pub fn key(&self, path: &Path) -> Option<u64> {
        let registration = self.registrations.iter().find(|known| known.path == *path)?;
        Some(registration.key)
    }

    /// True if a path holds the reservation.
    pub fn holds(&self, path: &Path) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| {
            if reservation.kind.is_of_all() {
                self.key(path).is_some()
            } else {
                reservation.holder == *path
            }
        })
    }

    /// Returns true if a path may write (`writes` is true), or may read (`writes` is false) (SPC-4
    /// 5.13.1).
    pub fn allows(&self, path: &Path, writes: bool) -> bool {
        let Some(reservation) = &self.reservation else { return true };
        let kind = reservation.kind;
        (!writes && kind.admits_readers())
            || self.holds(path)
            || (kind.admits_registrants() && self.key(path).is_some())
    }

    /// Applies a request of `path`; `key` is the reservation key in the parameter list.
    pub fn apply(&self, path: &Path, key: u64, request: Request) -> Result<Change, Denied> {
        let had = self.key(path);
        if !matches!(request, Request::Register { .. }) && had != Some(key) {
            return Err(Denied::Conflict);
        }
        let mut change = Change { state: self.clone(), ..Change::default() };
        match request {
            Request::Register { new_key, ignores_key, persists, others } => {
                if !ignores_key && had.unwrap_or(0) != key {
                    return Err(Denied::Conflict);
                }
                change.register(path, new_key, others)?;
                change.state.persists = persists;
            }
            Request::Reserve(kind) => return change.reserve(path, kind),
            Request::Release(kind) => return change.release(path, kind),
            Request::Clear => change.clear(path),
            Request::Preempt { victims, kind } => change.preempt(path, victims, kind)?,
            Request::Move { new_key, to, leaves, persists } => {
                change.hand_over(path, new_key, to, leaves)?;
                change.state.persists = persists;
            }
        }
        change.state.generation = change.state.generation.wrapping_add(1);
        change.state.persists &= !change.state.registrations.is_empty();
        Ok(change)
    }
}

impl Change {
    fn others(&self, path: &Path) -> Vec<Path> {
        let registered = self.state.registrations.iter().map(|known| known.path.clone());
        registered.filter(|other| other != path).collect()
    }

    fn add(&mut self, path: Path, key: u64) -> Result<(), Denied> {
        if self.state.registrations.len() >= REGISTRATIONS_MAX {
            return Err(Denied::Room);
        }
        self.state.registrations.push(Registration { path, key });
        Ok(())
    }

    fn register(&mut self, path: &Path, new_key: u64, others: Vec<Path>) -> Result<(), Denied> {
        let state = &mut self.state;
        let known = state.registrations.iter_mut().find(|known| known.path == *path);
        match (known, new_key) {
            (None, 0) => {}
            (Some(_), 0) => self.unregister(path),
            (Some(known), _) => known.key = new_key,
            (None, _) => {
                self.add(path.clone(), new_key)?;
                for other in others {
                    match self.state.key(&other) {
                        // The parameter list names this path twice, or names the path that sent the
                        // request.
                        Some(key) if key == new_key => {}
                        Some(_) => return Err(Denied::Conflict),
                        None => self.add(other, new_key)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Unregisters a path, and removes the reservation if the path was its holder.
    fn unregister(&mut self, path: &Path) {
        let held = self.state.holds(path);
        self.state.registrations.retain(|known| known.path != *path);
        let Some(reservation) = &self.state.reservation else { return };
        let kind = reservation.kind;
        if kind.is_of_all() {
            if self.state.registrations.is_empty() {
                self.state.reservation = None;
            }
        } else if held {
            self.state.reservation = None;
            if kind.admits_registrants() {
                self.released = self.others(path);
            }
        }
    }

    fn reserve(mut self, path: &Path, kind: Kind) -> Result<Self, Denied> {
        match &self.state.reservation {
            Some(there) if there.kind == kind && self.state.holds(path) => Ok(self),
            Some(_) => Err(Denied::Conflict),
            None => {
                self.state.reservation = Some(Reservation { kind, holder: path.clone() });
                Ok(self)
            }
        }
    }

    fn release(mut self, path: &Path, kind: Kind) -> Result<Self, Denied> {
        if !self.state.holds(path) {
            return Ok(self);
        }
        if self.state.reservation.as_ref().is_some_and(|there| there.kind != kind) {
            return Err(Denied::Release);
        }
        self.state.reservation = None;
        if kind.admits_registrants() {
            self.released = self.others(path);
        }
        Ok(self)
    }

    fn clear(&mut self, path: &Path) {
        self.cleared = self.others(path);
        self.state.registrations.clear();
        self.state.reservation = None;
    }

    /// PREEMPT (SPC-4 5.13.11.2).
    fn preempt(&mut self, path: &Path, victims: u64, kind: Kind) -> Result<(), Denied> {
        let there = self.state.reservation.clone();
        let takes_over = there.as_ref().is_some_and(|there| {
            if there.kind.is_of_all() {
                victims == 0
            } else {
                self.state.key(&there.holder) == Some(victims)
            }
        });
        if !takes_over {
            return self.preempt_registrations(path, victims);
        }
        let all = there.as_ref().is_some_and(|there| there.kind.is_of_all());
        self.remove(|known| known.path != *path && (all || known.key == victims));
        self.preempted.retain(|gone| gone != path);
        // The remaining registrants had access through the former reservation type, so they receive
        // RESERVATIONS RELEASED.
        if there.is_some_and(|there| there.kind != kind && there.kind.admits_registrants()) {
            self.released = self.others(path);
        }
        self.state.reservation = Some(Reservation { kind, holder: path.clone() });
        Ok(())
    }

    fn preempt_registrations(&mut self, path: &Path, victims: u64) -> Result<(), Denied> {
        if victims == 0 {
            return Err(Denied::Parameter(8));
        }
        self.remove(|known| known.key == victims);
        if self.preempted.is_empty() {
            return Err(Denied::Conflict);
        }
        self.preempted.retain(|gone| gone != path);
        // If no registrant is left, all registrants held the reservation: a single holder would
        // still be registered.
        if self.state.registrations.is_empty() {
            self.state.reservation = None;
        }
        Ok(())
    }

    fn remove(&mut self, is_victim: impl Fn(&Registration) -> bool) {
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.state.registrations).into_iter().partition(is_victim);
        self.state.registrations = stay;
        self.preempted = gone.into_iter().map(|gone| gone.path).collect();
    }

    /// REGISTER AND MOVE (SPC-4 5.13.8).
    fn hand_over(
        &mut self,
        path: &Path,
        new_key: u64,
        to: Path,
        leaves: bool,
    ) -> Result<(), Denied> {
        let Some(kind) = self.state.reservation.as_ref().map(|there| there.kind) else {
            return Err(Denied::Block(1));
        };
        if kind.is_of_all() || !self.state.holds(path) {
            return Err(Denied::Conflict);
        }
        if new_key == 0 {
            return Err(Denied::Parameter(8));
        }
        if to == *path {
            return Err(Denied::Parameter(24));
        }
        match self.state.registrations.iter_mut().find(|known| known.path == to) {
            Some(known) => known.key = new_key,
            None => self.add(to.clone(), new_key)?,
        }
        if leaves {
            self.state.registrations.retain(|known| known.path != *path);
        }
        self.state.reservation = Some(Reservation { kind, holder: to });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
