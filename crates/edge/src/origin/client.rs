//! S3 and HTTP origins.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::Request;
use http_body_util::{BodyDataStream, Full};
use steadfast_flow::Env;
use steadfast_net::{Addresses, HttpClient, S3Endpoint, S3Request, Secret, encode, http_client_for, with_causes};

use super::{Origin, OriginAnswer, OriginRequest};
use crate::options::OriginAddress;

enum Target {
    S3 { endpoint: Box<S3Endpoint>, bucket: String, prefix: String },
    Http { url: String, headers: Vec<(String, Secret)> },
}

/// A client of one origin. It does not follow redirects.
pub(crate) struct Client {
    http: HttpClient,
    target: Target,
    env: Env,
}

impl Client {
    /// Checks the address and prepares connections.
    ///
    /// # Errors
    /// The address is invalid or not allowed; the text is for operators.
    pub(crate) fn new(
        address: &OriginAddress,
        addresses: Addresses,
        connections: usize,
        env: Env,
    ) -> Result<Self, String> {
        let (url, target) = match address.clone() {
            OriginAddress::S3 { endpoint, bucket, prefix, credentials } => {
                let endpoint = S3Endpoint::new(&endpoint, credentials)?;
                (endpoint.url().clone(), Target::S3 { endpoint: Box::new(endpoint), bucket, prefix })
            }
            OriginAddress::Http { url, headers } => {
                let parsed: http::Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
                if parsed.query().is_some() {
                    return Err("the URL of an origin has no query".to_owned());
                }
                (parsed, Target::Http { url: url.trim_end_matches('/').to_owned(), headers })
            }
        };
        let http = http_client_for(&url, connections, None, addresses)?;
        Ok(Self { http, target, env })
    }

    fn request(&self, request: &OriginRequest) -> Result<Request<Full<Bytes>>, http::Error> {
        let method = if request.head { "HEAD" } else { "GET" };
        match &self.target {
            Target::S3 { endpoint, bucket, prefix } => {
                let key = format!("{prefix}{}", request.key);
                let headers: Vec<_> = request.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let request = S3Request { method, bucket, key: &key, query: "", headers: &headers };
                endpoint.request(&request, self.env.wall_ms(), Bytes::new())
            }
            Target::Http { url, headers } => {
                let mut built = Request::builder().method(method).uri(format!("{url}/{}", encode(&request.key, true)));
                for (name, value) in headers {
                    built = built.header(name, &value.0);
                }
                for (name, value) in &request.headers {
                    built = built.header(*name, value);
                }
                built.header("accept-encoding", "identity").body(Full::new(Bytes::new()))
            }
        }
    }
}

impl Client {
    fn answer(
        &self,
        built: Result<Request<Full<Bytes>>, http::Error>,
    ) -> BoxFuture<'static, Result<OriginAnswer, String>> {
        let client = self.http.clone();
        async move {
            let request = built.map_err(|e| format!("the request is not possible: {e}"))?;
            let (head, body) = client.request(request).await.map_err(|e| with_causes(&e))?.into_parts();
            let body = BodyDataStream::new(body).map(|piece| piece.map_err(|e| with_causes(&e)));
            Ok(OriginAnswer { status: head.status.as_u16(), headers: head.headers, body: body.boxed() })
        }
        .boxed()
    }
}

impl Origin for Client {
    fn send(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginAnswer, String>> {
        self.answer(self.request(&request))
    }

    fn list(&self, prefix: &str, after: &str) -> Option<BoxFuture<'static, Result<OriginAnswer, String>>> {
        let Target::S3 { endpoint, bucket, prefix: before } = &self.target else { return None };
        let start = if after.is_empty() { String::new() } else { format!("{before}{after}") };
        let (prefix, start) = (encode(&format!("{before}{prefix}"), false), encode(&start, false));
        let query = format!("list-type=2&max-keys=1000&prefix={prefix}&start-after={start}");
        let request = S3Request { method: "GET", bucket, key: "", query: &query, headers: &[] };
        Some(self.answer(endpoint.request(&request, self.env.wall_ms(), Bytes::new())))
    }

    fn prefix(&self) -> &str {
        match &self.target {
            Target::S3 { prefix, .. } => prefix,
            Target::Http { .. } => "",
        }
    }
}
