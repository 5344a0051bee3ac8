//! The list of tokens in the state directory.
//!
//! The format of tokens, the delay after wrong tokens, and the check of roles (`authorization`) are
//! in weir-api.
//!
//! Invariants:
//! - the file contains the SHA-256 of each token, never the token: 256 random bits cannot be
//!   recovered from their hash;
//! - a lookup compares a secret with every token in constant time, so its duration reveals nothing;
//! - a revoked or expired token is refused from the next call on;
//! - a call with a token writes no file: one task saves the last uses of all tokens together, at
//!   most every [`USES_SAVED_EVERY`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use weir_api::ApiError;
use weir_api::access::{Files, Rights, Role, Scope};
use weir_api::caller::{self, Caller};
use weir_api::token::{Authority, SecretText, TOKEN_BYTES, TOKEN_PREFIX, unknown_token};
use weir_api::types::{
    EventLevel, Outcome, Removed, Token, TokenCreate, TokenCreated, TokenList, TokenRevoke,
};
use weir_base::{Clock as _, ErrorKind, SystemClock, replace_file};

use crate::answer::errors::not_found;
use crate::answer::names::hexadecimal;
use crate::record::events::{Events, NewEvent};

/// Maximum number of tokens: each user and each storage driver needs one, and a lookup compares
/// with all tokens.
const TOKENS_MAX: usize = 1000;

/// Interval at which the server saves the times of the last uses of tokens. A crash loses the times
/// since the last save.
const USES_SAVED_EVERY: Duration = Duration::from_mins(1);

/// Prefix of the account names of tokens.
const ACCOUNT: &str = "token ";

type Hash = [u8; 32];

#[derive(Clone, Serialize, Deserialize)]
struct KnownToken {
    name: String,
    role: Role,
    scope: Vec<String>,
    sha256: Hash,
    created_by: String,
    created_unix_ms: u64,
    expires_unix_ms: Option<u64>,
    last_used_unix_ms: Option<u64>,
    last_used_from: Option<String>,
}

/// All tokens of the server.
pub(crate) struct Tokens {
    path: PathBuf,
    known: Mutex<Vec<KnownToken>>,
    /// Lock held while the token file is written. A call that authenticates with a token never
    /// takes this lock.
    writing: Mutex<()>,
    /// True if a token was used since the token file was last written.
    is_used: AtomicBool,
    refused: AtomicU64,
    events: Arc<Events>,
}

fn now_ms() -> u64 {
    SystemClock::default().unix_ms()
}

impl KnownToken {
    fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_unix_ms.is_some_and(|end| end <= now_ms)
    }

    fn show(&self) -> Token {
        Token {
            name: self.name.clone(),
            role: self.role,
            scope: self.scope.clone(),
            created_by: self.created_by.clone(),
            created_unix_ms: self.created_unix_ms,
            expires_unix_ms: self.expires_unix_ms,
            is_expired: self.is_expired(now_ms()),
            last_used_unix_ms: self.last_used_unix_ms,
            last_used_from: self.last_used_from.clone(),
        }
    }
}

