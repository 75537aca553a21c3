//! `grpc_api`, under Centrifugo v6's names.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;

use crate::pem;

/// Where a message's size is not bounded by the configuration.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The server API over gRPC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcApiConfig {
    /// Whether it is there.
    pub enabled: bool,
    /// `transport`: errors are gRPC's own, and not in answers.
    pub error_mode: String,
    /// Where it listens; empty: on all addresses of this machine.
    pub address: String,
    /// As above. 0: one that is free, printed at start.
    pub port: u16,
    /// What the metadata `authorization` must be after `apikey `.
    pub key: String,
    /// Ours: everybody gets in, without a key and from other machines. For trials and closed networks.
    pub insecure: bool,
    /// Certificates.
    pub tls: GrpcTlsConfig,
    /// Bytes of a message; 0 for 4 MiB.
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
            tls: GrpcTlsConfig::default(),
            max_receive_message_size: 0,
        }
    }
}

/// TLS of the port. What is PEM may be given as it is, in Base64, or as the name of a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcTlsConfig {
    /// Whether the rest counts.
    pub enabled: bool,
    /// The server's certificate,
    pub cert_pem: String,
    /// and its key.
    pub key_pem: String,
    /// Authorities that vouch for clients, which then must show a certificate.
    pub client_ca_pem: String,
}

impl GrpcApiConfig {
    /// Checks what the types do not.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !matches!(self.error_mode.as_str(), "" | "transport") {
            return Err("grpc_api.error_mode: \"transport\", or nothing".to_owned());
        }
        if self.max_receive_message_size > i32::MAX as usize {
            return Err(format!("grpc_api.max_receive_message_size: up to {}", i32::MAX));
        }
        if self.enabled && self.key.is_empty() && !self.insecure && !self.is_local() {
            return Err("grpc_api.key: it is not set, so everybody who reaches the port could publish: set it, or listen on this machine \
                        only (grpc_api.address = \"127.0.0.1\"), or say that it is meant (grpc_api.insecure)"
                .to_owned());
        }
        if self.enabled {
            self.acceptor()?;
        }
        Ok(())
    }

    /// Whether only this machine reaches it.
    fn is_local(&self) -> bool {
        self.address == "localhost" || self.address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether nobody needs a key.
    pub fn is_open(&self) -> bool {
        self.insecure || self.key.is_empty()
    }

    pub(crate) fn message_bytes_max(&self) -> usize {
        match self.max_receive_message_size {
            0 => MESSAGE_BYTES_MAX,
            bytes => bytes,
        }
    }

    /// TLS, if it is enabled.
    ///
    /// # Errors
    /// What is wrong with which option, for people.
    pub fn acceptor(&self) -> Result<Option<TlsAcceptor>, String> {
        let GrpcTlsConfig { enabled, cert_pem, key_pem, client_ca_pem } = &self.tls;
        if !enabled {
            return Ok(None);
        }
        let provider = Arc::new(default_provider());
        let fail = |e: &dyn std::fmt::Display| format!("grpc_api.tls: {e}");
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| fail(&e))?;
        let builder = if client_ca_pem.is_empty() {
            builder.with_no_client_auth()
        } else {
            let authorities = pem::authorities("grpc_api.tls.client_ca_pem", client_ca_pem)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|e| fail(&e))?)
        };
        let chain = pem::certificates("grpc_api.tls.cert_pem", cert_pem)?;
        let key = pem::key("grpc_api.tls.key_pem", key_pem)?;
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|e| fail(&format!("cert_pem and key_pem cannot be used together: {e}")))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
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
    fn without_a_key_it_is_for_this_machine_only_unless_that_is_meant() {
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
    fn mistakes_and_what_is_not_supported_are_named() {
        for (text, says) in [
            (r#"{"error_mode": "loud"}"#, "error_mode"),
            (r#"{"reflection": true}"#, "reflection"),
            (r#"{"port": 70000}"#, "70000"),
            (r#"{"max_receive_message_size": 3000000000}"#, "max_receive_message_size"),
            (r#"{"tls": {"server_name": "x"}}"#, "server_name"),
            (r#"{"enabled": true, "key": "k", "tls": {"enabled": true}}"#, "grpc_api.tls.cert_pem"),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }
}
