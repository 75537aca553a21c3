//! Keys of tokens from a set of JSON Web Keys (RFC 7517) that somebody else serves and changes.
//!
//! A fetch brings the whole set, which takes the place of the one before: so it has a bound, and a key that was withdrawn is gone. One
//! fetch is under way at a time, and who needs a key meanwhile waits for that one. A key that is not in the set does not make a fetch for
//! each token that names it: between fetches lies [`PAUSE`], in which such tokens are told to come again, as the key may be a new one.

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
use steadfast_flow::{Env, Gate};

use super::config::{TOKEN, TokenConfig};
use super::{TokenError, TokenKey};
use crate::config::LiveConfigError;
use crate::http_client::{HttpClient, exchange, http_client};
use crate::proxy::ProxyStatus;

/// For how long keys are used without asking again: Centrifugo's hour.
pub(super) const TTL: Duration = Duration::from_secs(3600);

/// At this age they are fetched again while they are still used, so that an endpoint that is down for some minutes refuses nobody.
pub(super) const REFRESH: Duration = Duration::from_secs(2700);

/// From the beginning of a fetch that succeeded to that of the next one, at least.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

/// The same after one that failed.
pub(super) const PAUSE_FAILED: Duration = Duration::from_secs(1);

/// How long a fetch may take: less than an SDK waits for the answer to its connect command.
const FETCH: Duration = Duration::from_secs(3);

/// How long a token waits for one; it is never the first to give up.
const WAIT: Duration = Duration::from_secs(4);

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Keys of a set that are kept.
pub(super) const KEYS_MAX: usize = 256;

/// Where the keys are that a configuration names, which stands at `place`; `None` when it names none.
///
/// # Errors
/// Not a URL, or one that tokens are to fill in.
pub(crate) fn jwks_endpoint(config: &TokenConfig, place: &str) -> Result<Option<Uri>, LiveConfigError> {
    let endpoint = config.jwks_public_endpoint.as_str();
    if endpoint.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| LiveConfigError(format!("{place}.jwks_public_endpoint: {endpoint:?}: {why}"));
    if let Some(begin) = endpoint.find("{{") {
        let end = endpoint[begin..].find("}}").map_or(endpoint.len(), |end| begin + end + 2);
        return Err(wrong(&format!(
            "{} is not filled in from issuer_regex or audience_regex, which are not supported: give the URL of one set of keys, and its issuer in {place}.issuer",
            &endpoint[begin..end]
        )));
    }
    let uri: Uri = endpoint.parse().map_err(|_| wrong("not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("give a URL that begins with http:// or https://"));
    }
    Ok(Some(uri))
}

/// What is known.
#[derive(Default)]
struct Known {
    keys: HashMap<String, Arc<TokenKey>>,
    /// When the fetch that brought them began; `None`: there was none.
    since: Option<Duration>,
    /// The last fetch.
    last: Option<Fetch>,
}

/// A fetch.
#[derive(Clone, Copy)]
struct Fetch {
    began: Duration,
    /// Whether it succeeded; `None`: it is under way, or was given up.
    succeeded: Option<bool>,
}

impl Known {
    /// A key that may be used, and whether it should be asked for again.
    fn key(&self, kid: &str, now: Duration) -> Option<(Arc<TokenKey>, bool)> {
        let age = now.saturating_sub(self.since?);
        let key = self.keys.get(kid).filter(|_| age < TTL)?;
        Some((key.clone(), age >= REFRESH && self.pause_is_over(now)))
    }

    fn pause_is_over(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| {
            let pause = if last.succeeded == Some(false) { PAUSE_FAILED } else { PAUSE };
            now.saturating_sub(last.began) >= pause
        })
    }
}

/// See the module.
pub(super) struct Jwks {
    /// In the configuration.
    place: &'static str,
    endpoint: Uri,
    client: HttpClient,
    env: Env,
    /// Whose turn it is to fetch.
    turn: Gate,
    known: Mutex<Known>,
    fetches: AtomicU64,
    failures: AtomicU64,
}