impl Tokens {
    /// Reads the token file; a missing file is an empty list.
    ///
    /// # Errors
    /// `Data` for a file that cannot be read. The server does not start with an empty list instead,
    /// because an admin could not know whether a missing token was revoked or lost.
    pub(crate) fn load(dir: &Path, events: Arc<Events>) -> Result<Self, ApiError> {
        let path = dir.join("tokens.json");
        let failed = |why: String| {
            ApiError::new(ErrorKind::Data, format!("{}: {why}", path.display()))
                .with_action("repair the file; or remove it, and create all tokens again")
        };
        let known = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error.to_string())),
        };
        let (known, writing) = (Mutex::new(known), Mutex::default());
        let (is_used, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { path, known, writing, is_used, refused, events })
    }

    /// Saves the last uses of tokens if they have changed. Blocks for a write to the state
    /// directory.
    pub(crate) fn save_uses(&self) {
        let _writing = self.writing.lock();
        if !self.is_used.swap(false, Ordering::Relaxed) {
            return;
        }
        let known = self.known.lock().clone();
        if let Err(error) = self.save(&known) {
            // Calls with tokens succeed even if the server cannot save the times of last use.
            tracing::warn!(%error, "cannot save the last uses of tokens");
        }
    }

    fn save(&self, known: &[KnownToken]) -> Result<(), ApiError> {
        let text = serde_json::to_vec_pretty(known).map_err(std::io::Error::from);
        text.and_then(|text| replace_file(&self.path, &text)).map_err(|error| {
            let message = format!("cannot save {}: {error}", self.path.display());
            ApiError::new(ErrorKind::Unavailable, message)
        })
    }

    /// Creates a token.
    pub(crate) fn create(&self, request: TokenCreate) -> Result<TokenCreated, ApiError> {
        let TokenCreate { name, role, scope, expires_unix_ms } = request;
        let now = now_ms();
        if expires_unix_ms.is_some_and(|end| end <= now) {
            let message = format!("the expiry of token {name} is in the past");
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
        let _writing = self.writing.lock();
        let known = self.known.lock().clone();
        if known.iter().any(|token| token.name == name) {
            return Err(ApiError::new(ErrorKind::Exists, format!("token {name} exists"))
                .with_action(format!(
                    "its secret cannot be shown again; choose another name, or revoke it and \
                     create it again: weir token revoke {name}"
                )));
        }
        if known.len() >= TOKENS_MAX {
            let message = format!("there are {TOKENS_MAX} tokens already");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .with_action("revoke unused tokens: weir token list"));
        }
        let secret = new_secret();
        let token = KnownToken {
            name,
            role,
            scope,
            sha256: Sha256::digest(secret.expose()).into(),
            created_by: caller::current().to_string(),
            created_unix_ms: now,
            expires_unix_ms,
            last_used_unix_ms: None,
            last_used_from: None,
        };
        let shown = token.show();
        let mut next = known;
        next.push(token.clone());
        self.save(&next)?;
        // Calls may have changed the last uses of other tokens in `self.known` during the save, so
        // add the new token to `self.known` and drop the saved copy of the list.
        let mut known = self.known.lock();
        known.push(token);
        known.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(TokenCreated { outcome: Outcome::Created, token: shown, secret })
    }

    pub(crate) fn list(&self) -> TokenList {
        let tokens = self.known.lock().iter().map(KnownToken::show).collect();
        TokenList { tokens, refused: self.refused.load(Ordering::Relaxed) }
    }

    /// True if an account may still make calls: false for a token that was revoked or has expired.
    pub(crate) fn may_call(&self, account: &str) -> bool {
        let Some(name) = account.strip_prefix(ACCOUNT) else { return true };
        let now = now_ms();
        self.known.lock().iter().any(|token| token.name == name && !token.is_expired(now))
    }

    pub(crate) fn revoke(&self, key: TokenRevoke) -> Result<Removed, ApiError> {
        let _writing = self.writing.lock();
        let rest = {
            let mut known = self.known.lock();
            let before = known.len();
            known.retain(|token| token.name != key.name);
            if known.len() == before {
                return Err(not_found("token", &key.name));
            }
            known.clone()
        };
        // The token is removed from memory even if the write fails: losing a token is safer than
        // keeping it.
        self.save(&rest)?;
        Ok(Removed { outcome: Outcome::Removed, name: key.name })
    }
}

/// Saves the last uses of tokens, until the task is dropped.
pub(crate) async fn look_after(tokens: Arc<Tokens>) {
    loop {
        tokio::time::sleep(USES_SAVED_EVERY).await;
        let tokens = Arc::clone(&tokens);
        drop(tokio::task::spawn_blocking(move || tokens.save_uses()).await);
    }
}

/// Returns the account name of a token, for limits for each account.
pub(crate) fn account_of(name: &str) -> String {
    format!("{ACCOUNT}{name}")
}

fn new_secret() -> SecretText {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes");
    SecretText::new(format!("{TOKEN_PREFIX}{}", hexadecimal(&bytes)))
}

