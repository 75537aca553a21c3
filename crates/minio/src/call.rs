//! A request of the administration, and its answer.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::operation::AdminOperation;

/// A request of the root identity, whose signature covers all of it.
pub struct AdminCall {
    /// What it does.
    pub operation: AdminOperation,
    /// The text behind the question mark.
    pub query: String,
    /// The access key of the caller.
    pub access_key: String,
    /// The secret key of the caller, which encrypts bodies.
    pub secret_key: String,
    /// The address by which the caller reaches the server.
    pub host: String,
    /// The body as it came.
    pub body: Bytes,
}

impl fmt::Debug for AdminCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminCall({:?})", self.operation)
    }
}

impl AdminCall {
    /// A parameter of the query; empty when it is missing.
    pub(crate) fn parameter(&self, name: &str) -> String {
        self.parameters(name).next().unwrap_or_default()
    }

    /// All values of a parameter of the query.
    pub(crate) fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        let pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.filter(move |(known, _)| known == name).map(|(_, value)| value.into_owned())
    }

    /// The decrypted body.
    ///
    /// # Errors
    /// It is not what the operation takes.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|e| Failure::bad_body(format!("the body cannot be read: {e}")))
    }
}

/// The answer to a request. A body of text is JSON.
#[derive(Debug)]
pub struct AdminReply {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Vec<u8>,
}
