//! TLS to back ends: Centrifugo v6's `http.tls` and `grpc.tls` of proxies.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde::{Deserialize, Serialize};
use steadfast_net::{Addresses, ClientTls, HttpClient, http_client_for, tls_builder, with_system_authorities};

use crate::pem;

/// TLS settings of a proxy. A PEM value is the PEM text, its Base64, or the name of a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyTlsConfig {
    /// Whether the settings apply.
    pub enabled: bool,
    /// The client certificate, for back ends that require one.
    pub cert_pem: String,
    /// The private key of the certificate.
    pub key_pem: String,
    /// Certificate authorities of the back end, instead of those of the operating system.
    pub server_ca_pem: String,
    /// Accept any certificate of the back end. For tests.
    pub insecure_skip_verify: bool,
    /// The name that the certificate of the back end must have, if not the host of the endpoint.
    pub server_name: String,
}

impl ProxyTlsConfig {
    /// A client for this URL that keeps up to `idle_max` connections and uses these settings over
    /// `https`. `place` is the option that errors name.
    ///
    /// # Errors
    /// The URL or the settings are invalid; the text is for operators.
    pub fn http_client(&self, url: &http::Uri, idle_max: usize, place: &str) -> Result<HttpClient, String> {
        http_client_for(url, idle_max, self.client(place)?, Addresses::Any)
    }

    /// The TLS client configuration; `None` if TLS is not enabled. `place` is the option that
    /// errors name.
    pub(crate) fn client(&self, place: &str) -> Result<Option<ClientTls>, String> {
        if !self.enabled {
            return Ok(None);
        }
        let builder = tls_builder()?;
        let builder = if self.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyServerCert))
        } else if self.server_ca_pem.is_empty() {
            with_system_authorities(builder).map_err(|e| format!("{place}: {e}"))?
        } else {
            builder.with_root_certificates(pem::authorities(&format!("{place}.server_ca_pem"), &self.server_ca_pem)?)
        };
        let config = match (self.cert_pem.is_empty(), self.key_pem.is_empty()) {
            (true, true) => builder.with_no_client_auth(),
            (false, false) => {
                let chain = pem::certificates(&format!("{place}.cert_pem"), &self.cert_pem)?;
                let key = pem::key(&format!("{place}.key_pem"), &self.key_pem)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|e| format!("{place}: cert_pem and key_pem cannot be used together: {e}"))?
            }
            _ => return Err(format!("{place}: cert_pem and key_pem go together: set the missing one")),
        };
        let name = Some(&self.server_name).filter(|name| !name.is_empty());
        let server_name = name
            .map(|name| ServerName::try_from(name.clone()))
            .transpose()
            .map_err(|_| format!("{place}.server_name: {:?} is not a valid server name", self.server_name))?;
        Ok(Some(ClientTls { config, server_name }))
    }
}

/// Accepts any server certificate. It checks no handshake signature either: with an unverified
/// certificate a signature proves nothing.
#[derive(Debug)]
struct AcceptAnyServerCert;

impl ServerCertVerifier for AcceptAnyServerCert {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// A certificate made for these tests.
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBbDCCARKgAwIBAgIUet4iRQ7pIpYbpzhwc28TSfpprtgwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBdDAgFw0yNjExMjIyMTQ4MzFaGA8yMTI2MTAyOTIxNDgzMVow
DDEKMAgGA1UEAwwBdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABEGLUwCKvX1E
eyvuWv+PfNuM6/9QMPR4/+CQN4QMuW524p0CSZem7ZRd1JOjCoZ4TCi+EHdeGZQi
g/14ZkScItGjUDBOMB0GA1UdDgQWBBSbtAuiolZYgd1COikYNMlLrC1VDjAfBgNV
HSMEGDAWgBSbtAuiolZYgd1COikYNMlLrC1VDjAMBgNVHRMBAf8EAjAAMAoGCCqG
SM49BAMCA0gAMEUCIQDrrWxuZmAjS1iSwCJQH4slTv2MXvI6t6Baw+OB/zmDYwIg
U/BUOc7vxEBPxnIqRyHP2PXM+44P/sgOxhQyo28/iNE=
-----END CERTIFICATE-----";

