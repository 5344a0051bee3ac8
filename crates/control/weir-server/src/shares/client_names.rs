//! Host names and netgroups in the rules of shares, as calls show them.
//!
//! weir-nfs resolves them.
//!
//! Invariant: a call waits for lookups only for a limited time.

use weir_api::ApiError;
use weir_api::types::{SHARE_ADDRESSES_SHOWN, Share, ShareName};
use weir_base::ErrorKind;
use weir_nfs::limits::NAMES_OF_SHARE_MAX;
use weir_nfs::{ClientName, NameState, Names, Rules};

use crate::state::nfs_shares::rules_of;
use crate::state::server::Manager;

/// Refuses rules with too many names.
///
/// # Errors
/// `NoSpace`.
pub(super) fn refuse_many_names(rules: &Rules) -> Result<(), ApiError> {
    if rules.names().count() <= NAMES_OF_SHARE_MAX {
        return Ok(());
    }
    let message = format!("a share has at most {NAMES_OF_SHARE_MAX} host names and netgroups");
    Err(ApiError::new(ErrorKind::NoSpace, message)
        .with_action("put the hosts into a netgroup (@name), or allow their network"))
}

fn shown(names: &Names, name: &ClientName) -> ShareName {
    let unknown = || NameState {
        problem: Some("the server looks it up when clients can use the share".to_owned()),
        ..NameState::default()
    };
    let NameState { addresses, age, problem } = names.state(name).unwrap_or_else(unknown);
    let first = addresses.iter().take(SHARE_ADDRESSES_SHOWN);
    ShareName {
        name: name.to_string(),
        address_count: addresses.len() as u32,
        addresses: first.map(ToString::to_string).collect(),
        age_seconds: age.map(|age| age.as_secs()),
        problem,
    }
}

impl Manager {
    /// Adds the addresses of the names in the rules of a share to its description.
    pub(super) fn add_names(&self, share: Share) -> Share {
        let rules = rules_of(&share.allow).unwrap_or_default();
        let names = &self.nfs.server.shares.names;
        let shown = rules.names().map(|name| shown(names, name)).collect();
        Share { names: shown, ..share }
    }

    /// Does the same as [`Self::add_names`] after a change of the rules, and waits for the lookups
    /// of new names before.
    pub(super) async fn look_up_names(&self, share: Share) -> Share {
        let rules = rules_of(&share.allow).unwrap_or_default();
        let names: Vec<ClientName> = rules.names().cloned().collect();
        if !names.is_empty() {
            self.nfs.server.shares.names.settle(&names).await;
        }
        self.add_names(share)
    }
}
