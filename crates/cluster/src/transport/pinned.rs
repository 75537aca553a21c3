//! TLS with one certificate that all nodes have: a node trusts that certificate alone.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The certificate of a cluster, and connections with it.
#[derive(Clone)]
pub struct PinnedTls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl PinnedTls {
    /// Uses a certificate, its issuers and its private key. Its names and dates do not matter,
    /// because nodes trust exactly this certificate.
    ///
    /// # Errors
    /// The key does not belong to the certificate; the text is for operators.
    pub fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let certificate = chain.first().ok_or("there is no certificate")?.clone();
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| e.to_string())?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { certificate, provider }))
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { connector: Arc::new(client).into(), acceptor: Arc::new(server).into() })
    }

    /// Accepts connections of other nodes.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    pub(super) async fn connect<T: AsyncRead + AsyncWrite + Unpin>(&self, io: T) -> Result<TlsStream<T>, String> {
        let name = ServerName::try_from("node").map_err(|e| e.to_string())?;
        self.connector.connect(name, io).await.map_err(|e| format!("the TLS handshake failed: {e}"))
    }
}

#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        found: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *found == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General("the node has another certificate: all nodes must have the same".into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
