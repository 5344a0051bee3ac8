//! Calls about iSCSI targets.
//!
//! Logins and logical units are in `state::target_registry`.
//!
//! Invariants:
//! - the server saves a target before it responds to the call that changes it;
//! - a logical unit identifies its volume by number: it follows the volume through renames;
//! - a volume is used by one protocol, unless a request declares that it is shared between clients
//!   that coordinate their writes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::types::{
    ChapAccount, InitiatorAllow, InitiatorDeny, LUN_MAX, ListTargets, LunAdd, LunCounters,
    LunRemove, Outcome, Removed, ShowTarget, Target, TargetChange, TargetCreate, TargetDelete,
    TargetInitiator, TargetList, TargetLun, TargetSession,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_base::private::read_secret;
use weir_dataset::{Engine, Volume};
use weir_iscsi::Targets as _;
use weir_iscsi_wire::{Credentials, Secret};

use crate::access::aside::aside;
use crate::access::caller_files::Given;
use crate::answer::errors::not_found;
use crate::answer::names::{Of, hexadecimal};
use crate::exports::export_calls::open_dataset;
use crate::state::saved_state::{KnownInitiator, KnownLun, KnownTarget};
use crate::state::server::{Manager, refuse_above};
use crate::state::target_registry::{DatasetKey, Terms, naa};

/// Minimum length of a CHAP secret; shorter secrets can be guessed (RFC 7143 9.2.1 requires 96
/// bits).
const SECRET_BYTES_MIN: usize = 12;
/// Maximum length of a CHAP secret: more than initiators accept.
const SECRET_BYTES_MAX: usize = 255;
/// Maximum number of targets of a server, and of initiators that a target allows: far more than
/// users need.
const ENTRIES_MAX: usize = 4096;

/// Reads the file with the CHAP secret of an account.
fn credentials(account: &ChapAccount) -> Result<Credentials, ApiError> {
    let ChapAccount { user, secret_file, .. } = account;
    let secret_file = secret_file.as_deref().unwrap_or_default();
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, format!("secret file {secret_file}: {why}"))
            .with_action("write 12 to 255 bytes into a file that only the server may read")
    };
    let mut bytes = read_secret(Path::new(secret_file)).map_err(|error| {
        ApiError::new(error.kind(), error.to_string()).with_action(error.action())
    })?;
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    let fits = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len());
    let secret = Secret::new(bytes);
    if !fits {
        return Err(bad(format!("it must contain {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")));
    }
    Ok(Credentials { name: user.clone(), secret })
}

async fn terms(known: &KnownInitiator) -> Result<Terms, ApiError> {
    let (chap, mutual) = (known.chap.clone(), known.mutual.clone());
    let read = move || {
        let initiator = chap.as_ref().map(credentials).transpose()?;
        Ok((initiator, mutual.as_ref().map(credentials).transpose()?))
    };
    let (initiator, target) = aside("the files of CHAP secrets", read).await?;
    if let (Some(one), Some(other)) = (&initiator, &target)
        && one.secret.is_same(&other.secret)
    {
        let message = "both sides have the same secret: each could impersonate the other";
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action("give the target a secret of its own"));
    }
    Ok(Terms { initiator, target })
}

fn key_of(engine: &Engine, lun: &KnownLun) -> DatasetKey {
    (engine.pool().guid().0, lun.dataset)
}

impl Manager {
    fn known_target(&self, name: &str) -> Result<KnownTarget, ApiError> {
        let state = self.state.lock();
        let known = state.state.targets.iter().find(|target| target.name == name).cloned();
        known.ok_or_else(|| not_found("target", name))
    }

    fn change_target(
        &self,
        name: &str,
        change: impl FnOnce(&mut KnownTarget),
    ) -> Result<(), ApiError> {
        self.save(|state| {
            if let Some(known) = state.targets.iter_mut().find(|target| target.name == name) {
                change(known);
            }
        })
    }

