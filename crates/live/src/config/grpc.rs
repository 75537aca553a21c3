//! The section `grpc_api`, with Centrifugo v6's names.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;

use crate::pem;

/// The default of `max_receive_message_size`, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The server API over gRPC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcApiConfig {
    /// Whether the server listens.
    pub enabled: bool,
    /// `transport`: errors are gRPC statuses. Empty: errors are fields of the answers.
    pub error_mode: String,
    /// The address to listen on; empty: all addresses of the host.
    pub address: String,
    /// The port to listen on; 0: a free port, printed at start.
    pub port: u16,
    /// The API key: metadata `authorization` must be `apikey ` and this key.
    pub key: String,
    /// Steadfast's own: accept calls from other hosts without a key. For tests and closed networks.
    pub insecure: bool,
    /// TLS settings.
    pub tls: ServerTlsConfig,
    /// Maximum size of a received message in bytes; 0: 4 MiB.
    pub max_receive_message_size: usize,
}

impl Default for GrpcApiConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            error_mode: String::new(),
            address: String::new(),
            port: 10_000,
            key: String::new(),
            insecure: false,
            tls: ServerTlsConfig::default(),
            max_receive_message_size: 0,
        }
    }
}

/// TLS of the port. A PEM value is the PEM text, its Base64, or the name of a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerTlsConfig {
    /// Whether the port uses TLS.
    pub enabled: bool,
    /// The certificate chain of the server.
    pub cert_pem: String,
    /// The private key of the certificate.
    pub key_pem: String,
    /// Certificate authorities of clients; if set, a client must present a certificate.
    pub client_ca_pem: String,
}

impl GrpcApiConfig {
    /// Checks what the types do not enforce.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !matches!(self.error_mode.as_str(), "" | "transport") {
            return Err("grpc_api.error_mode: use \"transport\" or leave it empty".to_owned());
        }
        if self.max_receive_message_size > i32::MAX as usize {
            return Err(format!("grpc_api.max_receive_message_size: use at most {}", i32::MAX));
        }
        if self.enabled && self.key.is_empty() && !self.insecure && !self.is_local() {
            return Err("grpc_api.key is not set, so any host that reaches the port could publish: set it, or listen on loopback \
                        only (grpc_api.address = \"127.0.0.1\"), or allow it with grpc_api.insecure"
                .to_owned());
        }
        if self.enabled {
            self.acceptor()?;
        }
        Ok(())
    }

    /// Whether the port is reachable from this host only.
    fn is_local(&self) -> bool {
        self.address == "localhost" || self.address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether calls need no key.
    pub fn is_open(&self) -> bool {
        self.insecure || self.key.is_empty()
    }

    pub(crate) fn message_bytes_max(&self) -> usize {
        match self.max_receive_message_size {
            0 => MESSAGE_BYTES_MAX,
            bytes => bytes,
        }
    }

    /// The TLS acceptor; `None` if TLS is not enabled.
    ///
    /// # Errors
    /// The text names the option and its mistake, for operators.
    pub fn acceptor(&self) -> Result<Option<TlsAcceptor>, String> {
        self.tls.acceptor("grpc_api.tls", &[b"h2"])
    }
}

impl ServerTlsConfig {
    /// No TLS.
    pub(crate) const fn none() -> Self {
        Self { enabled: false, cert_pem: String::new(), key_pem: String::new(), client_ca_pem: String::new() }
    }

    /// The TLS acceptor for these protocols; `None` if TLS is not enabled. Errors name the section
    /// `place`.
    ///
    /// # Errors
    /// The text names the option and its mistake, for operators.
    pub fn acceptor(&self, place: &str, protocols: &[&[u8]]) -> Result<Option<TlsAcceptor>, String> {
        let Self { enabled, cert_pem, key_pem, client_ca_pem } = self;
        if !enabled {
            return Ok(None);
        }
        let provider = Arc::new(default_provider());
        let fail = |e: &dyn std::fmt::Display| format!("{place}: {e}");
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| fail(&e))?;
        let builder = if client_ca_pem.is_empty() {
            builder.with_no_client_auth()
        } else {
            let authorities = pem::authorities(&format!("{place}.client_ca_pem"), client_ca_pem)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|e| fail(&e))?)
        };
        let chain = pem::certificates(&format!("{place}.cert_pem"), cert_pem)?;
        let key = pem::key(&format!("{place}.key_pem"), key_pem)?;
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|e| fail(&format!("cert_pem and key_pem cannot be used together: {e}")))?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Some(TlsAcceptor::from(Arc::new(config))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<GrpcApiConfig, String> {
        let config: GrpcApiConfig = serde_json::from_str(text).map_err(|e| e.to_string())?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn without_a_key_only_loopback_or_insecure_is_valid() {
        for text in [
            r#"{}"#,
            r#"{"enabled": true, "key": "k"}"#,
            r#"{"enabled": true, "address": "127.0.0.1"}"#,
            r#"{"enabled": true, "address": "::1"}"#,
            r#"{"enabled": true, "address": "localhost"}"#,
            r#"{"enabled": true, "insecure": true}"#,
        ] {
            assert_eq!(checked(text).expect(text).port, 10_000);
        }
        for text in [r#"{"enabled": true}"#, r#"{"enabled": true, "address": "10.0.0.1"}"#] {
            assert!(checked(text).expect_err(text).contains("grpc_api.key"));
        }
    }

    #[test]
    fn mistakes_and_unsupported_options_are_named() {
        for (text, expected) in [
            (r#"{"error_mode": "loud"}"#, "error_mode"),
            (r#"{"reflection": true}"#, "reflection"),
            (r#"{"port": 70000}"#, "70000"),
            (r#"{"max_receive_message_size": 3000000000}"#, "max_receive_message_size"),
            (r#"{"tls": {"server_name": "x"}}"#, "server_name"),
            (r#"{"enabled": true, "key": "k", "tls": {"enabled": true}}"#, "grpc_api.tls.cert_pem"),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.contains(expected), "{error}");
        }
    }
}
