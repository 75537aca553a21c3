//! AWS Signature Version 4 for our requests.
//!
//! Source:
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// A text that `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// What signs the requests to an S3 endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Credentials {
    /// The region of the endpoint.
    pub region: String,
    /// Access key.
    pub access_key: String,
    /// Secret key.
    pub secret_key: Secret,
    /// Session token of temporary credentials.
    pub session_token: Option<Secret>,
}

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    // HMAC accepts keys of any length.
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.chain_update(data).finalize().into_bytes().to_vec()
}

/// `YYYYMMDDTHHMMSSZ` of a time in seconds since the Unix epoch.
fn amz_date(unix: u64) -> String {
    let at = i64::try_from(unix).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{:04}{:02}{:02}T{hour:02}{minute:02}{second:02}Z", date.year(), u8::from(date.month()), date.day())
}

/// Percent-encodes everything but unreserved characters; `/` too, unless `keep_slash` is set.
pub fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' if keep_slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The headers that sign a request, `host` among them. `path` and `query` are already encoded, the
/// query sorted by name. `wall_ms` is the time in milliseconds since the Unix epoch.
pub fn signed_headers(
    credentials: &S3Credentials,
    host: &str,
    wall_ms: u64,
    method: &str,
    (path, query): (&str, &str),
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let date = amz_date(wall_ms / 1000);
    let day = &date[..8];
    let payload = hex::encode(Sha256::digest(body));
    let mut signed =
        vec![("host", host.to_owned()), ("x-amz-content-sha256", payload.clone()), ("x-amz-date", date.clone())];
    if let Some(token) = &credentials.session_token {
        signed.push(("x-amz-security-token", token.0.clone()));
    }
    let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
    let scope = format!("{day}/{}/s3/aws4_request", credentials.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex::encode(Sha256::digest(canonical.as_bytes())));
    let mut key = format!("AWS4{}", credentials.secret_key.0).into_bytes();
    for part in [day, &credentials.region, "s3", "aws4_request"] {
        key = hmac(&key, part.as_bytes());
    }
    let signature = hex::encode(hmac(&key, to_sign.as_bytes()));
    let credential = format!("{}/{scope}", credentials.access_key);
    signed.push((
        "authorization",
        format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"),
    ));
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_encoding_match_known_values() {
        assert_eq!(amz_date(0), "19700101T000000Z");
        assert_eq!(amz_date(1_709_210_096), "20240229T123456Z");
        assert_eq!(encode("a b/ä~", true), "a%20b/%C3%A4~");
        assert_eq!(encode("a/b", false), "a%2Fb");
    }

    #[test]
    fn a_signature_is_that_of_amazons_example() {
        // "GET Bucket Lifecycle" in the S3 documentation's examples of signature calculations.
        let credentials = S3Credentials {
            region: "us-east-1".into(),
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            session_token: None,
        };
        assert!(!format!("{credentials:?}").contains("EXAMPLEKEY"));
        // 24 May 2013, 00:00:00 UTC.
        let at_ms = 1_369_353_600_000;
        let host = "examplebucket.s3.amazonaws.com";
        let signed = signed_headers(&credentials, host, at_ms, "GET", ("/", "lifecycle="), b"");
        let (_, authorization) = signed.last().expect("signed");
        let expected = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        assert!(authorization.ends_with(expected), "{authorization}");
    }
}
