//! Kinds of values of a few settings: networks, names of hosts, secrets.

use std::fmt;

use steadfast_s3::IpNetwork;
use toml::de::DeValue;

use super::setting::{Input, Setting, list};

/// Text printed in place of a secret.
const HIDDEN: &str = "(not shown)";

/// Addresses and networks: a list in a file, separated by commas as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNetwork>);

impl Setting for Networks {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of networks such as [\"10.0.0.0/8\"]")?;
        parts.into_iter().map(str::parse).collect::<Result<_, _>>().map(Self)
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
            None => Ok(Self(parts.into_iter().map(str::to_ascii_lowercase).collect())),
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
            Some(HIDDEN) => Err(format!(
                "{HIDDEN:?} is the text that a printed configuration has in its place: give the secret itself"
            )),
            Some(text) if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(Self(text.to_owned())),
            _ => Err("expected a string of printable characters without spaces".to_owned()),
        }
    }

    fn to_toml(&self) -> String {
        if self.0.is_empty() { "\"\"".to_owned() } else { HIDDEN.to_owned().to_toml() }
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
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::read(Input::Text("s3cret")).expect("valid");
        assert!(!secret.to_toml().contains("s3cret") && !format!("{secret:?}").contains("s3cret"));
        assert!(Secret::read(Input::Text(HIDDEN)).is_err(), "what was printed is not taken for it");
        assert_eq!(Secret::default().to_toml(), "\"\"");
    }
}
