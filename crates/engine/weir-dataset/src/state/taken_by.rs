//! Creator of a snapshot: a schedule, a replication, a stream, or a user.
//!
//! The server decides which snapshots to destroy. It destroys only snapshots that its schedules and
//! replications created. Names do not identify these snapshots, since every operator can rename
//! snapshots. So the engine stores the creator in the snapshot's directory entry, as the user
//! property [`TAKEN_BY`], in the txg that creates the snapshot.
//!
//! Invariants:
//! - a snapshot without the property belongs to a user, also in a pool written by an older server;
//! - a renamed snapshot belongs to a user;
//! - only the snapshot's own property counts, never an inherited value.

use async_recursion::async_recursion as boxed;
use weir_base::DatasetId;
use weir_format::Properties;

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::snapshot::SnapshotId;

/// Name of the user property that stores the creator of a snapshot.
pub const TAKEN_BY: &str = "weir:taken-by";

/// Creator of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBy {
    /// Schedule of this number.
    Schedule(u64),
    /// Replication run.
    Replication,
    /// Stream received into this volume. Because the number is stored, a promotion does not assign
    /// the snapshot to the schedule of another volume.
    Received(DatasetId),
    /// User, after a rename or an explicit request.
    User,
}

impl TakenBy {
    /// The user property that stores this creator, as name and value.
    pub(crate) fn as_property(self) -> (String, String) {
        (TAKEN_BY.to_owned(), self.to_string())
    }

    /// Reads the creator from the user property. `None`: the snapshot belongs to a user.
    pub(crate) fn of(properties: &Properties) -> Option<Self> {
        let value = properties.user.get(TAKEN_BY)?;
        match value.split_once(' ') {
            None if value == "replication" => Some(Self::Replication),
            None if value == "user" => Some(Self::User),
            Some(("schedule", number)) => Some(Self::Schedule(number.parse().ok()?)),
            Some(("stream", number)) => Some(Self::Received(DatasetId(number.parse().ok()?))),
            _ => None,
        }
    }
}

impl std::fmt::Display for TakenBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Schedule(number) => write!(f, "schedule {number}"),
            Self::Replication => f.write_str("replication"),
            Self::Received(volume) => write!(f, "stream {}", volume.0),
            Self::User => f.write_str("user"),
        }
    }
}

/// Assigns a snapshot to the user. A snapshot without user properties already belongs to a user.
pub(crate) fn give_to_user(properties: &mut Properties) -> Outcome {
    if properties.user.is_empty() || TakenBy::of(properties) == Some(TakenBy::User) {
        return Outcome::Unchanged;
    }
    properties.user.remove(TAKEN_BY);
    let (name, value) = TakenBy::User.as_property();
    properties.user.insert(name, value);
    if !properties.fits() {
        properties.user.remove(TAKEN_BY);
    }
    Outcome::Changed
}

impl Engine {
    /// Names of a volume's snapshots, oldest first, each with its creator. `None`: a user.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn snapshot_takers(
        &self,
        volume: &str,
    ) -> Result<Vec<(String, Option<TakenBy>)>, DatasetError> {
        let volume = self.volume(volume)?;
        let state = volume.state.lock();
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        let taker = |record: &weir_format::DatasetRecord| {
            (record.name.clone(), TakenBy::of(&record.properties))
        };
        Ok(active.map(|snapshot| taker(&snapshot.record)).collect())
    }

    /// Releases a hold as [`Engine::release_snapshot`], and assigns the snapshot to the user in the
    /// same txg, so that schedules and replications keep it.
    ///
    /// # Durability
    /// Both changes survive any crash once this returns. A crash before that leaves both or none.
    ///
    /// # Errors
    /// As [`Engine::release_snapshot`]; the snapshot then keeps its creator.
    #[boxed(?Send)]
    pub async fn release_to_user(
        &self,
        id: &SnapshotId,
        tag: &str,
    ) -> Result<Outcome, DatasetError> {
        self.change_snapshot(id, |snapshot, name| {
            let released = snapshot.release(tag, name)?;
            give_to_user(&mut snapshot.record.properties);
            Ok(released)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use weir_format::USER_PROPERTIES_MAX;

    use super::*;

    fn read(value: &str) -> Option<TakenBy> {
        let mut properties = Properties::default();
        properties.user.insert(TAKEN_BY.to_owned(), value.to_owned());
        TakenBy::of(&properties)
    }

    #[test]
    fn property_round_trips_and_unknown_values_mean_a_user() {
        let received = TakenBy::Received(DatasetId(3));
        for taken in [TakenBy::Schedule(7), TakenBy::Replication, received, TakenBy::User] {
            assert_eq!(read(&taken.to_string()), Some(taken));
        }
        for other in ["", "schedule", "schedule x", "schedule -1", "replication 1", "stream", "me"]
        {
            assert_eq!(read(other), None, "{other:?}");
        }
        assert_eq!(TakenBy::of(&Properties::default()), None);
    }

    #[test]
    fn user_of_a_snapshot_is_found_among_other_fields() {
        let mut plain = Properties::default();
        assert_eq!(give_to_user(&mut plain), Outcome::Unchanged);
        assert_eq!(plain, Properties::default());
        let mut taken = Properties::default();
        taken.user.extend([TakenBy::Schedule(7).as_property()]);
        assert_eq!(give_to_user(&mut taken), Outcome::Changed);
        assert_eq!(TakenBy::of(&taken), Some(TakenBy::User));
        assert_eq!(give_to_user(&mut taken), Outcome::Unchanged);
        // The directory entry has no space for the property; without it, the snapshot also belongs
        // to a user.
        let mut full = Properties::default();
        full.user.extend((0..USER_PROPERTIES_MAX).map(|n| (format!("m:{n}"), String::new())));
        assert_eq!(give_to_user(&mut full), Outcome::Changed);
        assert!(full.fits() && TakenBy::of(&full).is_none());
    }
}
