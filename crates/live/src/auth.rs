//! Tokens: who a session belongs to, and what it may subscribe to. JSON Web Tokens with Centrifugo's claims.

use std::collections::BTreeMap;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::config::{LiveConfigError, TokenConfig};
use crate::options::SubscribeOptions;

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
}

/// Verifies tokens.
pub struct Verifier {
    keys: Vec<(&'static [Algorithm], DecodingKey)>,
    audience: Option<String>,
    issuer: Option<String>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    /// With these keys.
    ///
    /// # Errors
    /// A key that cannot be read.
    pub fn new(config: &TokenConfig) -> Result<Self, LiveConfigError> {
        let mut keys: Vec<(&'static [Algorithm], DecodingKey)> = Vec::new();
        if !config.hmac_secret_key.is_empty() {
            let key = DecodingKey::from_secret(config.hmac_secret_key.as_bytes());
            keys.push((&[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512], key));
        }
        if !config.rsa_public_key.is_empty() {
            let key = DecodingKey::from_rsa_pem(config.rsa_public_key.as_bytes())
                .map_err(|e| LiveConfigError(format!("client.token.rsa_public_key: not a key in PEM: {e}")))?;
            keys.push((&[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512], key));
        }
        if !config.ecdsa_public_key.is_empty() {
            let key = DecodingKey::from_ec_pem(config.ecdsa_public_key.as_bytes())
                .map_err(|e| LiveConfigError(format!("client.token.ecdsa_public_key: not a key in PEM: {e}")))?;
            keys.push((&[Algorithm::ES256, Algorithm::ES384], key));
        }
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        Ok(Self { keys, audience: text(&config.audience), issuer: text(&config.issuer) })
    }

    /// Whether any token could be valid.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Reads a token that is valid now.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn verify<C: for<'de> Deserialize<'de>>(&self, token: &str) -> Result<C, TokenError> {
        let invalid = |e: jsonwebtoken::errors::Error| match e.kind() {
            jsonwebtoken::errors::ErrorKind::ExpiredSignature => TokenError::Expired,
            _ => TokenError::Invalid(e.to_string()),
        };
        let algorithm = decode_header(token).map_err(invalid)?.alg;
        let key = self.keys.iter().find(|(algorithms, _)| algorithms.contains(&algorithm));
        let Some((_, key)) = key else {
            return Err(TokenError::Invalid(format!("no key is configured for the algorithm {algorithm:?}")));
        };
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
        decode::<C>(token, key, &validation).map(|data| data.claims).map_err(invalid)
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
