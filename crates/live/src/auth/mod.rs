//! Tokens that identify the user of a session and permit subscriptions: JSON Web Tokens with
//! Centrifugo's claims.
//!
//! The keys are in the configuration, or `jwks` fetches them.

mod jwks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use steadfast_flow::Env;

use crate::config::LiveConfigError;
use crate::metrics::ProxyStatus;
use crate::options::{Overrides, SubscribeOptions};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::json::{null_is_absent, null_values_are_absent};

use self::jwks::Jwks;
use crate::config::auth::TokenConfig;
use crate::config::auth::jwks_endpoint;

/// A time in a token: seconds since the Unix epoch as a number, with or without a fraction, or as
/// text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment(f64);

impl Moment {
    /// Whole seconds.
    fn seconds(self) -> u64 {
        // A negative time saturates to 0, which is long past.
        self.0 as u64
    }

    fn is_after(self, now_ms: u64) -> bool {
        self.0 * 1000.0 > now_ms as f64
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let seconds = match Value::deserialize(d)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let finite = seconds.filter(|seconds| seconds.is_finite()).map(Self);
        finite.ok_or_else(|| serde::de::Error::custom("a time is a number of seconds"))
    }
}

/// The claims that limit a token to a server and a time.
#[derive(Deserialize)]
struct Registered {
    exp: Option<Moment>,
    nbf: Option<Moment>,
    #[serde(default)]
    aud: Value,
    #[serde(default)]
    iss: Value,
}

/// The claims of a connection token.
#[derive(Debug, Deserialize)]
pub struct ConnectClaims {
    /// The user ID.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub sub: String,
    /// The expiry of the token.
    pub exp: Option<Moment>,
    /// The expiry of the session in seconds since the Unix epoch, if not `exp`; 0: none.
    pub expire_at: Option<i64>,
    /// The `info` of the session shown to other clients, as JSON.
    pub info: Option<Box<RawValue>>,
    /// The same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64info: String,
    /// Server-side subscriptions.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channels: Vec<String>,
    /// Server-side subscriptions with options.
    #[serde(default, deserialize_with = "null_values_are_absent")]
    pub(crate) subs: BTreeMap<String, SubscribeOptions>,
    /// Metadata of the session, for the back end only.
    pub meta: Option<Box<RawValue>>,
    /// The channel claim, which only a subscription token may have.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channel: String,
}

/// The claims of a subscription token.
#[derive(Debug, Deserialize)]
pub struct SubscribeClaims {
    /// The user ID.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub sub: String,
    /// The channel.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channel: String,
    /// The client ID of the session; empty: any session of the user.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub client: String,
    /// The expiry of the token.
    pub exp: Option<Moment>,
    /// The expiry of the subscription in seconds since the Unix epoch, if not `exp`; 0: none.
    pub expire_at: Option<i64>,
    /// The `info` of the subscription shown to other clients, as JSON.
    pub info: Option<Box<RawValue>>,
    /// The same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64info: String,
    /// Data for the subscribing client, as JSON.
    pub data: Option<Box<RawValue>>,
    /// The same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64data: String,
    /// Options that override those of the namespace.
    #[serde(rename = "override")]
    pub(crate) overrides: Option<Overrides>,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenError {
    /// The token has expired; the client should get a new one.
    Expired,
    /// The token is not valid; the text is for the log.
    Invalid(String),
    /// The key cannot be fetched now; the log has the cause.
    KeyUnavailable,
    /// Too many tokens wait for a key fetch.
    Busy,
}

impl TokenError {
    /// The error that makes a client retry, perhaps with a new token; for an invalid token, the
    /// text for the log.
    pub fn for_client(self) -> Result<ClientError, String> {
        match self {
            Self::Expired => Ok(codes::TOKEN_EXPIRED),
            Self::KeyUnavailable => Ok(codes::INTERNAL),
            Self::Busy => Ok(codes::TOO_MANY_REQUESTS),
            Self::Invalid(why) => Err(why),
        }
    }
}

/// A key and its algorithms.
pub struct TokenKey {
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Verifies tokens of one kind.
pub struct Verifier {
    keys: Vec<Arc<TokenKey>>,
    jwks: Option<Arc<Jwks>>,
    audience: Option<String>,
    issuer: Option<String>,
    env: Env,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    /// A verifier with the keys of this section of the configuration. `waiting` tokens may wait for
    /// a key fetch.
    ///
    /// # Errors
    /// A key cannot be parsed, or the endpoint is not a valid URL.
    pub fn new(place: &'static str, config: &TokenConfig, waiting: usize, env: &Env) -> Result<Self, LiveConfigError> {
        let mut keys = Vec::new();
        let mut add = |algorithms: &[Algorithm], key| {
            keys.push(Arc::new(TokenKey { algorithms: algorithms.to_vec(), key }));
        };
        if !config.hmac_secret_key.is_empty() {
            let key = DecodingKey::from_secret(config.hmac_secret_key.as_bytes());
            add(&[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512], key);
        }
        if !config.rsa_public_key.is_empty() {
            let key = DecodingKey::from_rsa_pem(config.rsa_public_key.as_bytes())
                .map_err(|e| LiveConfigError(format!("{place}.rsa_public_key: not a key in PEM: {e}")))?;
            add(&[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512], key);
        }
        if !config.ecdsa_public_key.is_empty() {
            let key = DecodingKey::from_ec_pem(config.ecdsa_public_key.as_bytes())
                .map_err(|e| LiveConfigError(format!("{place}.ecdsa_public_key: not a key in PEM: {e}")))?;
            add(&[Algorithm::ES256, Algorithm::ES384], key);
        }
        let jwks = match jwks_endpoint(config, place)? {
            Some(endpoint) => Some(Arc::new(Jwks::new(place, endpoint, waiting, env.clone())?)),
            None => None,
        };
        if jwks.is_some() && !keys.is_empty() {
            tracing::warn!("{place}.jwks_public_endpoint is set: the other keys in {place} are not used");
            keys.clear();
        }
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        Ok(Self { keys, jwks, audience: text(&config.audience), issuer: text(&config.issuer), env: env.clone() })
    }

