//! The key sets of one section of the configuration: one set, or one for each URL that the claims
//! of tokens fill in.
//!
//! A key counts only for the URL that it is from: key IDs of two issuers may be equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_net::{HttpClient, http_client};

use super::TokenError;
use super::jwks::{FetchCounters, Jwks};
use crate::config::LiveConfigError;
use crate::config::auth::TOKEN;
use crate::config::jwks::JwksEndpoint;
use crate::metrics::ProxyStatus;

/// Maximum number of sets. Beyond it, the least recently used one is dropped, and first of all one
/// that no fetch has filled.
pub(super) const SETS_MAX: usize = 64;

/// The key sets of one section of the configuration, by their URL.
pub(super) struct KeySets {
    place: &'static str,
    pub(super) endpoint: JwksEndpoint,
    client: HttpClient,
    waiting: usize,
    env: Env,
    counters: Arc<FetchCounters>,
    /// The most recently used set is the last.
    sets: Mutex<Vec<Arc<Jwks>>>,
}

impl KeySets {
    /// The key sets at this endpoint, for each of which `waiting` tokens may wait.
    ///
    /// # Errors
    /// The endpoint is not a valid URL, or no root certificates are found.
    pub(super) fn new(
        place: &'static str,
        endpoint: JwksEndpoint,
        waiting: usize,
        env: Env,
    ) -> Result<Self, LiveConfigError> {
        if let Some(why) = &endpoint.unsafe_because {
            tracing::warn!(%why, "INSECURE: a token can choose the URL of its keys");
        }
        let client = endpoint.example().and_then(|url| http_client(&url, 1));
        let client = client.map_err(|e| LiveConfigError(format!("{place}.jwks_public_endpoint: {e}")))?;
        let (counters, sets) = (Arc::default(), Mutex::default());
        Ok(Self { place, endpoint, client, waiting, env, counters, sets })
    }

    /// The set at the URL that these values fill in.
    ///
    /// # Errors
    /// They do not result in a URL.
    pub(super) fn of(&self, values: &BTreeMap<String, String>) -> Result<Arc<Jwks>, TokenError> {
        let url = self.endpoint.filled(values);
        let url = url.map_err(|e| TokenError::Invalid(format!("the URL of its keys, from its claims: {e}")))?;
        let mut sets = self.sets.lock();
        let set = if let Some(at) = sets.iter().position(|set| set.endpoint == url) {
            sets.remove(at)
        } else {
            if sets.len() >= SETS_MAX {
                let empty = sets.iter().position(|set| !set.has_keys());
                sets.remove(empty.unwrap_or(0));
            }
            let (client, counters, env) = (self.client.clone(), self.counters.clone(), self.env.clone());
            Arc::new(Jwks::new(self.place, url, client, counters, self.waiting, env))
        };
        sets.push(set.clone());
        Ok(set)
    }

    /// The counters of fetches.
    pub(super) fn status(&self) -> ProxyStatus {
        ProxyStatus {
            event: "jwks",
            proxy: if self.place == TOKEN { "default" } else { "subscription_token" }.to_owned(),
            requests: self.counters.fetches.load(Relaxed),
            failures: self.counters.failures.load(Relaxed),
            in_flight: self.sets.lock().iter().map(|set| set.in_flight()).sum(),
            refused: self.counters.refused.load(Relaxed),
        }
    }
}
