//! The claims of a token as text: before its signature is verified, and by name.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::TokenError;

/// The claims of a token whose signature is not checked.
///
/// # Errors
/// It does not have the form of a token.
pub(super) fn claims_of(token: &str) -> Result<Box<RawValue>, TokenError> {
    let malformed = || TokenError::Invalid("it does not have the form of a token".to_owned());
    let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let (header, rest) = token.split_once('.').ok_or_else(malformed)?;
    let (claims, signature) = rest.rsplit_once('.').ok_or_else(malformed)?;
    let header = decoded(header).filter(|header| serde_json::from_slice::<Map<String, Value>>(header).is_ok());
    let claims = decoded(claims).and_then(|claims| serde_json::from_slice(&claims).ok());
    let claims = claims.filter(|_| header.is_some() && decoded(signature).is_some());
    claims.ok_or_else(malformed)
}

/// The text of a claim, whose names lead through nested objects: empty if it is absent or null, and
/// JSON if it is neither a text nor absent.
pub(super) fn text_at(claims: &RawValue, names: &[String]) -> String {
    let mut at = claims;
    for name in names {
        let inside = serde_json::from_str::<HashMap<String, &RawValue>>(at.get()).ok();
        let Some(value) = inside.and_then(|inside| inside.get(name).copied()) else { return String::new() };
        at = value;
    }
    match serde_json::from_str::<Value>(at.get()) {
        Ok(Value::Null) => String::new(),
        Ok(Value::String(text)) => text,
        // A number with a fraction or exponent has the shortest form without an exponent.
        Ok(Value::Number(number)) if !is_whole(at.get()) => number.as_f64().unwrap_or_default().to_string(),
        _ => at.get().to_owned(),
    }
}

fn is_whole(number: &str) -> bool {
    number.strip_prefix('-').unwrap_or(number).bytes().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(claims: &str, path: &str) -> String {
        let names: Vec<_> = path.split('.').map(str::to_owned).collect();
        text_at(serde_json::from_str(claims).expect("JSON"), &names)
    }

    /// The values are those of gjson 1.18.
    #[test]
    fn users_are_read_by_name() {
        let claims = r#"{"a": {"b": {"c": "x"}, "n": 12345678901234567890123, "f": 1.50, "e": 1e3}, "t": true, "z": null, "l": [1, {"a": 2}]}"#;
        for (path, text) in [
            ("a.b.c", "x"),
            ("a.b", r#"{"c": "x"}"#),
            ("a.n", "12345678901234567890123"),
            ("a.f", "1.5"),
            ("a.e", "1000"),
            ("t", "true"),
            ("z", ""),
            ("l", r#"[1, {"a": 2}]"#),
            ("l.a", ""),
            ("a.b.c.d", ""),
            ("none", ""),
        ] {
            assert_eq!(at(claims, path), text, "{path}");
        }
    }

    #[test]
    fn tokens_without_a_valid_form_have_no_claims() {
        let token = |parts: [&str; 3]| parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        assert_eq!(claims_of(&token(["{}", r#"{"sub": "a"}"#, "x"])).expect("claims").get(), r#"{"sub": "a"}"#);
        for text in ["", "a.b", &token(["[]", "{}", ""]), &token(["{}", "{", ""]), &(token(["{}", "{}", ""]) + "=")] {
            assert!(matches!(claims_of(text), Err(TokenError::Invalid(_))), "{text}");
        }
    }
}
