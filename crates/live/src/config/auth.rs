//! Token keys and required claims: Centrifugo v6's options.

use http::HeaderName;
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::jwks::JwksEndpoint;
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
    /// The HMAC key before a rotation: a token that the current key does not verify is tried with
    /// it.
    pub hmac_previous_secret_key: String,
    /// The last second of the previous key, in seconds since the Unix epoch; 0: no end.
    pub hmac_previous_secret_key_valid_until: i64,
    /// For RS256, RS384, RS512; PEM.
    pub rsa_public_key: String,
    /// For ES256, ES384; PEM.
    pub ecdsa_public_key: String,
    /// The URL of a set of JSON Web Keys, selected by `kid`. If it is set, the keys above are not
    /// used, as in Centrifugo. A placeholder `{{name}}` is filled in from the group of this name in
    /// `issuer_regex` or `audience_regex`.
    pub jwks_public_endpoint: String,
    /// Accept any expression for a placeholder. A token then chooses the URL of its own keys.
    pub insecure_skip_jwks_endpoint_safety_check: bool,
    /// The `aud` that a token must have; empty for any.
    pub audience: String,
    /// The expression that `aud` must match, instead of `audience`.
    pub audience_regex: String,
    /// The `iss` that a token must have; empty for any.
    pub issuer: String,
    /// The expression that `iss` must match, instead of `issuer`.
    pub issuer_regex: String,
    /// The claim with the user ID; empty: `sub`. Dots separate the names of nested objects.
    pub user_id_claim: String,
}

/// What a claim must be.
#[derive(Debug)]
pub(crate) enum ClaimRule {
    /// Anything, or absent.
    Any,
    /// This text.
    Equal(String),
    /// A text that matches, in any part.
    Matching(Regex),
}

impl ClaimRule {
    fn new(place: &str, name: &str, text: &str, expression: &str) -> Result<Self, LiveConfigError> {
        match (text.is_empty(), expression.is_empty()) {
            (true, true) => Ok(Self::Any),
            (false, true) => Ok(Self::Equal(text.to_owned())),
            (true, false) => Regex::new(expression)
                .map(Self::Matching)
                .map_err(|e| LiveConfigError(format!("{place}.{name}_regex: {e}"))),
            (false, false) => Err(LiveConfigError(format!("{place}: set {name} or {name}_regex, not both"))),
        }
    }

    /// Whether a claim is accepted.
    pub(crate) fn accepts(&self, claim: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Equal(text) => text == claim,
            Self::Matching(expression) => expression.is_match(claim),
        }
    }

    /// The names of the groups.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        let expression = match self {
            Self::Matching(expression) => Some(expression),
            _ => None,
        };
        expression.into_iter().flat_map(Regex::capture_names).flatten()
    }

    /// The named groups in a claim that matches.
    pub(crate) fn values_in<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = (String, String)> {
        let found = match self {
            Self::Matching(expression) => expression.captures(claim),
            _ => None,
        };
        let text = |found: &regex::Captures<'_>, name| found.name(name).map_or("", |group| group.as_str()).to_owned();
        found.into_iter().flat_map(move |found| {
            self.groups().map(move |name| (name.to_owned(), text(&found, name))).collect::<Vec<_>>()
        })
    }
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

impl TokenConfig {
    /// What `aud` must be. `place` is the section that errors name.
    ///
    /// # Errors
    /// The expression is invalid, or the value is given twice.
    pub(crate) fn audience_rule(&self, place: &str) -> Result<ClaimRule, LiveConfigError> {
        ClaimRule::new(place, "audience", &self.audience, &self.audience_regex)
    }

    /// The same for `iss`.
    pub(crate) fn issuer_rule(&self, place: &str) -> Result<ClaimRule, LiveConfigError> {
        ClaimRule::new(place, "issuer", &self.issuer, &self.issuer_regex)
    }

    fn check(&self, place: &str) -> Result<(), LiveConfigError> {
        JwksEndpoint::of(self, place)?;
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphabetic() || c == b'_');
        if !self.user_id_claim.is_empty() && !self.user_id_claim.split('.').all(is_name) {
            return Err(LiveConfigError(format!(
                "{place}.user_id_claim: {:?}: use letters and _, and dots between the names of nested objects",
                self.user_id_claim
            )));
        }
        Ok(())
    }
}

/// Checks what the types do not enforce.
pub(crate) fn check(client: &ClientConfig) -> Result<(), LiveConfigError> {
    let header = &client.user_id_http_header;
    if !header.is_empty() && header.parse::<HeaderName>().is_err() {
        return Err(LiveConfigError(format!("client.user_id_http_header: {header:?} is not the name of a header")));
    }
    client.token.check(TOKEN)?;
    client.subscription_token.in_force().map_or(Ok(()), |token| token.check(SUBSCRIPTION_TOKEN))
}
