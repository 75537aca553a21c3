//! The server API over HTTP: the key, the memory budget and the answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use serde_json::json;
use steadfast_flow::Ended;
use steadfast_flow::stages::{self, Stage};

use super::LiveDoor;
use super::answer::{Answer, parameter, text, whole};
use crate::api::ERROR_MODE;
use crate::api::json::CallError;
use crate::api::result::error_json;
use crate::api::{Terms, durability};
use crate::protocol::codes::{self, ClientError};

/// Maximum size of an API request in bytes.
const API_BYTES_MAX: usize = 10 << 20;

/// How long an API request waits for a permit.
const API_WAIT: Duration = Duration::from_secs(5);

impl LiveDoor {
    /// Reads and carries out an API request within the memory budget, or returns the answer to a
    /// request that cannot be read. An empty method means commands as lines.
    async fn carry_out(
        &self,
        method: &str,
        terms: &Terms,
        body: Incoming,
    ) -> Result<Result<Vec<u8>, ClientError>, Answer> {
        let node = &self.node;
        // A request without a length takes a permit for the maximum.
        let declared = body.size_hint().exact().map_or(API_BYTES_MAX, |len| len.min(API_BYTES_MAX as u64) as usize);
        let Ok(_turn) = node.admission.api.requests.enter(API_WAIT).await else {
            return Ok(Err(codes::TOO_MANY_REQUESTS));
        };
        let Ok(mut permit) = node.admission.api.bytes.acquire(declared as u64, API_WAIT).await else {
            return Ok(Err(codes::TOO_MANY_REQUESTS));
        };
        let body = self.body(body, API_BYTES_MAX).await?;
        stages::note(|stages| stages.add_received(body.len() as u64));
        permit.shrink_to(body.len() as u64);
        let called = match method {
            "" => self.api.lines(terms, &body).await,
            method => self.api.call(method, terms, &body).await,
        };
        match called {
            Ok(reply) => Ok(Ok(reply)),
            Err(CallError::Error(error)) => Ok(Err(error)),
            Err(CallError::NoMethod) => Err(text(StatusCode::NOT_FOUND, "no such method\n")),
            Err(CallError::Malformed(why)) => Err(text(StatusCode::BAD_REQUEST, format!("bad request: {why}\n"))),
        }
    }

    /// Answers an API request.
    pub(super) async fn api(&self, method: &str, request: Request<Incoming>) -> Answer {
        let config = &self.node.rules.config.http_api;
        let headers = request.headers();
        let given = headers.get("x-api-key").and_then(|key| key.to_str().ok());
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.or_else(|| {
            let (scheme, key) = bearer?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("apikey").then_some(key)
        });
        let query = request.uri().query().unwrap_or_default();
        let key = parameter(query, "api_key=").filter(|_| given.is_none()).unwrap_or_default();
        let given = given.map_or(&key[..], str::as_bytes);
        let known = !config.key.is_empty() && same(given, config.key.as_bytes());
        if !known && !config.insecure {
            return text(StatusCode::UNAUTHORIZED, "send the key of http_api.key in X-API-Key\n");
        }
        if *request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let (head, body) = request.into_parts();
        let transport =
            config.error_mode == "transport" || head.headers.get(ERROR_MODE).is_some_and(|mode| mode == "transport");
        let (terms, refused) = match durability(&head.headers) {
            Ok(durability) => (Terms::new(durability), None),
            Err(error) => (Terms::default(), Some(error)),
        };
        let answer = match refused {
            Some(error) => Err(error),
            None => {
                let slow = &self.node.admission.slow_calls;
                let stages = slow.begin(Stage::Other);
                let carried = stages::measured(stages.clone(), self.carry_out(method, &terms, body)).await;
                if let Some(stages) = &stages {
                    if let Ok(Err(error)) = &carried {
                        stages.set_outcome(error.code);
                    }
                    slow.end(stages, &Ended { operation: method, ..Ended::default() });
                }
                match carried {
                    Ok(answer) => answer,
                    Err(refused) => return refused,
                }
            }
        };
        let (status, answer) = match answer {
            Ok(reply) => (StatusCode::OK, reply),
            Err(error) if transport => (status_of(&error), error_json(&error).to_string().into_bytes()),
            Err(error) => (StatusCode::OK, json!({"error": error_json(&error)}).to_string().into_bytes()),
        };
        let mut response = Response::new(whole(terms.held(Bytes::from(answer))));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// The HTTP status of an error, for `error_mode = "transport"`.
fn status_of(error: &ClientError) -> StatusCode {
    match error.code {
        102 | 104 => StatusCode::NOT_FOUND,
        106 => StatusCode::PAYLOAD_TOO_LARGE,
        107 | 108 => StatusCode::BAD_REQUEST,
        111 => StatusCode::TOO_MANY_REQUESTS,
        112 => StatusCode::RANGE_NOT_SATISFIABLE,
        _ if *error != codes::INTERNAL && error.temporary => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Compares two byte strings in constant time for equal lengths.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
