//! What the audit log tells of a request.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Uri};
use steadfast_flow::Env;

use crate::context::{RequestContext, RequestRecord};

/// A request that has ended, for the audit log.
#[derive(Debug, Clone, Default)]
pub struct AuditEntry {
    /// Time of its end, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its number, which the answer has as `x-amz-request-id`.
    pub request: String,
    /// The user, or `root`; `None`: the request has no signature, or a wrong one.
    pub user: Option<String>,
    /// The access key that the request names, also if the signature is wrong.
    pub access_key: Option<String>,
    /// The address of the client; `None` if a trusted proxy names none.
    pub address: Option<IpAddr>,
    /// S3's name of the operation, or `-` if the request was refused before it was known.
    pub operation: &'static str,
    /// The bucket; empty: none.
    pub bucket: String,
    /// The key of the object; empty: none.
    pub key: String,
    /// HTTP status; 499: the client went away before the answer.
    pub status: u16,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes handed to the connection.
    pub bytes_out: u64,
    /// Time from the request's head to the end of its response.
    pub duration: Duration,
    /// Whether the response was sent whole.
    pub complete: bool,
}

/// Receives an entry for every request when it ends. The threads that serve requests call it, so it
/// must not block.
pub trait AuditSink: Send + Sync + 'static {
    /// A request has ended.
    fn ended(&self, entry: AuditEntry);
}

/// The HTTP status of a request whose client went away before the answer, as nginx logs it.
const CLIENT_GONE: u16 = 499;

/// A request for the audit log. If it is dropped before its end, the log has it too: what it asked
/// for may have been done.
pub(crate) struct Audited {
    sink: Arc<dyn AuditSink>,
    context: Arc<RequestContext>,
    env: Env,
    started: Duration,
    /// What is known when the request begins; `None` once the log has it.
    entry: Option<AuditEntry>,
}

impl Audited {
    /// A request that begins now, from this address, about this bucket and this key.
    pub(crate) fn begin<B>(
        sink: &Arc<dyn AuditSink>,
        (context, env): (&Arc<RequestContext>, &Env),
        request: &Request<B>,
        address: Option<IpAddr>,
        (bucket, key): (String, String),
    ) -> Self {
        let access_key = access_key(request.uri(), request.headers());
        let entry =
            AuditEntry { request: context.id.clone(), access_key, address, bucket, key, ..AuditEntry::default() };
        Self { sink: sink.clone(), context: context.clone(), env: env.clone(), started: env.now(), entry: Some(entry) }
    }

    /// The request has ended.
    pub(crate) fn end(mut self, record: &RequestRecord) {
        self.send(record);
    }

    fn send(&mut self, record: &RequestRecord) {
        let Some(entry) = self.entry.take() else { return };
        self.sink.ended(AuditEntry {
            time_ms: self.env.wall_ms(),
            user: self.context.caller.get().and_then(|caller| caller.identity.name()).map(str::to_owned),
            operation: record.operation,
            status: record.status,
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            duration: record.duration,
            complete: record.complete,
            ..entry
        });
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if self.entry.is_some() {
            self.send(&RequestRecord {
                operation: self.context.operation(),
                status: CLIENT_GONE,
                bytes_in: self.context.bytes_in.load(Relaxed),
                bytes_out: 0,
                duration: self.env.now().saturating_sub(self.started),
                complete: false,
            });
        }
    }
}

/// The longest access key that the log has, in bytes: clients without a key can send any text.
const ACCESS_KEY_BYTES_MAX: usize = 128;

/// The access key that a request names; nothing has verified it.
fn access_key(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let text: Cow<'_, str> = match header {
        Some(header) => match header.strip_prefix("AWS ") {
            Some(v2) => v2.split(':').next().unwrap_or_default().into(),
            None => header.split_once("Credential=").map(|(_, rest)| rest).unwrap_or_default().into(),
        },
        None => {
            let mut query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
            query.find(|(name, _)| name == "X-Amz-Credential" || name == "AWSAccessKeyId").map(|(_, value)| value)?
        }
    };
    let key = text.split(['/', ',']).next().unwrap_or_default();
    let end = key.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= ACCESS_KEY_BYTES_MAX).last();
    end.map(|end| key[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_key_is_found_in_each_kind_of_signature() {
        let of = |uri: &str, header: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().expect("a header"));
            }
            access_key(&uri.parse().expect("a URI"), &headers)
        };
        let v4 = "AWS4-HMAC-SHA256 Credential=AK/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=0";
        assert_eq!(of("/b/k", Some(v4)).as_deref(), Some("AK"));
        assert_eq!(of("/b/k", Some("AWS AK:signature")).as_deref(), Some("AK"));
        assert_eq!(of("/b/k?X-Amz-Credential=AK%2F20260101%2Fr&X-Amz-Signature=0", None).as_deref(), Some("AK"));
        assert_eq!(of("/b/k?AWSAccessKeyId=AK&Signature=0", None).as_deref(), Some("AK"));
        assert_eq!(of("/b/k", None), None);
        assert_eq!(of("/b/k", Some("Bearer x")), None);
        assert_eq!(of("/b/k", Some(&format!("AWS {}:x", "k".repeat(300)))).map(|key| key.len()), Some(128));
    }
}
