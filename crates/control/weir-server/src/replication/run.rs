//! One run of a replication: takes a snapshot and sends all snapshots that the other server lacks.
//!
//! `replication_calls` starts the runs, `verify` compares snapshots, `advice` adds the next command
//! to errors.
//!
//! Invariants:
//! - a run sends snapshots in chronological order. If the receiver has a different snapshot of the
//!   same name, the run skips the snapshot, and an event names both;
//! - the newest snapshot that exists on both servers is held on both, because the next incremental
//!   stream needs it;
//! - a run resumes the interrupted stream of the preceding run. If a run cannot read the snapshot
//!   that it took, the next run takes a new snapshot.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_api::stream::Bytes;
use weir_api::types::{
    Bookmark, EventLevel, ListBookmarks, ListSnapshots, REPLICA_TAG, REPLICATION_PREFIX,
    REPLICATION_TAG, ReceiveAbort, ReceiveFinish, ReceiveStart, ReceiveStop, SendStart,
    ShowReceive, ShowVolume, Snapshot, SnapshotCreate, SnapshotDestroy, SnapshotHold,
    SnapshotRelease, TAKEN_BY_REPLICATION,
};
use weir_api::{ApiError, Client, Handle as _};
use weir_base::size::Human;
use weir_base::{ErrorKind, names};
use weir_dataset::TakenBy;
use weir_format::stream::ResumeToken;

use crate::replication::advice::Failed;
use crate::replication::replication_calls::{Runner, now_ms};
use crate::state::saved_state::{KnownReplication, ReplicatedSnapshot};
use crate::state::server::Manager;

/// Maximum bytes of a stream in one request to the other server.
const PART_BYTES: u64 = 1 << 20;

/// Under a bandwidth limit, the part size is chosen so that about this many parts are sent a
/// second.
const PARTS_PER_SECOND: u64 = 8;

/// Maximum time between two parts of a stream. If no data is ready for longer, this server sends
/// empty parts, so that the other server does not time out.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Name of the request that sends a part of a stream, as shown in the status.
const TAKE: &str = "receive data";

/// Limits the rate at which bytes are sent.
struct Throttle {
    bytes_per_second: Option<u64>,
    /// Time at which the rate limit allows the next byte to be sent.
    free_at: Instant,
}

impl Throttle {
    fn part_bytes(&self) -> usize {
        let most = self.bytes_per_second.map_or(PART_BYTES, |rate| rate / PARTS_PER_SECOND);
        most.clamp(4096, PART_BYTES) as usize
    }

    /// Returns how long the sender must wait before it may send this many bytes.
    fn wait_for(&mut self, bytes: usize) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let now = Instant::now();
        let start = self.free_at.max(now);
        self.free_at = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
        start - now
    }
}

/// The sending session of this replication run. Dropping the value ends the session.
struct Outgoing<'m> {
    manager: &'m Manager,
    session: String,
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        // If the session completed, it is no longer in the table. `stop_send` then returns an
        // error, which is expected.
        drop(self.manager.stop_send(self.session.clone()));
    }
}

pub(super) fn own_name(snapshot: &Snapshot) -> &str {
    snapshot.name.split_once('@').map_or("", |(_, own)| own)
}

/// True if a replication run of this server took the snapshot, by the creator that the engine
/// stored for it. The name is no proof: any operator can rename a user's snapshot to
/// [`REPLICATION_PREFIX`].
fn is_ours(snapshot: &Snapshot) -> bool {
    snapshot.taken_by.as_deref() == Some(TAKEN_BY_REPLICATION)
}

/// True if a snapshot of the other server has a name that replication runs give to their snapshots.
/// Only the other server knows which creator is stored for that snapshot.
fn is_named_so(snapshot: &Snapshot) -> bool {
    own_name(snapshot).starts_with(REPLICATION_PREFIX)
}

