//! Token keys from a set of JSON Web Keys (RFC 7517) at an endpoint that another party serves and
//! changes.
//!
//! A fetch replaces the whole set, so the set has a bound and a withdrawn key is dropped. One fetch
//! is in flight at a time; tokens that need a key meanwhile wait for it. A key that is not in the
//! set does not cause a fetch for each token that names it: fetches are at least [`PAUSE`] apart.
//! Tokens refused during the pause get a temporary error, because the key may be new.
//! `key_sets` has the sets of an endpoint with placeholders.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::Full;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::Mutex;
use serde::Deserialize;
use steadfast_flow::{Env, Gate, log_rarely};
use steadfast_net::{HttpClient, exchange, shown_url};

use super::{TokenError, TokenKey};

/// How long keys are used without a new fetch: one hour, as in Centrifugo.
pub(super) const TTL: Duration = Duration::from_secs(3600);

/// The age at which keys are fetched again while still in use, so that some minutes of downtime of
/// the endpoint refuse no token.
pub(super) const REFRESH: Duration = Duration::from_secs(2700);

/// Minimum time between the starts of two fetches, if the first succeeded.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

/// The same if the first failed.
pub(super) const PAUSE_FAILED: Duration = Duration::from_secs(1);

/// Timeout of a fetch: less than an SDK waits for its connect reply.
const FETCH: Duration = Duration::from_secs(3);

/// How long a token waits for a fetch; longer than the fetch, so the fetch ends first.
const WAIT: Duration = Duration::from_secs(4);

/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Maximum number of keys kept from a set.
pub(super) const KEYS_MAX: usize = 256;

/// The keys of the last fetch.
#[derive(Default)]
struct KeySet {
    keys: HashMap<String, Arc<TokenKey>>,
    /// When the fetch that returned the keys began; `None`: no fetch has succeeded.
    since: Option<Duration>,
    /// The most recent fetch.
    last: Option<Fetch>,
}

/// The state of a fetch.
#[derive(Clone, Copy)]
struct Fetch {
    began: Duration,
    /// Whether it succeeded; `None`: it is in flight or was cancelled.
    succeeded: Option<bool>,
}

impl KeySet {
    /// A valid key, and whether to refresh the set.
    fn key(&self, kid: &str, now: Duration) -> Option<(Arc<TokenKey>, bool)> {
        let age = now.saturating_sub(self.since?);
        let key = self.keys.get(kid).filter(|_| age < TTL)?;
        Some((key.clone(), age >= REFRESH && self.pause_has_passed(now)))
    }

    fn pause_has_passed(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| {
            let pause = if last.succeeded == Some(false) { PAUSE_FAILED } else { PAUSE };
            now.saturating_sub(last.began) >= pause
        })
    }
}

/// Counters of the fetches of a configuration section.
#[derive(Default)]
pub(super) struct FetchCounters {
    pub(super) fetches: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Tokens refused because too many waited.
    pub(super) refused: AtomicU64,
}

/// The keys of one endpoint, and when they are fetched again.
pub(super) struct Jwks {
    /// The section of the configuration.
    place: &'static str,
    pub(super) endpoint: Uri,
    client: HttpClient,
    env: Env,
    /// Held by the task that fetches.
    turn: Gate,
    known: Mutex<KeySet>,
    counters: Arc<FetchCounters>,
}

impl Jwks {
    /// The keys at this endpoint, for which `waiting` tokens may wait.
    pub(super) fn new(
        place: &'static str,
        endpoint: Uri,
        client: HttpClient,
        counters: Arc<FetchCounters>,
        waiting: usize,
        env: Env,
    ) -> Self {
        let turn = Gate::new("live_token_keys", 1, waiting, env.clone());
        Self { place, endpoint, client, turn, env, known: Mutex::default(), counters }
    }

    /// Whether a fetch has succeeded.
    pub(super) fn has_keys(&self) -> bool {
        self.known.lock().since.is_some()
    }

    /// The number of fetches in progress: 0 or 1.
    pub(super) fn in_flight(&self) -> u64 {
        self.turn.status().used
    }

    /// The key with this ID.
    ///
    /// # Errors
    /// The set does not contain it, or the set cannot be fetched now.
    pub(super) async fn get(self: &Arc<Self>, kid: &str) -> Result<Arc<TokenKey>, TokenError> {
        let requested_at = self.env.now();
        {
            let known = self.known.lock();
            if let Some((key, old)) = known.key(kid, requested_at) {
                drop(known);
                if old {
                    self.refresh();
                }
                return Ok(key);
            }
            let under_way = known.last.is_some_and(|last| last.succeeded.is_none());
            if !under_way && !known.pause_has_passed(requested_at) {
                return Err(TokenError::KeyUnavailable);
            }
        }
        let _turn = self.turn.enter(WAIT).await.map_err(|_| self.busy())?;
        let now = self.env.now();
        {
            // Another task may have fetched meanwhile.
            let known = self.known.lock();
            if let Some((key, _)) = known.key(kid, now) {
                return Ok(key);
            }
            match known.last {
                Some(Fetch { began, succeeded: Some(true) }) if began >= requested_at => return Err(self.unknown(kid)),
                Some(Fetch { succeeded: Some(_), .. }) if !known.pause_has_passed(now) => {
                    return Err(TokenError::KeyUnavailable);
                }
                _ => {}
            }
        }
        self.fetch().await?;
        let known = self.known.lock();
        known.key(kid, now).map(|(key, _)| key).ok_or_else(|| self.unknown(kid))
    }

