//! One request to a webhook, and the meaning of its answer.
//!
//! With a secret, requests are signed as in "Standard Webhooks" (standardwebhooks.com), which has
//! libraries. `webhook-id` is the same in every request for an event. `webhook-timestamp` is the
//! time of the request in seconds since 1970. `webhook-signature` is `v1,` and the Base64 of
//! HMAC-SHA256 over the two and the body, joined by dots.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use sha2::Sha256;
use steadfast_flow::Env;
use steadfast_live::ProxyTlsConfig;
use steadfast_net::{HttpClient, exchange, shown_url};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use crate::config::Webhook;

/// Maximum bytes read of an answer. The content is ignored.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Maximum wait, whatever `Retry-After` demands.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Prefix of secrets of "Standard Webhooks"; Base64 follows.
const STANDARD_SECRET: &str = "whsec_";

/// Sends requests to a webhook.
pub(super) struct Poster {
    url: Uri,
    headers: HeaderMap,
    secret: Option<Vec<u8>>,
    client: HttpClient,
    timeout: Duration,
    env: Env,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The webhook accepted the event.
    Taken,
    /// The webhook refuses the event for good (410), or it cannot be sent.
    Undeliverable(String),
    /// Another answer; the webhook wants no request before `after` has passed.
    Refused { why: String, after: Option<Duration> },
    /// There was no answer.
    Unanswered(String),
}

impl Poster {
    /// # Errors
    /// The setting of the webhook that cannot be used, as a message.
    pub(super) fn new(hook: &Webhook, connections: usize, timeout: Duration, env: &Env) -> Result<Self, String> {
        let url: Uri = hook.url.parse().map_err(|e| format!("{:?} is not a URL: {e}", shown_url(&hook.url)))?;
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        for (name, value) in &hook.headers {
            let name: HeaderName = name.parse().map_err(|e| format!("headers: {name:?}: {e}"))?;
            let mut value = HeaderValue::from_str(value).map_err(|e| format!("headers: {name}: {e}"))?;
            // The value may be a secret.
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some(authorization) = hook.authorization.read().map_err(|e| format!("authorization: {e}"))? {
            let mut value = HeaderValue::from_str(&authorization).map_err(|e| format!("authorization: {e}"))?;
            value.set_sensitive(true);
            headers.insert("authorization", value);
        }
        let secret = hook.secret.read().map_err(|e| format!("secret: {e}"))?;
        let secret = secret.map(|text| secret_bytes(&text)).transpose()?;
        let tls = ProxyTlsConfig {
            enabled: url.scheme_str() == Some("https"),
            cert_pem: hook.cert_pem.clone(),
            key_pem: hook.key_pem.clone(),
            server_ca_pem: hook.server_ca_pem.clone(),
            insecure_skip_verify: hook.insecure_skip_verify,
            server_name: hook.server_name.clone(),
        };
        let client = tls.http_client(&url, connections, &hook.name)?;
        warn(hook, &url);
        Ok(Self { url, headers, secret, client, timeout, env: env.clone() })
    }

    /// Posts an event once.
    pub(super) async fn post(&self, id: &str, event: Bytes) -> Outcome {
        let mut request = Request::new(Full::new(event.clone()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        if let Some(secret) = &self.secret {
            let seconds = self.env.wall_ms() / 1000;
            let signed = [
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", seconds.to_string()),
                ("webhook-signature", signature(secret, id, seconds, &event)),
            ];
            for (name, value) in signed {
                match HeaderValue::from_str(&value) {
                    Ok(value) => drop(request.headers_mut().insert(name, value)),
                    Err(error) => return Outcome::Undeliverable(format!("{name}: {error}")),
                }
            }
        }
        let now = OffsetDateTime::from_unix_timestamp((self.env.wall_ms() / 1000).cast_signed());
        match self.env.timeout(self.timeout, exchange(&self.client, request, ANSWER_BYTES_MAX)).await {
            Some(Ok(answer)) => meaning(answer.status(), answer.headers(), now.unwrap_or(OffsetDateTime::UNIX_EPOCH)),
            Some(Err(why)) => Outcome::Unanswered(why),
            None => Outcome::Unanswered(format!("no answer within {:?}", self.timeout)),
        }
    }
}

/// Warns of settings that are allowed but unsafe.
fn warn(hook: &Webhook, url: &Uri) {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if url.scheme_str() == Some("http") && !here {
        tracing::warn!(
            webhook = hook.name,
            url = shown_url(&hook.url),
            "events and their authorization are sent in clear text: use https://"
        );
    }
    if hook.insecure_skip_verify {
        tracing::warn!(webhook = hook.name, "insecure_skip_verify: the identity of this webhook is not verified");
    }
}

fn secret_bytes(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix(STANDARD_SECRET) {
        Some(encoded) => {
            STANDARD.decode(encoded).map_err(|_| format!("secret: what follows {STANDARD_SECRET} is not Base64"))
        }
        None => Ok(text.as_bytes().to_vec()),
    }
}

fn signature(secret: &[u8], id: &str, seconds: u64, body: &[u8]) -> String {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return String::new() };
    mac.update(format!("{id}.{seconds}.").as_bytes());
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// The outcome that an answer means.
fn meaning(status: StatusCode, headers: &HeaderMap, now: OffsetDateTime) -> Outcome {
    let why = format!("it answered {status}");
    match status.as_u16() {
        _ if status.is_success() => Outcome::Taken,
        410 => Outcome::Undeliverable(why),
        _ => Outcome::Refused { why, after: retry_after(headers, now) },
    }
}

fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let left = OffsetDateTime::parse(text, &Rfc2822).ok()? - now;
            Duration::try_from(left).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_map_to_outcomes() {
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a time");
        let with = |status: u16, after: &str| {
            let mut headers = HeaderMap::new();
            if !after.is_empty() {
                headers.insert("retry-after", after.parse().expect("a value"));
            }
            meaning(StatusCode::from_u16(status).expect("a status"), &headers, now)
        };
        assert_eq!(with(204, ""), Outcome::Taken);
        assert!(matches!(with(410, ""), Outcome::Undeliverable(_)));
        for status in [301, 400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503] {
            assert!(matches!(with(status, ""), Outcome::Refused { after: None, .. }), "{status}");
        }
        let after = |text: &str| match with(503, text) {
            Outcome::Refused { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("Tue, 14 Nov 2023 22:13:30 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(after("Tue, 14 Nov 2023 22:13:00 GMT"), Some(Duration::ZERO));
        assert_eq!(after("99999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(after("soon"), None);
    }

    #[test]
    fn requests_are_signed_as_standard_webhooks() {
        // The example of the specification's libraries.
        let secret = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("valid");
        let signed = signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(secret_bytes("plain").expect("valid"), b"plain");
        assert!(secret_bytes("whsec_?").expect_err("not Base64").contains("Base64"));
    }
}
