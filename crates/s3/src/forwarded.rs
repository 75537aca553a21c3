//! What trusted proxies say about the client of a request.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};

use crate::options::IpNetwork;

/// Whom trusted proxies name as the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The last address in `X-Forwarded-For` that is not itself a trusted proxy.
    For(IpAddr),
    /// No other: the peer itself is the client, or the first of the trusted proxies.
    No(IpAddr),
    /// A trusted proxy names something that is no address.
    Unknown,
}

impl Forwarded {
    pub(crate) fn of(proxies: &[IpNetwork], peer: IpAddr, headers: &HeaderMap) -> Self {
        let trusted = |address: IpAddr| proxies.iter().any(|network| network.contains(address));
        if !trusted(peer) {
            return Self::No(peer);
        }
        // Clients can send any bytes, and proxies append to them.
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes).collect();
        let text = String::from_utf8_lossy(&lines.join(&b","[..])).into_owned();
        // Some proxies add a port.
        let address =
            |hop: &str| hop.parse().or_else(|_| hop.parse::<std::net::SocketAddr>().map(|address| address.ip())).ok();
        let mut nearest = peer;
        for hop in text.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty()) {
            match address(hop) {
                Some(hop) if trusted(hop) => nearest = hop,
                Some(hop) => return Self::For(hop),
                None => return Self::Unknown,
            }
        }
        Self::No(nearest)
    }

    /// The address that policies see.
    pub(crate) fn source(self) -> Option<IpAddr> {
        match self {
            Self::For(address) | Self::No(address) => Some(address),
            Self::Unknown => None,
        }
    }
}

/// Whether a client came over TLS, if a trusted proxy says so or not in `X-Forwarded-Proto`.
pub(crate) fn is_secure(proxies: &[IpNetwork], peer: IpAddr, headers: &HeaderMap) -> Option<bool> {
    let last = headers.get_all("x-forwarded-proto").into_iter().next_back()?;
    proxies.iter().any(|network| network.contains(peer)).then(|| last == "https")
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn only_trusted_proxies_set_the_client_address() {
        let proxies: Vec<IpNetwork> = ["10.0.0.0/8", "::1"].map(|text| text.parse().unwrap()).into();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of = |peer: &str, forwarded: &[u8]| {
            let value = HeaderValue::from_bytes(forwarded).unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_static("x-forwarded-for"), value)]);
            Forwarded::of(&proxies, ip(peer), &headers)
        };
        let client = |text: &str| Forwarded::For(ip(text));
        assert_eq!(of("10.1.2.3", b"9.9.9.9, 1.2.3.4, 10.0.0.7"), client("1.2.3.4"), "earlier addresses may be forged");
        assert_eq!(of("10.1.2.3", b"1.2.3.4:5678"), client("1.2.3.4"), "some proxies add the port");
        assert_eq!(of("10.1.2.3", b"[2001:db8::1]:443, 10.0.0.7:80"), client("2001:db8::1"));
        assert_eq!(of("::1", b"2001:db8::1"), client("2001:db8::1"));
        assert_eq!(of("10.1.2.3", b"\xff, 1.2.3.4"), client("1.2.3.4"), "any bytes may come before");
        assert_eq!(of("1.2.3.4", b"5.6.7.8"), Forwarded::No(ip("1.2.3.4")));
        assert_eq!(of("10.1.2.3", b"unknown"), Forwarded::Unknown);
        assert_eq!(of("10.1.2.3", b"1.2.3.4, \xff"), Forwarded::Unknown);
        assert_eq!(of("10.1.2.3", b"10.9.9.9, 10.0.0.7"), Forwarded::No(ip("10.9.9.9")), "a client among the proxies");
        assert_eq!(of("10.1.2.3", b" ,"), Forwarded::No(ip("10.1.2.3")));
        assert_eq!(of("::ffff:10.1.2.3", b"5.6.7.8"), client("5.6.7.8"));
        for wrong in ["10.0.0.0/33", "x", "10.0.0.0/", "::/129"] {
            assert!(wrong.parse::<IpNetwork>().is_err(), "{wrong}");
        }
    }
}
