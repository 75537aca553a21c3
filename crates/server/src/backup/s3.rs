//! Exports in a bucket of any S3 endpoint: the part of the protocol that stores and reads files.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::Env;
use steadfast_net::{HttpClient, S3Endpoint, S3Request, encode, exchange, http_client};

use super::Result;
use super::place::S3Spec;

/// Bytes of a part of a large file; the protocol allows 10,000 parts.
const PART_BYTES: usize = 16 << 20;
/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of attempts of a request.
const TRIES: u32 = 5;
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Maximum number of idle connections kept.
const IDLE_MAX: usize = 4;

struct Shared {
    spec: S3Spec,
    endpoint: S3Endpoint,
    client: HttpClient,
    env: Env,
}

/// A prefix in a bucket. Cloning shares it.
#[derive(Clone)]
pub struct S3(Arc<Shared>);

struct Answer {
    status: u16,
    etag: Option<String>,
    length: Option<u64>,
    body: Bytes,
}

/// The text between the first pair of tags.
fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

impl S3 {
    pub(super) fn new(spec: &S3Spec, env: &Env) -> Result<Self> {
        let wrong = |what: String| format!("{}: {what}", spec.endpoint);
        let endpoint = S3Endpoint::new(&spec.endpoint, Some(spec.credentials.clone())).map_err(wrong)?;
        let client = http_client(endpoint.url(), IDLE_MAX).map_err(wrong)?;
        let (spec, env) = (spec.clone(), env.clone());
        Ok(Self(Arc::new(Shared { spec, endpoint, client, env })))
    }

    pub(super) fn shown(&self) -> String {
        let spec = &self.0.spec;
        format!("s3://{}/{}", spec.bucket, spec.prefix.trim_end_matches('/')).trim_end_matches('/').to_owned()
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        range: Option<(u64, u64)>,
        body: &Bytes,
    ) -> io::Result<Answer> {
        let shared = &self.0;
        let range = range.map(|(from, to)| format!("bytes={from}-{}", to - 1));
        let headers: Vec<_> = range.iter().map(|range| ("range", range.as_str())).collect();
        let request = S3Request { method, bucket: &shared.spec.bucket, key: path, query, headers: &headers };
        let request = shared.endpoint.request(&request, shared.env.wall_ms(), body.clone());
        let request = request.map_err(io::Error::other)?;
        let answer = exchange(&shared.client, request, ANSWER_BYTES_MAX).await.map_err(io::Error::other)?;
        let status = answer.status().as_u16();
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (etag, length) = (header("etag"), header("content-length").and_then(|length| length.parse().ok()));
        Ok(Answer { status, etag, length, body: answer.into_body() })
    }

    /// Sends a request and retries temporary failures. Returns the answer, or an error for a
    /// refusal.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        query: &str,
        range: Option<(u64, u64)>,
        body: Bytes,
        may_be: &[u16],
    ) -> Result<Answer> {
        let shared = &self.0;
        let full = format!("{}{path}", shared.spec.prefix);
        let mut tries = 0;
        loop {
            tries += 1;
            let sent = shared.env.timeout(REQUEST_TIMEOUT, self.send(method, &full, query, range, &body)).await;
            let why = match sent {
                Some(Ok(answer)) if (200..300).contains(&answer.status) || may_be.contains(&answer.status) => {
                    return Ok(answer);
                }
                Some(Ok(answer)) => {
                    let text = String::from_utf8_lossy(&answer.body).into_owned();
                    let code = between(&text, "Code").unwrap_or("no code");
                    let why = format!("{} {code}: {}", answer.status, between(&text, "Message").unwrap_or(""));
                    if answer.status < 500 && answer.status != 429 && code != "RequestTimeout" {
                        return Err(format!("{}: {method} {full}: {why}", self.shown()));
                    }
                    why
                }
                Some(Err(e)) => e.to_string(),
                None => format!("no answer within {REQUEST_TIMEOUT:?}"),
            };
            if tries == TRIES {
                return Err(format!("{}: {method} {full}: {why} ({TRIES} tries)", shared.spec.endpoint));
            }
            shared.env.sleep(Duration::from_millis(100 << (2 * tries))).await;
        }
    }

    pub(super) async fn size(&self, path: &str) -> Result<Option<u64>> {
        let answer = self.ask("HEAD", path, "", None, Bytes::new(), &[404]).await?;
        if answer.status == 404 {
            return Ok(None);
        }
        answer.length.map(Some).ok_or_else(|| format!("{}: {path}: the answer has no length", self.shown()))
    }

    pub(super) async fn read(&self, path: &str, offset: u64, len: u64) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let answer = self.ask("GET", path, "", Some((offset, offset + len)), Bytes::new(), &[]).await?;
        if answer.status == 206 || offset == 0 && answer.body.len() as u64 == len {
            return Ok(answer.body);
        }
        Err(format!("{}: {path}: the endpoint does not give ranges", self.shown()))
    }

    pub(super) async fn remove(&self, path: &str) -> Result<bool> {
        // S3 reports success for deleting a file that does not exist.
        let there = self.size(path).await?.is_some();
        if there {
            self.ask("DELETE", path, "", None, Bytes::new(), &[404]).await?;
        }
        Ok(there)
    }

    pub(super) fn create(&self, path: &str) -> S3Writer {
        let path = path.to_owned();
        S3Writer { s3: self.clone(), path, buffer: Vec::new(), upload: None, etags: Vec::new(), finished: false }
    }
}

