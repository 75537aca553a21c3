//! Tokens that identify the user of a session and permit subscriptions: JSON Web Tokens with
//! Centrifugo's claims.
//!
//! The keys are in the configuration, or `jwks` fetches them.

mod jwks;
mod key_sets;
#[cfg(test)]
mod tests;
mod unverified;

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

use self::key_sets::KeySets;
use self::unverified::{claims_of, text_at};
use crate::config::auth::{ClaimRule, TokenConfig};
use crate::config::jwks::JwksEndpoint;

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

impl Registered {
    /// The audiences; `None` if `aud` has another type.
    fn audiences(&self) -> Option<Vec<&str>> {
        match &self.aud {
            Value::Null => Some(Vec::new()),
            Value::Array(values) => values.iter().map(Value::as_str).collect(),
            one => one.as_str().map(|one| vec![one]),
        }
    }

    /// The issuer, empty if there is none; `None` if `iss` has another type.
    fn issuer(&self) -> Option<&str> {
        if self.iss.is_null() { Some("") } else { self.iss.as_str() }
    }
}

/// Claims with a user.
pub trait UserClaims: DeserializeOwned {
    /// Replaces the user ID.
    fn set_user(&mut self, user: String);
}

impl UserClaims for ConnectClaims {
    fn set_user(&mut self, user: String) {
        self.sub = user;
    }
}

impl UserClaims for SubscribeClaims {
    fn set_user(&mut self, user: String) {
        self.sub = user;
    }
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

/// Keys for the same algorithms: the current one, and perhaps the one before a rotation.
#[derive(Default)]
pub struct TokenKey {
    algorithms: Vec<Algorithm>,
    /// Each with its last second since the Unix epoch, if it has one.
    keys: Vec<(DecodingKey, Option<u64>)>,
}

impl TokenKey {
    fn new(algorithms: Vec<Algorithm>, key: DecodingKey) -> Self {
        Self { algorithms, keys: vec![(key, None)] }
    }
}

/// The HMAC keys of a configuration.
fn hmac_keys(config: &TokenConfig) -> TokenKey {
    let until = u64::try_from(config.hmac_previous_secret_key_valid_until).ok().filter(|until| *until > 0);
    let given = [(&config.hmac_secret_key, None), (&config.hmac_previous_secret_key, until)];
    let given = given.into_iter().filter(|(secret, _)| !secret.is_empty());
    TokenKey {
        algorithms: vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512],
        keys: given.map(|(secret, until)| (DecodingKey::from_secret(secret.as_bytes()), until)).collect(),
    }
}