/// Returns the index of the token with this hash. Compares all tokens, so that the duration does
/// not reveal the index.
fn find(known: &[KnownToken], hash: &Hash) -> Option<usize> {
    let (mut any, mut at) = (Choice::from(0), 0_u64);
    for (index, token) in known.iter().enumerate() {
        let same = token.sha256.ct_eq(hash);
        at.conditional_assign(&(index as u64), same);
        any |= same;
    }
    bool::from(any).then_some(at as usize)
}

impl Authority for Tokens {
    fn caller(&self, token: &str, from: &str) -> Result<Caller, ApiError> {
        let hash: Hash = Sha256::digest(token).into();
        let mut known = self.known.lock();
        let now = now_ms();
        let at = find(&known, &hash).filter(|at| !known[*at].is_expired(now));
        let Some(at) = at else { return Err(unknown_token()) };
        let found = &mut known[at];
        let rights =
            Rights { role: found.role, scope: Scope::parse(&found.scope)?, files: Files::Named };
        let caller = Caller::new(format!("token {} from {from}", found.name), rights);
        let caller = caller.of_account(account_of(&found.name));
        found.last_used_unix_ms = Some(now);
        if found.last_used_from.as_deref() != Some(from) {
            found.last_used_from = Some(from.to_owned());
        }
        self.is_used.store(true, Ordering::Relaxed);
        Ok(caller)
    }

