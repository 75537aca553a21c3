//! A small signer of requests (AWS signature version 4), written from the specification,
//! independently of the code under test.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The credentials and the time of a signature.
#[derive(Clone)]
pub struct Signer {
    pub access_key: String,
    pub secret_key: String,
    pub region: String,
    /// `20260101T000000Z`
    pub amz_date: String,
}

pub fn sha256_hex(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

pub fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key length will do");
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

/// A signature of version 2.
pub fn signature_v2(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(secret.as_bytes()).expect("any key length will do");
    mac.update(text.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

/// Percent-encodes as the specification requires.
pub fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(b as char),
            b'/' if keep_slash => out.push('/'),
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

/// Canonical (and sendable) query string.
pub fn query_string(query: &[(String, String)]) -> String {
    let mut pairs: Vec<(String, String)> = query.iter().map(|(k, v)| (encode(k, false), encode(v, false))).collect();
    pairs.sort();
    pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join("&")
}

impl Signer {
    pub fn scope(&self) -> String {
        format!("{}/{}/s3/aws4_request", &self.amz_date[..8], self.region)
    }

    pub fn signing_key(&self) -> Vec<u8> {
        let date = hmac(format!("AWS4{}", self.secret_key).as_bytes(), &self.amz_date.as_bytes()[..8]);
        hmac(&hmac(&hmac(&date, self.region.as_bytes()), b"s3"), b"aws4_request")
    }

    /// The signature of a request. `path` is decoded; `headers` have lower-case names.
    pub fn signature(
        &self,
        method: &str,
        path: &str,
        query: &[(String, String)],
        headers: &BTreeMap<String, String>,
        payload: &str,
    ) -> String {
        let one_blank = |v: &str| v.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let canonical_headers: String = headers.iter().map(|(k, v)| format!("{k}:{}\n", one_blank(v))).collect();
        let names = headers.keys().cloned().collect::<Vec<_>>().join(";");
        let canonical = format!(
            "{method}\n{}\n{}\n{canonical_headers}\n{names}\n{payload}",
            encode(path, true),
            query_string(query)
        );
        let to_sign =
            format!("AWS4-HMAC-SHA256\n{}\n{}\n{}", self.amz_date, self.scope(), sha256_hex(canonical.as_bytes()));
        hex::encode(hmac(&self.signing_key(), to_sign.as_bytes()))
    }

    /// A body in chunks, each signed after the one before; `seed` is the signature of the request.
    pub fn chunked_body(&self, seed: &str, chunks: &[&[u8]]) -> Vec<u8> {
        let (mut previous, mut body) = (seed.to_owned(), Vec::new());
        for chunk in chunks.iter().copied().chain([&b""[..]]) {
            let to_sign = format!(
                "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{previous}\n{}\n{}",
                self.amz_date,
                self.scope(),
                sha256_hex(b""),
                sha256_hex(chunk)
            );
            previous = hex::encode(hmac(&self.signing_key(), to_sign.as_bytes()));
            body.extend_from_slice(format!("{:x};chunk-signature={previous}\r\n", chunk.len()).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(b"\r\n");
        }
        body
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256` and `authorization` to `headers`, which must
    /// contain `host`.
    pub fn sign(
        &self,
        method: &str,
        path: &str,
        query: &[(String, String)],
        headers: &mut BTreeMap<String, String>,
        payload: &str,
    ) -> String {
        headers.insert("x-amz-date".into(), self.amz_date.clone());
        headers.insert("x-amz-content-sha256".into(), payload.into());
        let signature = self.signature(method, path, query, headers, payload);
        let names = headers.keys().cloned().collect::<Vec<_>>().join(";");
        headers.insert(
            "authorization".into(),
            format!(
                "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={names}, Signature={signature}",
                self.access_key,
                self.scope()
            ),
        );
        signature
    }
}