    fn changed(&self, name: &str, outcome: Outcome) -> Result<TargetChange, ApiError> {
        Ok(TargetChange { outcome, target: self.describe_target(&self.known_target(name)?) })
    }

    /// Opens the saved targets when the server starts. Logical units are added when their pools are
    /// open; until then initiators retry their commands.
    pub(crate) async fn reopen_targets(&self) {
        let (targets, pools) = {
            let state = &self.state.lock().state;
            (state.targets.clone(), state.pools.clone())
        };
        for target in targets {
            self.targets.open(&target.name);
            for lun in &target.luns {
                let pool = lun.volume.split('/').next();
                if pools.iter().any(|known| Some(known.name.as_str()) == pool) {
                    self.targets.announce(&target.name, lun.number);
                }
            }
            for initiator in &target.initiators {
                match terms(initiator).await {
                    Ok(terms) => self.targets.allow(&target.name, &initiator.name, terms),
                    Err(error) => tracing::error!(
                        target = %target.name, initiator = %initiator.name, %error,
                        "the initiator cannot log in"
                    ),
                }
            }
        }
    }

    /// Adds the logical units of a pool that was opened to their targets.
    pub(crate) fn show_luns(&self, pool: &str) {
        for (target, lun) in self.luns_of(Of::Pool(pool)) {
            if let Err(error) = self.show_lun(&target, &lun) {
                self.targets.hide(&target, lun.number);
                tracing::error!(
                    %target, number = lun.number, volume = %lun.volume, %error,
                    "cannot offer the logical unit"
                );
            }
        }
    }

    /// Removes the selected logical units from their targets.
    pub(crate) fn hide_luns(&self, of: Of<'_>) {
        for (target, lun) in self.luns_of(of) {
            self.targets.hide(&target, lun.number);
        }
    }

    /// Returns the volume of a logical unit.
    pub(crate) fn volume_of_lun(&self, key: &LunRemove) -> Option<String> {
        let known = self.known_target(&key.target).ok()?;
        known.luns.into_iter().find(|lun| lun.number == key.number).map(|lun| lun.volume)
    }

    /// Notifies initiators that a volume may have another size.
    pub(crate) fn report_size(&self, volume: &str) {
        for (_, lun) in self.luns_of(Of::Dataset(volume)) {
            let pool = volume.split('/').next().unwrap_or_default();
            if let Ok(open) = self.pool(pool) {
                self.targets.resized(key_of(&open.engine, &lun));
            }
        }
    }

    /// Returns the selected logical units, each with the name of its target.
    pub(crate) fn luns_of(&self, of: Of<'_>) -> Vec<(String, KnownLun)> {
        let state = self.state.lock();
        let all = state.state.targets.iter();
        let luns = all.flat_map(|target| target.luns.iter().map(move |lun| (target, lun)));
        let luns = luns.filter(|(_, lun)| of.is(&lun.volume));
        luns.map(|(target, lun)| (target.name.clone(), lun.clone())).collect()
    }

    fn show_lun(&self, target: &str, lun: &KnownLun) -> Result<(), ApiError> {
        let pool = lun.volume.split('/').next().unwrap_or_default();
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = open_dataset(&engine, &lun.volume)?;
        self.refuse_unfit(&volume, lun)?;
        let place = (target, lun.number);
        let shown = self.targets.show(place, &engine, &volume, lun);
        match shown {
            Ok(true) => Ok(()),
            Ok(false) => {
                let message = format!("LUN {} of {target} is taken", lun.number);
                Err(ApiError::new(ErrorKind::Exists, message))
            }
            Err(why) => Err(ApiError::new(ErrorKind::Data, why)
                .with_action("remove the file: initiators make their reservations again")),
        }
    }

