//! Deletes a replication: aborts its run, and releases its holds on both servers.
//!
//! The replicated snapshots stay on both servers; users can use and destroy them afterwards.
//!
//! Invariants:
//! - the replication is deleted when the call returns `Ok`, even if the other server is
//!   unresponsive. In that case warnings name the holds that remain, and the commands that release
//!   them;
//! - only holds with the tags of replications are released.

use std::time::Duration;

use weir_api::types::{
    ListSnapshots, Outcome, REPLICA_TAG, REPLICATION_TAG, ReplicationDelete, ReplicationRemoved,
    Snapshot, SnapshotList, SnapshotRelease,
};
use weir_api::{ApiError, Client, Handle};
use weir_base::ErrorKind;

use crate::state::saved_state::KnownReplication;
use crate::state::server::Manager;

/// Maximum time for the other server to release its holds. A user waits for the call meanwhile.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Returns the snapshots of the list that have a hold with this tag.
fn held(list: SnapshotList, tag: &str) -> impl Iterator<Item = Snapshot> {
    list.snapshots.into_iter().filter(move |snapshot| snapshot.holds.iter().any(|own| own == tag))
}

fn is_gone(error: &ApiError) -> bool {
    error.kind == ErrorKind::NotFound
}

/// Returns the warning that holds of a volume were not released on a server.
fn left(
    known: &KnownReplication,
    (tag, volume): (&str, &str),
    on: &str,
    error: &ApiError,
) -> String {
    let last = known.last.as_ref().map_or("SNAPSHOT", |last| last.snapshot.as_str());
    format!(
        "holds of {volume} were not released on {on}: {error}; on that server: weir snapshot \
         release {tag} {volume}@{last}"
    )
}

impl Handle<ReplicationDelete> for Manager {
    /// Deletes a replication. The other server keeps its copy of the volume.
    async fn handle(&self, call: ReplicationDelete) -> Result<ReplicationRemoved, ApiError> {
        let volume = call.volume;
        let known = self.known_replication(&volume)?;
        let key = known.key();
        // Create the client first, because it reads the secret from files that this call removes.
        let client = known.client().await;
        self.save(|state| state.replications.retain(|known| known.key() != key))?;
        let activity = self.activities.lock().remove(&key);
        if let Some(task) = activity.and_then(|activity| activity.task) {
            task.abort();
            // Wait for the end of the run: until then it could hold one more snapshot.
            drop(task.await);
        }
        self.activities.lock().remove(&key);
        self.delete_files_of(&known, None);
        let mut warnings = Vec::new();
        if let Err(error) = self.release_here(&known).await {
            warnings.push(left(&known, (REPLICATION_TAG, &volume), "this server", &error));
        }
        let released = match client {
            Ok((to, client)) => {
                let release = release_there(&client, &to.volume);
                let in_time = tokio::time::timeout(RELEASE_LIMIT, release).await;
                let late = || {
                    let seconds = RELEASE_LIMIT.as_secs();
                    let message = format!("no answer within {seconds} s");
                    ApiError::new(ErrorKind::Unavailable, message)
                };
                in_time.unwrap_or_else(|_| Err(late())).map_err(|error| (to.volume, error))
            }
            Err(error) => Err(("the replica".to_owned(), error)),
        };
        // If the replication never sent a snapshot, it has no holds on the other server, so the
        // error is no reason for a warning.
        if let (Err((replica, error)), Some(_)) = (released, &known.last) {
            warnings.push(left(&known, (REPLICA_TAG, &replica), &known.to, &error));
        }
        for warning in &warnings {
            tracing::warn!(volume, warning, "replication deleted");
        }
        Ok(ReplicationRemoved { outcome: Outcome::Removed, name: volume, warnings })
    }
}

impl Manager {
    async fn release_here(&self, known: &KnownReplication) -> Result<(), ApiError> {
        let list = match self.handle(ListSnapshots::from(Some(known.volume.clone()))).await {
            // The volume was destroyed together with its snapshots, so no holds remain.
            Err(error) if is_gone(&error) => return Ok(()),
            list => list?,
        };
        for snapshot in held(list, REPLICATION_TAG) {
            let release = self.change_snapshot(&snapshot.name, None, |engine, id| async move {
                engine.release_snapshot(&id, REPLICATION_TAG).await
            });
            match release.await {
                Err(error) if !is_gone(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

async fn release_there(client: &Client, volume: &str) -> Result<(), ApiError> {
    let list = match client.call(ListSnapshots::from(Some(volume.to_owned()))).await {
        Err(error) if is_gone(&error) => return Ok(()),
        list => list?,
    };
    for snapshot in held(list, REPLICA_TAG) {
        let tag = SnapshotRelease { name: snapshot.name, tag: REPLICA_TAG.to_owned() };
        match client.call(tag).await {
            Err(error) if !is_gone(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}
