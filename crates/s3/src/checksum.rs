//! The checksums of S3: computed, checked, composed and combined.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use http::HeaderMap;
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha1::Digest as _;

use crate::error::invalid_request;

/// A checksum algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// Checksum type of an object uploaded in parts: the checksum covers its bytes.
pub(crate) const FULL_OBJECT: &str = "FULL_OBJECT";
/// Checksum type of an object uploaded in parts: the checksum covers its parts' checksums.
pub(crate) const COMPOSITE: &str = "COMPOSITE";

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// The name in the store.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// The name in S3's headers and XML.
    pub(crate) fn s3_name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    pub(crate) fn parse(name: &str) -> S3Result<Self> {
        Self::ALL.into_iter().find(|a| a.s3_name().eq_ignore_ascii_case(name)).ok_or_else(unsupported)
    }

    fn digest_len(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    fn encode_crc(self, value: u64) -> String {
        BASE64.encode(&value.to_be_bytes()[8 - self.digest_len()..])
    }

    fn decode(self, text: &str) -> Option<Vec<u8>> {
        BASE64.decode(text).ok().filter(|bytes| bytes.len() == self.digest_len())
    }

    /// Refuses a text that cannot be a value of this algorithm.
    pub(crate) fn check_form(self, text: &str) -> S3Result<()> {
        if self.decode(text).is_some() {
            return Ok(());
        }
        Err(invalid_request(format!("Value for x-amz-checksum-{} header is invalid.", self.name())))
    }

    /// The checksum type of an upload in parts that names none.
    pub(crate) fn default_type(self) -> &'static str {
        if self == Self::Crc64Nvme { FULL_OBJECT } else { COMPOSITE }
    }

    /// Whether an upload in parts may have a checksum of this type.
    pub(crate) fn check_type(self, kind: &str) -> S3Result<()> {
        let fits = match kind {
            FULL_OBJECT => self.crc().is_some(),
            COMPOSITE => self != Self::Crc64Nvme,
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(invalid_request(format!(
            "The {kind} checksum type cannot be used with the {} checksum algorithm.",
            self.s3_name().to_ascii_lowercase()
        )))
    }
}

/// A checksum under computation.
pub(crate) enum Hasher {
    Crc(Algorithm, Box<crc_fast::Digest>),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match (algorithm.crc(), algorithm) {
            (Some(crc), _) => Self::Crc(algorithm, Box::new(crc_fast::Digest::new(crc))),
            (None, Algorithm::Sha1) => Self::Sha1(sha1::Sha1::new()),
            (None, _) => Self::Sha256(sha2::Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc(_, digest) => digest.update(data),
            Self::Sha1(digest) => digest.update(data),
            Self::Sha256(digest) => digest.update(data),
        }
    }

    /// The checksum as S3 writes it.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Crc(algorithm, digest) => algorithm.encode_crc(digest.finalize()),
            Self::Sha1(digest) => BASE64.encode(digest.finalize()),
            Self::Sha256(digest) => BASE64.encode(digest.finalize()),
        }
    }
}

/// The checksum that a request claims for its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The algorithm to compute, if any.
    pub(crate) algorithm: Option<Algorithm>,
    /// The value, if a header gives it.
    pub(crate) value: Option<String>,
    /// Whether the value follows the body in a trailer.
    pub(crate) trailer: bool,
}

