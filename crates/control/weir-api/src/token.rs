//! Tokens in HTTP: their format, and the authentication of every request.
//!
//! The list of tokens is the server's [`Authority`], the JSON types are in `types`. A token is
//! `weir_` and 64 hexadecimal digits: 256 random bits that cannot be guessed, so a plain hash
//! protects the list. A request has its token in the header `Authorization: Bearer TOKEN`.
//!
//! Invariants:
//! - a token in a URL is refused, because logs and shell histories store URLs;
//! - a request with a token has that token's rights, also over the unix socket;
//! - a valid token causes no delay. The response to a wrong token is delayed, twice as long after
//!   each further wrong token. At most [`THROTTLED_MAX`] responses are delayed at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use weir_base::ErrorKind;

use crate::caller::Caller;
use crate::limits::{
    NOTED_PATH_CHARS_MAX, THROTTLE_DELAY_MAX, THROTTLE_DELAY_MIN, THROTTLE_ENTRIES_MAX,
    THROTTLE_RESET, THROTTLED_MAX,
};
use crate::unix_access::GROUP;
use crate::wire::ApiError;

/// Prefix of every token, by which users and secret scanners recognize it.
pub const TOKEN_PREFIX: &str = "weir_";

/// Number of random bytes of a token.
pub const TOKEN_BYTES: usize = 32;

/// A secret as text; `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps a secret.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, to be sent or hashed but never printed.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// The tokens of a server, by which callers authenticate.
pub trait Authority: Send + Sync + 'static {
    /// Returns the caller to whom a token belongs, if the token is known and has not expired.
    ///
    /// # Errors
    /// `Permission` without the cause, so that an unauthenticated caller learns nothing.
    fn caller(&self, token: &str, from: &str) -> Result<Caller, ApiError>;

    /// Records that a wrong token from the address or user `from` was refused. `times` is the
    /// number of wrong tokens that `from` has sent in succession.
    fn refused(&self, from: &str, times: u64);

    /// Records that an authenticated caller may not make a call, because its role or scope does not
    /// allow the call.
    fn denied(&self, caller: &Caller, call: &str);
}

/// An [`Authority`] that knows no token.
#[derive(Debug)]
pub struct NoTokens;

impl Authority for NoTokens {
    fn caller(&self, _token: &str, _from: &str) -> Result<Caller, ApiError> {
        Err(unknown_token())
    }

    fn refused(&self, _from: &str, _times: u64) {}

    fn denied(&self, _caller: &Caller, _call: &str) {}
}

/// Returns the error for an unknown token.
pub fn unknown_token() -> ApiError {
    ApiError::new(ErrorKind::Permission, "this token is not known, has expired or was revoked")
        .with_action("ask an administrator of the server for another: weir token create")
}

/// Authenticates the callers of one server.
pub(crate) struct Checker {
    authority: Arc<dyn Authority>,
    auth_throttle: AuthThrottle,
}

impl Checker {
    pub(crate) fn new(authority: Arc<dyn Authority>) -> Self {
        Self { authority, auth_throttle: AuthThrottle::default() }
    }

    /// Returns the caller of a request; `connected` is the caller that the connection identifies.
    pub(crate) async fn caller(
        &self,
        connected: Caller,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Caller, ApiError> {
        refuse_in_url(uri)?;
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (given.next(), given.next());
        let Some(header) = first else {
            return if connected.rights().is_some() {
                Ok(connected)
            } else {
                Err(no_token(&connected))
            };
        };
        let text = header.to_str().ok().filter(|_| second.is_none());
        let token = text.and_then(|text| text.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let from = connected.to_string();
        let found = match token {
            Some((_, token)) => self.authority.caller(token.trim(), &from),
            None => Err(unknown_token()),
        };
        if found.is_err() {
            let (times, delay) = self.auth_throttle.note(&from, Instant::now());
            self.authority.refused(&from, times);
            self.auth_throttle.wait(delay).await;
        }
        found
    }

    /// Records a call that was refused with status 403.
    pub(crate) fn note_denied(&self, caller: &Caller, method: &Method, uri: &Uri) {
        let path: String = uri.path().chars().take(NOTED_PATH_CHARS_MAX).collect();
        self.authority.denied(caller, &format!("{method} {path}"));
    }
}

fn no_token(caller: &Caller) -> ApiError {
    let message = format!("{caller} may not call this server without a token");
    let action = format!(
        "over the unix socket: run it as root, as the user of the server, or as a member of the \
         group {GROUP} (as root: usermod -aG {GROUP} USER, then log in again); over TCP: make a \
         token on the server with 'weir token create', and name its file in WEIR_TOKEN_FILE"
    );
    ApiError::new(ErrorKind::Permission, message).with_action(action)
}

fn refuse_in_url(uri: &Uri) -> Result<(), ApiError> {
    let text = uri.path_and_query().map_or("", |text| text.as_str());
    let names_one = |part: &str| {
        let name = part.split('=').next().unwrap_or_default().to_ascii_lowercase();
        ["token", "access_token", "authorization", "api_key"].contains(&name.as_str())
    };
    let query = uri.query().unwrap_or_default();
    if !text.contains(TOKEN_PREFIX) && !query.split('&').any(names_one) {
        return Ok(());
    }
    let message = "a token was sent in a URL, which logs and shell histories store";
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(
        "revoke it (weir token revoke), make another, and send it as Authorization: Bearer TOKEN",
    ))
}

/// Wrong tokens by sender: their number and the time of the last one, for the delay of responses.
struct AuthThrottle {
    seen: Mutex<BTreeMap<String, Seen>>,
    waiting: Semaphore,
}

struct Seen {
    times: u64,
    last: Instant,
}

impl Default for AuthThrottle {
    fn default() -> Self {
        Self { seen: Mutex::default(), waiting: Semaphore::new(THROTTLED_MAX) }
    }
}

impl AuthThrottle {
    /// Counts a wrong token from `from`. Returns the number of wrong tokens in succession, and the
    /// delay of this response.
    fn note(&self, from: &str, now: Instant) -> (u64, Duration) {
        let mut seen = self.seen.lock();
        seen.retain(|_, seen| now.duration_since(seen.last) < THROTTLE_RESET);
        let from = network(from);
        if seen.len() >= THROTTLE_ENTRIES_MAX && !seen.contains_key(&from) {
            let oldest = seen.iter().min_by_key(|(_, seen)| seen.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| seen.remove(&oldest));
        }
        let entry = seen.entry(from).or_insert(Seen { times: 0, last: now });
        (entry.times, entry.last) = (entry.times + 1, now);
        let doublings = u32::try_from(entry.times - 1).unwrap_or(u32::MAX).min(16);
        (entry.times, (THROTTLE_DELAY_MIN * 2_u32.pow(doublings)).min(THROTTLE_DELAY_MAX))
    }

