//! Calls that tell an administrator of a wrong rule or mount: squashed, refused and stale ones.
//!
//! `statistics` counts the completed calls. The server makes events from the counts.
//!
//! Invariant: the memory is bounded, whatever clients send: beyond [`INCIDENT_CLIENTS_MAX`] clients
//! between two reports, further clients share one count.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::limits::INCIDENT_CLIENTS_MAX;

/// Kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// The user of the call acts as the anonymous user (`root_squash`, `all_squash`).
    Squashed,
    /// No rule names the client, its port is not reserved, or its credential is not accepted.
    Refused,
    /// The handle belongs to a file, snapshot or share that is gone (NFS3ERR_STALE).
    Stale,
}

impl Incident {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Squashed, Self::Refused, Self::Stale];
}

/// Number of incidents of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncidentCounts([u64; Incident::ALL.len()]);

impl IncidentCounts {
    /// Number of incidents of a kind.
    pub const fn of(&self, incident: Incident) -> u64 {
        let [squashed, refused, stale] = self.0;
        match incident {
            Incident::Squashed => squashed,
            Incident::Refused => refused,
            Incident::Stale => stale,
        }
    }

    fn add(&mut self, incident: Incident) {
        let [squashed, refused, stale] = &mut self.0;
        *match incident {
            Incident::Squashed => squashed,
            Incident::Refused => refused,
            Incident::Stale => stale,
        } += 1;
    }
}

/// Incidents of a share.
#[derive(Default)]
pub struct Incidents(Mutex<Table>);

#[derive(Default)]
struct Table {
    totals: IncidentCounts,
    /// Incidents since the last report.
    clients: HashMap<IpAddr, IncidentCounts>,
    /// Incidents of further clients since the last report.
    others: IncidentCounts,
}

impl Incidents {
    pub(crate) fn add(&self, client: IpAddr, incident: Incident) {
        let client = client.to_canonical();
        let mut table = self.0.lock();
        table.totals.add(incident);
        let is_full = table.clients.len() >= INCIDENT_CLIENTS_MAX;
        if is_full && !table.clients.contains_key(&client) {
            return table.others.add(incident);
        }
        table.clients.entry(client).or_default().add(incident);
    }

    /// Returns the numbers since the share was opened.
    pub fn totals(&self) -> IncidentCounts {
        self.0.lock().totals
    }

    /// True if there were incidents since the last [`Self::take`].
    pub fn has_new(&self) -> bool {
        !self.0.lock().clients.is_empty()
    }

    /// Returns and resets the incidents since the last call, by client. The client `None` has the
    /// incidents of all clients beyond the limit.
    pub fn take(&self) -> Vec<(Option<IpAddr>, IncidentCounts)> {
        let mut table = self.0.lock();
        let clients = std::mem::take(&mut table.clients);
        let others = std::mem::take(&mut table.others);
        drop(table);
        let clients = clients.into_iter().map(|(client, counts)| (Some(client), counts));
        let others = (others != IncidentCounts::default()).then_some((None, others));
        clients.chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_are_reported_once_and_counted_in_total() {
        let incidents = Incidents::default();
        let client: IpAddr = "10.0.0.1".parse().unwrap();
        assert!(!incidents.has_new());
        incidents.add(client, Incident::Refused);
        incidents.add("::ffff:10.0.0.1".parse().unwrap(), Incident::Refused);
        incidents.add(client, Incident::Stale);
        assert!(incidents.has_new());
        let [(of, counts)] = incidents.take()[..] else { panic!("one client") };
        assert_eq!((of, counts), (Some(client), IncidentCounts([0, 2, 1])));
        assert_eq!((incidents.take(), incidents.has_new()), (Vec::new(), false));
        incidents.add(client, Incident::Squashed);
        let totals = incidents.totals();
        assert_eq!(Incident::ALL.map(|kind| totals.of(kind)), [1, 2, 1]);
    }

    #[test]
    fn clients_beyond_the_limit_share_a_count() {
        let incidents = Incidents::default();
        let client = |number: usize| IpAddr::from((1 << 20 | number as u32).to_be_bytes());
        for number in 0..INCIDENT_CLIENTS_MAX + 10 {
            incidents.add(client(number), Incident::Refused);
            incidents.add(client(0), Incident::Stale);
        }
        let taken = incidents.take();
        assert_eq!(taken.len(), INCIDENT_CLIENTS_MAX + 1);
        assert_eq!(taken.last().unwrap(), &(None, IncidentCounts([0, 10, 0])));
        let first = taken.iter().find(|(of, _)| *of == Some(client(0))).unwrap();
        assert_eq!(first.1.of(Incident::Stale), INCIDENT_CLIENTS_MAX as u64 + 10);
    }
}