/// Verifies tokens of one kind.
pub struct Verifier {
    keys: Vec<Arc<TokenKey>>,
    key_sets: Option<KeySets>,
    audience: ClaimRule,
    issuer: ClaimRule,
    /// The names that lead to the claim with the user; empty: `sub`.
    user_claim: Vec<String>,
    /// Accept tokens whatever their signature.
    skips_signatures: bool,
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
        let hmac = hmac_keys(config);
        if !hmac.keys.is_empty() {
            keys.push(Arc::new(hmac));
        }
        let mut add = |algorithms: &[Algorithm], key| keys.push(Arc::new(TokenKey::new(algorithms.to_vec(), key)));
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
        let key_sets = match JwksEndpoint::of(config, place)? {
            Some(endpoint) => Some(KeySets::new(place, endpoint, waiting, env.clone())?),
            None => None,
        };
        if key_sets.is_some() && !keys.is_empty() {
            tracing::warn!("{place}.jwks_public_endpoint is set: the other keys in {place} are not used");
            keys.clear();
        }
        let names = config.user_id_claim.split('.').filter(|name| !name.is_empty());
        Ok(Self {
            keys,
            key_sets,
            audience: config.audience_rule(place)?,
            issuer: config.issuer_rule(place)?,
            user_claim: names.map(str::to_owned).collect(),
            skips_signatures: false,
            env: env.clone(),
        })
    }

    /// The same verifier, which checks signatures or not.
    #[must_use]
    pub fn skipping_signatures(self, skips_signatures: bool) -> Self {
        Self { skips_signatures, ..self }
    }

    /// Whether it can verify any token.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.key_sets.is_some() || self.skips_signatures
    }

    /// The counters of key fetches; `None` if no endpoint is set.
    pub fn status(&self) -> Option<ProxyStatus> {
        self.key_sets.as_ref().map(KeySets::status)
    }

    /// The key that the header of a token names; it may have to be fetched.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn key_of(&self, token: &str) -> Result<Arc<TokenKey>, TokenError> {
        if self.skips_signatures {
            return Ok(Arc::default());
        }
        let header = decode_header(token).map_err(|e| TokenError::Invalid(e.to_string()))?;
        if let Some(sets) = &self.key_sets {
            let Some(kid) = header.kid else {
                return Err(TokenError::Invalid(
                    "the header of the token has no kid, which selects the key".to_owned(),
                ));
            };
            let values = match sets.endpoint.has_placeholders() {
                true => self.values_of(token)?,
                false => BTreeMap::new(),
            };
            let set = sets.of(&values)?;
            return set.get(&kid).await;
        }
        let key = self.keys.iter().find(|key| key.algorithms.contains(&header.alg));
        key.cloned()
            .ok_or_else(|| TokenError::Invalid(format!("no key is configured for the algorithm {:?}", header.alg)))
    }

    /// Verifies a token with its key and returns its claims.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn verify<C: UserClaims>(&self, token: &str, key: &TokenKey) -> Result<C, TokenError> {
        let claims = if self.skips_signatures { claims_of(token)? } else { self.authentic(token, key)? };
        self.check(&read(&claims)?)?;
        let mut found: C = read(&claims)?;
        if !self.user_claim.is_empty() {
            found.set_user(text_at(&claims, &self.user_claim));
        }
        Ok(found)
    }

    /// The claims of a token that one of the keys has signed.
    fn authentic(&self, token: &str, key: &TokenKey) -> Result<Box<RawValue>, TokenError> {
        let invalid = |e: jsonwebtoken::errors::Error| TokenError::Invalid(e.to_string());
        let header = decode_header(token).map_err(invalid)?;
        if header.crit.is_some() {
            // RFC 7515, 4.1.11: no extension is known here.
            return Err(TokenError::Invalid("its header names critical extensions (crit)".to_owned()));
        }
        let algorithm = header.alg;
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
        let now_s = self.env.wall_ms() / 1000;
        let mut outcome = Err(TokenError::Invalid("the key is no longer valid".to_owned()));
        for (key, until) in &key.keys {
            if outcome.is_err() && until.is_none_or(|until| now_s <= until) {
                outcome = decode::<Box<RawValue>>(token, key, &validation).map(|data| data.claims).map_err(invalid);
            }
        }
        outcome
    }

    /// The values in the claims of a token that is not verified yet, for the placeholders of the
    /// endpoint.
    fn values_of(&self, token: &str) -> Result<BTreeMap<String, String>, TokenError> {
        let claims: Registered = read(&claims_of(token)?)?;
        self.check_place(&claims)?;
        let audiences = claims.audiences().unwrap_or_default();
        let audience = audiences.into_iter().find(|audience| self.audience.accepts(audience));
        let issuer = self.issuer.values_in(claims.issuer().unwrap_or_default());
        Ok(issuer.chain(self.audience.values_in(audience.unwrap_or_default())).collect())
    }

    /// Checks that a token is for this server.
    fn check_place(&self, claims: &Registered) -> Result<(), TokenError> {
        let refuse = |why: &str| Err(TokenError::Invalid(why.to_owned()));
        let audience_fits = |all: Vec<&str>| all.into_iter().any(|audience| self.audience.accepts(audience));
        if !matches!(self.audience, ClaimRule::Any) && !claims.audiences().is_some_and(audience_fits) {
            return refuse("aud does not contain the configured audience");
        }
        if !matches!(self.issuer, ClaimRule::Any) && !claims.issuer().is_some_and(|issuer| self.issuer.accepts(issuer))
        {
            return refuse("iss is not the configured issuer");
        }
        Ok(())
    }

    /// Checks that a token is for this server and valid now.
    fn check(&self, claims: &Registered) -> Result<(), TokenError> {
        self.check_place(claims)?;
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
