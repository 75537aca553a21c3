//! Token keys and required claims: Centrifugo v6's options.

use http::Uri;
use serde::{Deserialize, Serialize};

use super::{ClientConfig, LiveConfigError};

/// The section of [`TokenConfig`].
pub(crate) const TOKEN: &str = "client.token";

/// The section of [`SubscriptionTokenConfig`].
pub(crate) const SUBSCRIPTION_TOKEN: &str = "client.subscription_token";

/// Verification of tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenConfig {
    /// For HS256, HS384, HS512.
    pub hmac_secret_key: String,
    /// For RS256, RS384, RS512; PEM.
    pub rsa_public_key: String,
    /// For ES256, ES384; PEM.
    pub ecdsa_public_key: String,
    /// The URL of a set of JSON Web Keys, selected by `kid`. If it is set, the keys above are not
    /// used, as in Centrifugo.
    pub jwks_public_endpoint: String,
    /// The `aud` that a token must have; empty for any.
    pub audience: String,
    /// The `iss` that a token must have; empty for any.
    pub issuer: String,
}

/// Verification of subscription tokens. If it is enabled, `client.token` does not apply to them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct SubscriptionTokenConfig {
    /// Whether this section applies instead of `client.token`.
    pub enabled: bool,
    /// Keys and claims.
    #[serde(flatten)]
    pub token: TokenConfig,
}

impl SubscriptionTokenConfig {
    /// The section, if it is enabled.
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

/// Checks what the types do not enforce.
pub(crate) fn check(client: &ClientConfig) -> Result<(), LiveConfigError> {
    jwks_endpoint(&client.token, TOKEN)?;
    if let Some(token) = client.subscription_token.in_force() {
        jwks_endpoint(token, SUBSCRIPTION_TOKEN)?;
    }
    Ok(())
}

/// The endpoint of the key set in the section `place`; `None` if none is set.
///
/// # Errors
/// The endpoint is not an `http` or `https` URL, or has a placeholder that tokens would fill in.
pub(crate) fn jwks_endpoint(config: &TokenConfig, place: &str) -> Result<Option<Uri>, LiveConfigError> {
    let endpoint = config.jwks_public_endpoint.as_str();
    if endpoint.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| LiveConfigError(format!("{place}.jwks_public_endpoint: {endpoint:?}: {why}"));
    if let Some(begin) = endpoint.find("{{") {
        let end = endpoint[begin..].find("}}").map_or(endpoint.len(), |end| begin + end + 2);
        return Err(wrong(&format!(
            "{} is not filled in from issuer_regex or audience_regex, which are not supported: set the URL of one set of keys, and its issuer in {place}.issuer",
            &endpoint[begin..end]
        )));
    }
    let uri: Uri = endpoint.parse().map_err(|_| wrong("not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("use a URL that begins with http:// or https://"));
    }
    Ok(Some(uri))
}
