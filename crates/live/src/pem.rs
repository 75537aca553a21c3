//! Certificates and keys in Centrifugo v6's TLS options: PEM text, its Base64, or the name of a
//! file.

use std::fs::File;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Maximum size of a PEM file in bytes: five times a bundle of all public authorities.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// The certificates that an option gives, at least one. Errors name `option`.
pub(crate) fn certificates(option: &str, value: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem_of(option, value)?)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{option}: not PEM: {e}"))?;
    if found.is_empty() {
        return Err(format!("{option}: it holds no certificate (\"-----BEGIN CERTIFICATE-----\")"));
    }
    Ok(found)
}

/// The certificates of authorities as trusted roots.
pub(crate) fn authorities(option: &str, value: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(option, value)? {
        roots.add(authority).map_err(|e| format!("{option}: not a certificate of an authority: {e}"))?;
    }
    Ok(roots)
}

/// The private key that an option gives.
pub(crate) fn key(option: &str, value: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&pem_of(option, value)?)
        .map_err(|e| format!("{option}: no unencrypted private key in PEM: {e}"))
}

/// The PEM text, from any of the three forms.
fn pem_of(option: &str, value: &str) -> Result<Vec<u8>, String> {
    let is_pem = |bytes: &[u8]| bytes.windows(11).any(|place| place == b"-----BEGIN ");
    if is_pem(value.as_bytes()) {
        return Ok(value.as_bytes().to_vec());
    }
    let joined: String = value.split_whitespace().collect();
    if let Some(decoded) = STANDARD.decode(joined).ok().filter(|decoded| is_pem(decoded)) {
        return Ok(decoded);
    }
    // A value that cannot be a file name may be a mistyped secret: do not print it.
    let shown = if value.len() > 255 || value.contains('\n') { "it".to_owned() } else { format!("{value:?}") };
    let mut text = Vec::new();
    File::open(value)
        .and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_end(&mut text))
        .map_err(|e| format!("{option}: {shown} is neither PEM, nor its Base64, nor a readable file: {e}"))?;
    if text.len() as u64 > PEM_BYTES_MAX || !is_pem(&text) {
        return Err(format!("{option}: the file {shown} holds no PEM, or more than {PEM_BYTES_MAX} bytes"));
    }
    Ok(text)
}
