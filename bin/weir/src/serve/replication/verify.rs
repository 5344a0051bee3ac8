//! Comparing the newest replicated snapshot on both sides, digest by digest.
//!
//! Not here: digests (weir-dataset), sending (run).
//!
//! Invariants:
//! - both sides read what they have; neither believes the other's word for its own;
//! - what was found is remembered with its time, also that they differ.

use weir_api::types::{DigestList, DigestRequest, EventLevel, Verification};
use weir_api::{ApiError, Client, Control as _};
use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_dataset::{DIGEST_BYTES, SnapshotId};

use super::super::control::{Manager, split};
use super::{Runner, now_ms};

/// Ranges asked for at once: 64 MiB take a second or so to read.
const RANGES_AT_ONCE: u64 = 64;

impl Manager {
    pub(in crate::serve) async fn digest_snapshot(
        &self,
        request: DigestRequest,
    ) -> Result<DigestList, ApiError> {
        let parts = weir_base::names::snapshot(&request.snapshot);
        let (volume, name) =
            parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
        let (pool, own) = split(volume)?;
        let id = SnapshotId { volume: own.to_owned(), name: name.to_owned() };
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
            Err(error) => {
                let message = format!("{volume} could not be compared: {error}");
                self.tell(EventLevel::Warning, "replication", message.clone());
                self.manager.with_activity(self.known.key(), |activity| {
                    activity.error = Some(message);
                });
                return;
            }
        };
        let (at, compared) = (&found.snapshot, Human(found.compared_bytes));
        let to = &self.known.to;
        match found.differs_at {
            None => {
                let message = format!(
                    "{volume}@{at} and its replica at {to} hold the same: \
                                       {compared} compared"
                );
                self.tell(EventLevel::Info, "replication", message);
            }
            Some(differs) => {
                let message = format!(
                    "{volume}@{at} and its replica at {to} DIFFER, first at \
                                       byte {differs}"
                );
                self.tell(EventLevel::Error, "replication", message);
            }
        }
        self.remember(|known| known.verified = Some(found));
    }

    async fn verify(&self) -> Result<Verification, ApiError> {
        let (to, client) = self.known.client()?;
        let last = self.manager.known_replication(&self.known.volume)?.last;
        let own = last.map(|last| last.snapshot).unwrap_or_default();
        let here = format!("{}@{own}", self.known.volume);
        let there = format!("{}@{own}", to.volume);
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

    /// The digests of both sides, at the same time.
    async fn digests(
        &self,
        client: &Client,
        [here, there]: [&str; 2],
        first: u64,
    ) -> Result<(DigestList, DigestList), ApiError> {
        let ask = |snapshot: &str| DigestRequest {
            snapshot: snapshot.to_owned(),
            first,
            count: RANGES_AT_ONCE,
        };
        let (own, other) = tokio::join!(
            self.manager.digest_snapshot(ask(here)),
            self.ask("digest its snapshot", client.snapshot_digest(ask(there)))
        );
        let other = other?;
        if other.range_bytes != DIGEST_BYTES {
            let range = Human(other.range_bytes);
            let message = format!("the other server digests {range} at a time");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("let both servers run the same version"));
        }
        Ok((own?, other))
    }
}