    fn refuse_unfit(&self, volume: &Volume, lun: &KnownLun) -> Result<(), ApiError> {
        if let Some(snapshot) = volume.receiving() {
            let message = format!("{} is busy: @{snapshot} is being received", lun.volume);
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(
                "wait for the receive to end, or abort it with 'weir receive --abort'",
            ));
        }
        let exports = self.exports_of(Of::Dataset(&lun.volume));
        if let (false, Some(export), false) = (lun.shared, exports.first(), volume.is_read_only()) {
            let message = format!("{} is exported by NBD as {export}", lun.volume);
            return Err(ApiError::new(ErrorKind::Busy, message).with_action(format!(
                "delete the export first: weir export delete {export}; or use --shared, if the \
                 clients coordinate their writes"
            )));
        }
        Ok(())
    }
}

impl Handle<TargetCreate> for Manager {
    /// Creates an iSCSI target. No initiator may log in before `target_allow`.
    ///
    /// # Errors
    /// `Unavailable` if the server has no iSCSI portal.
    async fn handle(&self, call: TargetCreate) -> Result<TargetChange, ApiError> {
        let name = &call.name;
        if !self.targets.listens() {
            let message = "this server has no iSCSI listener";
            return Err(ApiError::new(ErrorKind::Unavailable, message)
                .with_action("start it with --iscsi ADDRESS, such as --iscsi 127.0.0.1:3260"));
        }
        if self.known_target(name).is_ok() {
            return self.changed(name, Outcome::Unchanged);
        }
        let targets = self.state.lock().state.targets.len();
        refuse_above(ENTRIES_MAX, targets, "targets", "weir target delete")?;
        let known = KnownTarget { name: name.to_owned(), initiators: Vec::new(), luns: Vec::new() };
        self.save(|state| state.targets.push(known))?;
        self.targets.open(name);
        self.changed(name, Outcome::Created)
    }
}

impl Handle<ListTargets> for Manager {
    /// Lists targets by name.
    async fn handle(&self, _call: ListTargets) -> Result<TargetList, ApiError> {
        let mut known = self.state.lock().state.targets.clone();
        known.sort_by(|a, b| a.name.cmp(&b.name));
        let targets = known.iter().map(|target| self.describe_target(target)).collect();
        Ok(TargetList { targets, next: None })
    }
}

impl Manager {
    pub(crate) fn show_target(&self, name: &str) -> Result<Target, ApiError> {
        Ok(self.describe_target(&self.known_target(name)?))
    }
}

impl Handle<TargetDelete> for Manager {
    /// Deletes a target. With `force` the server ends its sessions.
    ///
    /// # Errors
    /// `Busy` while initiators are logged in, without `force`.
    async fn handle(&self, call: TargetDelete) -> Result<Removed, ApiError> {
        if !call.force {
            self.wait_for_sessions(&call.name, None).await?;
        }
        let name = call.name;
        // This call waits for no disk, so that initiators of an unresponsive pool can be
        // disconnected.
        let known = self.known_target(&name)?;
        self.save(|state| state.targets.retain(|target| target.name != name))?;
        self.targets.close(&name);
        known.initiators.iter().for_each(|entry| self.delete_secrets(entry, None));
        for lun in &known.luns {
            self.delete_unused_unit(lun);
        }
        Ok(Removed { outcome: Outcome::Removed, name })
    }
}

/// Returns the error for a request that would remove the CHAP requirement of an initiator by
/// omission.
fn needs_chap(target: &str, initiator: &str, user: &str) -> ApiError {
    let message = format!(
        "initiator {initiator} authenticates with CHAP as {user} at {target}; this would let it in \
         without CHAP"
    );
    ApiError::new(ErrorKind::Exists, message).with_action(format!(
        "weir target allow {target} {initiator} --chap-user {user} --chap-secret-file FILE changes \
         the secret, weir target allow {target} {initiator} --no-chap removes it"
    ))
}

