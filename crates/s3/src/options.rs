//! What can be set.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How entity tags of objects are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EtagKind {
    /// MD5 of the content, as most tools expect. Costs about 1.6 ms of CPU per MiB.
    #[default]
    Md5,
    /// A random tag that does not look like an MD5 (`<32 hex digits>-1`), as S3 Express One Zone does it: costs nothing. Tools that
    /// compare entity tags with MD5 sums take it for a multipart upload's and leave it alone.
    Opaque,
}

/// Who can be told of events of objects.
pub trait EventTargets: Send + Sync + 'static {
    /// Whether events can be sent to what this resource name stands for.
    ///
    /// # Errors
    /// Why not and what to do, for people.
    fn check(&self, arn: &str) -> Result<(), String>;
}

/// An address, or all that begin alike: `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

impl IpNetwork {
    /// Whether an address is in it.
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

/// Settings of the door. Every bound is here.
#[derive(Clone)]
pub struct S3Options {
    /// Pairs of access key and secret key. A request must be signed with one of them.
    pub credentials: Vec<(String, String)>,
    /// The region that is told to clients. Requests may be signed for any.
    pub region: String,
    /// Base domains for virtual-host style (`bucket.s3.example.com`), without port. Other host names mean path style.
    pub domains: Vec<String>,
    /// Whether clients come over TLS: for the addresses that answers have.
    pub https: bool,
    /// Origins of pages that browsers let read answers; `*` for all. Signatures are asked of them as of everybody.
    pub allowed_origins: Vec<String>,
    /// Who can be told of events; `None`: nobody, so buckets take no notifications.
    pub targets: Option<Arc<dyn EventTargets>>,
    /// How entity tags are made.
    pub etag: EtagKind,
    /// Requests served at a time.
    pub requests_max: usize,
    /// Requests that may wait for a place; more are refused at once with `SlowDown`.
    pub requests_waiting_max: usize,
    /// How long a request waits for a place before it is refused with `SlowDown`.
    pub request_wait: Duration,
    /// Requests that take so long, without the time of their clients, are logged; zero: none.
    pub slow_request: Duration,
    /// A connection must have sent a whole request head within this time.
    pub header_timeout: Duration,
    /// A request body that is so far behind [`S3Options::client_bytes_s_min`] ends with `RequestTimeout`.
    pub body_stall: Duration,
    /// A connection whose peer is so far behind it in taking a response is closed.
    pub response_stall: Duration,
    /// Bytes a second that a client must send of a body, and take of an answer; 0: it need only move something in the time of a stall.
    pub client_bytes_s_min: u64,
    /// Answers that are longer than [`S3Options::short_answer_bytes`] and are being sent, at a time. They do not count as requests being
    /// served any more.
    pub answers_max: usize,
    /// An answer of so many bytes is handed to its connection whole.
    pub short_answer_bytes: u64,
    /// How much of the places one address may have, in percent.
    pub address_share_percent: usize,
    /// Proxies that are believed when they say, by `X-Forwarded-For`, whom a request comes from.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Bodies up to this many bytes are hashed where they arrive; larger ones on the compute threads.
    pub inline_hash_bytes: u64,
    /// The largest XML body of a request, in bytes; most operations take less.
    pub xml_bytes_max: usize,
    /// What XML bodies of requests may take of memory together, in bytes; each counts for what the
    /// parser makes of it (8 times its length).
    pub xml_memory_bytes: u64,
    /// The read buffer of a connection, in bytes.
    pub connection_buffer_bytes: usize,
    /// How far a client's clock may be off.
    pub clock_skew_max: Duration,
    /// The largest object, or part, that one request may bring, in bytes.
    pub put_bytes_max: u64,
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            credentials: Vec::new(),
            region: "us-east-1".into(),
            domains: Vec::new(),
            https: false,
            allowed_origins: Vec::new(),
            targets: None,
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
            .field("etag", &self.etag)
            .field("requests_max", &self.requests_max)
            .finish_non_exhaustive()
    }
}
