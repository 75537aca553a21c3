//! Tokens: who a session belongs to, and what it may subscribe to. JSON Web Tokens with Centrifugo's claims.
//!
//! Their keys stand in the configuration, or `jwks` fetches them.

pub(crate) mod config;
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
use crate::options::{Overrides, SubscribeOptions};
use crate::protocol::codes::{self, ClientError};
use crate::proxy::ProxyStatus;

use self::config::TokenConfig;
use self::jwks::{Jwks, jwks_endpoint};

/// A moment in seconds since the Unix epoch, as tokens say it: a number, with a fraction or without, or one as a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment(f64);

impl Moment {
    /// Whole seconds.
    fn seconds(self) -> u64 {
        // A negative one, or none at all, is long ago.
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

/// The claims that say whether a token is for this server, and valid now.
#[derive(Deserialize)]
struct Registered {
    exp: Option<Moment>,
    nbf: Option<Moment>,
    #[serde(default)]
    aud: Value,
    #[serde(default)]
    iss: Value,
}

/// A connection token's claims.
#[derive(Debug, Deserialize)]
pub struct ConnectClaims {
    /// The user.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub sub: String,
    /// When it ends.
    pub exp: Option<Moment>,
    /// When the session ends, seconds since the Unix epoch, if that is not `exp`; 0: never.
    pub expire_at: Option<i64>,
    /// What others are told of the session,
    pub info: Option<Box<RawValue>>,
    /// or the same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64info: String,
    /// Subscriptions that the server makes.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channels: Vec<String>,
    /// The same, with options.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub(crate) subs: BTreeMap<String, SubscribeOptions>,
    /// What is attached to the session, for the back end alone.
    pub meta: Option<Box<RawValue>>,
    /// What only a subscription's token has.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channel: String,
}

/// A subscription token's claims.
#[derive(Debug, Deserialize)]
pub struct SubscribeClaims {
    /// The user.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub sub: String,
    /// The channel.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub channel: String,
    /// The session that it is for; empty for any of the user's.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub client: String,
    /// When it ends.
    pub exp: Option<Moment>,
    /// When the subscription ends, seconds since the Unix epoch, if that is not `exp`; 0: never.
    pub expire_at: Option<i64>,
    /// What others are told of the subscription,
    pub info: Option<Box<RawValue>>,
    /// or the same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64info: String,
    /// What the client is told,
    pub data: Option<Box<RawValue>>,
    /// or the same in Base64.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub b64data: String,
    /// What is otherwise than the namespace says.
    #[serde(rename = "override")]
    pub(crate) overrides: Option<Overrides>,
}

/// Many back ends write what they do not set as `null`.
fn null_is_absent<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// What is wrong with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenError {
    /// It has expired: a new one may do.
    Expired,
    /// It is not valid; for the log.
    Invalid(String),
    /// Its key cannot be had at the moment. The log says why.
    KeyUnavailable,
    /// Too many tokens wait for keys.
    Busy,
}

impl TokenError {
    /// The error that tells a client to come again, perhaps with another token; for one that is not valid, what the log says.
    pub fn for_client(self) -> Result<ClientError, String> {
        match self {
            Self::Expired => Ok(codes::TOKEN_EXPIRED),
            Self::KeyUnavailable => Ok(codes::INTERNAL),
            Self::Busy => Ok(codes::TOO_MANY_REQUESTS),
            Self::Invalid(why) => Err(why),
        }
    }
}

/// A key, and the algorithms that it is for.
pub struct TokenKey {
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Verifies tokens.
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
    /// With the keys at this place in the configuration. So many tokens may wait for keys that are fetched.
    ///
    /// # Errors
    /// A key that cannot be read, or an endpoint that is none.
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

    /// Whether any token could be valid.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.jwks.is_some()
    }

    /// How fetching keys goes, where it is done.
    pub fn status(&self) -> Option<ProxyStatus> {
        self.jwks.as_ref().map(|jwks| jwks.status())
    }

    /// The key that a token says it is signed with, which may have to be fetched.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn key_of(&self, token: &str) -> Result<Arc<TokenKey>, TokenError> {
        let header = decode_header(token).map_err(|e| TokenError::Invalid(e.to_string()))?;
        if let Some(jwks) = &self.jwks {
            let Some(kid) = header.kid else {
                return Err(TokenError::Invalid("its header has no kid, by which keys are found".to_owned()));
            };
            return jwks.get(&kid).await;
        }
        let key = self.keys.iter().find(|key| key.algorithms.contains(&header.alg));
        key.cloned()
            .ok_or_else(|| TokenError::Invalid(format!("no key is configured for the algorithm {:?}", header.alg)))
    }

    /// Reads a token that is valid now, with its key.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn verify<C: DeserializeOwned>(&self, token: &str, key: &TokenKey) -> Result<C, TokenError> {
        let invalid = |e: jsonwebtoken::errors::Error| TokenError::Invalid(e.to_string());
        let algorithm = decode_header(token).map_err(invalid)?.alg;
        // The key says what it is for, not the token: else one could be made with a public key for a secret.
        if !key.algorithms.contains(&algorithm) {
            return Err(TokenError::Invalid(format!("its key is not for the algorithm {algorithm:?}")));
        }
        // The library looks at the signature alone: of claims that are absent or of another type it says nothing.
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let claims = decode::<Box<RawValue>>(token, &key.key, &validation).map_err(invalid)?.claims;
        self.check(read(&claims)?)?;
        read(&claims)
    }

    /// Whether it is for this server, and valid now.
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
                return refuse("its aud is not the audience of the configuration");
            }
        }
        if let Some(issuer) = &self.issuer
            && claims.iss.as_str() != Some(issuer)
        {
            return refuse("its iss is not the issuer of the configuration");
        }
        // One that is not valid yet may be in a moment: as one that has expired, it has its client come again.
        let now_ms = self.env.wall_ms();
        let over = claims.exp.is_some_and(|exp| !exp.is_after(now_ms));
        let early = claims.nbf.is_some_and(|nbf| nbf.is_after(now_ms));
        if over || early { Err(TokenError::Expired) } else { Ok(()) }
    }
}

fn read<C: DeserializeOwned>(claims: &RawValue) -> Result<C, TokenError> {
    serde_json::from_str(claims.get()).map_err(|e| TokenError::Invalid(format!("its claims cannot be read: {e}")))
}

/// For how many seconds from `now_s` something goes on, by its claims; `None`: for ever.
pub fn ttl(exp: Option<Moment>, expire_at: Option<i64>, now_s: u64) -> Option<u32> {
    let ends = match expire_at {
        Some(at) => u64::try_from(at).ok().filter(|at| *at > 0)?,
        None => exp?.seconds(),
    };
    Some(u32::try_from(ends.saturating_sub(now_s)).unwrap_or(u32::MAX).max(1))
}
