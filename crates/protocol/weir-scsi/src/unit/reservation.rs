//! Persistent reservations: registrations, the reservation, and what each request makes of them.
//!
//! Not here: commands and their parameter data (`persistent`), nexuses; this is plain data.
//!
//! Spec: SPC-4 5.13.
//!
//! Invariants:
//! - a path is registered at most once, with a key other than 0;
//! - there is a reservation only while somebody is registered, and unless all registrants hold it
//!   its holder is registered.

use serde::{Deserialize, Serialize};

use crate::limits::REGISTRATIONS_MAX;

/// An initiator port at a target port: what is registered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// Name of the initiator port: `name,i,0x<ISID>`.
    pub initiator_port: String,
    /// SCSI device name of the target.
    pub target: String,
    /// Relative target port identifier.
    pub relative_port: u16,
}

/// A path with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Who is registered.
    pub path: Path,
    /// Its reservation key; not 0.
    pub key: u64,
}

/// Types of persistent reservations (SPC-4 6.15.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The holder writes; all read.
    WriteExclusive = 1,
    /// The holder reads and writes.
    ExclusiveAccess = 3,
    /// Registrants write; all read.
    WriteExclusiveRegistrantsOnly = 5,
    /// Registrants read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Registrants write and hold it together; all read.
    WriteExclusiveAllRegistrants = 7,
    /// Registrants read and write and hold it together.
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    /// The type of that code.
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

    /// Whether all registrants hold it.
    pub const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether registrants that do not hold it have access too.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether all may read.
    const fn admits_readers(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// The reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its type.
    pub kind: Kind,
    /// Who made it, and holds it unless all registrants do.
    pub holder: Path,
}

/// All there is to know about persistent reservations of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationState {
    /// Counts the requests that changed registrations (PRGENERATION).
    pub generation: u32,
    /// Whether all this is to survive a loss of power (APTPL).
    pub persists: bool,
    /// Who is registered.
    pub registrations: Vec<Registration>,
    /// The reservation, if there is one.
    pub reservation: Option<Reservation>,
}

/// What PERSISTENT RESERVE OUT asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Registers a path with a key, changes its key, or takes the registration back (0).
    Register {
        /// The key to have; 0 for none.
        new_key: u64,
        /// Does not ask which key the path had.
        ignores_key: bool,
        /// Whether to survive a loss of power from now on.
        persists: bool,
        /// Paths to register besides, with the same key.
        others: Vec<Path>,
    },
    /// Makes a reservation.
    Reserve(Kind),
    /// Gives it back.
    Release(Kind),
    /// Forgets everything.
    Clear,
    /// Takes registrations with a key away, and the reservation if that is its holder's.
    Preempt {
        /// The key.
        victims: u64,
        /// Type of the reservation that takes the place of a preempted one.
        kind: Kind,
    },
    /// Registers another path and hands it the reservation.
    Move {
        /// The key that it is to have.
        new_key: u64,
        /// Who it is.
        to: Path,
        /// Whether the path that asks is to be registered no more.
        leaves: bool,
        /// Whether to survive a loss of power from now on.
        persists: bool,
    },
}

/// Why a request changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// RESERVATION CONFLICT.
    Conflict,
    /// A field of the parameter list, at this byte.
    Parameter(u16),
    /// A field of the descriptor block, at this byte.
    Block(u16),
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    Release,
    /// INSUFFICIENT REGISTRATION RESOURCES.
    Room,
}

/// What a request makes of a state, and who is to learn it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The state from now on.
    pub state: ReservationState,
    /// Who learns RESERVATIONS RELEASED.
    pub released: Vec<Path>,
    /// Who learns RESERVATIONS PREEMPTED.
    pub cleared: Vec<Path>,
    /// Who learns REGISTRATIONS PREEMPTED, and whose tasks an abort is about.
    pub preempted: Vec<Path>,
}

impl ReservationState {
    /// The key of a path.
    pub fn key(&self, path: &Path) -> Option<u64> {
        let registration = self.registrations.iter().find(|known| known.path == *path)?;
        Some(registration.key)
    }

    /// Whether a path holds the reservation.
    pub fn holds(&self, path: &Path) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| {
            if reservation.kind.is_of_all() {
                self.key(path).is_some()
            } else {
                reservation.holder == *path
            }
        })
    }

    /// Whether a path may read, or write (SPC-4 5.13.1).
    pub fn allows(&self, path: &Path, writes: bool) -> bool {
        let Some(reservation) = &self.reservation else { return true };
        let kind = reservation.kind;
        (!writes && kind.admits_readers())
            || self.holds(path)
            || (kind.admits_registrants() && self.key(path).is_some())
    }

    /// What a request of `path` makes of this; `key` is the one that it says it has.
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
                        // Another of the paths named twice, or the one that asks.
                        Some(key) if key == new_key => {}
                        Some(_) => return Err(Denied::Conflict),
                        None => self.add(other, new_key)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a registration back, and the reservation with it if that was its holder's.
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

    /// SPC-4 5.13.11.2.
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
        // Those that stay registered had access through the old reservation.
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
        // Only a reservation of all registrants gets here without its last one.
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
