//! Matching of page origins.

/// Whether an origin matches a pattern of `client.allowed_origins`. As in Centrifugo, `*` matches
/// any text and case is ignored.
pub(crate) fn fits(pattern: &str, origin: &str) -> bool {
    let (pattern, origin) = (pattern.to_ascii_lowercase(), origin.to_ascii_lowercase());
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == origin };
    let Some(mut left) = origin.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_of_origins() {
        for (pattern, origin, expected) in [
            ("*", "https://a.example", true),
            ("https://a.example", "https://A.example", true),
            ("https://a.example", "https://a.example.evil", false),
            ("https://*.example.com", "https://app.example.com", true),
            ("https://*.example.com", "https://a.b.example.com", true),
            ("https://*.example.com", "https://example.com", false),
            ("https://*.example.com", "https://app.example.com.evil", false),
            ("https://*.example.com", "http://app.example.com", false),
            ("http://localhost:*", "http://localhost:3000", true),
            ("http://localhost:*", "http://localhost", false),
            ("*://*.example.*", "https://a.example.org", true),
            ("a*ba", "aba", true),
            ("a*ba", "ba", false),
            ("ab*ba", "aba", false),
            ("a*b*c", "acb", false),
            ("", "https://a.example", false),
        ] {
            assert_eq!(fits(pattern, origin), expected, "{pattern} {origin}");
        }
    }
}