    /// Waits for the delay. If too many responses are already delayed, returns at once, so that
    /// connections stay free for other callers.
    async fn wait(&self, delay: Duration) {
        if let Ok(_place) = self.waiting.try_acquire() {
            tokio::time::sleep(delay).await;
        }
    }
}

/// Returns the network of a sender's address: an IPv6 user can use all addresses of a /64 network.
fn network(from: &str) -> String {
    match from.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        _ => from.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_in_a_url_is_refused() {
        let token = format!("{TOKEN_PREFIX}{}", "0".repeat(2 * TOKEN_BYTES));
        for bad in [
            "/v1/pools?token=x".to_owned(),
            "/v1/pools?a=b&access_token=x".to_owned(),
            "/v1/pools?Authorization=x".to_owned(),
            format!("/v1/pools?q={token}"),
            format!("/v1/pools/{token}"),
        ] {
            let error = refuse_in_url(&bad.parse().unwrap()).expect_err(&bad);
            assert!(error.action.contains("revoke"), "{error}");
        }
        refuse_in_url(&"/v1/volumes/a/b/receive?pool=token".parse().unwrap()).unwrap();
    }

    #[test]
    fn delay_of_wrong_tokens_doubles_by_network_and_expires() {
        let auth_throttle = AuthThrottle::default();
        let start = Instant::now();
        let note = |from: &str, at: Duration| auth_throttle.note(from, start + at);
        assert_eq!(note("10.0.0.1", Duration::ZERO), (1, THROTTLE_DELAY_MIN));
        assert_eq!(note("10.0.0.1", Duration::ZERO), (2, THROTTLE_DELAY_MIN * 2));
        assert_eq!(note("10.0.0.2", Duration::ZERO).0, 1);
        assert_eq!(note("2001:db8::1", Duration::ZERO).0, 1);
        assert_eq!(note("2001:db8::ffff:1", Duration::ZERO).0, 2);
        for _ in 0..80 {
            note("10.0.0.1", Duration::ZERO);
        }
        assert_eq!(note("10.0.0.1", Duration::ZERO).1, THROTTLE_DELAY_MAX);
        assert_eq!(note("10.0.0.1", THROTTLE_RESET), (1, THROTTLE_DELAY_MIN));
        for number in 0..2 * THROTTLE_ENTRIES_MAX {
            note(&format!("user {number}"), Duration::ZERO);
        }
        assert_eq!(auth_throttle.seen.lock().len(), THROTTLE_ENTRIES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_delayed_wrong_tokens_is_limited() {
        let checker = Arc::new(Checker::new(Arc::new(NoTokens)));
        let guess = async |checker: Arc<Checker>, last: u8| {
            let from = Caller::unauthenticated(format!("10.0.0.{last}"));
            let headers = HeaderMap::from_iter([(AUTHORIZATION, "Bearer weir_0".parse().unwrap())]);
            let begun = tokio::time::Instant::now();
            checker.caller(from, &Uri::from_static("/v1/pools"), &headers).await.unwrap_err();
            begun.elapsed()
        };
        let waiting: Vec<_> =
            (0..8).map(|last| tokio::spawn(guess(Arc::clone(&checker), last))).collect();
        tokio::task::yield_now().await;
        assert_eq!(guess(Arc::clone(&checker), 8).await, Duration::ZERO);
        for wait in waiting {
            assert!(wait.await.unwrap() >= THROTTLE_DELAY_MIN);
        }
        assert!(guess(checker, 9).await >= THROTTLE_DELAY_MIN, "the places were given back");
    }

    #[test]
    fn secrets_are_never_printed() {
        assert_eq!(format!("{:?}", SecretText::new("abc".into())), "SecretText(..)");
    }
}
