//! Settings of the S3 interface.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use steadfast_edge::Edge;
use steadfast_minio::Administration;
use steadfast_users::Users;

use crate::audit::AuditSink;

/// How the server makes entity tags of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EtagKind {
    /// MD5 of the content, as most tools expect. Costs about 1.6 ms of CPU per MiB.
    #[default]
    Md5,
    /// A random tag that does not look like an MD5 (`<32 hex digits>-1`), as in S3 Express One
    /// Zone. It costs no CPU. Tools that compare entity tags with MD5 sums take it for a multipart
    /// upload's and ignore it.
    Opaque,
}

/// The targets that can receive events of objects.
pub trait EventTargets: Send + Sync + 'static {
    /// Checks that events can be sent to the target with this resource name.
    ///
    /// # Errors
    /// The reason and the remedy, as a text for people.
    fn check(&self, arn: &str) -> Result<(), String>;
}

/// An IP address, or a network of addresses with a common prefix: `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

impl IpNetwork {
    /// Whether the network contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let rest = width - u32::from(self.bits);
            a.checked_shr(rest).unwrap_or(0) == b.checked_shr(rest).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an address, nor a network such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| wrong())?;
        if bits > width { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Settings of the S3 interface, including all bounds.
#[derive(Clone)]
pub struct S3Options {
    /// Pairs of access key and secret key of the root identity, which may do everything.
    pub credentials: Vec<(String, String)>,
    /// The users; `None`: there are none.
    pub users: Option<Users>,
    /// MinIO's administration; `None`: it is refused.
    pub administration: Option<Administration>,
    /// Whether requests and presigned URLs may be signed with version 2.
    pub signature_v2: bool,
    /// The region reported to clients. Requests may be signed for any region.
    pub region: String,
    /// Base domains for virtual-host style (`bucket.s3.example.com`), without port. Other host
    /// names mean path style.
    pub domains: Vec<String>,
    /// Whether clients connect over TLS: sets the scheme of URLs in answers.
    pub https: bool,
    /// The buckets whose objects anyone can read, with GET and HEAD, without a signature.
    pub public_read: BTreeSet<String>,
    /// Origins whose pages may read answers in a browser; `*` for all. Their requests may do no
    /// more than any other.
    pub allowed_origins: Vec<String>,
    /// The targets that can receive events; `None`: buckets accept no notification rules.
    pub targets: Option<Arc<dyn EventTargets>>,
    /// The buckets with an origin, which clients can only read; `None`: no bucket has one.
    pub edge: Option<Edge>,
    /// Receives an entry for every request; `None`: there is no audit log.
    pub audit: Option<Arc<dyn AuditSink>>,
    /// How the server makes entity tags.
    pub etag: EtagKind,
    /// The most requests served at a time.
    pub requests_max: usize,
    /// Requests that may wait for a permit; more are refused at once with `SlowDown`.
    pub requests_waiting_max: usize,
    /// How long a request waits for a permit before it is refused with `SlowDown`.
    pub request_wait: Duration,
    /// Requests that take at least this long, without the time of their clients, are logged; zero:
    /// none.
    pub slow_request: Duration,
    /// The time within which a connection must send a whole request head.
    pub header_timeout: Duration,
    /// A request body that lags this far behind [`S3Options::client_bytes_s_min`] fails with
    /// `RequestTimeout`.
    pub body_stall: Duration,
    /// A connection whose peer lags this far behind it in reading a response is closed.
    pub response_stall: Duration,
    /// Bytes a second that a client must send of a body and read of an answer. 0: the client must
    /// only move some byte within the stall time.
    pub client_bytes_s_min: u64,
    /// The most answers sent at a time that are longer than [`S3Options::short_answer_bytes`]. They
    /// no longer count as requests being served.
    pub answers_max: usize,
    /// An answer of up to this many bytes is passed to its connection whole.
    pub short_answer_bytes: u64,
    /// The share of the permits that one address may hold, in percent.
    pub address_share_percent: usize,
    /// Proxies whose `X-Forwarded-For` header is trusted to name the client.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Bodies up to this many bytes are hashed where they arrive, larger ones on the compute
    /// threads.
    pub inline_hash_bytes: u64,
    /// The largest XML body of a request, in bytes; most operations allow less.
    pub xml_bytes_max: usize,
    /// The memory that XML bodies of requests may take together, in bytes. Each counts 8 times its
    /// length, for the parser's result.
    pub xml_memory_bytes: u64,
    /// The read buffer of a connection, in bytes.
    pub connection_buffer_bytes: usize,
    /// The greatest allowed difference between a client's clock and the server's.
    pub clock_skew_max: Duration,
    /// The largest object, or part, in one request, in bytes.
    pub put_bytes_max: u64,
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            credentials: Vec::new(),
            users: None,
            administration: None,
            signature_v2: true,
            region: "us-east-1".into(),
            domains: Vec::new(),
            https: false,
            public_read: BTreeSet::new(),
            allowed_origins: Vec::new(),
            targets: None,
            edge: None,
            audit: None,
            etag: EtagKind::default(),
            requests_max: 1024,
            requests_waiting_max: 4096,
            request_wait: Duration::from_secs(5),
            slow_request: Duration::from_secs(1),
            header_timeout: Duration::from_secs(30),
            body_stall: Duration::from_secs(30),
            response_stall: Duration::from_secs(60),
            client_bytes_s_min: 4 << 10,
            answers_max: 2048,
            short_answer_bytes: 256 << 10,
            address_share_percent: 25,
            trusted_proxies: Vec::new(),
            inline_hash_bytes: 64 << 10,
            xml_bytes_max: 4 << 20,
            xml_memory_bytes: 128 << 20,
            connection_buffer_bytes: 128 << 10,
            clock_skew_max: Duration::from_secs(900),
            put_bytes_max: 5 << 30,
        }
    }
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets must not reach a log.
        let keys: Vec<&str> = self.credentials.iter().map(|(access, _)| access.as_str()).collect();
        f.debug_struct("S3Options")
            .field("access_keys", &keys)
            .field("region", &self.region)
            .field("domains", &self.domains)
            .field("public_read", &self.public_read)
            .field("edge", &self.edge)
            .field("etag", &self.etag)
            .field("requests_max", &self.requests_max)
            .finish_non_exhaustive()
    }
}