impl Handle<InitiatorAllow> for Manager {
    /// Allows an initiator to log in. A repeated call reads the secret files again.
    ///
    /// # Errors
    /// `Invalid` for a file without a CHAP secret. `Exists` for an initiator that has CHAP, if the
    /// request has neither a CHAP account nor `no_chap`.
    async fn handle(&self, request: InitiatorAllow) -> Result<TargetChange, ApiError> {
        let InitiatorAllow { target, initiator, chap, mutual, no_chap } = request;
        // Concurrent calls for one target wait here, because a call must know the secret files that
        // the previous call saved.
        let _changes = self.changes.lock(&target).await;
        let known = self.known_target(&target)?;
        let before = known.initiators.iter().find(|entry| entry.name == initiator).cloned();
        let known_chap = before.as_ref().and_then(|entry| entry.chap.as_ref());
        if let (Some(account), None, false) = (known_chap, &chap, no_chap) {
            return Err(needs_chap(&target, &initiator, &account.user));
        }
        let chap = self.kept(chap, known_chap).await?;
        let before_mutual = before.as_ref().and_then(|entry| entry.mutual.as_ref());
        let mutual = self.kept(mutual, before_mutual).await?;
        let new = KnownInitiator { name: initiator, chap, mutual };
        let terms =
            terms(&new).await.inspect_err(|_| self.delete_secrets(&new, before.as_ref()))?;
        let outcome = match known.initiators.iter().find(|entry| entry.name == new.name) {
            Some(entry) if *entry == new => Outcome::Unchanged,
            Some(_) => Outcome::Changed,
            None if known.initiators.len() >= ENTRIES_MAX => {
                let message = format!("{target} already allows {ENTRIES_MAX} initiators");
                return Err(ApiError::new(ErrorKind::NoSpace, message));
            }
            None => Outcome::Created,
        };
        let name = new.name.clone();
        let kept = new.clone();
        self.change_target(&target, |known| {
            known.initiators.retain(|entry| entry.name != new.name);
            known.initiators.push(new);
        })?;
        if let Some(before) = &before {
            self.delete_secrets(before, Some(&kept));
        }
        self.targets.allow(&target, &name, terms);
        self.changed(&target, outcome)
    }
}

impl Manager {
    /// Returns the account to save: the path of a file with the secret replaces a secret that was
    /// sent.
    async fn kept(
        &self,
        account: Option<ChapAccount>,
        before: Option<&ChapAccount>,
    ) -> Result<Option<ChapAccount>, ApiError> {
        let Some(ChapAccount { user, secret, secret_file }) = account else { return Ok(None) };
        let before = before.and_then(|account| account.secret_file.clone());
        let sent = secret.as_ref().map(|secret| secret.expose().as_bytes().to_vec());
        let file = self.files.secret(Given { sent, named: secret_file, before }).await?;
        Ok(Some(ChapAccount { user, secret: None, secret_file: Some(file) }))
    }

    /// Removes the saved secret files of `entry`, except files that the entry `other` also uses.
    fn delete_secrets(&self, entry: &KnownInitiator, other: Option<&KnownInitiator>) {
        let files = |entry: &KnownInitiator| {
            let accounts = entry.chap.iter().chain(&entry.mutual);
            accounts.filter_map(|account| account.secret_file.clone()).collect::<Vec<_>>()
        };
        let used = other.map(files).unwrap_or_default();
        for file in files(entry).iter().filter(|file| !used.contains(file)) {
            self.files.secrets.forget(file);
        }
    }
}

impl Handle<InitiatorDeny> for Manager {
    /// Denies logins of an initiator and ends its sessions.
    async fn handle(&self, call: InitiatorDeny) -> Result<TargetChange, ApiError> {
        let InitiatorDeny { target, initiator } = &call;
        let known = self.known_target(target)?;
        let gone = known.initiators.iter().find(|entry| entry.name == *initiator);
        let gone = gone.ok_or_else(|| not_found("initiator", initiator))?;
        self.change_target(target, |known| {
            known.initiators.retain(|entry| entry.name != *initiator);
        })?;
        self.delete_secrets(gone, None);
        self.targets.deny(target, initiator);
        self.changed(target, Outcome::Removed)
    }
}