    /// Fetches the set in the background while the known keys stay in use.
    fn refresh(self: &Arc<Self>) {
        let jwks = self.clone();
        self.env.spawn("live token keys", async move {
            let Ok(_turn) = jwks.turn.try_enter() else { return };
            // Of many tokens that found the keys old, the first may have started a fetch by now.
            if jwks.known.lock().pause_has_passed(jwks.env.now()) {
                // The fetch logs a failure; the next token retries.
                let _ = jwks.fetch().await;
            }
        });
    }

    /// Fetches the set. The caller holds the turn.
    async fn fetch(&self) -> Result<(), TokenError> {
        let began = self.env.now();
        self.known.lock().last = Some(Fetch { began, succeeded: None });
        self.counters.fetches.fetch_add(1, Relaxed);
        let fetched = self
            .env
            .timeout(FETCH, self.ask())
            .await
            .unwrap_or_else(|| Err("the endpoint did not answer before the timeout".to_owned()));
        let mut known = self.known.lock();
        known.last = Some(Fetch { began, succeeded: Some(fetched.is_ok()) });
        match fetched {
            Ok(keys) => {
                known.keys = keys;
                known.since = Some(began);
                Ok(())
            }
            Err(why) => {
                self.counters.failures.fetch_add(1, Relaxed);
                let endpoint = shown_url(&self.endpoint.to_string());
                log_rarely!(warn, endpoint, %why, "the keys of tokens could not be fetched");
                Err(TokenError::KeyUnavailable)
            }
        }
    }

    async fn ask(&self) -> Result<HashMap<String, Arc<TokenKey>>, String> {
        let request = Request::get(self.endpoint.clone()).header(header::ACCEPT, "application/json");
        let request = request.body(Full::<Bytes>::default()).map_err(|e| e.to_string())?;
        let answer = exchange(&self.client, request, ANSWER_BYTES_MAX).await?;
        if answer.status().is_redirection() {
            let place = answer.headers().get(header::LOCATION).map(|place| String::from_utf8_lossy(place.as_bytes()));
            let place = shown_url(&place.unwrap_or_default());
            return Err(format!("the endpoint redirects to {place:?}: set {}.jwks_public_endpoint to it", self.place));
        }
        if answer.status() != StatusCode::OK {
            return Err(format!("the endpoint answered with status {}", answer.status().as_u16()));
        }
        keys_of(answer.body())
    }

    fn unknown(&self, kid: &str) -> TokenError {
        let shown: String = kid.chars().take(64).collect();
        let place = self.place;
        TokenError::Invalid(format!(
            "the set at {place}.jwks_public_endpoint has no key {shown:?} that can verify tokens"
        ))
    }

    fn busy(&self) -> TokenError {
        self.counters.refused.fetch_add(1, Relaxed);
        TokenError::Busy
    }
}

/// The keys of a set that can verify tokens, by key ID.
pub(super) fn keys_of(set: &[u8]) -> Result<HashMap<String, Arc<TokenKey>>, String> {
    /// The set as raw values: a key that cannot be parsed leaves the others usable.
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(set).map_err(|e| format!("the answer is not a set of keys: {e}"))?;
    let mut found = HashMap::new();
    for value in set.keys {
        let key = serde_json::from_value::<Jwk>(value).map_err(|e| e.to_string()).and_then(|jwk| usable(&jwk));
        match key {
            Ok((kid, _)) if found.len() == KEYS_MAX && !found.contains_key(&kid) => {
                tracing::warn!("the key set has more than {KEYS_MAX} usable keys: the rest is not used");
                break;
            }
            // Key IDs should be unique; the first of equal ones is used.
            Ok((kid, key)) => {
                found.entry(kid).or_insert_with(|| Arc::new(key));
            }
            Err(why) => tracing::debug!(%why, "a key of the set cannot verify tokens"),
        }
    }
    if found.is_empty() {
        return Err("no key in the set has a kid and can verify tokens (RSA, EC P-256 and P-384, Ed25519; not with another use than sig)".to_owned());
    }
    Ok(found)
}

/// The ID of a key and its verifier, or why it cannot verify tokens.
fn usable(jwk: &Jwk) -> Result<(String, TokenKey), String> {
    let common = &jwk.common;
    let kid = common.key_id.clone().ok_or("a key has no kid")?;
    if common.public_key_use.as_ref().is_some_and(|to| *to != PublicKeyUse::Signature) {
        return Err(format!("{kid:?}: its use is not sig"));
    }
    if common.key_operations.as_ref().is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
        return Err(format!("{kid:?}: its key_ops lack verify"));
    }
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
        // A symmetric key in a public set is not a secret: its readers could sign tokens.
        _ => return Err(format!("{kid:?}: its key type is not supported")),
    };
    if let Some(alg) = common.key_algorithm {
        algorithms.retain(|algorithm| Algorithm::try_from(alg).as_ref() == Ok(algorithm));
    }
    if algorithms.is_empty() {
        return Err(format!("{kid:?}: its alg is not a signature algorithm of its key type"));
    }
    let key = DecodingKey::from_jwk(jwk).map_err(|e| format!("{kid:?}: {e}"))?;
    Ok((kid, TokenKey::new(algorithms, key)))
}
