//! Authorization: a request signed with a configured key may do everything. Policies judge the
//! requests of users and those without a signature.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::host::{S3Host, VirtualHost};
use s3s::{S3Result, TrailingHeaders, s3_error};

use steadfast_edge::Edge;
use steadfast_flow::{Budget, Env};
use steadfast_store::{Store, StoreError};
use steadfast_users::{KeyRefusal, SigningKey, Users};

use crate::caller::{Caller, Identity};
use crate::context::{RequestClient, RequestContext};
use crate::error::{invalid_request, slow_down, store_error};
use crate::operations::find;
use crate::receive::check_xml;
use crate::rights::{Judge, RequestParts, denied};
use crate::served::{Served, has_signed_parameters, overrides_headers};
use crate::signed;

/// The keys that sign requests: the configured ones, and those of users. `s3s` compares signatures
/// in constant time.
#[derive(Clone)]
pub(crate) struct Keys {
    root: Arc<BTreeMap<String, SecretKey>>,
    users: Option<Users>,
}

impl Keys {
    pub(crate) fn new(pairs: &[(String, String)], users: Option<Users>) -> Self {
        let root = pairs.iter().map(|(access, secret)| (access.clone(), SecretKey::from(secret.as_str())));
        Self { root: Arc::new(root.collect()), users }
    }

    /// The key of a user.
    ///
    /// # Errors
    /// `InvalidAccessKeyId` for a key that is unknown or does not work; that of reading the users.
    fn of_user(&self, access_key: &str) -> S3Result<Arc<SigningKey>> {
        let found = self.users.as_ref().map_or(Err(KeyRefusal::Unknown), |users| users.key(access_key));
        found.map_err(|refusal| match refusal {
            KeyRefusal::Store(error) => store_error(error),
            refusal => s3_error!(InvalidAccessKeyId, "{}", refusal),
        })
    }

    /// The identity of a key that has signed with this secret.
    ///
    /// # Errors
    /// `InvalidAccessKeyId`: the key has changed since the signature was verified.
    pub(crate) fn identity(&self, access_key: &str, secret: &SecretKey) -> S3Result<Identity> {
        if self.root.contains_key(access_key) {
            return Ok(Identity::Root);
        }
        let account = self.users.as_ref().and_then(|users| users.account(access_key, secret.expose()));
        account.map(Identity::User).ok_or_else(|| s3_error!(InvalidAccessKeyId, "{}", KeyRefusal::Unknown))
    }
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.root.get(access_key) {
            Some(secret) => Ok(secret.clone()),
            None => Ok(SecretKey::from(self.of_user(access_key)?.secret())),
        }
    }
}

/// Refuses requests that are not wholly signed, unless a policy allows them to everyone; what the
/// policies do not allow a user; operations that are not served; and changes of buckets with an
/// origin. Also records the caller,
/// and the operation's name for the metrics. `s3s` calls it after verifying the signature, before
/// reading the body.
pub(crate) struct Access {
    pub(crate) keys: Keys,
    /// The memory budget that all XML bodies share.
    pub(crate) xml: Budget,
    /// The time a client may take to send an XML body. The body holds its permit that long.
    pub(crate) body_time: Duration,
    pub(crate) env: Env,
    /// The largest XML body of any operation, in bytes.
    pub(crate) xml_bytes_max: usize,
    /// The buckets with an origin.
    pub(crate) edge: Option<Edge>,
    pub(crate) judge: Arc<Judge>,
    pub(crate) store: Store,
}

/// The parser's result takes up to this many times the bytes of the XML body.
const XML_FACTOR: u64 = 8;
/// XML bodies up to this many bytes need no permit: the bound on requests bounds them.
const XML_FREE_BYTES: u64 = 16 << 10;

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let served = find(cx.s3_op().name());
        let context = cx.extensions_mut().get::<Arc<RequestContext>>().cloned();
        if let Some(context) = &context {
            context.set_operation(served.as_ref().map_or("Other", |served| served.name));
        }
        if let (Some(stages), Some(bucket)) =
            (context.as_ref().and_then(|context| context.stages.as_ref()), cx.s3_path().get_bucket_name())
        {
            stages.set_about(bucket);
        }
        let link = cx.extensions_mut().get::<RequestClient>().map(|client| client.link);
        let (Some(context), Some(link)) = (context, link) else {
            return Err(s3_error!(InternalError, "The request has no context."));
        };
        match cx.credentials() {
            Some(credentials) => {
                signed::check(cx.uri(), cx.headers())?;
                check_presigned_v2(cx)?;
                let identity = self.keys.identity(&credentials.access_key, &credentials.secret_key)?;
                let caller = context.caller.get_or_init(|| Caller::new(identity, link));
                if let Ok(served) = &served {
                    let parts = RequestParts { uri: cx.uri(), headers: cx.headers(), caller };
                    self.judge.check_operation(&served.needed, parts, cx.s3_path())?;
                }
            }
            None => {
                let caller = context.caller.get_or_init(|| Caller::new(Identity::Anonymous, link));
                self.check_unsigned(served.as_ref().ok().copied(), cx, caller)?;
            }
        }
        signed::check_framing(cx.uri(), cx.headers())?;
        let served = served?;
        served.check_query(cx.method(), cx.uri().query().unwrap_or_default())?;
        self.check_origin(served, cx.s3_path().get_bucket_name())?;
        if let Some(bytes) = self.xml_memory(served, cx.headers())? {
            let permit = self.xml.try_acquire(bytes).map_err(|_| slow_down("XML in request bodies"))?;
            context.hold_xml(permit);
            context.set_body_due(self.env.now() + self.body_time);
        }
        Ok(())
    }

    fn check_body(
        &self,
        operation: &str,
        headers: &HeaderMap,
        trailers: Option<&TrailingHeaders>,
        body: &[u8],
    ) -> S3Result<()> {
        check_xml(operation, headers, trailers, body)
    }
}

