//! Who may do what: whoever signs with a known key may do everything, others nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::host::{S3Host, VirtualHost};
use s3s::{S3Result, s3_error};

use crate::context::RequestContext;

/// The pairs of keys. `s3s` compares signatures in constant time.
pub(crate) struct Keys(BTreeMap<String, SecretKey>);

impl Keys {
    pub(crate) fn new(pairs: &[(String, String)]) -> Self {
        Self(pairs.iter().map(|(access, secret)| (access.clone(), SecretKey::from(secret.as_str()))).collect())
    }
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.get(access_key).cloned().ok_or_else(|| {
            s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records.")
        })
    }
}

/// Refuses what is not signed, and notes the operation's name for the metrics.
pub(crate) struct SignedOnly;

#[async_trait::async_trait]
impl S3Access for SignedOnly {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let name = cx.s3_op().name().to_owned();
        if let Some(context) = cx.extensions_mut().get::<Arc<RequestContext>>() {
            context.set_operation(&name);
        }
        match cx.credentials() {
            Some(_) => Ok(()),
            None => Err(s3_error!(AccessDenied, "Access Denied")),
        }
    }
}

/// Virtual-host style for the configured domains, path style for every other host name (unlike `s3s`'s own, which takes
/// an unknown host name for a bucket, so that `localhost` would not work beside a domain).
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