/// A file being written: a small one in one request, a larger one as a multipart upload.
pub struct S3Writer {
    s3: S3,
    path: String,
    buffer: Vec<u8>,
    upload: Option<String>,
    etags: Vec<String>,
    finished: bool,
}

impl S3Writer {
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at((PART_BYTES - self.buffer.len()).min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == PART_BYTES {
                self.part().await?;
            }
        }
        Ok(())
    }

    async fn part(&mut self) -> Result<()> {
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let begun = self.s3.ask("POST", &self.path, "uploads=", None, Bytes::new(), &[]).await?;
                let text = String::from_utf8_lossy(&begun.body).into_owned();
                let id =
                    between(&text, "UploadId").ok_or_else(|| format!("{}: the endpoint began no upload", self.path))?;
                self.upload.insert(id.to_owned()).clone()
            }
        };
        let query = format!("partNumber={}&uploadId={}", self.etags.len() + 1, encode(&upload, false));
        let body = Bytes::from(std::mem::take(&mut self.buffer));
        let answer = self.s3.ask("PUT", &self.path, &query, None, body, &[]).await?;
        let etag = answer.etag.ok_or_else(|| format!("{}: a part got no entity tag", self.path))?;
        self.etags.push(etag);
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<()> {
        if self.upload.is_none() {
            let body = Bytes::from(std::mem::take(&mut self.buffer));
            self.s3.ask("PUT", &self.path, "", None, body, &[]).await?;
            return Ok(());
        }
        if !self.buffer.is_empty() {
            self.part().await?;
        }
        let Some(upload) = self.upload.clone() else { return Ok(()) };
        let mut list = String::from("<CompleteMultipartUpload>");
        for (i, etag) in self.etags.iter().enumerate() {
            let etag = etag.replace('"', "&quot;");
            list.push_str(&format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", i + 1));
        }
        list.push_str("</CompleteMultipartUpload>");
        let query = format!("uploadId={}", encode(&upload, false));
        let answer = self.s3.ask("POST", &self.path, &query, None, list.into(), &[]).await?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        // An answer with status 200 may still carry an error.
        if text.contains("<Error>") {
            return Err(format!("{}: {}: {}", self.s3.shown(), self.path, between(&text, "Message").unwrap_or(&text)));
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for S3Writer {
    fn drop(&mut self) {
        let (Some(upload), false) = (self.upload.take(), self.finished) else { return };
        let (s3, path) = (self.s3.clone(), self.path.clone());
        // Otherwise its parts would take space for ever.
        self.s3.0.env.spawn("s3-abort", async move {
            let query = format!("uploadId={}", encode(&upload, false));
            if let Err(e) = s3.ask("DELETE", &path, &query, None, Bytes::new(), &[404]).await {
                tracing::warn!(error = %e, "a multipart upload could not be aborted");
            }
        });
    }
}
