//! Cuts every answer to the scope of the caller.
//!
//! Not here: whether a call may be made at all (`gate`).
//!
//! Every answer to a caller with a scope passes [`cut`], errors included. Each type of answer
//! implements [`Cut`] once. The trait has no default, so a new type of answer does not compile
//! without an implementation.
//!
//! Invariants:
//! - an answer names no pool, volume, snapshot, bookmark or export outside of the scope;
//! - no answer has the state, size or properties of objects outside of the scope;
//! - texts for people lose only the names outside of the scope.

use crate::access::Scope;
use crate::control::Answer;
use crate::stream::SendStream;
use crate::types::{
    BookmarkChange, BookmarkList, DedupeForecast, DigestList, EventList, Export, ExportChange,
    ExportList, HistoryList, ImportableList, PoolChange, PoolCreated, PoolList, PoolStatus,
    Property, PropertyChange, PropertyList, ReceiveDone, ReceiveProgress, ReceiveStarted,
    ReceiveToken, Removed, ReplicationChange, ReplicationList, ReplicationRemoved, ScheduleChange,
    ScheduleList, SendProgress, SendStarted, ServerInfo, Snapshot, SnapshotChange, SnapshotList,
    SnapshotsDestroyed, StreamList, Target, TargetChange, TargetList, TokenCreated, TokenList,
    Volume, VolumeAdvice, VolumeChange, VolumeList,
};
use crate::wire::ApiError;

/// An answer that can be cut to a scope.
pub(super) trait Cut {
    /// Removes everything outside of the scope.
    fn cut(&mut self, scope: &Scope);
}

