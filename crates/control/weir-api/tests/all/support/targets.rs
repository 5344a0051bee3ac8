//! The iSCSI targets of the fake server.
//!
//! There are no sessions, because no initiator logs in.
//!
//! Invariants: see `fake`.

use std::collections::BTreeMap;

use weir_api::ApiError;
use weir_api::types::{
    InitiatorAllow, InitiatorDeny, LunAdd, LunCounters, LunRemove, Outcome, Target, TargetChange,
    TargetInitiator, TargetList, TargetLun,
};
use weir_base::ErrorKind;

use super::state::not_found;

#[derive(Default)]
pub(crate) struct Targets(BTreeMap<String, Target>);

impl Targets {
    pub(super) fn list(&self) -> TargetList {
        TargetList { targets: self.0.values().cloned().collect(), next: None }
    }

    pub(super) fn get(&self, name: &str) -> Result<&Target, ApiError> {
        self.0.get(name).ok_or_else(|| not_found("target", name))
    }

    fn get_mut(&mut self, name: &str) -> Result<&mut Target, ApiError> {
        self.0.get_mut(name).ok_or_else(|| not_found("target", name))
    }

    pub(super) fn create(&mut self, name: &str) -> TargetChange {
        let outcome = if self.0.contains_key(name) { Outcome::Unchanged } else { Outcome::Created };
        let new = || Target {
            name: name.to_owned(),
            portals: vec!["127.0.0.1:3260,1".to_owned()],
            luns: Vec::new(),
            initiators: Vec::new(),
            sessions: Vec::new(),
        };
        let target = self.0.entry(name.to_owned()).or_insert_with(new).clone();
        TargetChange { outcome, target }
    }

    pub(super) fn delete(&mut self, name: &str) -> Result<(), ApiError> {
        self.0.remove(name).map(drop).ok_or_else(|| not_found("target", name))
    }

    pub(super) fn allow(&mut self, request: InitiatorAllow) -> Result<TargetChange, ApiError> {
        let target = self.get_mut(&request.target)?;
        let entry = TargetInitiator {
            initiator: request.initiator,
            chap_user: request.chap.map(|account| account.user),
            mutual_user: request.mutual.map(|account| account.user),
        };
        let known = target.initiators.contains(&entry);
        target.initiators.retain(|known| known.initiator != entry.initiator);
        target.initiators.push(entry);
        let outcome = if known { Outcome::Unchanged } else { Outcome::Created };
        Ok(TargetChange { outcome, target: target.clone() })
    }

    pub(super) fn deny(&mut self, key: &InitiatorDeny) -> Result<TargetChange, ApiError> {
        let target = self.get_mut(&key.target)?;
        let before = target.initiators.len();
        target.initiators.retain(|known| known.initiator != key.initiator);
        if target.initiators.len() == before {
            return Err(not_found("initiator", &key.initiator));
        }
        Ok(TargetChange { outcome: Outcome::Removed, target: target.clone() })
    }

    pub(super) fn add_lun(&mut self, request: LunAdd) -> Result<TargetChange, ApiError> {
        let target = self.get_mut(&request.target)?;
        let number = request.number.unwrap_or(target.luns.len() as u16);
        let block_bytes = request.block_bytes.unwrap_or(512);
        let outcome = match target.luns.iter().find(|lun| lun.number == number) {
            Some(lun) if lun.volume == request.volume => Outcome::Unchanged,
            Some(_) => {
                let message = format!("LUN {number} is taken");
                return Err(ApiError::new(ErrorKind::Exists, message));
            }
            None => {
                target.luns.push(TargetLun {
                    number,
                    volume: request.volume,
                    is_available: true,
                    size_bytes: 1 << 30,
                    block_bytes,
                    write_cache: request.write_cache.unwrap_or(false),
                    read_only: false,
                    shared: request.shared,
                    naa: "6".repeat(32),
                    registrations: 0,
                    counters: LunCounters::default(),
                });
                Outcome::Created
            }
        };
        Ok(TargetChange { outcome, target: target.clone() })
    }

    pub(super) fn remove_lun(&mut self, key: &LunRemove) -> Result<(), ApiError> {
        let target = self.get_mut(&key.target)?;
        let before = target.luns.len();
        target.luns.retain(|lun| lun.number != key.number);
        if target.luns.len() == before {
            return Err(not_found("LUN", &key.number.to_string()));
        }
        Ok(())
    }
}
