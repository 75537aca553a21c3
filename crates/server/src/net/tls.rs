//! TLS for the ports.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate chain and its private key.
pub type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads a certificate chain and its key, both PEM. `section` has their settings.
///
/// # Errors
/// The file and its error.
pub fn read_pair(certificate: &Path, key: &Path, section: &str) -> Result<Pair, String> {
    let shown = certificate.display();
    let text = read(certificate)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{section}.certificate: {shown} is not PEM: {e}"))?;
    if chain.is_empty() {
        return Err(format!("{section}.certificate: {shown} holds no certificate (\"-----BEGIN CERTIFICATE-----\")"));
    }
    let shown = key.display();
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|e| match e {
        pem::Error::NoItemsFound => format!(
            "{section}.key: {shown} holds no unencrypted private key (\"-----BEGIN PRIVATE KEY-----\", \"RSA\" or \"EC\")"
        ),
        e => format!("{section}.key: {shown} is not PEM: {e}"),
    })?;
    Ok((chain, secret))
}

/// Accepts TLS with a certificate chain and its key, both PEM.
///
/// # Errors
/// The file and its error.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let (chain, secret) = read_pair(certificate, key, "tls")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("tls: {e}"))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| format!("tls: {} and {} cannot be used: {e}", certificate.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// When the server's certificate, the first of the chain, expires, in seconds since the Unix epoch.
/// `None` if it cannot be read.
pub fn expires(certificate: &Path) -> Option<i64> {
    let text = std::fs::read(certificate).ok()?;
    let first = CertificateDer::pem_slice_iter(&text).next()?.ok()?;
    not_after(&first)
}

/// A DER element: its tag, its content and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match usize::from(first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (digits, rest) = rest.split_at_checked(long & 0x7f)?;
            let more = |len: usize, digit: &u8| len.checked_mul(256)?.checked_add(usize::from(*digit));
            (digits.iter().try_fold(0, more)?, rest)
        }
    };
    let (inside, after) = rest.split_at_checked(len)?;
    Some((tag, inside, after))
}

/// The end of the validity of a certificate (RFC 5280, section 4.1). The fields are version, serial
/// number, algorithm, issuer and validity.
fn not_after(certificate: &[u8]) -> Option<i64> {
    const VERSION: u8 = 0xa0;
    const UTC_TIME: u8 = 0x17;
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if *fields.first()? == VERSION {
        fields = element(fields)?.2;
    }
    for _serial_algorithm_issuer in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (tag, end, _) = element(element(validity)?.2)?;
    let text = std::str::from_utf8(end).ok()?.strip_suffix('Z')?;
    // A year of two digits is 1950 to 2049.
    let text = match tag {
        UTC_TIME if text.get(..1)? < "5" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        _ => text.to_owned(),
    };
    let number = |at: std::ops::Range<usize>| text.get(at)?.parse::<u8>().ok();
    let month = time::Month::try_from(number(4..6)?).ok()?;
    let day = time::Date::from_calendar_date(text.get(..4)?.parse().ok()?, month, number(6..8)?).ok()?;
    let time = time::Time::from_hms(number(8..10)?, number(10..12)?, number(12..14)?).ok()?;
    Some(time::PrimitiveDateTime::new(day, time).assume_utc().unix_timestamp())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_found() {
        // Made by hand: the fields of a certificate up to its validity.
        let seq = |inside: &[u8]| [&[0x30, inside.len() as u8][..], inside].concat();
        let validity = |tag: u8, end: &str| {
            let time = |text: &str| [&[tag, text.len() as u8][..], text.as_bytes()].concat();
            let validity = seq(&[time(end), time(end)].concat());
            let version: &[u8] = &[0xa0, 3, 2, 1, 2];
            let fields = [version, &[2, 1, 9], &seq(&[]), &seq(&[]), &validity].concat();
            seq(&seq(&fields))
        };
        assert_eq!(not_after(&validity(0x17, "300102030405Z")), Some(1_893_553_445));
        assert_eq!(not_after(&validity(0x17, "700101000000Z")), Some(0));
        assert_eq!(not_after(&validity(0x18, "20500101000000Z")), Some(2_524_608_000));
        let whole = validity(0x17, "300102030405Z");
        for cut in 0..whole.len() {
            assert_eq!(not_after(&whole[..cut]), None);
        }
        assert_eq!(not_after(&validity(0x17, "nonsense")), None);
    }

    #[test]
    fn errors_name_the_file_and_the_cause() {
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
