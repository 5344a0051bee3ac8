//! One run of a replication: everything that the other side lacks, up to a snapshot of now.
//!
//! Not here: when (replication), comparing (verify).
//!
//! Invariants:
//! - all snapshots go over, in the order of time, so that clones find what they began as;
//! - the newest snapshot that both sides have is held on both: the next difference needs it;
//! - what a run left half done, the next one goes on with.

use std::time::{Duration, Instant};

use weir_api::stream::Bytes;
use weir_api::types::{
    Bookmark, EventLevel, REPLICA_TAG, REPLICATION_PREFIX, REPLICATION_TAG, ReceiveStart,
    SendStart, Snapshot, SnapshotCreate, SnapshotDestroy, SnapshotTag,
};
use weir_api::{ApiError, Client, Control as _};
use weir_base::size::Human;
use weir_base::{ErrorKind, names};
use weir_format::stream::ResumeToken;

use super::super::control::Manager;
use super::super::state::ReplicatedSnapshot;
use super::{Runner, now_ms};

/// Bytes given to the other server at once.
const PART_BYTES: u64 = 1 << 20;

/// With a limit, parts are so small that this many make a second.
const PARTS_PER_SECOND: u64 = 8;

/// The other server hears something of a stream at least this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// A part of a stream, as what the other server is asked to do.
const TAKE: &str = "take data";

/// Keeps the rate of bytes below a limit.
struct Throttle {
    bytes_per_second: Option<u64>,
    /// When the bytes so far may all have been sent.
    free_at: Instant,
}

impl Throttle {
    fn part_bytes(&self) -> usize {
        let most = self.bytes_per_second.map_or(PART_BYTES, |rate| rate / PARTS_PER_SECOND);
        most.clamp(4096, PART_BYTES) as usize
    }

    /// How long to wait before so many bytes go.
    fn wait_for(&mut self, bytes: usize) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let now = Instant::now();
        let start = self.free_at.max(now);
        self.free_at = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
        start - now
    }
}

/// A stream that is fetched here; it ends with the run, however that does.
struct Outgoing<'m> {
    manager: &'m Manager,
    session: String,
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        // One that came to its end is gone already.
        drop(self.manager.stop_send(self.session.clone()));
    }
}

fn own_name(snapshot: &Snapshot) -> &str {
    snapshot.name.split_once('@').map_or("", |(_, own)| own)
}

fn is_ours(snapshot: &Snapshot) -> bool {
    own_name(snapshot).starts_with(REPLICATION_PREFIX)
}

/// True if a snapshot that was taken for a run cannot be destroyed now.
fn is_in_use(snapshot: &Snapshot) -> bool {
    is_ours(snapshot) && !(snapshot.clones.is_empty() && snapshot.exports.is_empty())
}

/// The name of a snapshot that is taken for a run now.
fn name_now() -> String {
    let at = std::time::UNIX_EPOCH + Duration::from_millis(now_ms());
    // Such as 2026-11-22T10:15:30Z.
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let plain: String = text.chars().filter(|c| c.is_ascii_digit() || *c == '-').collect();
    format!("{REPLICATION_PREFIX}{}-{}", &plain[..10], &plain[10..])
}