/// True if a run of this server took the snapshot and still holds it.
fn is_of_run(snapshot: &Snapshot) -> bool {
    is_ours(snapshot) && is_held(snapshot, REPLICATION_TAG)
}

fn is_held(snapshot: &Snapshot, tag: &str) -> bool {
    snapshot.holds.iter().any(|own| own == tag)
}

/// Returns a snapshot of the receiver that has the name of `snapshot` but is a different snapshot.
fn clash<'s>(snapshot: &Snapshot, there: &'s [Snapshot]) -> Option<&'s Snapshot> {
    let same_name = |other: &&Snapshot| own_name(other) == own_name(snapshot);
    there.iter().find(same_name).filter(|other| other.guid != snapshot.guid)
}

/// True if a snapshot that is named like a run's snapshot has a clone or an export and therefore
/// cannot be destroyed now.
fn is_in_use(snapshot: &Snapshot) -> bool {
    is_named_so(snapshot) && !(snapshot.clones.is_empty() && snapshot.exports.is_empty())
}

/// Returns the name of a snapshot that a run takes now.
fn name_now() -> String {
    let at = std::time::UNIX_EPOCH + Duration::from_millis(now_ms());
    // For example 2026-11-22T10:15:30Z.
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let plain: String = text.chars().filter(|c| c.is_ascii_digit() || *c == '-').collect();
    format!("{REPLICATION_PREFIX}{}-{}", &plain[..10], &plain[10..])
}

