//! Keys fetched from an endpoint with scripted answers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{EncodingKey, Header, encode};
use steadfast_flow::{BoxFuture, Runtime, TokioRuntime};
use tokio::sync::{Semaphore, mpsc};

use super::jwks::{KEYS_MAX, PAUSE, PAUSE_FAILED, REFRESH, TTL, keys_of};
use super::key_sets::SETS_MAX;
use super::*;
use crate::config::auth::TOKEN;
use crate::proxy::tests::{ReceivedRequest, back_end};

/// A key made for these tests.
const EC: &[u8] = b"-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg6dZ57R2nbtoeoUwm
nHcQ0eX4OPE8pBgftQ6biYWN46uhRANCAARytLFhrxw/LAkApKa2x64k7nQGCpcD
4x9eQiP6CMg5+ZbhhY49xWLUkIiZazr0mgWqJvUGTln7M9BU02mAbrr3
-----END PRIVATE KEY-----";

/// The modulus of an RSA public key: the example of RFC 7517.
const RSA: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";

/// The real environment with a clock that tests advance.
#[derive(Clone)]
struct Ahead(Arc<(TokioRuntime, AtomicU64)>);

impl Ahead {
    fn new() -> Self {
        Self(Arc::new((TokioRuntime::current(), AtomicU64::new(0))))
    }

    fn env(&self) -> Env {
        Env::new(self.clone())
    }

    fn advance(&self, by: Duration) {
        self.0.1.fetch_add(by.as_millis() as u64, Relaxed);
    }
}

