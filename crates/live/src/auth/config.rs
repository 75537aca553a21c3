//! Keys of tokens, and what else tokens must have: Centrifugo v6's options.

use serde::{Deserialize, Serialize};

use super::jwks_endpoint;
use crate::config::{ClientConfig, LiveConfigError};

/// Where [`TokenConfig`] stands in the configuration,
pub(crate) const TOKEN: &str = "client.token";

/// and [`SubscriptionTokenConfig`].
pub(crate) const SUBSCRIPTION_TOKEN: &str = "client.subscription_token";

/// How tokens are verified.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenConfig {
    /// For HS256, HS384, HS512.
    pub hmac_secret_key: String,
    /// For RS256, RS384, RS512; PEM.
    pub rsa_public_key: String,
    /// For ES256, ES384; PEM.
    pub ecdsa_public_key: String,
    /// Where the keys are, by their `kid`: a set of JSON Web Keys over HTTP. The keys above count for nothing then, as in Centrifugo.
    pub jwks_public_endpoint: String,
    /// The `aud` that a token must have; empty for any.
    pub audience: String,
    /// The `iss` that a token must have; empty for any.
    pub issuer: String,
}

/// How tokens of subscriptions are verified. If it is enabled, nothing of `client.token` counts for them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct SubscriptionTokenConfig {
    /// Whether it is otherwise than `client.token` says.
    pub enabled: bool,
    /// Keys and claims.
    #[serde(flatten)]
    pub token: TokenConfig,
}

impl SubscriptionTokenConfig {
    /// It, if it is enabled.
    pub fn in_force(&self) -> Option<&TokenConfig> {
        self.enabled.then_some(&self.token)
    }
}

impl TryFrom<serde_json::Map<String, serde_json::Value>> for SubscriptionTokenConfig {
    type Error = String;

    fn try_from(mut map: serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let enabled = match map.remove("enabled") {
            None => false,
            Some(enabled) => {
                serde_json::from_value(enabled).map_err(|e| format!("{SUBSCRIPTION_TOKEN}.enabled: {e}"))?
            }
        };
        let token = serde_json::from_value(map.into()).map_err(|e| format!("in {SUBSCRIPTION_TOKEN}: {e}"))?;
        Ok(Self { enabled, token })
    }
}

/// Checks what the types do not.
pub(crate) fn check(client: &ClientConfig) -> Result<(), LiveConfigError> {
    jwks_endpoint(&client.token, TOKEN)?;
    if let Some(token) = client.subscription_token.in_force() {
        jwks_endpoint(token, SUBSCRIPTION_TOKEN)?;
    }
    Ok(())
}
