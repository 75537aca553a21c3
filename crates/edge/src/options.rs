//! What an edge is configured with.

use std::time::Duration;

use steadfast_net::{Addresses, S3Credentials, Secret};

use crate::sabotage::Sabotage;

/// A bucket with an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeBucket {
    /// Name of the bucket. It is created if it does not exist.
    pub bucket: String,
    /// Where its objects come from.
    pub origin: OriginAddress,
    /// Which addresses the origin may have.
    pub addresses: Addresses,
    /// Which segments of an object are fetched.
    pub fill: FillMode,
    /// Bytes of a segment, the unit of fetching; at least 64 KiB.
    pub segment_bytes: u64,
    /// Largest object that is stored, in bytes. Larger ones are passed through.
    pub object_bytes_max: u64,
    /// How much of it is kept, and how long.
    pub retention: Retention,
    /// How long an object is served without asking the origin.
    pub fresh: Fresh,
    /// How long after that it is served when the origin fails, if the origin does not say it.
    pub stale_if_error: Duration,
    /// How long the origin is not asked again about a key that it does not have; 0: not at all.
    pub negative: Duration,
    /// How long the origin may take to begin an answer, and to send the next bytes of it.
    pub timeout: Duration,
}

/// How much an edge bucket keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Bound on the bytes of cached objects and of fills; 0: as much as the pool allows.
    pub space_bytes: u64,
    /// How long after its last use an object is evicted; `None`: not for its age.
    pub age: Option<Duration>,
}

/// The address of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginAddress {
    /// A bucket of an S3 endpoint.
    S3 {
        /// URL of the endpoint, without a path.
        endpoint: String,
        /// The bucket there.
        bucket: String,
        /// What precedes each key there; empty, or with a `/` at the end.
        prefix: String,
        /// What requests are signed with; `None` for a public bucket.
        credentials: Option<S3Credentials>,
    },
    /// An HTTP server.
    Http {
        /// URL that each key is appended to.
        url: String,
        /// Headers of each request, such as `authorization`.
        headers: Vec<(String, Secret)>,
    },
}

impl OriginAddress {
    /// A number that differs between origins. It is stored with objects and fills, so it never
    /// changes: FNV-1a of what the address names, without credentials and headers.
    pub(crate) fn number(&self) -> u64 {
        let parts = match self {
            Self::S3 { endpoint, bucket, prefix, .. } => [endpoint.trim_end_matches('/'), bucket, prefix],
            Self::Http { url, .. } => [url.trim_end_matches('/'), "", ""],
        };
        let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// How long an object is served without asking the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fresh {
    /// As its headers say. Without any, for a tenth of the time since it changed, at most a day.
    #[default]
    Origin,
    /// As its headers say. Without any, for this time.
    Fallback(Duration),
    /// For ever: objects never change under their names.
    Forever,
}

/// Which segments of an object are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FillMode {
    /// All of them, as soon as one was wanted.
    #[default]
    Whole,
    /// Those that readers want, and the rest when half of the object is there.
    Wanted,
}

/// Bounds of the edge. Each bucket has its own fills, connections and requests; the memory is for
/// all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeBounds {
    /// Fills of a bucket at a time.
    pub fills: usize,
    /// Connections that fetch a bucket's objects. A quarter of them fetches ahead, and the others
    /// fetch what readers wait for.
    pub origin_connections: usize,
    /// Answers of a bucket that are passed through at a time, each on a connection of its own.
    pub passed: usize,
    /// Requests of a bucket that wait for the first bytes of their answer.
    pub waiting: usize,
    /// Percentage of each of the bounds above that one client has, except of the connections that
    /// fetch ahead.
    pub client_share_percent: usize,
    /// Memory for segments on their way to the disk, in bytes.
    pub memory_bytes: u64,
    /// Memory for the times of last use, in bytes: 8 for each key. Keys that do not fit count as
    /// used longest ago.
    pub last_use_bytes: u64,
    /// Deliberate fault, to test the simulator.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

impl Default for EdgeBounds {
    fn default() -> Self {
        Self {
            fills: 1024,
            origin_connections: 32,
            passed: 256,
            waiting: 256,
            client_share_percent: 25,
            memory_bytes: 256 << 20,
            last_use_bytes: 16 << 20,
            sabotage: Sabotage::None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_origin_follows_from_what_it_names() {
        let http = |url: &str, headers| OriginAddress::Http { url: url.into(), headers }.number();
        assert_eq!(http("http://a/vod", Vec::new()), 0xf8c1_3797_3d27_68a4);
        assert_eq!(http("http://a/vod/", vec![("a".into(), Secret("b".into()))]), http("http://a/vod", Vec::new()));
        assert_ne!(http("http://a/vod/new", Vec::new()), http("http://a/vod", Vec::new()));
        let s3 = |bucket: &str, prefix: &str| OriginAddress::S3 {
            endpoint: "http://a".into(),
            bucket: bucket.into(),
            prefix: prefix.into(),
            credentials: None,
        };
        assert_ne!(s3("b", "c").number(), s3("bc", "").number());
    }

    /// A bucket for tests.
    pub(crate) fn bucket() -> EdgeBucket {
        EdgeBucket {
            bucket: "media".into(),
            origin: OriginAddress::Http { url: "http://127.0.0.1".into(), headers: Vec::new() },
            addresses: Addresses::Any,
            fill: FillMode::Whole,
            segment_bytes: 1 << 20,
            object_bytes_max: 1 << 30,
            retention: Retention::default(),
            fresh: Fresh::Origin,
            stale_if_error: Duration::ZERO,
            negative: Duration::ZERO,
            timeout: Duration::from_secs(5),
        }
    }
}
