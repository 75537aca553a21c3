//! The back ends of a node: verifiers of tokens, and clients of the application.

use steadfast_flow::Env;
use tracing::subscriber::{NoSubscriber, with_default};

use crate::auth::Verifier;
use crate::config::auth::{SUBSCRIPTION_TOKEN, TOKEN};
use crate::config::{LiveConfig, LiveConfigError};
use crate::metrics::ProxyStatus;
use crate::proxy::Proxies;

/// Verifiers of tokens, and clients of the application's back ends.
pub(crate) struct BackEnds {
    pub(crate) verifier: Verifier,
    /// The verifier of subscription tokens, if they have their own keys.
    own_subscription_verifier: Option<Verifier>,
    pub(crate) proxies: Proxies,
}

impl BackEnds {
    /// Builds them from a configuration. Each proxy has at most `requests` requests in flight, and
    /// `waiting` queued.
    ///
    /// # Errors
    /// The first setting that is invalid, or that names a file which cannot be used.
    pub(crate) fn new(
        config: &LiveConfig,
        in_cluster: bool,
        (requests, waiting): (usize, usize),
        env: &Env,
    ) -> Result<Self, LiveConfigError> {
        config.check()?;
        if config.client.subscribe_to_user_personal_channel.single_connection && in_cluster {
            let why = "client.subscribe_to_user_personal_channel.single_connection is not supported in a cluster";
            return Err(LiveConfigError(why.to_owned()));
        }
        let skips_signatures = config.client.insecure_skip_token_signature_verify;
        if skips_signatures {
            tracing::warn!("INSECURE: client.insecure_skip_token_signature_verify is set: any client can be any user");
        }
        let verifier = Verifier::new(TOKEN, &config.client.token, waiting, env)?.skipping_signatures(skips_signatures);
        let own = config.client.subscription_token.in_force();
        let own = own.map(|token| Verifier::new(SUBSCRIPTION_TOKEN, token, waiting, env));
        let own_subscription_verifier = own.transpose()?.map(|own| own.skipping_signatures(skips_signatures));
        let proxies = Proxies::new(config, requests, waiting, env)?;
        Ok(Self { verifier, own_subscription_verifier, proxies })
    }

    /// The verifier of subscription tokens.
    pub(crate) fn subscription_verifier(&self) -> &Verifier {
        self.own_subscription_verifier.as_ref().unwrap_or(&self.verifier)
    }

    /// The status of requests to back ends.
    pub(crate) fn status(&self) -> Vec<ProxyStatus> {
        let verifiers = std::iter::once(&self.verifier).chain(&self.own_subscription_verifier);
        self.proxies.status().into_iter().chain(verifiers.filter_map(Verifier::status)).collect()
    }
}

/// Checks all that a node builds from a configuration, by building it. The log gets no line: the
/// start of the node writes them.
///
/// # Errors
/// Those of [`crate::Node::new`].
pub fn check(config: &LiveConfig, in_cluster: bool, env: &Env) -> Result<(), LiveConfigError> {
    with_default(NoSubscriber::default(), || {
        BackEnds::new(config, in_cluster, (1, 1), env)?;
        config.channel_regexes().map(drop)
    })
}

#[cfg(test)]
mod tests {
    use steadfast_flow::TokioRuntime;

    use super::*;

    #[tokio::test]
    async fn what_a_start_would_refuse_is_refused() {
        let env = Env::new(TokioRuntime::current());
        let checked = |text: &str| {
            let config: LiveConfig = serde_json::from_str(text).expect("options");
            check(&config, false, &env).map_err(|e| e.to_string())
        };
        assert_eq!(checked("{}"), Ok(()));
        for (text, expected) in [
            (r#"{"client": {"token": {"rsa_public_key": "x"}}}"#, "client.token.rsa_public_key: not a key"),
            (r#"{"client": {"token": {"ecdsa_public_key": "x"}}}"#, "client.token.ecdsa_public_key: not a key"),
            (
                r#"{"client": {"subscription_token": {"enabled": true, "rsa_public_key": "x"}}}"#,
                "client.subscription_token.rsa_public_key: not a key",
            ),
            (
                r#"{"client": {"proxy": {"connect": {"enabled": true, "endpoint": "ftp://h/"}}}}"#,
                "the connect proxy \"default\": endpoint",
            ),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(checked(r#"{"client": {"subscription_token": {"rsa_public_key": "x"}}}"#), Ok(()), "not enabled");
    }
}
