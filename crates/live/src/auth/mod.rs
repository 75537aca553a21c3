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
use serde::Deserialize;
use serde_json::value::RawValue;
use steadfast_flow::Env;

use crate::config::LiveConfigError;
use crate::options::SubscribeOptions;
use crate::protocol::codes::{self, ClientError};
use crate::proxy::ProxyStatus;

use self::config::TokenConfig;
use self::jwks::{Jwks, jwks_endpoint};

/// A connection token's claims.
#[derive(Debug, Deserialize)]
pub struct ConnectClaims {
    /// The user.
    #[serde(default)]
    pub sub: String,
    /// When it ends, seconds since the Unix epoch.
    pub exp: Option<u64>,
    /// When the session ends, if that is not `exp`; 0: never.
    pub expire_at: Option<u64>,
    /// What others are told of the session.
    pub info: Option<Box<RawValue>>,
    /// Subscriptions that the server makes.
    #[serde(default)]
    pub channels: Vec<String>,
    /// The same, with options.
    #[serde(default)]
    pub(crate) subs: BTreeMap<String, SubscribeOptions>,
    /// What is attached to the session, for the back end alone.
    pub meta: Option<Box<RawValue>>,
}

/// A subscription token's claims.
#[derive(Debug, Deserialize)]
pub struct SubscribeClaims {
    /// The user.
    #[serde(default)]
    pub sub: String,
    /// The channel.
    #[serde(default)]
    pub channel: String,
    /// When it ends, seconds since the Unix epoch.
    pub exp: Option<u64>,
    /// When the subscription ends, if that is not `exp`; 0: never.
    pub expire_at: Option<u64>,
    /// What others are told of the subscription.
    pub info: Option<Box<RawValue>>,
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
        Ok(Self { keys, jwks, audience: text(&config.audience), issuer: text(&config.issuer) })
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
    pub fn verify<C: for<'de> Deserialize<'de>>(&self, token: &str, key: &TokenKey) -> Result<C, TokenError> {
        let invalid = |e: jsonwebtoken::errors::Error| match e.kind() {
            jsonwebtoken::errors::ErrorKind::ExpiredSignature => TokenError::Expired,
            _ => TokenError::Invalid(e.to_string()),
        };
        let algorithm = decode_header(token).map_err(invalid)?.alg;
        // The key says what it is for, not the token: else one could be made with a public key for a secret.
        if !key.algorithms.contains(&algorithm) {
            return Err(TokenError::Invalid(format!("its key is not for the algorithm {algorithm:?}")));
        }
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.leeway = 0;
        validation.validate_nbf = true;
        validation.validate_aud = self.audience.is_some();
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
        }
        decode::<C>(token, &key.key, &validation).map(|data| data.claims).map_err(invalid)
    }
}

/// For how many seconds from `now_s` something goes on, by its claims; `None`: for ever.
pub fn ttl(exp: Option<u64>, expire_at: Option<u64>, now_s: u64) -> Option<u32> {
    let ends = match expire_at {
        Some(0) => return None,
        Some(at) => at,
        None => exp?,
    };
    Some(u32::try_from(ends.saturating_sub(now_s)).unwrap_or(u32::MAX).max(1))
}
