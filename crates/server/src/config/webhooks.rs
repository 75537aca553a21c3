//! Webhooks: where events of objects are posted.

use std::collections::BTreeSet;

use toml::de::DeValue;

use super::error::nearest;
use super::setting::{Input, Setting};

/// Where events are posted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Webhook {
    /// What notifications of buckets call it.
    pub name: String,
    /// Where.
    pub url: String,
    /// The requests' `Authorization`; empty: none.
    pub authorization: String,
}

/// All webhooks: tables with a name, a URL and perhaps an authorization. As text they are separated by commas, a name from its URL by `=`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Webhooks(pub Vec<Webhook>);

const EXPECTED: &str = "a list of webhooks such as [{ name = \"app\", url = \"https://app.example.com/hook\", authorization = \"Bearer secret\" }]";
const KEYS: [&str; 3] = ["name", "url", "authorization"];

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Webhook {
    fn from_text(text: &str) -> Result<Self, String> {
        let (name, url) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected NAME=URL"))?;
        Ok(Self { name: name.trim().to_owned(), url: url.trim().to_owned(), authorization: String::new() })
    }

    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let table = match value {
            DeValue::String(text) => return Self::from_text(text),
            DeValue::Table(table) => table,
            _ => return Err(format!("expected {EXPECTED}")),
        };
        let mut this = Self::default();
        for (key, value) in table {
            let field = match key.get_ref().as_ref() {
                "name" => &mut this.name,
                "url" => &mut this.url,
                "authorization" => &mut this.authorization,
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    return Err(format!(
                        "a webhook has no `{other}`{}",
                        near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")))
                    ));
                }
            };
            *field = String::read(Input::Value(value.get_ref()))?;
        }
        Ok(this)
    }

    fn check(&self) -> Result<(), String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(allowed) {
            return Err(format!(
                "{:?} is not a name for a webhook: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'",
                self.name
            ));
        }
        let url: Result<http::Uri, _> = self.url.parse();
        let valid = url.is_ok_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
        if !valid {
            return Err(format!(
                "webhook {}: {:?} is not a URL that begins with http:// or https://",
                self.name, self.url
            ));
        }
        if http::HeaderValue::from_str(&self.authorization).is_err() {
            return Err(format!("webhook {}: the authorization has characters that no header can have", self.name));
        }
        Ok(())
    }
}

impl Setting for Webhooks {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let hooks: Vec<Webhook> = match &input {
            Input::Text(text) => text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(Webhook::from_text)
                .collect::<Result<_, _>>()?,
            Input::Value(DeValue::Array(items)) => {
                items.iter().map(|item| Webhook::from_value(item.get_ref())).collect::<Result<_, _>>()?
            }
            Input::Value(DeValue::String(text)) if text.is_empty() => Vec::new(),
            Input::Value(value) => vec![Webhook::from_value(value)?],
        };
        let mut names = BTreeSet::new();
        for hook in &hooks {
            hook.check()?;
            if !names.insert(&hook.name) {
                return Err(format!("there are two webhooks of the name {:?}", hook.name));
            }
        }
        Ok(Self(hooks))
    }

    fn to_toml(&self) -> String {
        let one = |hook: &Webhook| {
            let authorization = match &hook.authorization[..] {
                "" => String::new(),
                authorization => format!(", authorization = {}", authorization.to_owned().to_toml()),
            };
            format!("{{ name = {}, url = {}{authorization} }}", hook.name.to_toml(), hook.url.to_toml())
        };
        format!("[{}]", self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Webhooks, String> {
        let config = crate::config::parse(&format!("[events]\nwebhooks = {value}")).map_err(|e| e.to_string())?;
        Ok(config.events.webhooks)
    }

    #[test]
    fn webhooks_are_read_and_written() {
        let tables = r#"[{ name = "a", url = "http://h:1/x" }, { name = "b", url = "https://h", authorization = "Bearer \"s\"" }]"#;
        let hooks = parse(tables).expect("valid");
        assert_eq!((&hooks.0[0].url[..], &hooks.0[1].authorization[..]), ("http://h:1/x", "Bearer \"s\""));
        assert_eq!(parse(&hooks.to_toml()).expect("valid"), hooks);
        let text = Webhooks::read(Input::Text("a=http://h/?x=1, b = https://h")).expect("valid");
        assert_eq!((&text.0[0].url[..], &text.0[1].name[..]), ("http://h/?x=1", "b"));
        assert_eq!(parse("\"a=http://h\"").expect("valid").0.len(), 1);
        assert_eq!(parse("[]").expect("valid"), Webhooks::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (value, says) in [
            ("7", "a list of webhooks"),
            ("[\"a\"]", "NAME=URL"),
            ("[{ name = \"a\" }]", "is not a URL"),
            ("[{ name = \"a\", url = \"ftp://h\" }]", "is not a URL"),
            ("[{ name = \"a b\", url = \"http://h\" }]", "is not a name"),
            ("[{ nam = \"a\", url = \"http://h\" }]", "did you mean `name`"),
            ("[{ name = \"a\", url = \"http://h\", authorization = \"a\\nb\" }]", "no header"),
            ("[\"a=http://h\", \"a=http://i\"]", "two webhooks"),
        ] {
            let error = parse(value).expect_err(value);
            assert!(error.contains(says), "{value}: {error}");
        }
    }
}
