//! What the headers of an answer say about caching (RFC 9111, RFC 5861).

use std::time::UNIX_EPOCH;

use http::HeaderMap;

/// What the headers of an answer say about caching. Times in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheHeaders {
    /// Whether the answer is for one client only, or depends on what the client sends.
    pub(crate) private: bool,
    pub(crate) lifetime_ms: Option<u64>,
    /// A tenth of the time since the object changed.
    pub(crate) heuristic_ms: Option<u64>,
    pub(crate) while_revalidate_ms: u64,
    pub(crate) if_error_ms: Option<u64>,
    /// Whether it must not be served stale.
    pub(crate) must_revalidate: bool,
    /// The age that the answer had already.
    pub(crate) age_ms: u64,
}

/// What clients of the edge may differ in, although the origin does not see it.
const VARY_HARMLESS: [&str; 4] =
    ["accept-encoding", "origin", "access-control-request-headers", "access-control-request-method"];

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Milliseconds since the Unix epoch of a date in a header.
pub(crate) fn date_ms(value: &str) -> Option<u64> {
    let at = httpdate::parse_http_date(value).ok()?;
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn seconds(value: &str) -> Option<u64> {
    let digits = value.trim().trim_matches('"');
    // A number too large for the type is as long as can be (RFC 9111, section 1.2.2).
    let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| digits.parse::<u64>().unwrap_or(u64::MAX).min(1 << 31) * 1000)
}

impl CacheHeaders {
    /// Reads the headers of an answer that came at `wall_ms`.
    pub(crate) fn read(headers: &HeaderMap, wall_ms: u64) -> Self {
        let mut this = Self::default();
        let (mut shared, mut own, mut revalidate) = (None, None, false);
        for value in headers.get_all("cache-control") {
            for directive in value.to_str().unwrap_or_default().split(',') {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                match name.trim().to_ascii_lowercase().as_str() {
                    "no-store" | "private" => this.private = true,
                    "no-cache" => revalidate = true,
                    // An invalid number is taken as stale.
                    "s-maxage" => shared = Some(seconds(value).unwrap_or(0)),
                    "max-age" => own = Some(seconds(value).unwrap_or(0)),
                    "must-revalidate" | "proxy-revalidate" => this.must_revalidate = true,
                    "stale-while-revalidate" => this.while_revalidate_ms = seconds(value).unwrap_or(0),
                    "stale-if-error" => this.if_error_ms = seconds(value),
                    _ => {}
                }
            }
        }
        for value in headers.get_all("vary") {
            for name in value.to_str().unwrap_or("*").split(',') {
                let name = name.trim().to_ascii_lowercase();
                this.private |= !name.is_empty() && !VARY_HARMLESS.contains(&name.as_str());
            }
        }
        let date = text(headers, "date").and_then(date_ms).unwrap_or(wall_ms);
        let expires = text(headers, "expires").map(|at| date_ms(at).map_or(0, |at| at.saturating_sub(date)));
        this.lifetime_ms = if revalidate { Some(0) } else { shared.or(own).or(expires) };
        let modified = text(headers, "last-modified").and_then(date_ms);
        this.heuristic_ms = modified.map(|at| date.saturating_sub(at) / 10);
        this.age_ms = text(headers, "age").and_then(seconds).unwrap_or(0);
        this
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const NOW: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
    const LATER: &str = "Tue, 14 Nov 2023 22:14:20 GMT";

    fn read(headers: &[(&'static str, &'static str)]) -> CacheHeaders {
        let pair = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        CacheHeaders::read(&headers.iter().copied().map(pair).collect(), 1_700_000_000_000)
    }

    fn lifetime(value: &'static str) -> Option<u64> {
        read(&[("cache-control", value)]).lifetime_ms
    }

    #[test]
    fn the_most_specific_lifetime_counts() {
        assert_eq!(lifetime("max-age=60"), Some(60_000));
        assert_eq!(lifetime("public, MAX-AGE=60 , s-maxage=\"5\""), Some(5000));
        assert_eq!(lifetime("max-age=60, no-cache"), Some(0));
        assert_eq!(lifetime("max-age=-1"), Some(0));
        assert_eq!(lifetime("max-age=99999999999999999999999"), Some((1 << 31) * 1000));
        assert_eq!(lifetime("public"), None);
        assert_eq!(read(&[("expires", LATER), ("date", NOW)]).lifetime_ms, Some(60_000));
        assert_eq!(read(&[("expires", LATER)]).lifetime_ms, Some(60_000));
        assert_eq!(read(&[("expires", "0")]).lifetime_ms, Some(0));
        assert_eq!(read(&[("expires", LATER), ("cache-control", "max-age=1")]).lifetime_ms, Some(1000));
        assert_eq!(read(&[("last-modified", NOW), ("date", LATER)]).heuristic_ms, Some(6000));
        assert_eq!(read(&[("age", "7")]).age_ms, 7000);
    }

    #[test]
    fn what_is_for_one_client_is_private() {
        for (name, value) in
            [("cache-control", "no-store"), ("cache-control", "max-age=1, private"), ("vary", "*"), ("vary", "Cookie")]
        {
            assert!(read(&[(name, value)]).private, "{name}: {value}");
        }
        for value in ["Accept-Encoding", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method", ""] {
            assert!(!read(&[("vary", value)]).private, "{value}");
        }
    }

    #[test]
    fn stale_answers_are_allowed_or_not() {
        let found = read(&[("cache-control", "max-age=1, stale-while-revalidate=30, stale-if-error=60")]);
        assert_eq!(
            (found.while_revalidate_ms, found.if_error_ms, found.must_revalidate),
            (30_000, Some(60_000), false)
        );
        assert!(read(&[("cache-control", "must-revalidate")]).must_revalidate);
    }
}