    /// Whether any key is configured.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.jwks.is_some()
    }

    /// The counters of key fetches; `None` if no endpoint is set.
    pub fn status(&self) -> Option<ProxyStatus> {
        self.jwks.as_ref().map(|jwks| jwks.status())
    }

    /// The key that the header of a token names; it may have to be fetched.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn key_of(&self, token: &str) -> Result<Arc<TokenKey>, TokenError> {
        let header = decode_header(token).map_err(|e| TokenError::Invalid(e.to_string()))?;
        if let Some(jwks) = &self.jwks {
            let Some(kid) = header.kid else {
                return Err(TokenError::Invalid(
                    "the header of the token has no kid, which selects the key".to_owned(),
                ));
            };
            return jwks.get(&kid).await;
        }
        let key = self.keys.iter().find(|key| key.algorithms.contains(&header.alg));
        key.cloned()
            .ok_or_else(|| TokenError::Invalid(format!("no key is configured for the algorithm {:?}", header.alg)))
    }

    /// Verifies a token with its key and returns its claims.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn verify<C: DeserializeOwned>(&self, token: &str, key: &TokenKey) -> Result<C, TokenError> {
        let invalid = |e: jsonwebtoken::errors::Error| TokenError::Invalid(e.to_string());
        let algorithm = decode_header(token).map_err(invalid)?.alg;
        // The key decides the algorithm, not the token: else an attacker could sign with a public
        // key as HMAC secret.
        if !key.algorithms.contains(&algorithm) {
            return Err(TokenError::Invalid(format!("the key is not for the algorithm {algorithm:?}")));
        }
        // The library checks the signature only: it ignores claims that are absent or of another
        // type.
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let claims = decode::<Box<RawValue>>(token, &key.key, &validation).map_err(invalid)?.claims;
        self.check(read(&claims)?)?;
        read(&claims)
    }

    /// Checks that a token is for this server and valid now.
    fn check(&self, claims: Registered) -> Result<(), TokenError> {
        let refuse = |why: &str| Err(TokenError::Invalid(why.to_owned()));
        if let Some(audience) = &self.audience {
            let is_for = |value: &Value| value.as_str() == Some(audience);
            let all_texts = |values: &[Value]| values.iter().all(Value::is_string);
            let named = match &claims.aud {
                Value::Array(values) => all_texts(values) && values.iter().any(is_for),
                one => is_for(one),
            };
            if !named {
                return refuse("aud does not contain the configured audience");
            }
        }
        if let Some(issuer) = &self.issuer
            && claims.iss.as_str() != Some(issuer)
        {
            return refuse("iss is not the configured issuer");
        }
        // A token that is not valid yet is reported as expired: the client retries.
        let now_ms = self.env.wall_ms();
        let expired = claims.exp.is_some_and(|exp| !exp.is_after(now_ms));
        let early = claims.nbf.is_some_and(|nbf| nbf.is_after(now_ms));
        if expired || early { Err(TokenError::Expired) } else { Ok(()) }
    }
}

fn read<C: DeserializeOwned>(claims: &RawValue) -> Result<C, TokenError> {
    serde_json::from_str(claims.get()).map_err(|e| TokenError::Invalid(format!("the claims cannot be parsed: {e}")))
}

/// Maximum lifetime of a session or subscription in seconds; then it must be refreshed.
pub const TTL_MAX: u64 = 365 * 24 * 3600;

/// The lifetime in seconds from `now_s` that the claims give; `None`: no expiry.
///
/// # Errors
/// [`codes::EXPIRED`] if `expire_at` is past.
pub fn ttl(exp: Option<Moment>, expire_at: Option<i64>, now_s: u64) -> Result<Option<u32>, ClientError> {
    let ends = match expire_at {
        Some(at) if at <= 0 => return Ok(None),
        Some(at) if at.unsigned_abs() < now_s => return Err(codes::EXPIRED),
        Some(at) => at.unsigned_abs(),
        None => match exp {
            Some(exp) => exp.seconds(),
            None => return Ok(None),
        },
    };
    Ok(Some(ttl_until(ends, now_s)))
}

/// The lifetime in seconds from `now_s` until `ends`, from 1 to [`TTL_MAX`].
pub(crate) fn ttl_until(ends: u64, now_s: u64) -> u32 {
    ends.saturating_sub(now_s).clamp(1, TTL_MAX) as u32
}
