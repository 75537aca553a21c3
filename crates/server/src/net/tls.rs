//! TLS for the S3 port and the live port.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Reads a certificate chain and its key, both PEM.
///
/// # Errors
/// What is wrong with which file.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let shown = certificate.display();
    let text = read(certificate)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("tls.certificate: {shown} is not PEM: {e}"))?;
    if chain.is_empty() {
        return Err(format!("tls.certificate: {shown} holds no certificate (\"-----BEGIN CERTIFICATE-----\")"));
    }
    let shown = key.display();
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|e| match e {
        pem::Error::NoItemsFound => format!(
            "tls.key: {shown} holds no unencrypted private key (\"-----BEGIN PRIVATE KEY-----\", \"RSA\" or \"EC\")"
        ),
        e => format!("tls.key: {shown} is not PEM: {e}"),
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("tls: {e}"))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| format!("tls: {} and {shown} cannot be used: {e}", certificate.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_which_file_and_what() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cert, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
        let fails = || acceptor(&cert, &key).err().expect("refused");
        assert!(fails().contains("c.pem: cannot be read"));
        std::fs::write(&cert, "nothing").expect("write");
        assert!(fails().contains("holds no certificate"));
        std::fs::write(&cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("write");
        assert!(fails().contains("k.pem: cannot be read"));
        std::fs::write(&key, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
            .expect("write");
        assert!(fails().contains("no unencrypted private key"));
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").expect("write");
        assert!(fails().contains("cannot be used"));
    }
}
