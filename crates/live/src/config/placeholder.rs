//! Texts that look like the name of a variable, which nothing replaces.

use serde_json::{Map, Value};

/// The places of an object whose texts are `$NAME` or contain `${NAME}`, each with what it found
/// there. Items of a list have their name in the place, or none.
pub fn placeholders(options: &Map<String, Value>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, value) in options {
        search(name, value, &mut found);
    }
    found
}

fn search(place: &str, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => found.extend(of_text(text).into_iter().map(|shown| (place.to_owned(), shown))),
        Value::Array(items) => {
            for item in items {
                match item.get("name").and_then(Value::as_str) {
                    Some(name) => search(&format!("{place}.{name}"), item, found),
                    None => search(place, item, found),
                }
            }
        }
        Value::Object(map) => map.iter().for_each(|(name, value)| search(&format!("{place}.{name}"), value, found)),
        _ => {}
    }
}

/// The placeholders in a text. A default value, as in `${NAME:-default}`, may be a secret and is
/// left out.
fn of_text(text: &str) -> Vec<String> {
    let len = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let is_name = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if let Some(name) = text.strip_prefix('$').filter(|name| is_name(name) && len(name) == name.len()) {
        return vec![format!("${name}")];
    }
    let rests = text.match_indices("${").map(|(at, _)| &text[at + 2..]).filter(|rest| rest.contains('}'));
    rests.map(|rest| &rest[..len(rest)]).filter(|name| is_name(name)).map(|name| format!("${{{name}}}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_variables_are_placeholders() {
        for (text, shown) in [
            ("${TOKEN_SECRET}", &["${TOKEN_SECRET}"][..]),
            ("http://${host}:1/", &["${host}"]),
            ("${KEY:-a secret}", &["${KEY}"]),
            ("$KEY", &["$KEY"]),
            ("${A}${B}", &["${A}", "${B}"]),
        ] {
            assert_eq!(of_text(text), shown, "{text}");
        }
        for text in ["", "$", "a$KEY", "$KEY!", "${KEY", "${}", "$1", "^a$", "{{name}}"] {
            assert!(of_text(text).is_empty(), "{text}");
        }
    }
}