impl Runtime for Ahead {
    fn now(&self) -> Duration {
        self.0.0.now() + Duration::from_millis(self.0.1.load(Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        self.0.0.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.0.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.0.0.spawn(name, task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        self.0.0.blocking(work)
    }

    fn random_u64(&self) -> u64 {
        self.0.0.random_u64()
    }
}

fn signing() -> EncodingKey {
    EncodingKey::from_ec_pem(EC).expect("a key")
}

/// A set with the key above under these key IDs.
fn set(kids: &[&str]) -> String {
    let jwk = |kid: &&str| {
        let mut jwk = Jwk::from_encoding_key(&signing(), Algorithm::ES256).expect("a key");
        jwk.common.key_id = Some((*kid).to_owned());
        jwk.common.public_key_use = Some(PublicKeyUse::Signature);
        serde_json::to_value(jwk).expect("JSON")
    };
    serde_json::json!({"keys": kids.iter().map(jwk).collect::<Vec<_>>()}).to_string()
}

fn token(kid: &str) -> String {
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
    encode(&header, &serde_json::json!({"sub": "ann"}), &signing()).expect("signed")
}

/// A verifier whose endpoint sends these answers, one for each permit.
async fn verifier(
    clock: &Ahead,
    waiting: usize,
    answers: Vec<String>,
) -> (Arc<Verifier>, mpsc::Receiver<ReceivedRequest>, Arc<Semaphore>) {
    let answers: Vec<&'static str> = answers.into_iter().map(|answer| &*answer.leak()).collect();
    let (url, requests, permits) = back_end(&clock.env(), answers.leak()).await;
    let config = TokenConfig { jwks_public_endpoint: url, ..TokenConfig::default() };
    (Arc::new(Verifier::new(TOKEN, &config, waiting, &clock.env()).expect("valid")), requests, permits)
}

async fn user(verifier: &Verifier, token: &str) -> Result<String, TokenError> {
    let key = verifier.key_of(token).await?;
    Ok(verifier.verify::<ConnectClaims>(token, &key)?.sub)
}

fn fetches(verifier: &Verifier) -> (u64, u64) {
    let status = verifier.status().expect("keys are fetched");
    (status.requests, status.failures)
}

#[tokio::test]
async fn keys_are_fetched_once_and_unknown_names_do_not_cause_a_fetch_each() {
    let clock = Ahead::new();
    let (verifier, mut requests, permits) = verifier(&clock, 4, vec![set(&["a"]), set(&["a", "b"]), set(&["b"])]).await;
    permits.add_permits(100);
    assert!(verifier.has_keys());
    assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
    assert!(requests.recv().await.expect("a request").1.starts_with("GET /ask?it=1 HTTP/1.1\r\n"));
    assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
    // The key may be new: the client retries later.
    for _ in 0..10 {
        assert_eq!(user(&verifier, &token("b")).await, Err(TokenError::KeyUnavailable));
    }
    assert_eq!(fetches(&verifier), (1, 0));
    clock.advance(PAUSE);
    assert_eq!(user(&verifier, &token("b")).await, Ok("ann".to_owned()));
    assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
    clock.advance(PAUSE);
    assert!(matches!(user(&verifier, &token("c")).await, Err(TokenError::Invalid(why)) if why.contains("\"c\"")));
    // The fetch replaced the whole set, which dropped the withdrawn key.
    assert_eq!(user(&verifier, &token("a")).await, Err(TokenError::KeyUnavailable));
    assert_eq!(fetches(&verifier), (3, 0));
    let nameless = encode(&Header::new(Algorithm::ES256), &serde_json::json!({}), &signing()).expect("signed");
    assert!(matches!(user(&verifier, &nameless).await, Err(TokenError::Invalid(why)) if why.contains("kid")));
}

#[tokio::test]
async fn concurrent_tokens_share_one_fetch_and_the_excess_is_refused() {
    let clock = Ahead::new();
    let (verifier, mut requests, permits) = verifier(&clock, 3, vec![set(&["a"])]).await;
    let (done, mut dones) = mpsc::channel(8);
    let start = async |kid: &str| {
        let (verifier, done, token) = (verifier.clone(), done.clone(), token(kid));
        clock.env().spawn("token", async move {
            let _ = done.send(user(&verifier, &token).await).await;
        });
        tokio::task::yield_now().await;
    };
    start("a").await;
    requests.recv().await.expect("a request");
    for kid in ["a", "a", "other"] {
        start(kid).await;
    }
    // One token fetches and three wait: the gate refuses the fifth.
    assert_eq!(user(&verifier, &token("a")).await, Err(TokenError::Busy));
    permits.add_permits(1);
    let mut results = Vec::new();
    for _ in 0..4 {
        results.push(dones.recv().await.expect("each is answered"));
    }
    assert_eq!(results.iter().filter(|found| found.is_ok()).count(), 3);
    assert!(
        results.contains(&Err(TokenError::KeyUnavailable)),
        "the key ID arrived after the fetch began, so the key may be new"
    );
    assert_eq!(fetches(&verifier), (1, 0));
}

#[tokio::test]
async fn a_failing_endpoint_refuses_only_tokens_whose_keys_are_too_old() {
    let clock = Ahead::new();
    let answers = ["500 x", "302 x", "not JSON", r#"{"keys": []}"#].map(str::to_owned);
    let answers = answers.into_iter().chain([set(&["a"]), "500 x".into(), set(&["a"]), "500 x".into()]).collect();
    let (verifier, _requests, permits) = verifier(&clock, 4, answers).await;
    permits.add_permits(100);
    for failures in 1..=4 {
        for _ in 0..3 {
            assert_eq!(user(&verifier, &token("a")).await, Err(TokenError::KeyUnavailable));
        }
        assert_eq!(fetches(&verifier), (failures, failures));
        clock.advance(PAUSE_FAILED);
    }
    assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
    // Old keys stay in use while a background fetch replaces them.
    let refreshed = async |expected| {
        assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
        while fetches(&verifier) != expected || verifier.status().expect("there").in_flight > 0 {
            tokio::task::yield_now().await;
        }
    };
    clock.advance(REFRESH);
    refreshed((6, 5)).await;
    assert_eq!(user(&verifier, &token("a")).await, Ok("ann".to_owned()));
    clock.advance(PAUSE_FAILED);
    refreshed((7, 5)).await;
    clock.advance(TTL);
    assert_eq!(user(&verifier, &token("a")).await, Err(TokenError::KeyUnavailable));
    assert_eq!(fetches(&verifier), (8, 6));
}

#[tokio::test]
async fn each_issuer_has_a_key_set_of_its_own() {
    let clock = Ahead::new();
    let answers = vec![set(&["a"]), set(&["b"]), set(&["a"])];
    let answers: Vec<&'static str> = answers.into_iter().map(|answer| &*answer.leak()).collect();
    let (url, mut requests, permits) = back_end(&clock.env(), answers.leak()).await;
    permits.add_permits(100);
    let config = TokenConfig {
        jwks_public_endpoint: url.replace("/ask", "/{{realm}}/keys"),
        issuer_regex: "^id/(?P<realm>.*)$".to_owned(),
        insecure_skip_jwks_endpoint_safety_check: true,
        ..TokenConfig::default()
    };
    let verifier = Verifier::new(TOKEN, &config, 4, &clock.env()).expect("valid");
    let of = |issuer: &str, kid: &str| {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
        encode(&header, &serde_json::json!({"sub": "ann", "iss": issuer}), &signing()).expect("signed")
    };
    for (issuer, kid, path) in [("id/one", "a", "/one/keys"), ("id/two", "b", "/two/keys")] {
        assert_eq!(user(&verifier, &of(issuer, kid)).await, Ok("ann".to_owned()));
        assert!(requests.recv().await.expect("a request").1.starts_with(&format!("GET {path}?")));
    }
    assert_eq!(user(&verifier, &of("id/one", "a")).await, Ok("ann".to_owned()));
    assert_eq!(user(&verifier, &of("id/two", "a")).await, Err(TokenError::KeyUnavailable), "a key of another issuer");
    for issuer in ["other/one", "", "id/..", "id/", "id/a b"] {
        assert!(matches!(user(&verifier, &of(issuer, "a")).await, Err(TokenError::Invalid(_))), "{issuer}");
    }
    assert_eq!(fetches(&verifier), (2, 0));
    // Beyond the bound, sets without keys are dropped first.
    let sets = verifier.key_sets.as_ref().expect("configured");
    for n in 0..SETS_MAX + 9 {
        sets.of(&BTreeMap::from([("realm".to_owned(), n.to_string())])).expect("a URL");
    }
    assert_eq!(user(&verifier, &of("id/one", "a")).await, Ok("ann".to_owned()));
    assert_eq!(fetches(&verifier), (2, 0));
}

#[test]
fn keys_verify_only_their_algorithms() {
    let rsa = |more: &str| format!(r#"{{"kty": "RSA", "n": "{RSA}", "e": "AQAB"{more}}}"#);
    let keys = [
        rsa(r#", "kid": "rsa""#),
        rsa(r#", "kid": "rs256", "alg": "RS256", "use": "sig", "key_ops": ["verify"]"#),
        rsa(r#", "kid": "enc", "use": "enc""#),
        rsa(r#", "kid": "ops", "key_ops": ["encrypt"]"#),
        rsa(r#", "kid": "oaep", "alg": "RSA-OAEP""#),
        rsa(r#", "kid": "es", "alg": "ES256""#),
        rsa(""),
        r#"{"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"}"#.to_owned(),
        r#"{"kty": "EC", "kid": "p521", "crv": "P-521", "x": "AA", "y": "AA"}"#.to_owned(),
        r#"{"kty": "EC", "kid": "p384", "crv": "P-384", "x": "AA", "y": "AA"}"#.to_owned(),
        r#"{"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#
            .to_owned(),
        r#"{"kty": "EC", "kid": 7}"#.to_owned(),
        "[]".to_owned(),
    ];
    let found = keys_of(format!(r#"{{"keys": [{}]}}"#, keys.join(",")).as_bytes()).expect("some are usable");
    let mut kids: Vec<_> = found.keys().map(String::as_str).collect();
    kids.sort_unstable();
    assert_eq!(kids, ["ed", "p384", "rs256", "rsa"]);
    assert_eq!(found["rsa"].algorithms.len(), 6);
    assert_eq!(found["rs256"].algorithms, [Algorithm::RS256]);
    assert_eq!(found["p384"].algorithms, [Algorithm::ES384]);
    // The algorithm of the token does not count: this token uses a public key as an HMAC secret.
    let config = TokenConfig { hmac_secret_key: "s".into(), ..TokenConfig::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let verifier = Verifier::new(TOKEN, &config, 0, &runtime.block_on(async { Env::tokio() })).expect("valid");
    let secret = EncodingKey::from_secret(RSA.as_bytes());
    let forged = encode(&Header::default(), &serde_json::json!({"sub": "ann"}), &secret).expect("signed");
    let refused = verifier.verify::<ConnectClaims>(&forged, &found["rsa"]).map(|claims| claims.sub);
    assert!(matches!(refused, Err(TokenError::Invalid(why)) if why.contains("HS256")));
    let critical = Header { crit: Some(vec!["exp".to_owned()]), ..Header::default() };
    let critical =
        encode(&critical, &serde_json::json!({"sub": "ann"}), &EncodingKey::from_secret(b"s")).expect("signed");
    let refused = verifier.verify::<ConnectClaims>(&critical, &verifier.keys[0]).map(|claims| claims.sub);
    assert!(matches!(refused, Err(TokenError::Invalid(why)) if why.contains("crit")));
    let many: Vec<_> = (0..KEYS_MAX + 9).map(|n| rsa(&format!(r#", "kid": "{n}""#))).collect();
    let found = keys_of(format!(r#"{{"keys": [{}]}}"#, many.join(",")).as_bytes()).expect("usable");
    assert_eq!(found.len(), KEYS_MAX);
    for set in ["", "[]", "{}", r#"{"keys": 1}"#, r#"{"keys": [{}]}"#] {
        assert!(keys_of(set.as_bytes()).is_err(), "{set}");
    }
}
