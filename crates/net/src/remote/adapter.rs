//! Our HTTP client for the library `object_store`.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient as StoreClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};

use crate::http_client::{HttpClientOf, with_causes};

/// Most bytes of a listing, and of the answer to a delete.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// Most bytes of an answer that refuses a request.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// An answer with a status that is not one of success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusError {
    pub(super) status: u16,
    /// S3's code, if the answer has one.
    pub(super) code: String,
    message: String,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.code)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl Error for StatusError {}

impl StatusError {
    fn new(status: u16, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let between = |tag: &str| {
            let (_, rest) = text.split_once(&format!("<{tag}>"))?;
            Some(rest.split_once(&format!("</{tag}>"))?.0.chars().take(200).collect::<String>())
        };
        Self { status, code: between("Code").unwrap_or_default(), message: between("Message").unwrap_or_default() }
    }

    /// The status in an error of the library.
    pub(super) fn of(error: &object_store::Error) -> Option<&Self> {
        let mut error: &dyn Error = error;
        loop {
            if let Some(status) = error.downcast_ref() {
                return Some(status);
            }
            error = error.source()?;
        }
    }
}

/// A client that sends the bodies of the library as they are.
pub(super) type StoreHttpClient = HttpClientOf<HttpRequestBody>;

/// Sends the library's requests, once each.
#[derive(Clone)]
pub(super) struct Adapter(pub(super) StoreHttpClient);

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Adapter")
    }
}

impl HttpConnector for Adapter {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<StoreClient> {
        Ok(StoreClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Adapter {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The library never repeats an error of this kind.
        let failed = |error: Box<dyn Error + Send + Sync>| HttpError::new_boxed(HttpErrorKind::Unknown, error);
        let (head, body) = request.into_parts();
        // The library reads these answers as a whole.
        let is_object = head.method == Method::GET && !head.uri.query().unwrap_or_default().contains("list-type");
        let bytes_max = if is_object { usize::MAX } else { DOCUMENT_BYTES_MAX };
        let answer =
            self.0.request(Request::from_parts(head, body)).await.map_err(|e| failed(with_causes(&e).into()))?;
        let (head, body) = answer.into_parts();
        if !head.status.is_success() {
            let body =
                Limited::new(body, REFUSAL_BYTES_MAX).collect().await.map_or_else(|_| Bytes::new(), |b| b.to_bytes());
            return Err(failed(Box::new(StatusError::new(head.status.as_u16(), &body))));
        }
        let body = Limited::new(body, bytes_max).map_err(move |e| failed(with_causes(&*e).into()));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