impl Jwks {
    /// With the keys at this endpoint, for which so many tokens may wait.
    ///
    /// # Errors
    /// No certificates of authorities, or a URL that is none.
    pub(super) fn new(place: &'static str, endpoint: Uri, waiting: usize, env: Env) -> Result<Self, LiveConfigError> {
        let client = http_client(&endpoint, 1)
            .map_err(|e| LiveConfigError(format!("{place}.jwks_public_endpoint: {endpoint}: {e}")))?;
        Ok(Self {
            place,
            endpoint,
            client,
            turn: Gate::new("live_token_keys", 1, waiting, env.clone()),
            env,
            known: Mutex::default(),
            fetches: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// The key of this name.
    ///
    /// # Errors
    /// It is not in the set, or that cannot be said now.
    pub(super) async fn get(self: &Arc<Self>, kid: &str) -> Result<Arc<TokenKey>, TokenError> {
        let came = self.env.now();
        {
            let known = self.known.lock();
            if let Some((key, old)) = known.key(kid, came) {
                drop(known);
                if old {
                    self.refresh();
                }
                return Ok(key);
            }
            let under_way = known.last.is_some_and(|last| last.succeeded.is_none());
            if !under_way && !known.pause_is_over(came) {
                return Err(TokenError::KeyUnavailable);
            }
        }
        let _turn = self.turn.enter(WAIT).await.map_err(|_| TokenError::Busy)?;
        let now = self.env.now();
        {
            // Somebody else may have fetched meanwhile.
            let known = self.known.lock();
            if let Some((key, _)) = known.key(kid, now) {
                return Ok(key);
            }
            match known.last {
                Some(Fetch { began, succeeded: Some(true) }) if began >= came => return Err(self.unknown(kid)),
                Some(Fetch { succeeded: Some(_), .. }) if !known.pause_is_over(now) => {
                    return Err(TokenError::KeyUnavailable);
                }
                _ => {}
            }
        }
        self.fetch().await?;
        let known = self.known.lock();
        known.key(kid, now).map(|(key, _)| key).ok_or_else(|| self.unknown(kid))
    }

    /// Fetches while the keys that are known are used.
    fn refresh(self: &Arc<Self>) {
        let jwks = self.clone();
        self.env.spawn("live token keys", async move {
            let Ok(_turn) = jwks.turn.try_enter() else { return };
            // Of many that found the keys old, the first has begun one by now.
            if jwks.known.lock().pause_is_over(jwks.env.now()) {
                // What fails is in the log, and tried again.
                let _ = jwks.fetch().await;
            }
        });
    }

    /// Fetches the set. For who has the turn.
    async fn fetch(&self) -> Result<(), TokenError> {
        let began = self.env.now();
        self.known.lock().last = Some(Fetch { began, succeeded: None });
        self.fetches.fetch_add(1, Relaxed);
        let fetched = self.env.timeout(FETCH, self.ask()).await.unwrap_or_else(|| Err("no answer in time".to_owned()));
        let mut known = self.known.lock();
        known.last = Some(Fetch { began, succeeded: Some(fetched.is_ok()) });
        match fetched {
            Ok(keys) => {
                known.keys = keys;
                known.since = Some(began);
                Ok(())
            }
            Err(why) => {
                self.failures.fetch_add(1, Relaxed);
                tracing::warn!(endpoint = %self.endpoint, %why, "the keys of tokens could not be fetched");
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
            let place = place.unwrap_or_default();
            return Err(format!("it redirects to {place:?}: set {}.jwks_public_endpoint to that", self.place));
        }
        if answer.status() != StatusCode::OK {
            return Err(format!("it answered with the status {}", answer.status().as_u16()));
        }
        keys_of(answer.body())
    }

    fn unknown(&self, kid: &str) -> TokenError {
        let shown: String = kid.chars().take(64).collect();
        let place = self.place;
        TokenError::Invalid(format!("there is no key {shown:?} at {place}.jwks_public_endpoint that can verify tokens"))
    }

    /// How fetching goes.
    pub(super) fn status(&self) -> ProxyStatus {
        let gate = self.turn.status();
        ProxyStatus {
            event: "jwks",
            proxy: if self.place == TOKEN { "default" } else { "subscription_token" }.to_owned(),
            requests: self.fetches.load(Relaxed),
            failures: self.failures.load(Relaxed),
            in_flight: gate.used,
            refused: gate.refused,
        }
    }
}

/// The keys of a set that can verify tokens, by their names.
pub(super) fn keys_of(set: &[u8]) -> Result<HashMap<String, Arc<TokenKey>>, String> {
    /// One key that cannot be read does not spoil the others.
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(set).map_err(|e| format!("it is no set of keys: {e}"))?;
    let mut found = HashMap::new();
    for value in set.keys {
        let key = serde_json::from_value::<Jwk>(value).map_err(|e| e.to_string()).and_then(|jwk| usable(&jwk));
        match key {
            Ok((kid, _)) if found.len() == KEYS_MAX && !found.contains_key(&kid) => {
                tracing::warn!("there are more than {KEYS_MAX} keys of tokens: those behind them are not used");
                break;
            }
            // Names are to be unique; where they are not, the first is as good as any.
            Ok((kid, key)) => {
                found.entry(kid).or_insert_with(|| Arc::new(key));
            }
            Err(why) => tracing::debug!(%why, "a key of the set is not for tokens"),
        }
    }
    if found.is_empty() {
        return Err("no key in it has a kid and can verify tokens (RSA, EC P-256 and P-384, Ed25519; not with another use than sig)".to_owned());
    }
    Ok(found)
}

/// The name of a key, and what it verifies; or why it is not for tokens.
fn usable(jwk: &Jwk) -> Result<(String, TokenKey), String> {
    let common = &jwk.common;
    let kid = common.key_id.clone().ok_or("it has no kid")?;
    if common.public_key_use.as_ref().is_some_and(|to| *to != PublicKeyUse::Signature) {
        return Err(format!("{kid:?}: its use is not sig"));
    }
    if common.key_operations.as_ref().is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
        return Err(format!("{kid:?}: its key_ops are without verify"));
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
        // A secret among public keys is none: whoever reads it could sign.
        _ => return Err(format!("{kid:?}: keys of its kind are not used")),
    };
    if let Some(alg) = common.key_algorithm {
        algorithms.retain(|algorithm| Algorithm::try_from(alg).as_ref() == Ok(algorithm));
    }
    if algorithms.is_empty() {
        return Err(format!("{kid:?}: its alg is not one of a signature with such a key"));
    }
    let key = DecodingKey::from_jwk(jwk).map_err(|e| format!("{kid:?}: {e}"))?;
    Ok((kid, TokenKey { algorithms, key }))
}