impl Handle<LunAdd> for Manager {
    /// Adds a volume or snapshot to a target as a logical unit. Answers `unchanged` for a logical
    /// unit that exists.
    ///
    /// # Errors
    /// `Exists` for a number that another logical unit has; `Busy` for a volume that another
    /// protocol exports, without `shared`.
    async fn handle(&self, request: LunAdd) -> Result<TargetChange, ApiError> {
        let LunAdd { target, volume, number, block_bytes, write_cache, shared } = request;
        let pool = volume.split('/').next().unwrap_or_default().to_owned();
        let _changes = self.changes.lock(&pool).await;
        let known = self.known_target(&target)?;
        let open = open_dataset(&Arc::clone(&self.pool(&pool)?.engine), &volume)?;
        let elsewhere = self.luns_of(Of::Dataset(&volume));
        let shown = elsewhere.first().map(|(_, lun)| lun.block_bytes);
        if let (Some(shown), Some(wanted)) = (shown, block_bytes)
            && shown != wanted
        {
            let message = format!("{volume} already has a LUN with blocks of {shown} bytes");
            return Err(ApiError::new(ErrorKind::Exists, message)
                .with_action("use the same block size at all targets of a volume"));
        }
        let cached = elsewhere.first().map(|(_, lun)| lun.write_cache);
        if let (Some(cached), Some(wanted)) = (cached, write_cache)
            && cached != wanted
        {
            let message = format!("{volume} already has a LUN with the other write cache setting");
            return Err(ApiError::new(ErrorKind::Exists, message)
                .with_action("use the same write cache setting at all targets of a volume"));
        }
        let taken: BTreeSet<u16> = known.luns.iter().map(|lun| lun.number).collect();
        let mut same = known.luns.iter().filter(|lun| lun.volume == volume);
        let same = same.find(|lun| number.is_none_or(|number| number == lun.number));
        if let Some(lun) = same
            && lun.shared == shared
        {
            return self.changed(&target, Outcome::Unchanged);
        }
        let number = match number {
            Some(number) if taken.contains(&number) => {
                let message = format!("LUN {number} of {target} is taken");
                return Err(ApiError::new(ErrorKind::Exists, message)
                    .with_action("remove that LUN first, or leave the number out"));
            }
            Some(number) => number,
            None => (0..=LUN_MAX).find(|n| !taken.contains(n)).ok_or_else(|| {
                ApiError::new(ErrorKind::NoSpace, format!("{target} has no free LUN number"))
            })?,
        };
        let block_bytes = block_bytes.or(shown).unwrap_or(512);
        let write_cache = write_cache.or(cached).unwrap_or(false);
        let dataset = open.dataset().0;
        drop(open);
        let lun = KnownLun { number, volume, dataset, block_bytes, write_cache, shared };
        self.show_lun(&target, &lun)?;
        if let Err(error) = self.change_target(&target, |known| known.luns.push(lun)) {
            self.targets.hide(&target, number);
            return Err(error);
        }
        self.changed(&target, Outcome::Created)
    }
}

impl Handle<LunRemove> for Manager {
    /// Removes a logical unit from a target, with `force` also while initiators are logged in.
    ///
    /// # Errors
    /// `Busy` while initiators are logged in to the target, without `force`.
    async fn handle(&self, call: LunRemove) -> Result<Removed, ApiError> {
        if !call.force {
            self.wait_for_sessions(&call.target, Some(call.number)).await?;
        }
        let LunRemove { target, number, .. } = &call;
        let known = self.known_target(target)?;
        let lun = known.luns.iter().find(|lun| lun.number == *number);
        let lun = lun.ok_or_else(|| not_found("LUN", &number.to_string()))?;
        self.change_target(target, |known| known.luns.retain(|lun| lun.number != *number))?;
        self.targets.hide(target, *number);
        self.delete_unused_unit(lun);
        Ok(Removed { outcome: Outcome::Removed, name: format!("{target} LUN {number}") })
    }

