//! Kinds of values of a few settings: networks, names of hosts, secrets.

use std::collections::BTreeSet;
use std::fmt;

use steadfast_s3::{IpNetwork, is_bucket_name};
use toml::de::DeValue;

use super::setting::{Input, Setting, list, no_list};

/// Text printed in place of a secret.
pub(super) const HIDDEN: &str = "(not shown)";

/// Reads a list of tables. As text, as in an environment variable, it is the same list, or short
/// forms separated by commas. A table may stand alone.
pub(super) fn read_list<T>(
    input: Input<'_>,
    expected: &str,
    from_text: fn(&str) -> Result<T, String>,
    from_value: fn(&DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    match input {
        Input::Text(text) if text.trim_start().starts_with('[') => {
            let value = DeValue::parse(text.trim()).map_err(|_| no_list(expected))?;
            read_list(Input::Value(value.get_ref()), expected, from_text, from_value)
        }
        Input::Text(text) => text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(from_text).collect(),
        Input::Value(DeValue::Array(items)) => items.iter().map(|item| from_value(item.get_ref())).collect(),
        Input::Value(DeValue::String(text)) if text.is_empty() => Ok(Vec::new()),
        Input::Value(value) => from_value(value).map(|one| vec![one]),
    }
}

/// Addresses and networks: a list in a file, separated by commas as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNetwork>);

impl Setting for Networks {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of networks such as [\"10.0.0.0/8\"]")?;
        parts.iter().map(|part| part.parse()).collect::<Result<_, _>>().map(Self)
    }

    fn to_toml(&self) -> String {
        let all: Vec<String> = self.0.iter().map(|network| network.to_string().to_toml()).collect();
        format!("[{}]", all.join(", "))
    }
}

/// Names of hosts, without ports: a list in a file, separated by commas as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl Setting for Names {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of names such as [\"steadfast.internal\"]")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match parts.iter().find(|name| !name.chars().all(allowed)) {
            Some(wrong) => Err(format!("{wrong:?} is not the name of a host, without port")),
            None => Ok(Self(parts.iter().map(|name| name.to_ascii_lowercase()).collect())),
        }
    }

    fn to_toml(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Setting::to_toml).collect();
        format!("[{}]", all.join(", "))
    }
}

/// Names of buckets: a list in a file, separated by commas as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketNames(pub BTreeSet<String>);

impl Setting for BucketNames {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of buckets such as [\"media\"]")?;
        match parts.iter().find(|name| !is_bucket_name(name)) {
            Some(wrong) => Err(format!("{wrong:?} is not a name for a bucket")),
            None => Ok(Self(parts.into_iter().collect())),
        }
    }

    fn to_toml(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Setting::to_toml).collect();
        format!("[{}]", all.join(", "))
    }
}

/// A text that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(none)" } else { "Secret" })
    }
}

impl Setting for Secret {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let text = match &input {
            Input::Text(text) => Some(*text),
            Input::Value(DeValue::String(text)) => Some(text.as_ref()),
            Input::Value(_) => None,
        };
        match text {
            Some(HIDDEN) => Err(hidden()),
            Some(text) if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(Self(text.to_owned())),
            _ => Err("expected a string of printable characters without spaces".to_owned()),
        }
    }

    fn to_toml(&self) -> String {
        if self.0.is_empty() { "\"\"".to_owned() } else { HIDDEN.to_owned().to_toml() }
    }
}

/// The mistake of giving the printed text for the secret.
pub(super) fn hidden() -> String {
    format!("{HIDDEN:?} is the text that a printed configuration has in its place: give the secret itself")
}

/// A secret, or its source.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText {
    /// The secret itself.
    pub text: String,
    /// A file that holds it.
    pub file: String,
    /// An environment variable that holds it.
    pub env: String,
}

/// Maximum length of a secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

impl SecretText {
    /// The secret; `None` if none is set.
    ///
    /// # Errors
    /// Why it cannot be read, as a message without any part of it.
    pub fn read(&self) -> Result<Option<String>, String> {
        let found = match (&self.file[..], &self.env[..]) {
            ("", "") => self.text.clone(),
            (file, "") => {
                let size = std::fs::metadata(file).map_err(|e| format!("{file}: {e}"))?.len();
                if size > SECRET_BYTES_MAX {
                    return Err(format!("{file} has {size} bytes: too many for a secret"));
                }
                std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?
            }
            (_, env) => std::env::var(env).map_err(|e| format!("the environment variable {env}: {e}"))?,
        };
        let found = found.trim();
        if found.is_empty() && !self.is_empty() {
            return Err("the secret is empty".to_owned());
        }
        Ok((!found.is_empty()).then(|| found.to_owned()))
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.file.is_empty() && self.env.is_empty()
    }

    /// Checks that one source is given at most; `what` is the key of the secret itself.
    ///
    /// # Errors
    /// The keys, of which one is to be kept.
    pub(super) fn check(&self, what: &str) -> Result<(), String> {
        if self.text == HIDDEN {
            return Err(format!("{what}: {}", hidden()));
        }
        let given = [&self.text, &self.file, &self.env].iter().filter(|text| !text.is_empty()).count();
        if given > 1 {
            return Err(format!("give one of {what}, {what}_file and {what}_env"));
        }
        Ok(())
    }

    /// Appends the keys that are set, without the secret itself.
    pub(super) fn to_toml(&self, what: &str, all: &mut Vec<String>) {
        if !self.text.is_empty() {
            all.push(format!("{what} = {}", HIDDEN.to_owned().to_toml()));
        }
        for (end, text) in [("file", &self.file), ("env", &self.env)] {
            if !text.is_empty() {
                all.push(format!("{what}_{end} = {}", text.to_toml()));
            }
        }
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.text.is_empty() { "" } else { HIDDEN };
        f.debug_struct("SecretText").field("text", &text).field("file", &self.file).field("env", &self.env).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_written() {
        let networks = Networks::read(Input::Text("10.0.0.0/8, ::1")).expect("valid");
        assert_eq!(networks.to_toml(), "[\"10.0.0.0/8\", \"::1/128\"]");
        assert!(Networks::read(Input::Text("10.0.0.0/40")).is_err());
        assert_eq!(Names::read(Input::Text("A.b,c")).expect("valid").to_toml(), "[\"a.b\", \"c\"]");
        assert!(Names::read(Input::Text("a:9001")).is_err());
        let buckets = BucketNames::read(Input::Text("media, films")).expect("valid");
        assert_eq!(buckets.to_toml(), "[\"films\", \"media\"]");
        for wrong in ["*", "Media", "media/films", "ab"] {
            assert!(BucketNames::read(Input::Text(wrong)).is_err_and(|e| e.contains("not a name")), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::read(Input::Text("s3cret")).expect("valid");
        assert!(!secret.to_toml().contains("s3cret") && !format!("{secret:?}").contains("s3cret"));
        assert!(Secret::read(Input::Text(HIDDEN)).is_err(), "what was printed is not taken for it");
        assert_eq!(Secret::default().to_toml(), "\"\"");
        let secret = SecretText { text: "s3cret".to_owned(), ..SecretText::default() };
        assert!(!format!("{secret:?}").contains("s3cret") && secret.check("secret").is_ok());
        let printed = SecretText { text: HIDDEN.to_owned(), ..SecretText::default() };
        assert!(printed.check("secret").is_err_and(|e| e.contains("the secret itself")));
    }
}