impl Claim {
    /// Reads `x-amz-checksum-*`, `x-amz-trailer` and `x-amz-sdk-checksum-algorithm`.
    ///
    /// # Errors
    /// `InvalidRequest` for more than one checksum, or one that is malformed.
    pub(crate) fn read(headers: &HeaderMap) -> S3Result<Self> {
        let mut claim = Self::default();
        let (mut found, mut named) = (0, [None; 2]);
        for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("x-amz-")) {
            let value = value.to_str().unwrap_or_default();
            match name.as_str() {
                "x-amz-sdk-checksum-algorithm" => named[0] = named[0].or(Some(value)),
                "x-amz-checksum-algorithm" => named[1] = named[1].or(Some(value)),
                "x-amz-trailer" => {
                    for name in value.split(',') {
                        if let Some(algorithm) = of_header(&name.trim().to_ascii_lowercase())? {
                            claim = Self { algorithm: Some(algorithm), value: None, trailer: true };
                            found += 1;
                        }
                    }
                }
                name => {
                    if let Some(algorithm) = of_header(name)? {
                        algorithm.check_form(value)?;
                        claim = Self { algorithm: Some(algorithm), value: Some(value.to_owned()), trailer: false };
                        found += 1;
                    }
                }
            }
        }
        if found > 1 {
            return Err(invalid_request(
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
            ));
        }
        if let Some(name) = named[0] {
            let algorithm = Some(Algorithm::parse(name)?);
            if found == 0 {
                return Err(invalid_request(
                    "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found.",
                ));
            }
            if claim.algorithm != algorithm {
                return Err(invalid_request("Value for x-amz-sdk-checksum-algorithm header is invalid."));
            }
        }
        if found == 0
            && let Some(name) = named[1]
        {
            claim.algorithm = Some(Algorithm::parse(name)?);
        }
        Ok(claim)
    }

    /// Checks a body that is in memory.
    ///
    /// # Errors
    /// `BadDigest`.
    pub(crate) fn check(&self, body: &[u8]) -> S3Result<()> {
        let (Some(algorithm), Some(value)) = (self.algorithm, &self.value) else { return Ok(()) };
        let mut hasher = Hasher::new(algorithm);
        hasher.update(body);
        if hasher.finish() == *value { Ok(()) } else { Err(bad_digest(algorithm)) }
    }
}

/// The algorithm whose value a header has, by the header's lower-case name; `None` for other
/// headers.
///
/// # Errors
/// `InvalidRequest` for a checksum that the server does not compute: it could not be checked.
pub(crate) fn of_header(name: &str) -> S3Result<Option<Algorithm>> {
    match name.strip_prefix("x-amz-checksum-") {
        None | Some("mode" | "type" | "algorithm") => Ok(None),
        Some(name) => Algorithm::parse(name).map(Some),
    }
}

pub(crate) fn header_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Crc32 => "x-amz-checksum-crc32",
        Algorithm::Crc32c => "x-amz-checksum-crc32c",
        Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
        Algorithm::Sha1 => "x-amz-checksum-sha1",
        Algorithm::Sha256 => "x-amz-checksum-sha256",
    }
}

/// The one algorithm of a stored map of checksums.
pub(crate) fn algorithm_of(checksums: &BTreeMap<String, String>) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|a| checksums.contains_key(a.name()))
}

/// The error for an algorithm that the server does not compute.
pub(crate) fn unsupported() -> S3Error {
    invalid_request(
        "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
    )
}

/// `BadDigest` for a checksum that does not match.
pub(crate) fn bad_digest(algorithm: Algorithm) -> S3Error {
    S3Error::with_message(
        S3ErrorCode::BadDigest,
        format!("The {} you specified did not match the calculated checksum.", algorithm.s3_name()),
    )
}

/// The checksum of the parts' checksums; `None` if one of them is malformed.
pub(crate) fn composite<'a>(algorithm: Algorithm, parts: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut hasher = Hasher::new(algorithm);
    let mut count = 0;
    for part in parts {
        hasher.update(&algorithm.decode(part)?);
        count += 1;
    }
    Some(format!("{}-{count}", hasher.finish()))
}

/// The checksum of the whole from the checksums and lengths of its parts; possible only for a CRC.
pub(crate) fn combine<'a>(algorithm: Algorithm, parts: impl Iterator<Item = (&'a str, u64)>) -> Option<String> {
    let crc = algorithm.crc()?;
    let mut whole = crc_fast::Digest::new(crc).finalize();
    for (text, len) in parts {
        let mut bytes = [0; 8];
        bytes[8 - algorithm.digest_len()..].copy_from_slice(&algorithm.decode(text)?);
        whole = crc_fast::checksum_combine(crc, whole, u64::from_be_bytes(bytes), len);
    }
    Some(algorithm.encode_crc(whole))
}

/// Sets the five checksum fields of an output from a stored map.
macro_rules! set_checksums {
    ($output:expr, $checksums:expr) => {{
        let checksums = $checksums;
        $output.checksum_crc32 = checksums.get("crc32").cloned();
        $output.checksum_crc32c = checksums.get("crc32c").cloned();
        $output.checksum_crc64nvme = checksums.get("crc64nvme").cloned();
        $output.checksum_sha1 = checksums.get("sha1").cloned();
        $output.checksum_sha256 = checksums.get("sha256").cloned();
    }};
}
pub(crate) use set_checksums;