    fn refused(&self, from: &str, _times: u64) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let message = format!("a call with an invalid token from {from} was refused");
        let kind = "token_refused".to_owned();
        let level = EventLevel::Warning;
        self.events
            .count("token_refused", NewEvent { level, kind, pool: None, disk: None, message });
    }

    fn denied(&self, caller: &Caller, call: &str) {
        let message =
            format!("{call} was refused to {caller}: its role or scope does not allow it");
        let (level, kind) = (EventLevel::Warning, "calls_refused".to_owned());
        let of = format!("denied {}", caller.account());
        self.events.count(&of, NewEvent { level, kind, pool: None, disk: None, message });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(dir: &Path) -> Tokens {
        Tokens::load(dir, Arc::new(Events::new())).unwrap()
    }

    fn request(name: &str, expires_unix_ms: Option<u64>) -> TokenCreate {
        TokenCreate {
            name: name.into(),
            role: Role::Operator,
            scope: vec!["tank/k8s-*".into()],
            expires_unix_ms,
        }
    }

    #[test]
    fn token_survives_a_restart_and_its_secret_is_not_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let made = tokens(dir.path()).create(request("ci", None)).unwrap();
        let secret = made.secret.expose();
        assert_eq!(secret.len(), TOKEN_PREFIX.len() + 2 * TOKEN_BYTES);
        let text = fs::read_to_string(dir.path().join("tokens.json")).unwrap();
        assert!(!text.contains(&secret[TOKEN_PREFIX.len()..]), "{text}");

        let again = tokens(dir.path());
        let caller = again.caller(secret, "10.0.0.1").unwrap();
        let rights = caller.rights().unwrap();
        assert_eq!((rights.role, rights.files), (Role::Operator, Files::Named));
        assert!(rights.scope.covers("tank/k8s-a") && !rights.scope.covers("tank"));
        assert_eq!(caller.to_string(), "token ci from 10.0.0.1");
        assert_eq!(again.list().tokens[0].last_used_from.as_deref(), Some("10.0.0.1"));
        again.save_uses();
        let listed = &tokens(dir.path()).list().tokens[0];
        assert_eq!(listed.last_used_from.as_deref(), Some("10.0.0.1"));
        assert!(listed.last_used_unix_ms.is_some());
    }

    // Regression: the server added no event for calls that it refused because of the token's role
    // or scope.
    #[test]
    fn denied_calls_of_a_token_are_one_event_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let events = Arc::new(Events::new());
        let all = Tokens::load(dir.path(), Arc::clone(&events)).unwrap();
        let secrets = ["a", "b"].map(|name| all.create(request(name, None)).unwrap().secret);
        for address in 0..300 {
            for secret in &secrets {
                let caller = all.caller(secret.expose(), &format!("10.0.1.{address}")).unwrap();
                all.denied(&caller, "POST /v1/pools");
            }
        }
        let kept = events.kept_after(0).events;
        let messages: Vec<&str> = kept.iter().map(|event| event.message.as_str()).collect();
        let one = |name| {
            format!(
                "POST /v1/pools was refused to token {name} from 10.0.1.0: its role or scope does \
                 not allow it"
            )
        };
        assert_eq!(messages, [one("a"), one("b")]);
        assert!(kept.iter().all(|event| event.kind == "calls_refused"));
    }

    // Regression: each call from a new address saved and synced the token file. With 32 callers of
    // one token, every call of the server took up to 259 ms.
    #[test]
    fn calls_write_no_token_file_and_uses_are_saved_together() {
        let dir = tempfile::tempdir().unwrap();
        let all = tokens(dir.path());
        let made = [all.create(request("a", None)), all.create(request("b", None))];
        let secrets = made.map(|made| made.unwrap().secret);
        let file = || fs::read_to_string(dir.path().join("tokens.json")).unwrap();
        let before = file();
        for address in 0..32 {
            for secret in &secrets {
                all.caller(secret.expose(), &format!("10.0.0.{address}")).unwrap();
            }
        }
        assert_eq!(file(), before);
        all.save_uses();
        let listed = tokens(dir.path()).list().tokens;
        assert!(listed.iter().all(|token| token.last_used_from.as_deref() == Some("10.0.0.31")));
        let saved = file();
        fs::remove_file(dir.path().join("tokens.json")).unwrap();
        all.save_uses();
        assert!(!dir.path().join("tokens.json").exists(), "nothing new to save");
        // Creating or revoking a token saves the last uses of the other tokens.
        all.revoke(TokenRevoke { name: "b".into() }).unwrap();
        assert!(saved.contains("10.0.0.31") && file().contains("10.0.0.31"));
    }

    #[test]
    fn wrong_expired_and_revoked_tokens_are_refused_alike() {
        let dir = tempfile::tempdir().unwrap();
        let all = tokens(dir.path());
        let made = all.create(request("a", None)).unwrap();
        let refusal = all.caller("weir_0", "x").unwrap_err();
        for wrong in
            ["", "weir_", &made.secret.expose()[1..], &format!("{}0", made.secret.expose())]
        {
            assert_eq!(all.caller(wrong, "x").unwrap_err(), refusal);
        }
        let short = all.create(request("b", Some(now_ms() + 40))).unwrap();
        assert!(all.caller(short.secret.expose(), "x").is_ok());
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(all.caller(short.secret.expose(), "x").unwrap_err(), refusal);
        assert!(all.list().tokens[1].is_expired);
        assert!(all.may_call("token a") && all.may_call("joe (uid 7)"));
        assert!(!all.may_call("token b") && !all.may_call("token c"));
        assert_eq!(all.create(request("c", Some(1))).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(all.create(request("a", None)).unwrap_err().kind, ErrorKind::Exists);
        all.revoke(TokenRevoke { name: "a".into() }).unwrap();
        assert_eq!(all.caller(made.secret.expose(), "x").unwrap_err(), refusal);
        let gone = all.revoke(TokenRevoke { name: "a".into() }).unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotFound);
    }

    #[test]
    fn tokens_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        let all = tokens(dir.path());
        all.create(request("first", None)).unwrap();
        let first = all.known.lock()[0].clone();
        let more = (0..998).map(|n| KnownToken { name: n.to_string(), ..first.clone() });
        all.known.lock().extend(more);
        all.create(request("last", None)).unwrap();
        let error = all.create(request("more", None)).unwrap_err();
        assert_eq!((error.kind, all.list().tokens.len()), (ErrorKind::Busy, 1000));
        all.revoke(TokenRevoke { name: "first".into() }).unwrap();
        all.create(request("more", None)).unwrap();
    }

    #[test]
    fn refusals_are_counted_in_one_event_per_minute() {
        let dir = tempfile::tempdir().unwrap();
        let all = tokens(dir.path());
        for times in 1..=100 {
            all.refused("10.0.0.1", times);
        }
        assert_eq!(all.list().refused, 100);
        let query = weir_api::types::ListEvents { after: 0, wait_ms: 0 };
        let told = futures_util::FutureExt::now_or_never(all.events.after(query)).unwrap();
        assert_eq!(told.events.len(), 1);
    }
}
