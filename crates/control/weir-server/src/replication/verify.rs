//! Compares the newest replicated snapshot on both servers by digests of its contents.
//!
//! Digests are in weir-dataset, sending is in `run`.
//!
//! Invariants:
//! - each server reads its own data; neither server trusts a result that the other has stored;
//! - the state file keeps the last result with its time; an error is kept until a comparison
//!   completes.

use weir_api::types::{
    DigestList, DigestRequest, EventLevel, Snapshot, Verification, VerifyFailure,
};
use weir_api::{ApiError, Client, Handle};
use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_dataset::{DIGEST_BYTES, SnapshotId};

use crate::answer::errors::not_found;
use crate::answer::names::split;
use crate::replication::advice::Failed;
use crate::replication::replication_calls::{Runner, now_ms};
use crate::replication::run::own_name;
use crate::state::server::Manager;

/// Number of ranges whose digests one request asks for: 64 MiB, which take about a second to read.
const RANGES_AT_ONCE: u64 = 64;

impl Handle<DigestRequest> for Manager {
    /// Returns digests of ranges of a snapshot. Equal contents have equal digests on every server.
    async fn handle(&self, request: DigestRequest) -> Result<DigestList, ApiError> {
        let parts = weir_base::names::snapshot(&request.snapshot);
        let (volume, name) =
            parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
        let (pool, own) = split(volume)?;
        let id = SnapshotId::new(own, name);
        let (first, count) = (request.first, request.count.min(RANGES_AT_ONCE));
        let found = self
            .pool(pool)?
            .call(move |engine| async move { engine.digest(&id, first, count).await })
            .await?;
        Ok(DigestList {
            size_bytes: found.size_bytes,
            range_bytes: DIGEST_BYTES,
            digests: found.digests.iter().map(|digest| format!("{digest:032x}")).collect(),
        })
    }
}

impl Runner {
    pub(super) async fn verify_and_note(&self) {
        let volume = &self.known.volume;
        let found = match self.verify().await {
            Ok(found) => found,
            Err(failed) => {
                let again = format!("weir replicate verify {volume}");
                let ApiError { message: error, action, .. } = failed.advised(&self.known, &again);
                let message = format!("verification of {volume} failed: {error}");
                self.report(EventLevel::Warning, "comparison", message);
                let failed = VerifyFailure { unix_ms: now_ms(), error, action };
                self.save(|known| known.verify_failed = Some(failed));
                return;
            }
        };
        let (at, compared) = (&found.snapshot, Human(found.compared_bytes));
        let to = &self.known.to;
        match found.differs_at {
            None => {
                let message = format!(
                    "{volume}@{at} and its replica at {to} are identical: {compared} compared"
                );
                self.report(EventLevel::Info, "comparison", message);
            }
            Some(differs) => {
                let message = format!(
                    "{volume}@{at} and its replica at {to} DIFFER, first at \
                                       byte {differs}"
                );
                self.report(EventLevel::Error, "difference", message);
            }
        }
        self.save(|known| (known.verified, known.verify_failed) = (Some(found), None));
    }

    async fn verify(&self) -> Result<Verification, Failed> {
        let (to, client) = self.known.client().await.map_err(Failed::Setup)?;
        let last = self.manager.known_replication(&self.known.volume)?.last;
        // Snapshots are compared by guid, because users may have renamed the snapshot on either
        // server.
        let is_last = |one: &&Snapshot| last.as_ref().is_some_and(|last| last.is(one));
        let missing = |of: &str| {
            let own = last.as_ref().map_or("", |last| last.snapshot.as_str());
            not_found("snapshot", &format!("{of}@{own}"))
        };
        let own = self.snapshots().await?;
        let own = own.iter().find(is_last).ok_or_else(|| missing(&self.known.volume))?;
        let other = self.snapshots_there(&client, &to.volume).await?.unwrap_or_default();
        let other = other.iter().find(is_last);
        let there = other.ok_or_else(|| Failed::There(missing(&to.volume)))?.name.clone();
        let (here, own) = (own.name.clone(), own_name(own).to_owned());
        let mut found = Verification {
            snapshot: own,
            unix_ms: 0,
            compared_bytes: 0,
            is_same: true,
            differs_at: None,
        };
        let mut first = 0;
        loop {
            let (own, other) = self.digests(&client, [&here, &there], first).await?;
            self.manager.with_activity(self.known.key(), |activity| {
                activity.sent_bytes = first * DIGEST_BYTES;
                activity.estimate_bytes = own.size_bytes;
            });
            let pairs = own.digests.iter().zip(&other.digests);
            let differ = pairs.clone().position(|(a, b)| a != b).map(|at| first + at as u64);
            let lengths =
                own.size_bytes != other.size_bytes || own.digests.len() != other.digests.len();
            let end = first + own.digests.len().min(other.digests.len()) as u64;
            found.compared_bytes = (end * DIGEST_BYTES).min(own.size_bytes);
            if let Some(at) = differ.or(lengths.then_some(end)) {
                found.differs_at = Some(at * DIGEST_BYTES);
                found.is_same = false;
                break;
            }
            if own.digests.is_empty() {
                break;
            }
            first = end;
        }
        found.unix_ms = now_ms();
        Ok(found)
    }

    /// Requests the same digests from this server and the other server concurrently.
    async fn digests(
        &self,
        client: &Client,
        [here, there]: [&str; 2],
        first: u64,
    ) -> Result<(DigestList, DigestList), Failed> {
        let ask = |snapshot: &str| DigestRequest {
            snapshot: snapshot.to_owned(),
            first,
            count: RANGES_AT_ONCE,
        };
        let (own, other) = tokio::join!(
            self.manager.handle(ask(here)),
            self.ask("digest its snapshot", client.call(ask(there)))
        );
        let other = other?;
        if other.range_bytes != DIGEST_BYTES {
            let range = Human(other.range_bytes);
            let message = format!("the other server digests {range} at a time");
            return Err(Failed::There(
                ApiError::new(ErrorKind::Invalid, message)
                    .with_action("run the same version on both servers; to show it: weir version"),
            ));
        }
        Ok((own?, other))
    }
}
