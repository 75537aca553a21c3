//! The part of AWS Signature Version 4 that a load generator needs.
//!
//! Source:
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.
//! The signing key is derived once and the rest costs two HMACs a request, so that the client does
//! not become the bottleneck.

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// SHA-256 in lower-case hexadecimal.
pub fn sha256_hex(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.chain_update(data).finalize().into_bytes().into()
}

/// `YYYYMMDDTHHMMSSZ` of a time in seconds since the Unix epoch.
fn amz_date(unix: u64) -> String {
    let at = i64::try_from(unix).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{:04}{:02}{:02}T{hour:02}{minute:02}{second:02}Z", date.year(), u8::from(date.month()), date.day())
}

/// Signs requests to one endpoint with one key pair.
#[derive(Clone)]
pub struct Signer {
    access_key: String,
    secret_key: String,
    host: String,
    day: String,
    key: [u8; 32],
}

impl Signer {
    /// `host`: value of the `Host` header.
    pub fn new(access_key: &str, secret_key: &str, host: &str) -> Self {
        Self {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            host: host.into(),
            day: String::new(),
            key: [0; 32],
        }
    }

    /// The head of a signed HTTP/1.1 request, blank line included.
    ///
    /// `query` must be in canonical form (sorted, percent-encoded) and `path` too; `payload` is the
    /// SHA-256 of the body in hexadecimal or `UNSIGNED-PAYLOAD`.
    #[allow(clippy::disallowed_methods, reason = "a client signs with the wall clock")]
    pub fn head(&mut self, method: &str, path: &str, query: &str, payload: &str, length: usize) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let date = amz_date(now);
        if self.day != date[..8] {
            self.day = date[..8].to_owned();
            let key = hmac(format!("AWS4{}", self.secret_key).as_bytes(), self.day.as_bytes());
            self.key = hmac(&hmac(&hmac(&key, b"us-east-1"), b"s3"), b"aws4_request");
        }
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{}\nx-amz-content-sha256:{payload}\nx-amz-date:{date}\n\nhost;x-amz-content-sha256;x-amz-date\n{payload}",
            self.host
        );
        let scope = format!("{}/us-east-1/s3/aws4_request", self.day);
        let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256_hex(canonical.as_bytes()));
        let signature = hex::encode(hmac(&self.key, to_sign.as_bytes()));
        let mark = if query.is_empty() { "" } else { "?" };
        format!(
            "{method} {path}{mark}{query} HTTP/1.1\r\nhost: {}\r\nx-amz-content-sha256: {payload}\r\nx-amz-date: {date}\r\nauthorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}\r\ncontent-length: {length}\r\n\r\n",
            self.host, self.access_key
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_hmac_match_known_values() {
        assert_eq!(amz_date(0), "19700101T000000Z");
        assert_eq!(amz_date(1_709_210_096), "20240229T123456Z");
        // RFC 4231, test case 2
        assert_eq!(
            hex::encode(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