/// No error where what was asked for is not there.
fn unless_absent<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Runner {
    pub(super) async fn replicate(&self) -> Result<(), ApiError> {
        let (to, client) = self.known.client()?;
        let volume = &self.known.volume;
        self.finish_what_was_cut(&client, &to.volume).await?;
        let there = self.snapshots_there(&client, &to.volume).await?;
        let newest = self.take_if_needed(there.as_deref()).await?;
        let is_there = there.is_some();
        let here = self.snapshots().await?;
        let has =
            |snapshot: &Snapshot| there.iter().flatten().any(|other| other.guid == snapshot.guid);
        let common = here.iter().rposition(has);
        let mut from = common.map(|at| here[at].name.clone());
        let mut next = common.map_or(0, |at| at + 1);
        let there = there.unwrap_or_default();
        if let Some(mark) = self.bookmark_in(&there, &here)? {
            let is_newer = |s: &Snapshot| s.created_unix_ms > mark.created_unix_ms;
            next = here.iter().position(is_newer).unwrap_or(here.len());
            from = Some(mark.name);
        }
        if from.is_none() {
            if is_there {
                let message =
                    format!("{} is there and has no snapshot in common with {volume}", to.volume);
                return Err(ApiError::new(ErrorKind::Exists, message).with_action(
                    "replicate to another name, or destroy the volume on the other server",
                ));
            }
            from = self.origin(&client, &to.volume).await?;
        }
        for snapshot in here.iter().skip(next) {
            let request =
                SendStart { snapshot: snapshot.name.clone(), from: from.take(), token: None };
            self.send(&client, &to.volume, request).await?;
            self.note(&client, &to.volume, snapshot).await?;
            from = Some(snapshot.name.clone());
            if snapshot.name == newest {
                break;
            }
        }
        self.clear(&client, &to.volume).await
    }

    /// The bookmark of the newest snapshot over there of which there is one here, unless both sides
    /// have a snapshot that is newer still.
    fn bookmark_in(
        &self,
        there: &[Snapshot],
        here: &[Snapshot],
    ) -> Result<Option<Bookmark>, ApiError> {
        let marks = self.manager.list_bookmarks(Some(&self.known.volume))?.bookmarks;
        let is_here = |snapshot: &&Snapshot| here.iter().any(|own| own.guid == snapshot.guid);
        let mut only_there = there.iter().rev().take_while(|snapshot| !is_here(snapshot));
        let of = |snapshot: &Snapshot| marks.iter().find(|mark| mark.guid == snapshot.guid);
        Ok(only_there.find_map(of).cloned())
    }

    /// The snapshots of the replica; `None` where there is no replica.
    async fn snapshots_there(
        &self,
        client: &Client,
        of: &str,
    ) -> Result<Option<Vec<Snapshot>>, ApiError> {
        let list = self.ask("list its snapshots", client.snapshot_list(Some(of.to_owned()))).await;
        Ok(unless_absent(list)?.map(|list| list.snapshots))
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, ApiError> {
        Ok(self.manager.list_snapshots(Some(self.known.volume.clone())).await?.snapshots)
    }

    /// Goes on with a stream that the other side has a part of, or has it given up if its snapshot
    /// is gone here.
    async fn finish_what_was_cut(&self, client: &Client, to: &str) -> Result<(), ApiError> {
        let shown = self.ask("show the replica", client.volume_show(to.to_owned())).await;
        let Some(volume) = unless_absent(shown)? else { return Ok(()) };
        if volume.receiving.is_none() {
            return Ok(());
        }
        let token = client.receive_token(to.to_owned());
        let told = self.ask("say how far the stream is", token).await?;
        let token: ResumeToken = told
            .token
            .parse()
            .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("{to}: {error}")))?;
        let here = self.snapshots().await?;
        let guid = token.to.to_string();
        let Some(snapshot) = here.iter().find(|snapshot| snapshot.guid == guid) else {
            let abort = client.receive_abort(to.to_owned());
            self.ask("give up the stream that was cut off", abort).await?;
            return Ok(());
        };
        let token = Some(told.token);
        let request = SendStart { snapshot: snapshot.name.clone(), from: None, token };
        self.send(client, to, request).await?;
        self.note(client, to, snapshot).await
    }

    /// A snapshot of now, unless one that was taken for an earlier run is still to be sent.
    async fn take_if_needed(&self, there: Option<&[Snapshot]>) -> Result<String, ApiError> {
        let known = |snapshot: &Snapshot| {
            there.unwrap_or_default().iter().any(|other| other.guid == snapshot.guid)
        };
        let here = self.snapshots().await?;
        if let Some(last) = here.last().filter(|last| is_ours(last) && !known(last)) {
            return Ok(last.name.clone());
        }
        let name = format!("{}@{}", self.known.volume, name_now());
        let request = SnapshotCreate { names: vec![name.clone()], recursive: false };
        self.manager.create_snapshots(request).await?;
        self.hold_here(&name).await?;
        Ok(name)
    }

    async fn hold_here(&self, name: &str) -> Result<(), ApiError> {
        self.manager
            .change_snapshot(name, None, |engine, id| async move {
                engine.hold_snapshot(&id, REPLICATION_TAG).await
            })
            .await?;
        Ok(())
    }

    /// The snapshot that the volume was cloned from, if the other side has it too.
    async fn origin(&self, client: &Client, to: &str) -> Result<Option<String>, ApiError> {
        let Some(origin) = self.manager.show_volume(&self.known.volume)?.origin else {
            return Ok(None);
        };
        let here = self.manager.list_snapshots(Some(origin.clone())).await?.snapshots;
        let pool = to.split('/').next().unwrap_or_default().to_owned();
        let there = self.snapshots_there(client, &pool).await?.unwrap_or_default();
        let both = here.iter().any(|own| there.iter().any(|other| other.guid == own.guid));
        Ok(both.then_some(origin))
    }

    /// Sends one stream to the other side.
    async fn send(&self, client: &Client, to: &str, request: SendStart) -> Result<(), ApiError> {
        let started = self.manager.start_send(request).await?;
        let from = Outgoing { manager: &self.manager, session: started.session };
        self.manager.with_activity(self.known.key(), |activity| {
            (activity.sent_bytes, activity.estimate_bytes) = (0, started.estimate_bytes);
        });
        let into = ReceiveStart { volume: to.to_owned(), roll_back: false, dry_run: false };
        let receiving = self.ask("begin to receive", client.receive_start(into)).await?.session;
        let pumped = self.pump(client, &from.session, &receiving).await;
        if pumped.is_err() {
            drop(self.ask("stop receiving", client.receive_stop(receiving)).await);
            return pumped;
        }
        self.ask("commit what it received", client.receive_finish(receiving)).await.map(drop)
    }

    async fn pump(&self, client: &Client, from: &str, to: &str) -> Result<(), ApiError> {
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

    /// Keeps a snapshot on both sides, now that both have it, and remembers that.
    async fn note(&self, client: &Client, to: &str, snapshot: &Snapshot) -> Result<(), ApiError> {
        let own = own_name(snapshot).to_owned();
        self.hold_here(&snapshot.name).await?;
        let tag = SnapshotTag { name: format!("{to}@{own}"), tag: REPLICA_TAG.to_owned() };
        self.ask("hold the snapshot", client.snapshot_hold(tag)).await?;
        let last = ReplicatedSnapshot { snapshot: own, unix_ms: snapshot.created_unix_ms };
        let sent = self.manager.with_activity(self.known.key(), |activity| activity.sent_bytes);
        self.tell(
            EventLevel::Info,
            "replication",
            format!("{} replicated to {}: {}", snapshot.name, self.known.to, Human(sent)),
        );
        self.manager.remember_replication(self.known.key(), |known| known.last = Some(last))
    }

    /// Releases all snapshots but the newest that both sides have, and destroys those of them that
    /// were taken for runs. One that is exported or cloned stays held, as the sign for a later run
    /// that it may be destroyed.
    async fn clear(&self, client: &Client, to: &str) -> Result<(), ApiError> {
        let newest = self.manager.known_replication(&self.known.volume)?.last;
        let newest = newest.map(|last| last.snapshot).unwrap_or_default();
        let past = |snapshot: &&Snapshot| {
            let held = snapshot.holds.iter().any(|tag| tag == REPLICATION_TAG);
            held && own_name(snapshot) != newest
        };
        let there = self.snapshots_there(client, to).await?.unwrap_or_default();
        let past_there = |snapshot: &&Snapshot| {
            let held = snapshot.holds.iter().any(|tag| tag == REPLICA_TAG);
            held && own_name(snapshot) != newest
        };
        for snapshot in there.iter().filter(past_there).filter(|one| !is_in_use(one)) {
            let (name, tag) = (snapshot.name.clone(), REPLICA_TAG.to_owned());
            let release = client.snapshot_release(SnapshotTag { name, tag });
            self.ask("release an older snapshot", release).await?;
            if is_ours(snapshot) {
                let names = vec![snapshot.name.clone()];
                let destroy = client.snapshot_destroy(SnapshotDestroy { names, dry_run: false });
                self.ask("destroy an older snapshot", destroy).await?;
            }
        }
        let here = self.snapshots().await?;
        for snapshot in here.iter().filter(past).filter(|one| !is_in_use(one)) {
            self.manager
                .change_snapshot(&snapshot.name, None, |engine, id| async move {
                    engine.release_snapshot(&id, REPLICATION_TAG).await
                })
                .await?;
            if is_ours(snapshot) && snapshot.holds.len() == 1 {
                debug_assert!(names::snapshot(&snapshot.name).is_ok());
                let names = vec![snapshot.name.clone()];
                let request = SnapshotDestroy { names, dry_run: false };
                self.manager.destroy_snapshots(request).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_second() {
        let name = name_now();
        assert_eq!(name.len(), "repl-2026-11-22-101530".len(), "{name}");
        assert!(names::snapshot(&format!("tank/v@{name}")).is_ok(), "{name}");
    }

    #[test]
    fn a_limit_makes_parts_small_and_waits_between_them() {
        let mut free = Throttle { bytes_per_second: None, free_at: Instant::now() };
        assert_eq!((free.part_bytes(), free.wait_for(1 << 30)), (1 << 20, Duration::ZERO));
        let limit = Some(800_000);
        let mut throttle = Throttle { bytes_per_second: limit, free_at: Instant::now() };
        assert_eq!(throttle.part_bytes(), 100_000);
        let waits: Vec<Duration> = (0..9).map(|_| throttle.wait_for(100_000)).collect();
        assert!(waits[0].is_zero() && waits[8] > Duration::from_millis(950), "{waits:?}");
    }
}