    /// Its private key.
    const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQghlZvcMkTDmo7CFK+
6U14rth7d9VZXVFtWSqYkHPLa6ShRANCAARBi1MAir19RHsr7lr/j3zbjOv/UDD0
eP/gkDeEDLluduKdAkmXpu2UXdSTowqGeEwovhB3XhmUIoP9eGZEnCLR
-----END PRIVATE KEY-----";

    /// The private key of another certificate.
    const OTHER_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQglSaqW6oPTkGX0kkb
LywUcJdtomKe89V5VWcOOyR8pdChRANCAASB6as3nvmZ+8zQHKW8iySsS/SNyMB4
oMQiaZ1buShDbrngpYqsH5wFRiP8fIUnt4JxezCR3nPrJ5q1C52R59QT
-----END PRIVATE KEY-----";

    fn tls(cert: &str, key: &str, ca: &str) -> ProxyTlsConfig {
        let (cert_pem, key_pem, server_ca_pem) = (cert.to_owned(), key.to_owned(), ca.to_owned());
        ProxyTlsConfig { enabled: true, cert_pem, key_pem, server_ca_pem, ..ProxyTlsConfig::default() }
    }

    fn fails(config: &ProxyTlsConfig) -> String {
        config.client("http.tls").err().expect("refused")
    }

    #[test]
    fn pem_is_given_as_it_is_in_base64_or_in_a_file() {
        let folder = std::env::temp_dir().join(format!("steadfast-pem-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let in_file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            path.to_str().expect("text").to_owned()
        };
        let (cert, key) = (in_file("cert.pem", CERTIFICATE), in_file("key.pem", KEY));
        let encoded = STANDARD.encode(CERTIFICATE);
        let lines = encoded.as_bytes().chunks(60);
        let folded: String = lines.map(|line| format!("{}\n", String::from_utf8_lossy(line))).collect();
        for (cert, key) in [(CERTIFICATE, KEY), (&folded, &STANDARD.encode(KEY)), (&cert, &key), (&cert, KEY)] {
            let found = tls(cert, key, cert).client("http.tls").expect("valid").expect("enabled");
            assert!(found.config.client_auth_cert_resolver.has_certs() && found.server_name.is_none());
        }
        assert!(fails(&tls("", "", &in_file("empty.pem", ""))).contains("empty.pem\" holds no PEM"));
        assert!(fails(&tls("", "", &in_file("key.pem", KEY))).contains("holds no certificate"));
        assert!(fails(&tls("", "", &in_file("long.pem", &" ".repeat(2 << 20)))).contains("1048576"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(fails(&tls(CERTIFICATE, "", CERTIFICATE)).contains("go together"));
        assert!(fails(&tls("", KEY, CERTIFICATE)).contains("go together"));
        assert!(fails(&tls(CERTIFICATE, OTHER_KEY, CERTIFICATE)).contains("cannot be used together"));
        assert!(fails(&tls(CERTIFICATE, CERTIFICATE, CERTIFICATE)).contains("key_pem: no unencrypted private key"));
        assert!(fails(&tls("", "", "/no/such/file.pem")).contains("server_ca_pem: \"/no/such/file.pem\" is neither"));
        let spoilt = "c2VjcmV0".repeat(100);
        let error = fails(&tls(CERTIFICATE, &spoilt, CERTIFICATE));
        assert!(error.contains("key_pem: it is neither") && !error.contains("c2Vj"), "{error}");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(fails(&tls("", "", broken)).contains("server_ca_pem: not a certificate"));
        let named = ProxyTlsConfig { server_name: "not a name".to_owned(), ..tls("", "", CERTIFICATE) };
        assert!(fails(&named).contains("server_name"));
        let off = ProxyTlsConfig { enabled: false, ..tls("x", "", "y") };
        assert!(off.client("http.tls").expect("not parsed").is_none());
    }
}
