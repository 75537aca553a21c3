//! The URL of a key set, with placeholders that the claims of a token fill in: Centrifugo v6's
//! `jwks_public_endpoint`.

use std::collections::BTreeMap;

use http::Uri;

use super::LiveConfigError;
use super::auth::{ClaimRule, TokenConfig};

/// The brackets of a placeholder.
const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// The endpoint of a key set.
#[derive(Debug)]
pub(crate) struct JwksEndpoint {
    text: String,
    /// Why a token could choose the URL, if it could and this is allowed.
    pub(crate) unsafe_because: Option<String>,
}

impl JwksEndpoint {
    /// The endpoint in the section `place`; `None` if none is set.
    ///
    /// # Errors
    /// It is not an `http` or `https` URL, or has a placeholder that nothing safe fills in.
    pub(crate) fn of(config: &TokenConfig, place: &str) -> Result<Option<Self>, LiveConfigError> {
        let rules = [config.issuer_rule(place)?, config.audience_rule(place)?];
        let text = config.jwks_public_endpoint.as_str();
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| LiveConfigError(format!("{place}.jwks_public_endpoint: {text:?}: {why}"));
        let names = placeholders(text).ok_or_else(|| wrong("a placeholder has no end: add }}"))?;
        if let Some(name) = names.iter().find(|name| !rules.iter().flat_map(ClaimRule::groups).any(|n| n == **name)) {
            let group = format!("{OPEN}{name}{CLOSE}: issuer_regex and audience_regex have no group (?P<{name}>...)");
            return Err(wrong(&group));
        }
        let expressions = [("issuer_regex", &config.issuer_regex), ("audience_regex", &config.audience_regex)];
        let mut danger = expressions.iter().filter(|_| !names.is_empty()).filter_map(|(option, expression)| {
            let why = danger(expression, &names)?;
            Some(format!("{place}.{option}: {why}: list the allowed values, as in (?P<name>one|two)"))
        });
        let unsafe_because = danger.next();
        if let Some(why) = &unsafe_because
            && !config.insecure_skip_jwks_endpoint_safety_check
        {
            return Err(LiveConfigError(why.clone()));
        }
        let found = Self { text: text.to_owned(), unsafe_because };
        let url = found.example().map_err(|why| wrong(&why))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(wrong("use a URL that begins with http:// or https://"));
        }
        Ok(Some(found))
    }

    /// Whether the claims of a token fill something in.
    pub(crate) fn has_placeholders(&self) -> bool {
        self.text.contains(OPEN)
    }

    /// A URL of this form.
    pub(crate) fn example(&self) -> Result<Uri, String> {
        self.fill(|_| Some("1"))
    }

    /// The URL with these values of the placeholders.
    ///
    /// # Errors
    /// It is not a URL, or a value changes the levels of its path.
    pub(crate) fn filled(&self, values: &BTreeMap<String, String>) -> Result<Uri, String> {
        self.fill(|name| values.get(name).map(String::as_str))
    }

    fn fill<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> Result<Uri, String> {
        let (mut url, mut rest) = (String::new(), self.text.as_str());
        while let Some((before, name, after)) = next_placeholder(rest) {
            let value = value(name).unwrap_or_default();
            if value.contains('%') {
                return Err("a value with % cannot be part of the URL".to_owned());
            }
            url.extend([before, value]);
            rest = after;
        }
        let url: Uri = (url + rest).parse().map_err(|_| "not a URL")?;
        let path = url.path().strip_prefix('/').unwrap_or_default();
        let inner = path.strip_suffix('/').unwrap_or(path);
        if self.has_placeholders() && !inner.is_empty() && inner.split('/').any(|part| matches!(part, "" | "." | ".."))
        {
            return Err("its path has an empty part, . or ..".to_owned());
        }
        Ok(url)
    }
}

/// The text before the first placeholder, its name, and the rest.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(OPEN)?;
    let (name, after) = rest.split_once(CLOSE)?;
    Some((before, name, after))
}

/// The names of the placeholders; `None` if one has no end.
fn placeholders(mut text: &str) -> Option<Vec<&str>> {
    let mut names = Vec::new();
    while let Some((_, name, after)) = next_placeholder(text) {
        names.push(name);
        text = after;
    }
    (!text.contains(OPEN)).then_some(names)
}

