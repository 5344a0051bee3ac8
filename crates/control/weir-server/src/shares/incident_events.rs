//! Events about squashed, refused and stale calls of NFS clients.
//!
//! weir-nfs counts the calls; each event has the number of calls since the event before.
//!
//! Invariant: a share has at most one event of a kind and client in [`REPORT_INTERVAL`], and at
//! most [`CLIENTS_MAX`] events of a kind with a client, whatever clients send.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_api::types::EventLevel;
use weir_nfs::{Incident, Incidents};

use crate::answer::names::pool_of;
use crate::record::events::NewEvent;
use crate::state::server::Manager;

/// Minimum time between two reports of a share. A client that repeats a refused call every second
/// causes 144 events a day.
const REPORT_INTERVAL: Duration = Duration::from_mins(10);

/// Maximum number of clients of a share with an event of their own in a report; one further event
/// has the sum of the others.
const CLIENTS_MAX: usize = 8;

/// Times of the last reports, by share. The empty name has the calls for no share.
#[derive(Default)]
pub(crate) struct IncidentReports(BTreeMap<String, Instant>);

impl IncidentReports {
    /// True if a share may have a report now.
    fn is_due(&mut self, share: &str, now: Instant) -> bool {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < REPORT_INTERVAL);
        !self.0.contains_key(share)
    }

    /// Takes the incidents of a share as events. Returns none before the time of the next report.
    fn take(
        &mut self,
        (share, pool): (&str, Option<&str>),
        incidents: &Incidents,
        now: Instant,
    ) -> Vec<NewEvent> {
        if !incidents.has_new() || !self.is_due(share, now) {
            return Vec::new();
        }
        self.0.insert(share.to_owned(), now);
        let taken = incidents.take();
        let events = Incident::ALL.into_iter().flat_map(|kind| {
            let of = |(client, counts): &(Option<_>, weir_nfs::IncidentCounts)| {
                (counts.of(kind), client.map(|client: std::net::IpAddr| client.to_string()))
            };
            let counts = taken.iter().map(of).filter(|(calls, _)| *calls > 0);
            messages((share, kind), counts.collect())
                .into_iter()
                .map(move |message| event(kind, pool, message))
        });
        events.collect()
    }
}

fn event(kind: Incident, pool: Option<&str>, message: String) -> NewEvent {
    let (level, kind) = match kind {
        Incident::Squashed => (EventLevel::Info, "share_squashed"),
        Incident::Refused => (EventLevel::Warning, "share_refused"),
        Incident::Stale => (EventLevel::Info, "share_stale"),
    };
    let pool = pool.map(str::to_owned);
    NewEvent { level, kind: kind.to_owned(), pool, disk: None, message }
}

/// Messages about incidents of one kind, from the numbers of calls of each client.
fn messages(
    (share, kind): (&str, Incident),
    mut counts: Vec<(u64, Option<String>)>,
) -> Vec<String> {
    // The common count of further clients is the last one.
    counts.sort_by_key(|(calls, client)| (client.is_none(), std::cmp::Reverse(*calls)));
    let own = counts.iter().filter(|(_, client)| client.is_some()).count().min(CLIENTS_MAX);
    let rest: u64 = counts.drain(own..).map(|(calls, _)| calls).sum();
    let rest = (rest > 0).then_some((rest, None));
    let what = match (kind, share) {
        (Incident::Squashed, _) => "ran as the anonymous user, as root_squash or all_squash says",
        (Incident::Refused, "") => "named a path that no share has; weir share list",
        (Incident::Refused, _) => {
            "were refused: no rule names the client, its port is above 1023, or its credential is \
             not accepted; weir share show"
        }
        (Incident::Stale, "") => "had handles of shares that do not exist; weir share list",
        (Incident::Stale, _) => "had handles of removed files or snapshots",
    };
    let message = |(calls, client): (u64, Option<String>)| {
        let client = client.unwrap_or_else(|| "other clients".to_owned());
        let of = if share.is_empty() { String::new() } else { format!("share {share}: ") };
        format!("{of}{calls} NFS calls of {client} {what}")
    };
    counts.into_iter().chain(rest).map(message).collect()
}

impl Manager {
    /// Returns events about the incidents of shares whose last report is old enough. Called about
    /// once a second.
    pub(crate) fn incident_events(&self, reports: &mut IncidentReports) -> Vec<NewEvent> {
        let now = Instant::now();
        let mut events = reports.take(("", None), &self.nfs.server.shares.incidents, now);
        for (name, statistics) in self.nfs.shares_with_incidents() {
            let Ok(known) = self.known_share(&name) else { continue };
            let of = (name.as_str(), Some(pool_of(&known.filesystem)));
            events.extend(reports.take(of, &statistics.incidents, now));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(calls: &[u64]) -> Vec<(u64, Option<String>)> {
        let of = |(at, calls): (usize, &u64)| (*calls, Some(format!("10.0.0.{at}")));
        calls.iter().enumerate().map(of).collect()
    }

    #[test]
    fn clients_with_the_most_calls_have_events_of_their_own() {
        let of = |counts| messages(("tank/home", Incident::Refused), counts);
        assert_eq!(of(Vec::new()), [""; 0]);
        let two = of(counts(&[1, 5]));
        assert!(two[0].starts_with("share tank/home: 5 NFS calls of 10.0.0.1 were refused"));
        assert!(two[1].starts_with("share tank/home: 1 NFS calls of 10.0.0.0 were refused"));
        let mut many = counts(&[7, 7, 7, 7, 7, 7, 7, 7, 2, 3]);
        many.insert(0, (100, None));
        let events = of(many);
        assert_eq!(events.len(), CLIENTS_MAX + 1);
        assert!(events[0].contains(" 7 NFS calls of 10.0.0."), "{}", events[0]);
        assert!(events[CLIENTS_MAX].contains(" 105 NFS calls of other clients "), "{events:?}");
    }

    #[test]
    fn share_has_one_report_in_an_interval() {
        let mut reports = IncidentReports::default();
        let start = Instant::now();
        assert!(reports.is_due("a", start));
        reports.0.insert("a".to_owned(), start);
        let later = start + REPORT_INTERVAL;
        assert!(!reports.is_due("a", start + REPORT_INTERVAL / 2) && reports.is_due("b", start));
        assert!(reports.is_due("a", later));
        assert!(reports.0.is_empty(), "old entries leave");
        let none = Incidents::default();
        assert_eq!(reports.take(("a", Some("tank")), &none, later), []);
        assert!(reports.is_due("a", later), "a report without incidents is none");
    }
}
