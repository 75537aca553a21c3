//! Policies with a name, which several users share.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_access::{Policy, PolicyUse};
use steadfast_store::UserTexts;

/// What the names of these records begin with. No name of a user has a slash.
const PREFIX: &str = "policy/";

/// The longest name, in bytes. Source: AWS.
const NAME_BYTES_MAX: usize = 128;

/// The policies that every pool has, as MinIO names them, with their actions.
const BUILT_IN: [(&str, &str); 3] = [
    ("readonly", r#"["s3:GetBucketLocation","s3:GetObject"]"#),
    ("readwrite", r#"["s3:*"]"#),
    ("writeonly", r#"["s3:PutObject"]"#),
];

/// What the pool stores of a named policy, as JSON. A build refuses one with a field that it does
/// not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedPolicy {
    /// When it was made, in milliseconds since 1970; 0 for one that every pool has.
    pub created_ms: u64,
    /// When it was last changed, in milliseconds since 1970.
    pub changed_ms: u64,
    /// The policy, as JSON.
    pub policy: String,
}

impl NamedPolicy {
    /// Reads what the pool stores.
    ///
    /// # Errors
    /// The text is no named policy, or one of a later build.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// What the pool stores.
    ///
    /// # Errors
    /// Those of JSON.
    pub(crate) fn text(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|e| e.to_string())
    }

    /// The policy, ready to judge requests.
    ///
    /// # Errors
    /// The document is no policy, as a message.
    pub(crate) fn compiled(&self) -> Result<Arc<Policy>, String> {
        let policy = Policy::parse(self.policy.as_bytes(), PolicyUse::User);
        policy.map(Arc::new).map_err(|why| format!("invalid policy: {why}"))
    }

    /// The policy of this name that every pool has.
    pub(crate) fn built_in(name: &str) -> Option<Self> {
        let (_, actions) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":{actions},"Resource":["arn:aws:s3:::*"]}}]}}"#
        );
        Some(Self { created_ms: 0, changed_ms: 0, policy })
    }

    /// The policy of this name, of the pool or built in.
    ///
    /// # Errors
    /// The pool's text cannot be read, as a message.
    pub(crate) fn find(texts: &UserTexts, name: &str) -> Result<Option<Self>, String> {
        match texts.get(&record_name(name)) {
            Some(text) => Self::parse(text).map(Some),
            None => Ok(Self::built_in(name)),
        }
    }

    /// The names of all: those of the pool, and the built-in ones.
    pub(crate) fn names(texts: &UserTexts) -> Vec<String> {
        let stored = texts.keys().filter_map(|name| named(name)).map(str::to_owned);
        let mut names: Vec<String> = stored.chain(BUILT_IN.iter().map(|(name, _)| (*name).to_owned())).collect();
        names.sort_unstable();
        names
    }
}

/// The name of the record of a named policy.
pub(crate) fn record_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The policy whose record has this name; `None`: the record is that of a user.
pub(crate) fn named(record_name: &str) -> Option<&str> {
    record_name.strip_prefix(PREFIX)
}

/// Checks the name of a policy that an operator sets.
///
/// # Errors
/// What is wrong, as a message.
pub(crate) fn check_policy_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+=.@_-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        return Err(format!("the name of a policy is 1 to {NAME_BYTES_MAX} letters, digits or characters of +=.@_-"));
    }
    match NamedPolicy::built_in(name) {
        Some(_) => Err(format!("the policy {name} is built in: take another name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_policies_are_policies() {
        for name in NamedPolicy::names(&UserTexts::new()) {
            NamedPolicy::built_in(&name).expect("it is built in").compiled().expect("a policy");
            check_policy_name(&name).expect_err("taken");
        }
        assert_eq!(NamedPolicy::built_in("consoleAdmin"), None);
    }
}