/// The checksum fields of an input that have a value.
macro_rules! given_checksums {
    ($input:expr) => {{
        use $crate::checksum::Algorithm;
        [
            (Algorithm::Crc32, $input.checksum_crc32.as_deref()),
            (Algorithm::Crc32c, $input.checksum_crc32c.as_deref()),
            (Algorithm::Crc64Nvme, $input.checksum_crc64nvme.as_deref()),
            (Algorithm::Sha1, $input.checksum_sha1.as_deref()),
            (Algorithm::Sha256, $input.checksum_sha256.as_deref()),
        ]
        .into_iter()
        .filter_map(|(algorithm, value)| value.map(|value| (algorithm, value)))
    }};
}
pub(crate) use given_checksums;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(algorithm: Algorithm, data: &[u8]) -> String {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(data);
        hasher.finish()
    }

    /// Values of the usual check string "123456789", from the CRC catalogue and `openssl dgst`.
    #[test]
    fn known_values() {
        let data = b"123456789";
        assert_eq!(of(Algorithm::Crc32, data), BASE64.encode(0xcbf4_3926_u32.to_be_bytes()));
        assert_eq!(of(Algorithm::Crc32c, data), BASE64.encode(0xe306_9283_u32.to_be_bytes()));
        assert_eq!(of(Algorithm::Crc64Nvme, data), BASE64.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes()));
        assert_eq!(of(Algorithm::Sha1, data), "98O8HYCOBHMq32eZZczDTKeuNEE=");
        assert_eq!(of(Algorithm::Sha256, data), "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=");
    }

    proptest! {
        #[test]
        fn combining_is_hashing_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6)) {
            let whole: Vec<u8> = parts.concat();
            for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
                let sums: Vec<(String, u64)> = parts.iter().map(|p| (of(algorithm, p), p.len() as u64)).collect();
                let combined = combine(algorithm, sums.iter().map(|(s, n)| (s.as_str(), *n)));
                prop_assert_eq!(combined, Some(of(algorithm, &whole)));
            }
        }
    }

    #[test]
    fn claims() {
        let claim = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            Claim::read(&headers).map_err(|e| e.code().as_str().to_owned())
        };
        assert_eq!(claim(&[]).unwrap(), Claim::default());
        let crc = claim(&[("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-sdk-checksum-algorithm", "CRC32")]).unwrap();
        assert_eq!((crc.algorithm, crc.value.as_deref()), (Some(Algorithm::Crc32), Some("y/Q5Jg==")));
        let trailer = claim(&[("x-amz-trailer", "x-amz-checksum-crc64nvme")]).unwrap();
        assert_eq!((trailer.algorithm, trailer.trailer), (Some(Algorithm::Crc64Nvme), true));
        assert_eq!(claim(&[("x-amz-checksum-crc32", "y/Q5")]), Err("InvalidRequest".into()));
        let two = [("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-trailer", "x-amz-checksum-sha1")];
        assert_eq!(claim(&two), Err("InvalidRequest".into()));
        for refused in [
            [("x-amz-checksum-sha512", "AA=="), ("a", "b")],
            [("x-amz-checksum-xxhash3", ""), ("x-amz-checksum-crc32", "y/Q5Jg==")],
            [("x-amz-trailer", "X-Amz-Checksum-MD5"), ("a", "b")],
            [("x-amz-trailer", "x-amz-checksum-crc32, x-amz-checksum-new"), ("a", "b")],
            [("x-amz-sdk-checksum-algorithm", "CRC32C"), ("a", "b")],
            [("x-amz-sdk-checksum-algorithm", "CRC32C"), ("x-amz-checksum-crc32", "y/Q5Jg==")],
            [("x-amz-sdk-checksum-algorithm", "MD4"), ("x-amz-checksum-crc32", "y/Q5Jg==")],
            [("x-amz-sdk-checksum-algorithm", "SHA1"), ("x-amz-trailer", "x-amz-checksum-crc32")],
        ] {
            assert_eq!(claim(&refused), Err("InvalidRequest".into()), "{refused:?}");
        }
        let mode = claim(&[("x-amz-checksum-mode", "ENABLED"), ("x-amz-checksum-type", "COMPOSITE")]);
        assert_eq!(mode.unwrap(), Claim::default());
        let claimed = claim(&[("x-amz-checksum-crc32", "y/Q5Jg==")]).unwrap();
        assert!(claimed.check(b"123456789").is_ok());
        assert_eq!(claimed.check(b"12345678").unwrap_err().code().as_str(), "BadDigest");
    }
}