/// Returns the name `base`, with a number appended if a snapshot on either server already has this
/// name.
fn free_name(base: &str, [here, there]: [&[Snapshot]; 2]) -> String {
    let is_free = |name: &String| here.iter().chain(there).all(|one| own_name(one) != name);
    let numbered = (2_u32..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
}

/// Converts a `NotFound` error of the other server to `None`.
fn unless_absent<T>(answer: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Failed::There(error)) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Runner {
    pub(super) async fn replicate(&self) -> Result<(), Failed> {
        let (to, client) = self.known.client().await.map_err(Failed::Setup)?;
        let volume = &self.known.volume;
        self.finish_what_was_cut(&client, &to.volume).await?;
        let found = self.snapshots_there(&client, &to.volume).await?;
        let is_there = found.is_some();
        let there = found.unwrap_or_default();
        let newest = self.take_if_needed(&there).await?;
        let here = self.snapshots().await?;
        self.delete_left_out(&here);
        let has = |snapshot: &Snapshot| there.iter().any(|other| other.guid == snapshot.guid);
        let common = here.iter().rposition(has);
        let mut from = common.map(|at| here[at].name.clone());
        let mut next = common.map_or(0, |at| at + 1);
        if let Some(mark) = self.bookmark_in(&there, &here).await? {
            let is_newer = |s: &Snapshot| s.created_unix_ms > mark.created_unix_ms;
            next = here.iter().position(is_newer).unwrap_or(here.len());
            from = Some(mark.name);
        }
        if from.is_none() {
            if is_there {
                let message =
                    format!("{} exists and has no snapshot in common with {volume}", to.volume);
                return Err(Failed::There(ApiError::new(ErrorKind::Exists, message)));
            }
            from = self.origin(&client, &to.volume).await?;
        }
        for snapshot in here.iter().skip(next) {
            let is_newest = snapshot.name == newest;
            // An earlier run took this snapshot and failed. Skip it, because this run sends the
            // newest snapshot.
            if is_of_run(snapshot) && !is_newest {
                continue;
            }
            if let Some(other) = clash(snapshot, &there) {
                self.leave_out(snapshot, other);
                continue;
            }
            let request =
                SendStart { snapshot: snapshot.name.clone(), from: from.take(), token: None };
            self.send(&client, &to.volume, snapshot, request).await?;
            self.note(&client, &to.volume, snapshot).await?;
            from = Some(snapshot.name.clone());
            if is_newest {
                break;
            }
        }
        self.clear(&client, &to.volume).await
    }

    /// Reports, once for each snapshot, that a different snapshot of the receiver has the same name
    /// as this snapshot.
    fn leave_out(&self, snapshot: &Snapshot, other: &Snapshot) {
        let is_new = self.manager.with_activity(self.known.key(), |activity| {
            activity.left_out.insert(snapshot.guid.clone())
        });
        if is_new {
            let message = format!(
                "{} is skipped in the replication to {}: the other server has another snapshot of \
                 that name, {}; newer snapshots are sent",
                snapshot.name, self.known.to, other.name
            );
            self.report(EventLevel::Warning, "name", message);
        }
    }

    /// Deletes the reports about snapshots that no longer exist on this server.
    fn delete_left_out(&self, here: &[Snapshot]) {
        self.manager.with_activity(self.known.key(), |activity| {
            activity.left_out.retain(|guid| here.iter().any(|snapshot| snapshot.guid == *guid));
        });
    }

    /// Finds the newest snapshot of the other server that has a bookmark on this server, and
    /// returns the bookmark. Returns `None` if a newer snapshot exists on both servers.
    async fn bookmark_in(
        &self,
        there: &[Snapshot],
        here: &[Snapshot],
    ) -> Result<Option<Bookmark>, Failed> {
        let of_volume = ListBookmarks { of: Some(self.known.volume.clone()) };
        let marks = self.manager.handle(of_volume).await?.bookmarks;
        let is_here = |snapshot: &&Snapshot| here.iter().any(|own| own.guid == snapshot.guid);
        let mut only_there = there.iter().rev().take_while(|snapshot| !is_here(snapshot));
        let of = |snapshot: &Snapshot| marks.iter().find(|mark| mark.guid == snapshot.guid);
        Ok(only_there.find_map(of).cloned())
    }

    /// Returns the snapshots of the replica on the other server; `None` if the replica does not
    /// exist.
    pub(super) async fn snapshots_there(
        &self,
        client: &Client,
        of: &str,
    ) -> Result<Option<Vec<Snapshot>>, Failed> {
        let list = self
            .ask("list its snapshots", client.call(ListSnapshots::from(Some(of.to_owned()))))
            .await;
        Ok(unless_absent(list)?.map(|list| list.snapshots))
    }

    pub(super) async fn snapshots(&self) -> Result<Vec<Snapshot>, ApiError> {
        Ok(self
            .manager
            .handle(ListSnapshots::from(Some(self.known.volume.clone())))
            .await?
            .snapshots)
    }

    /// Resumes a partial stream on the receiver. Aborts the stream if the snapshot no longer exists
    /// on this server or cannot be read, or if a different snapshot of the receiver has the same
    /// name.
    async fn finish_what_was_cut(&self, client: &Client, to: &str) -> Result<(), Failed> {
        let shown =
            self.ask("show the replica", client.call(ShowVolume { name: to.to_owned() })).await;
        let Some(volume) = unless_absent(shown)? else { return Ok(()) };
        if volume.receiving.is_none() {
            return Ok(());
        }
        let token = client.call(ShowReceive { volume: to.to_owned() });
        let told = self.ask("show the progress of the stream", token).await?;
        let token: ResumeToken = told.token.parse().map_err(|error| {
            Failed::There(ApiError::new(ErrorKind::Invalid, format!("{to}: {error}")))
        })?;
        let here = self.snapshots().await?;
        let there = self.snapshots_there(client, to).await?.unwrap_or_default();
        let guid = token.to.to_string();
        let can_go_on = |snapshot: &&Snapshot| {
            let has_name = clash(snapshot, &there).is_none();
            snapshot.guid == guid && has_name && !self.is_unreadable(snapshot)
        };
        let Some(snapshot) = here.iter().find(can_go_on) else {
            let abort = client.call(ReceiveAbort { volume: to.to_owned() });
            self.ask("abort the interrupted stream", abort).await?;
            return Ok(());
        };
        let token = Some(told.token);
        let request = SendStart { snapshot: snapshot.name.clone(), from: None, token };
        self.send(client, to, snapshot, request).await?;
        self.note(client, to, snapshot).await
    }

    /// Takes a snapshot, unless this run can send the snapshot that an earlier run took.
    async fn take_if_needed(&self, there: &[Snapshot]) -> Result<String, ApiError> {
        let here = self.snapshots().await?;
        let can_go = |last: &&Snapshot| {
            let is_there = there.iter().any(|other| other.guid == last.guid);
            is_ours(last) && !is_there && clash(last, there).is_none() && !self.is_unreadable(last)
        };
        if let Some(last) = here.last().filter(can_go) {
            // Hold the snapshot again: the server may have crashed after it took the snapshot and
            // before it added the hold.
            self.hold_here(&last.name).await?;
            return Ok(last.name.clone());
        }
        let own = free_name(&name_now(), [&here, there]);
        let name = format!("{}@{own}", self.known.volume);
        let request = SnapshotCreate { names: vec![name.clone()], recursive: false };
        self.manager.create_snapshots(request, Some(TakenBy::Replication)).await?;
        self.hold_here(&name).await?;
        Ok(name)
    }

    /// True if the last run could not read this snapshot.
    fn is_unreadable(&self, snapshot: &Snapshot) -> bool {
        self.manager.with_activity(self.known.key(), |activity| {
            activity.unreadable.as_ref() == Some(&snapshot.guid)
        })
    }

    /// Records that the snapshot of a run contains unreadable data, so that the next run takes
    /// another one, and destroys the snapshot of the previous failed run. The unreadable snapshot
    /// itself is kept until the next failure, because the list of permanent errors names ranges of
    /// existing snapshots only.
    async fn give_up(&self, unreadable: &Snapshot) -> Result<(), ApiError> {
        let guid = unreadable.guid.clone();
        self.manager.with_activity(self.known.key(), |activity| activity.unreadable = Some(guid));
        let last = self.manager.known_replication(&self.known.volume)?.last;
        let is_needed = |snapshot: &&Snapshot| {
            let is_last = last.as_ref().is_some_and(|last| last.is(snapshot));
            is_last || snapshot.guid == unreadable.guid
        };
        let here = self.snapshots().await?;
        let failed = here.iter().filter(|snapshot| is_of_run(snapshot) && !is_needed(snapshot));
        for snapshot in failed.filter(|snapshot| !is_in_use(snapshot)) {
            self.release_here(&snapshot.name).await?;
            if snapshot.holds.len() == 1 {
                self.destroy_here(&snapshot.name).await?;
            }
        }
        Ok(())
    }

    async fn release_here(&self, name: &str) -> Result<(), ApiError> {
        self.manager
            .change_snapshot(name, None, |engine, id| async move {
                engine.release_snapshot(&id, REPLICATION_TAG).await
            })
            .await?;
        Ok(())
    }

    async fn destroy_here(&self, name: &str) -> Result<(), ApiError> {
        debug_assert!(names::snapshot(name).is_ok());
        let request = SnapshotDestroy { names: vec![name.to_owned()], dry_run: false };
        self.manager.handle(request).await?;
        Ok(())
    }

    async fn hold_here(&self, name: &str) -> Result<(), ApiError> {
        self.manager
            .change_snapshot(name, None, |engine, id| async move {
                engine.hold_snapshot(&id, REPLICATION_TAG).await
            })
            .await?;
        Ok(())
    }

    /// Returns the snapshot from which the volume was cloned, if the other server has it too.
    async fn origin(&self, client: &Client, to: &str) -> Result<Option<String>, Failed> {
        let Some(origin) = self.manager.show_volume(&self.known.volume)?.origin else {
            return Ok(None);
        };
        let here = self.manager.handle(ListSnapshots::from(Some(origin.clone()))).await?.snapshots;
        let pool = to.split('/').next().unwrap_or_default().to_owned();
        let there = self.snapshots_there(client, &pool).await?.unwrap_or_default();
        let both = here.iter().any(|own| there.iter().any(|other| other.guid == own.guid));
        Ok(both.then_some(origin))
    }

    /// Sends one stream of this snapshot to the other server.
    async fn send(
        &self,
        client: &Client,
        to: &str,
        snapshot: &Snapshot,
        request: SendStart,
    ) -> Result<(), Failed> {
        match self.send_stream(client, to, request).await {
            Err(Failed::Here(error)) if error.kind == ErrorKind::Data => {
                let is_of_run = is_of_run(snapshot);
                if is_of_run && let Err(error) = self.give_up(snapshot).await {
                    tracing::warn!(%error, "a snapshot that cannot be sent is kept");
                }
                Err(Failed::Unreadable { snapshot: snapshot.name.clone(), is_of_run, error })
            }
            sent => sent,
        }
    }

    async fn send_stream(
        &self,
        client: &Client,
        to: &str,
        request: SendStart,
    ) -> Result<(), Failed> {
        let started = self.manager.handle(request).await?;
        let from = Outgoing { manager: &self.manager, session: started.session };
        self.manager.with_activity(self.known.key(), |activity| {
            (activity.sent_bytes, activity.estimate_bytes) = (0, started.estimate_bytes);
        });
        let into = ReceiveStart { volume: to.to_owned(), roll_back: false, dry_run: false };
        let receiving = self.ask("start to receive", client.call(into)).await?.session;
        let pumped = self.pump(client, &from.session, &receiving).await;
        if pumped.is_err() {
            drop(self.ask("stop receiving", client.call(ReceiveStop { session: receiving })).await);
            return pumped;
        }
        self.ask("commit what it received", client.call(ReceiveFinish { session: receiving }))
            .await
            .map(drop)
    }

    async fn pump(&self, client: &Client, from: &str, to: &str) -> Result<(), Failed> {
        let bytes_per_second = self.known.bandwidth_bytes;
        let mut throttle = Throttle { bytes_per_second, free_at: Instant::now() };
        while let Some(part) = self.manager.next_part(from).await? {
            if part.is_empty() {
                self.ask(TAKE, client.receive_part(to.to_owned(), part)).await?;
                continue;
            }
            for start in (0..part.len()).step_by(throttle.part_bytes()) {
                let piece = part.slice(start..(start + throttle.part_bytes()).min(part.len()));
                let mut wait = throttle.wait_for(piece.len());
                while wait > SIGN_OF_LIFE {
                    tokio::time::sleep(SIGN_OF_LIFE).await;
                    self.ask(TAKE, client.receive_part(to.to_owned(), Bytes::new())).await?;
                    wait -= SIGN_OF_LIFE;
                }
                tokio::time::sleep(wait).await;
                let bytes = piece.len() as u64;
                self.ask(TAKE, client.receive_part(to.to_owned(), piece)).await?;
                self.manager.with_activity(self.known.key(), |activity| {
                    activity.sent_bytes += bytes;
                });
            }
        }
        Ok(())
    }

    /// Holds a snapshot on both servers after its transfer, and saves it as the last replicated
    /// snapshot.
    async fn note(&self, client: &Client, to: &str, snapshot: &Snapshot) -> Result<(), Failed> {
        let own = own_name(snapshot).to_owned();
        self.hold_here(&snapshot.name).await?;
        let tag = SnapshotHold { name: format!("{to}@{own}"), tag: REPLICA_TAG.to_owned() };
        self.ask("hold the snapshot", client.call(tag)).await?;
        let last = ReplicatedSnapshot {
            snapshot: own,
            guid: snapshot.guid.clone(),
            unix_ms: snapshot.created_unix_ms,
        };
        let sent = self.manager.with_activity(self.known.key(), |activity| activity.sent_bytes);
        self.report(
            EventLevel::Info,
            "run",
            format!("{} replicated to {}: {}", snapshot.name, self.known.to, Human(sent)),
        );
        self.manager.save_replication(self.known.key(), |known| known.last = Some(last))?;
        Ok(())
    }

    /// Of the snapshots that both servers have, releases all except the newest, and destroys the
    /// released snapshots that replication runs took. A run's snapshot with an export or a clone
    /// stays held, so that a later run finds the hold and destroys the snapshot.
    async fn clear(&self, client: &Client, to: &str) -> Result<(), Failed> {
        let KnownReplication { last: newest, clearing, .. } =
            self.manager.known_replication(&self.known.volume)?;
        let is_past = |snapshot: &Snapshot, tag: &str| {
            let is_marked = is_held(snapshot, tag) || clearing.contains(&snapshot.guid);
            let is_newest = newest.as_ref().is_some_and(|newest| newest.is(snapshot));
            is_marked && !is_newest && !is_in_use(snapshot)
        };
        let there = self.snapshots_there(client, to).await?.unwrap_or_default();
        let here = self.snapshots().await?;
        let past_there = || there.iter().filter(|one| is_past(one, REPLICA_TAG));
        let past_here = || here.iter().filter(|one| is_past(one, REPLICATION_TAG));
        // Save the list before the first release, because after the release nothing else shows that
        // the snapshot must be destroyed.
        let past: BTreeSet<&String> =
            past_there().chain(past_here()).map(|one| &one.guid).collect();
        let past = past.into_iter().filter(|guid| !guid.is_empty());
        let past: Vec<String> = past.cloned().collect();
        let has_past = !past.is_empty();
        if past != clearing {
            self.manager.save_replication(self.known.key(), |known| known.clearing = past)?;
        }
        for snapshot in past_there() {
            if is_held(snapshot, REPLICA_TAG) {
                let (name, tag) = (snapshot.name.clone(), REPLICA_TAG.to_owned());
                let release = client.call(SnapshotRelease { name, tag });
                self.ask("release an older snapshot", release).await?;
            }
            if is_named_so(snapshot) {
                let names = vec![snapshot.name.clone()];
                let destroy = client.call(SnapshotDestroy { names, dry_run: false });
                match self.ask("destroy an older snapshot", destroy).await {
                    // A user of the other server gave this name to a snapshot, so only a user may
                    // destroy it.
                    Err(Failed::There(error)) if error.kind == ErrorKind::Permission => {
                        tracing::info!(name = snapshot.name, %error, "a snapshot is kept");
                    }
                    done => drop(done?),
                }
            }
        }
        for snapshot in past_here() {
            let is_held = is_held(snapshot, REPLICATION_TAG);
            if is_held {
                self.release_here(&snapshot.name).await?;
            }
            if is_ours(snapshot) && snapshot.holds.len() == usize::from(is_held) {
                self.destroy_here(&snapshot.name).await?;
            }
        }
        if has_past {
            self.manager.save_replication(self.known.key(), |known| known.clearing.clear())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_names_contain_the_second() {
        let name = name_now();
        assert_eq!(name.len(), "repl-2026-11-22-101530".len(), "{name}");
        assert!(names::snapshot(&format!("tank/v@{name}")).is_ok(), "{name}");
    }

    #[test]
    fn bandwidth_limit_reduces_and_delays_parts() {
        let mut free = Throttle { bytes_per_second: None, free_at: Instant::now() };
        assert_eq!((free.part_bytes(), free.wait_for(1 << 30)), (1 << 20, Duration::ZERO));
        let limit = Some(800_000);
        let mut throttle = Throttle { bytes_per_second: limit, free_at: Instant::now() };
        assert_eq!(throttle.part_bytes(), 100_000);
        let waits: Vec<Duration> = (0..9).map(|_| throttle.wait_for(100_000)).collect();
        assert!(waits[0].is_zero() && waits[8] > Duration::from_millis(950), "{waits:?}");
    }
}