    fn about(&self, call: &LunRemove) -> String {
        // The request does not name the volume, so `about` runs before the call, while the logical
        // unit still exists.
        self.volume_of_lun(call).unwrap_or_default()
    }
}

impl Manager {
    /// Deletes the saved state of a logical unit if no target shows its volume any more.
    fn delete_unused_unit(&self, lun: &KnownLun) {
        if !self.luns_of(Of::Dataset(&lun.volume)).is_empty() {
            return;
        }
        let pool = lun.volume.split('/').next().unwrap_or_default();
        if let Ok(open) = self.pool(pool) {
            self.targets.delete_unit(key_of(&open.engine, lun));
        }
    }

    fn describe_target(&self, known: &KnownTarget) -> Target {
        let mut luns: Vec<_> =
            known.luns.iter().map(|lun| self.describe_lun(&known.name, lun)).collect();
        luns.sort_by_key(|lun| lun.number);
        let user = |account: &Option<ChapAccount>| account.as_ref().map(|a| a.user.clone());
        let initiator = |entry: &KnownInitiator| TargetInitiator {
            initiator: entry.name.clone(),
            chap_user: user(&entry.chap),
            mutual_user: user(&entry.mutual),
        };
        let sessions = self.targets.sessions().list().into_iter();
        let sessions = sessions.filter(|session| session.target.as_ref() == Some(&known.name));
        let session = |session: weir_iscsi::SessionInfo| TargetSession {
            initiator: session.initiator,
            isid: session.isid.to_string(),
            address: session.address,
            since_unix_ms: session.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
                as u64,
            chap: session.chap,
            header_digest: session.digests.header,
            data_digest: session.digests.data,
            commands: session.commands,
            read_bytes: session.read_bytes,
            written_bytes: session.written_bytes,
        };
        Target {
            name: known.name.clone(),
            portals: self.targets.portals(),
            luns,
            initiators: known.initiators.iter().map(initiator).collect(),
            sessions: sessions.map(session).collect(),
        }
    }

    fn describe_lun(&self, target: &str, lun: &KnownLun) -> TargetLun {
        let pool = lun.volume.split('/').next().unwrap_or_default();
        let open = self.pool(pool).ok();
        let volume = open.as_ref().and_then(|open| open_dataset(&open.engine, &lun.volume).ok());
        let unit = self.targets.shown(target, lun.number);
        let counters = unit.as_ref().map(|unit| unit.counters()).unwrap_or_default();
        let registrations = unit.as_ref().map_or(0, |unit| unit.reservations().registrations.len());
        TargetLun {
            number: lun.number,
            volume: lun.volume.clone(),
            is_available: unit.is_some(),
            size_bytes: volume.as_ref().map_or(0, |volume| volume.size_bytes()),
            block_bytes: lun.block_bytes,
            write_cache: unit.as_ref().map_or(lun.write_cache, |unit| unit.write_cache()),
            read_only: volume.as_ref().is_some_and(|volume| volume.is_read_only()),
            shared: lun.shared,
            naa: open.map_or_else(String::new, |open| hexadecimal(&naa(key_of(&open.engine, lun)))),
            registrations: registrations as u32,
            counters: LunCounters {
                reads: counters.reads,
                writes: counters.writes,
                read_bytes: counters.read_bytes,
                written_bytes: counters.written_bytes,
                unmapped_bytes: counters.unmapped_bytes,
                zeroed_bytes: counters.zeroed_bytes,
                cloned_bytes: counters.cloned_bytes,
            },
        }
    }
}

impl Handle<ShowTarget> for Manager {
    /// Shows one target with its sessions.
    async fn handle(&self, call: ShowTarget) -> Result<Target, ApiError> {
        self.show_target(&call.name)
    }

    async fn authorize(&self, call: &ShowTarget, scope: &Scope) -> Result<(), ApiError> {
        lookup::target(self, call, scope).await
    }
}