/// Waits for an answer, and cuts it to the scope.
pub(super) fn cut<'a, T: Cut + Send + 'a>(scope: Scope, answer: Answer<'a, T>) -> Answer<'a, T> {
    if scope.is_all() {
        return answer;
    }
    Box::pin(async move {
        match answer.await {
            Ok(mut answer) => {
                answer.cut(&scope);
                Ok(answer)
            }
            Err(mut error) => {
                error.cut(&scope);
                Err(error)
            }
        }
    })
}

/// Whether a target may be shown. Those who use its logical units share it: all of them have to be
/// inside.
pub(super) fn covers_target(scope: &Scope, target: &Target) -> bool {
    let mut volumes = target.luns.iter().map(|lun| &lun.volume);
    scope.is_all() || (!target.luns.is_empty() && volumes.all(|name| scope.covers(name)))
}

/// Answers that name only objects of the request, which the gate checked, or no object of a pool.
macro_rules! names_nothing_else {
    ($($answer:ty),* $(,)?) => {
        $(impl Cut for $answer {
            fn cut(&mut self, _scope: &Scope) {}
        })*
    };
}

names_nothing_else!(
    ServerInfo,
    Removed,
    BookmarkChange,
    ExportChange,
    Export,
    SendStarted,
    SendProgress,
    ReceiveStarted,
    ReceiveProgress,
    ReceiveDone,
    ReceiveToken,
    DigestList,
    ScheduleChange,
    Box<dyn SendStream>,
);

// Answers of calls that are refused to every scope.
names_nothing_else!(PoolCreated, ImportableList, TargetChange, TokenCreated, TokenList);

impl Cut for ApiError {
    fn cut(&mut self, scope: &Scope) {
        self.message = scope.cut_text(&self.message);
        self.action = scope.cut_text(&self.action);
    }
}

impl Cut for PoolStatus {
    // It is shown to scopes that cover the pool, and with that everything in it.
    fn cut(&mut self, scope: &Scope) {
        assert!(scope.covers(&self.name), "the status of a pool passed the gate");
    }
}

impl Cut for PoolChange {
    fn cut(&mut self, scope: &Scope) {
        self.pool.cut(scope);
    }
}

impl Cut for PoolList {
    fn cut(&mut self, scope: &Scope) {
        self.pools.retain(|pool| scope.covers(&pool.name));
    }
}

impl Cut for StreamList {
    fn cut(&mut self, scope: &Scope) {
        self.streams.retain(|stream| scope.covers(&stream.name));
    }
}

impl Cut for HistoryList {
    fn cut(&mut self, scope: &Scope) {
        self.entries.retain(|entry| {
            let text = format!("{} {}", entry.call, entry.error.as_deref().unwrap_or(""));
            scope.covers_text(&entry.pool, &text)
        });
    }
}

impl Cut for EventList {
    fn cut(&mut self, scope: &Scope) {
        self.events.retain(|event| {
            event.pool.as_deref().is_some_and(|pool| scope.covers_text(pool, &event.message))
        });
    }
}

impl Cut for Property {
    fn cut(&mut self, scope: &Scope) {
        if matches!(self.property.as_str(), "origin" | "clones") {
            let inside: Vec<&str> =
                self.value.split(',').filter(|name| scope.covers(name)).collect();
            self.value = if inside.is_empty() { "-".to_owned() } else { inside.join(",") };
        }
    }
}

fn cut_properties(properties: &mut Vec<Property>, scope: &Scope) {
    properties.retain(|property| scope.covers(&property.name));
    properties.iter_mut().for_each(|property| property.cut(scope));
}

impl Cut for PropertyList {
    fn cut(&mut self, scope: &Scope) {
        cut_properties(&mut self.properties, scope);
    }
}

impl Cut for PropertyChange {
    fn cut(&mut self, scope: &Scope) {
        cut_properties(&mut self.properties, scope);
    }
}

impl Cut for Volume {
    fn cut(&mut self, scope: &Scope) {
        self.origin = self.origin.take().filter(|origin| scope.covers(origin));
    }
}

impl Cut for VolumeList {
    fn cut(&mut self, scope: &Scope) {
        self.volumes.retain(|volume| scope.covers(&volume.name));
        self.volumes.iter_mut().for_each(|volume| volume.cut(scope));
    }
}

impl Cut for VolumeChange {
    fn cut(&mut self, scope: &Scope) {
        self.volume.cut(scope);
    }
}

impl Cut for VolumeAdvice {
    fn cut(&mut self, scope: &Scope) {
        self.why = scope.cut_text(&self.why);
        if let Some(dedupe) = &mut self.dedupe {
            dedupe.cut(scope);
        }
    }
}

impl Cut for DedupeForecast {
    fn cut(&mut self, scope: &Scope) {
        self.names.retain(|name| scope.covers(name));
    }
}

impl Cut for Snapshot {
    fn cut(&mut self, scope: &Scope) {
        self.clones.retain(|clone| scope.covers(clone));
    }
}

fn cut_snapshots(snapshots: &mut Vec<Snapshot>, scope: &Scope) {
    snapshots.retain(|snapshot| scope.covers(&snapshot.name));
    snapshots.iter_mut().for_each(|snapshot| snapshot.cut(scope));
}

impl Cut for SnapshotList {
    fn cut(&mut self, scope: &Scope) {
        cut_snapshots(&mut self.snapshots, scope);
    }
}

impl Cut for SnapshotChange {
    fn cut(&mut self, scope: &Scope) {
        cut_snapshots(&mut self.snapshots, scope);
    }
}

impl Cut for SnapshotsDestroyed {
    fn cut(&mut self, scope: &Scope) {
        self.names.retain(|name| scope.covers(name));
    }
}

impl Cut for BookmarkList {
    fn cut(&mut self, scope: &Scope) {
        self.bookmarks.retain(|bookmark| scope.covers(&bookmark.name));
    }
}

impl Cut for ReplicationChange {
    fn cut(&mut self, scope: &Scope) {
        let replication = &mut self.replication;
        for text in [&mut replication.error, &mut replication.action].into_iter().flatten() {
            *text = scope.cut_text(text);
        }
    }
}

impl Cut for ReplicationList {
    fn cut(&mut self, scope: &Scope) {
        self.replications.retain(|replication| scope.covers(&replication.volume));
        for replication in &mut self.replications {
            for text in [&mut replication.error, &mut replication.action].into_iter().flatten() {
                *text = scope.cut_text(text);
            }
        }
    }
}

impl Cut for ReplicationRemoved {
    fn cut(&mut self, scope: &Scope) {
        for warning in &mut self.warnings {
            *warning = scope.cut_text(warning);
        }
    }
}

impl Cut for ScheduleList {
    fn cut(&mut self, scope: &Scope) {
        self.schedules.retain(|schedule| scope.covers(&schedule.name));
    }
}

impl Cut for ExportList {
    fn cut(&mut self, scope: &Scope) {
        self.exports.retain(|export| scope.covers(&export.volume));
    }
}

impl Cut for TargetList {
    fn cut(&mut self, scope: &Scope) {
        self.targets.retain(|target| covers_target(scope, target));
    }
}