/// Refuses a URL presigned with version 2 for anything but one object: that version does not cover
/// the prefix of a listing.
fn check_presigned_v2(cx: &S3AccessContext<'_>) -> S3Result<()> {
    let query = cx.uri().query().unwrap_or_default();
    match cx.s3_path().as_object() {
        None if signed::is_presigned_v2(query) => Err(s3_error!(
            AccessDenied,
            "A URL presigned with signature version 2 works for objects only. Please use AWS4-HMAC-SHA256 (version 4)."
        )),
        _ => Ok(()),
    }
}

impl Access {
    /// Refuses a request without a signature, unless a policy allows it to everyone.
    ///
    /// # Errors
    /// `AccessDenied`; `NoSuchBucket`, as S3 answers to anyone; `InvalidRequest` if the request
    /// sets headers of the answer.
    fn check_unsigned(&self, served: Option<&Served>, cx: &S3AccessContext<'_>, caller: &Caller) -> S3Result<()> {
        let bucket = cx.s3_path().get_bucket_name();
        let creates = served.is_some_and(|served| served.name == "CreateBucket");
        if let Some(error @ StoreError::NoSuchBucket) =
            bucket.and_then(|bucket| self.store.buckets().settings(bucket).err())
            && !creates
        {
            return Err(store_error(error));
        }
        let query = cx.uri().query().unwrap_or_default();
        // `s3s` also takes a request with two of these headers for one without a signature.
        if cx.headers().contains_key(AUTHORIZATION) || has_signed_parameters(query) {
            return Err(denied());
        }
        let Some(served) = served else { return Err(denied()) };
        let parts = RequestParts { uri: cx.uri(), headers: cx.headers(), caller };
        self.judge.check_operation(&served.needed, parts, cx.s3_path())?;
        if overrides_headers(query) {
            return Err(invalid_request(
                "Request specific response headers cannot be used for anonymous GET requests.",
            ));
        }
        Ok(())
    }

    /// Refuses an operation on a bucket with an origin, unless it only reads.
    fn check_origin(&self, served: &Served, bucket: Option<&str>) -> S3Result<()> {
        match (&self.edge, bucket) {
            (Some(edge), Some(bucket)) if !served.with_origin && edge.has_origin(bucket) => {
                Err(s3_error!(MethodNotAllowed, "The bucket has an origin and is read only."))
            }
            _ => Ok(()),
        }
    }

    /// The memory that the XML body of a request needs before it is read; `None` when it is too
    /// little to count.
    fn xml_memory(&self, served: &Served, headers: &HeaderMap) -> S3Result<Option<u64>> {
        let max = served.xml_bytes_max.min(self.xml_bytes_max) as u64;
        if max == 0 {
            return Ok(None);
        }
        // The length of the decoded body: `s3s` has set this header for a body sent in chunks.
        let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
        if length.is_some_and(|n| n > max) {
            return Err(s3_error!(
                MaxMessageLengthExceeded,
                "Your request was too big: the body of {} may have {max} bytes.",
                served.name
            ));
        }
        let bytes = length.unwrap_or(max);
        Ok((bytes > XML_FREE_BYTES).then(|| self.xml.clamp(bytes * XML_FACTOR)))
    }
}

/// Virtual-host style for the configured domains, path style for every other host name. The type of
/// `s3s` takes an unknown host name for a bucket, so `localhost` would not work along with a
/// domain.
pub(crate) struct Domains(Vec<String>);

impl Domains {
    pub(crate) fn new(domains: &[String]) -> Self {
        Self(domains.iter().map(|d| d.to_ascii_lowercase()).collect())
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        for domain in &self.0 {
            let Some(at) = name.len().checked_sub(domain.len()) else { continue };
            if !name.is_char_boundary(at) || !name[at..].eq_ignore_ascii_case(domain) {
                continue;
            }
            if at == 0 {
                return Ok(VirtualHost::new(domain.as_str()));
            }
            if let Some(bucket) = name[..at].strip_suffix('.')
                && !bucket.is_empty()
            {
                return Ok(VirtualHost::new(domain.as_str()).with_bucket(bucket.to_ascii_lowercase()));
            }
        }
        Ok(VirtualHost::new(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let domains = Domains::new(&["s3.example.com".into()]);
        let bucket = |host: &str| domains.parse_host_header(host).unwrap().bucket().map(str::to_owned);
        assert_eq!(bucket("s3.example.com"), None);
        assert_eq!(bucket("s3.example.com:9000"), None);
        assert_eq!(bucket("Photos.S3.Example.Com:9000").as_deref(), Some("photos"));
        assert_eq!(bucket("my.bucket.s3.example.com").as_deref(), Some("my.bucket"));
        assert_eq!(bucket("notmys3.example.com"), None, "a suffix is not a subdomain");
        assert_eq!(bucket(".s3.example.com"), None);
        assert_eq!(bucket("localhost:9000"), None);
        assert_eq!(bucket("é.com"), None);
    }
}
