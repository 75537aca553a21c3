//! gRPC settings of proxies: Centrifugo v6's `grpc`.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::{Deserialize, Serialize};

use super::proxy::{ProxyConfig, ProxyHttpConfig, header_name};
use super::tls::ProxyTlsConfig;

/// Metadata names that gRPC reserves, and that it treats as binary.
pub(crate) const RESERVED_PREFIX: &str = "grpc-";
pub(crate) const BINARY_SUFFIX: &str = "-bin";

/// The scheme of gRPC endpoints.
pub(crate) const SCHEME: &str = "grpc://";

/// Settings of a `grpc://` endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyGrpcConfig {
    /// TLS settings; not enabled: the connection is plain text.
    pub tls: ProxyTlsConfig,
    /// The name of a metadata entry of each request.
    pub credentials_key: String,
    /// The value of the entry.
    pub credentials_value: String,
    /// Metadata of each request, unless a forwarded header replaces it.
    pub static_metadata: BTreeMap<String, String>,
}

impl ProxyGrpcConfig {
    /// Checks what the types do not enforce.
    pub(crate) fn check(&self, proxy: &ProxyConfig) -> Result<(), String> {
        if !proxy.is_grpc() {
            if *self != Self::default() {
                return Err("grpc is set, but the endpoint does not begin with grpc://".into());
            }
            return Ok(());
        }
        origin_of(&proxy.endpoint, self.tls.enabled).map_err(|e| format!("endpoint: {:?}: {e}", proxy.endpoint))?;
        let ProxyHttpConfig { static_headers, status_to_code_transforms, tls } = &proxy.http;
        for (is_set, name) in [
            (!static_headers.is_empty(), "static_headers"),
            (!status_to_code_transforms.is_empty(), "status_to_code_transforms"),
            (tls.enabled, "tls"),
        ] {
            if is_set {
                return Err(format!("http.{name} is set, but the endpoint begins with grpc://"));
            }
        }
        for (names, place) in [(&proxy.http_headers, "http_headers"), (&proxy.emulated_headers, "emulated_headers")] {
            names.iter().try_for_each(|name| metadata_name(name, place).map(drop))?;
        }
        self.tls.client("grpc.tls")?;
        self.static_metadata()?;
        self.credentials().map(drop)
    }

    /// The metadata of each request that a forwarded header may replace.
    pub(crate) fn static_metadata(&self) -> Result<HeaderMap, String> {
        let entry = |(name, value): (&String, &String)| {
            let place = "grpc.static_metadata";
            let mut value = HeaderValue::from_str(value)
                .ok()
                .filter(|value| value.to_str().is_ok())
                .ok_or_else(|| format!("{place}: {name}: not a valid metadata value"))?;
            value.set_sensitive(true);
            Ok((metadata_name(name, place)?, value))
        };
        self.static_metadata.iter().map(entry).collect()
    }

    /// The metadata of each request.
    pub(crate) fn credentials(&self) -> Result<HeaderMap, String> {
        let mut metadata = HeaderMap::new();
        if self.credentials_key.is_empty() {
            if !self.credentials_value.is_empty() {
                return Err("grpc.credentials_value is set, but credentials_key is not".into());
            }
            return Ok(metadata);
        }
        let mut value = HeaderValue::from_str(&self.credentials_value)
            .map_err(|_| "grpc.credentials_value: not a valid metadata value".to_owned())?;
        value.set_sensitive(true);
        metadata.insert(metadata_name(&self.credentials_key, "grpc.credentials_key")?, value);
        Ok(metadata)
    }
}

/// Parses the name of a text metadata entry.
fn metadata_name(name: &str, place: &str) -> Result<HeaderName, String> {
    let found = header_name(name, place)?;
    let text = found.as_str();
    if text.starts_with(RESERVED_PREFIX) || text.ends_with(BINARY_SUFFIX) || text == "proxy-connection" {
        return Err(format!("{place}: {name}: gRPC reserves this metadata name or treats it as binary"));
    }
    Ok(found)
}

/// The origin of a `grpc://` endpoint, for HTTP/2.
pub(crate) fn origin_of(endpoint: &str, tls: bool) -> Result<Uri, String> {
    let rest = endpoint.strip_prefix(SCHEME).unwrap_or_default();
    let origin: Uri = format!("{}://{}", if tls { "https" } else { "http" }, rest).parse().map_err(|_| "not a URL")?;
    if origin.host().is_none_or(str::is_empty) || origin.port().is_none() {
        return Err("it needs a host and a port, as in grpc://127.0.0.1:12000".to_owned());
    }
    if !matches!(origin.path(), "" | "/") || origin.query().is_some() {
        return Err("remove the path and query: gRPC does not use them".to_owned());
    }
    Ok(origin)
}