/// Why an expression lets a token choose freely what fills in one of these placeholders; `None` if
/// only fixed texts can. The keys are fetched before the token is verified, so a free choice would
/// be a choice of the keys.
fn danger(expression: &str, names: &[&str]) -> Option<String> {
    // Groups around the current place, each with its name if a placeholder uses it.
    let mut around: Vec<Option<&str>> = Vec::new();
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let within = around.iter().flatten().next();
        match c {
            '[' => return Some("a class of characters is not a list of values".to_owned()),
            '\\' => {
                let escaped = rest.chars().next().unwrap_or('\\');
                if "dDwWsSpP".contains(escaped) {
                    return Some(format!("the class of characters \\{escaped} is not a list of values"));
                }
                if within.is_some() && escaped.is_ascii_alphanumeric() {
                    return Some(format!("\\{escaped} is not part of a fixed text"));
                }
                rest = rest.strip_prefix(escaped).unwrap_or(rest);
            }
            '(' => {
                let name = rest.strip_prefix("?P<").or_else(|| rest.strip_prefix("?<"));
                let name = name.and_then(|named| named.split_once('>')).map(|(name, _)| name);
                around.push(name.filter(|name| names.contains(name)));
                // The beginning of a group is no repetition: `(?P<name>`, `(?:`, `(?i:`.
                if let Some(inside) = rest.strip_prefix('?')
                    && let Some(end) = inside.find([':', '>', ')'])
                {
                    rest = inside[end..].trim_start_matches([':', '>']);
                }
            }
            ')' => {
                around.pop();
            }
            '.' | '*' | '+' | '?' | '{' | '}' | '^' | '$' => {
                if let Some(name) = within {
                    return Some(format!("the group {name:?} is not a list of fixed values"));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(endpoint: &str, issuer: &str, audience: &str, skip: bool) -> Result<JwksEndpoint, String> {
        let config = TokenConfig {
            jwks_public_endpoint: endpoint.into(),
            issuer_regex: issuer.into(),
            audience_regex: audience.into(),
            insecure_skip_jwks_endpoint_safety_check: skip,
            ..TokenConfig::default()
        };
        JwksEndpoint::of(&config, "client.token").map(|found| found.expect("set")).map_err(|e| e.0)
    }

    #[test]
    fn placeholders_take_fixed_values_only() {
        let url = "https://keys/{{realm}}/certs";
        for issuer in [
            "^https://id/(?P<realm>one|two)$",
            "^https://.*/(?<realm>one|two)+$",
            r"^https://id\.net/(?P<realm>a\.b|(?:c|d)e|)$",
            "(?i)^(?:x)?(?P<realm>one)",
        ] {
            assert!(of(url, issuer, "", false).expect(issuer).unsafe_because.is_none());
        }
        for issuer in [
            "(?P<realm>.*)",
            "(?P<realm>a|b+)",
            "(?P<realm>(?:a){2})",
            "(?P<realm>a|(b|c)?)",
            "(?P<realm>[ab])",
            r"(?P<realm>\d)",
            r"(?P<realm>\x41)",
            "(?P<realm>^a)",
            "[a-z](?P<realm>a)",
            r"\w(?P<realm>a)",
        ] {
            let why = of(url, issuer, "", false).expect_err(issuer);
            assert!(why.contains("client.token.issuer_regex") && why.contains("one|two"), "{why}");
            assert!(of(url, issuer, "", true).expect("allowed").unsafe_because.is_some(), "{issuer}");
            assert!(of("https://keys", issuer, "", false).expect("no placeholder").unsafe_because.is_none());
        }
        assert!(of(url, "(?P<realm>a)", r"\d", false).expect_err("both count").contains("audience_regex"));
        for (endpoint, issuer, why) in [
            (url, "", "{{realm}}"),
            (url, "(?P<other>a)", "{{realm}}"),
            (url, "(", "issuer_regex"),
            ("https://keys/{{realm", "(?P<realm>a)", "no end"),
            ("keys/{{realm}}", "(?P<realm>a)", "not a URL"),
            ("ftp://keys/{{realm}}", "(?P<realm>a)", "http://"),
            ("{{realm}}://keys", "(?P<realm>https)", "URL"),
        ] {
            let found = of(endpoint, issuer, "", false).expect_err(endpoint);
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn values_stay_in_their_part_of_the_path() {
        let found =
            of("https://{{tenant}}.id/{{realm}}/certs", "(?P<tenant>.+)", "(?P<realm>.*)", true).expect("valid");
        let url = |tenant: &str, realm: &str| {
            let values = [("tenant", tenant), ("realm", realm)].map(|(name, text)| (name.to_owned(), text.to_owned()));
            found.filled(&values.into()).map(|url| url.to_string())
        };
        assert_eq!(url("a", "b").as_deref(), Ok("https://a.id/b/certs"));
        for (tenant, realm) in [("a", ""), ("a", ".."), ("a", "b/../c"), ("a", "%2e%2e"), ("a b", "c"), ("", "a b")] {
            assert!(url(tenant, realm).is_err(), "{tenant:?} {realm:?}");
        }
        assert_eq!(
            of("https://id/{{a}}/", "(?P<a>x)", "", false).expect("valid").example().expect("URL").path(),
            "/1/"
        );
    }
}
