//! Which addresses a client may connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses a client may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// All.
    Any,
    /// Only globally reachable ones: no address of this machine, of its networks or of a cloud's
    /// metadata service. For URLs that the operator did not choose.
    Public,
}

impl Addresses {
    /// Checks an address of a host.
    pub(crate) fn check(self, host: &str, address: IpAddr) -> Result<(), String> {
        if self == Self::Any || is_public(address) {
            return Ok(());
        }
        Err(format!("the address {address} of host {host} is private"))
    }

    /// Checks a URL whose host is an address. Names are checked when they are resolved.
    pub(crate) fn check_url(self, url: &http::Uri) -> Result<(), String> {
        let host = url.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse().map_or(Ok(()), |address| self.check(host, address))
    }
}

/// Whether an address is globally reachable. Sources:
/// <https://www.iana.org/assignments/iana-ipv4-special-registry> and
/// <https://www.iana.org/assignments/iana-ipv6-special-registry>.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        // This network; private; loopback.
        [0 | 10 | 127, ..]
            // Shared by the customers of a provider.
            | [100, 64..=127, ..]
            // Link-local, with the metadata services of clouds.
            | [169, 254, ..]
            // Private.
            | [172, 16..=31, ..]
            | [192, 168, ..]
            // IETF protocols; documentation; relays of 6to4.
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            // Benchmarks.
            | [198, 18..=19, ..]
            // Documentation.
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            // Multicast; reserved; broadcast.
            | [224..=255, ..]
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let [high, low] = [g.to_be_bytes(), h.to_be_bytes()];
    let embedded = Ipv4Addr::new(high[0], high[1], low[0], low[1]);
    match (a, b, c, d, e, f) {
        // An IPv4 address: mapped, or behind a translator (NAT64).
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => is_public_v4(embedded),
        // IETF protocols, among them Teredo; documentation; 6to4, which embeds any IPv4 address;
        // documentation.
        (0x2001, 0..=0x1ff | 0xdb8, ..) | (0x2002, ..) | (0x3fff, 0..=0xfff, ..) => false,
        // Global unicast is 2000::/3. Outside are loopback, unspecified, unique local, link-local
        // and multicast addresses.
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_refused() {
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "::ffff:0:8.8.8.8",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ] {
            let parsed: IpAddr = address.parse().expect("an address");
            let expected = Err(format!("the address {parsed} of host h is private"));
            assert_eq!(Addresses::Public.check("h", parsed), expected);
            assert_eq!(Addresses::Any.check("h", parsed), Ok(()));
        }
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2000::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "3fff:1000::1",
        ] {
            assert_eq!(Addresses::Public.check("h", address.parse().expect("an address")), Ok(()));
        }
    }

    #[test]
    fn addresses_in_urls_are_checked_and_names_are_not() {
        let check = |url: &str| Addresses::Public.check_url(&url.parse().expect("a URL"));
        for url in ["http://127.0.0.1:9000/a", "https://[::1]", "http://[::ffff:10.0.0.1]:1/", "http://u@10.0.0.1"] {
            assert!(check(url).is_err_and(|e| e.contains("is private")), "{url}");
        }
        for url in ["http://8.8.8.8/", "https://[2606:4700::1111]:1", "http://localhost", "http://10.0.0.1.example"] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }
}
