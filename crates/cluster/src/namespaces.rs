//! The namespaces of channels, as the nodes of a cluster compare them.
//!
//! A front checks the rights of a publication and says how its home stores it. So a front with
//! other options than its home could acknowledge publications that no home stores.

use std::collections::HashMap;

use prost::Message;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{HANDSHAKE_BYTES_MAX, WireNamespace};

/// Bytes of a hello that other fields may need.
const OTHER_BYTES: usize = 4 << 10;

/// The options of a namespace, in any form that is equal for equal options.
#[derive(Debug, Clone)]
pub struct NamespaceTerms {
    /// What the names of its channels begin with; empty: those without a namespace.
    pub name: String,
    /// The options that decide what a home stores.
    pub stored: String,
    /// All options.
    pub all: String,
}

/// The options of all namespaces that nodes must agree on.
#[derive(Debug, Clone, Default)]
pub struct Namespaces(Vec<WireNamespace>);

impl Namespaces {
    /// The namespaces of a node.
    ///
    /// # Errors
    /// There are more than a handshake can carry, as a message.
    pub fn new(terms: impl IntoIterator<Item = NamespaceTerms>) -> Result<Self, String> {
        let wire = |terms: NamespaceTerms| WireNamespace {
            stored: xxh3_64(terms.stored.as_bytes()),
            all: xxh3_64(terms.all.as_bytes()),
            name: terms.name,
        };
        let mut namespaces: Vec<WireNamespace> = terms.into_iter().map(wire).collect();
        namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        let bytes: usize = namespaces.iter().map(|one| one.encoded_len() + 8).sum();
        if bytes > HANDSHAKE_BYTES_MAX - OTHER_BYTES {
            return Err(format!("{} namespaces are more than the nodes of a cluster can compare", namespaces.len()));
        }
        Ok(Self(namespaces))
    }

    pub(crate) fn to_wire(&self) -> Vec<WireNamespace> {
        self.0.clone()
    }

    /// The namespaces of both nodes whose options are not the same.
    ///
    /// # Errors
    /// The names of those that are stored in another way.
    pub(crate) fn compare(&self, others: &[WireNamespace]) -> Result<Vec<String>, Vec<String>> {
        let others: HashMap<&str, &WireNamespace> = others.iter().map(|other| (other.name.as_str(), other)).collect();
        let (mut stored, mut differing) = (Vec::new(), Vec::new());
        for own in &self.0 {
            let Some(other) = others.get(own.name.as_str()) else { continue };
            if other.stored != own.stored {
                stored.push(own.name.clone());
            } else if other.all != own.all {
                differing.push(own.name.clone());
            }
        }
        if stored.is_empty() { Ok(differing) } else { Err(stored) }
    }
}

/// A hash of namespaces, for the proof of a handshake.
pub(crate) fn hash(namespaces: &[WireNamespace]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for WireNamespace { name, stored, all } in namespaces {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
        hash.update(stored.to_be_bytes());
        hash.update(all.to_be_bytes());
    }
    hash.finalize().into()
}

/// The names of namespaces in words.
pub(crate) fn in_words(names: &[String]) -> String {
    let shown = |name: &String| match name.as_str() {
        "" => "channels without a namespace".to_owned(),
        name => format!("{name:?}"),
    };
    names.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces(terms: &[(&str, &str, &str)]) -> Namespaces {
        let terms = terms.iter().map(|(name, stored, all)| NamespaceTerms {
            name: (*name).to_owned(),
            stored: (*stored).to_owned(),
            all: (*all).to_owned(),
        });
        Namespaces::new(terms).expect("few")
    }

    #[test]
    fn only_namespaces_of_both_nodes_are_compared() {
        let own = namespaces(&[("chat:", "1", "a"), ("news:", "1", "a"), ("", "1", "a")]);
        let compared = |other: &[(&str, &str, &str)]| own.compare(&namespaces(other).to_wire());
        assert_eq!(compared(&[("", "1", "a"), ("chat:", "1", "a"), ("news:", "1", "a")]), Ok(vec![]));
        assert_eq!(compared(&[("", "1", "a"), ("files:", "9", "z")]), Ok(vec![]));
        assert_eq!(compared(&[("", "1", "b"), ("chat:", "1", "b")]), Ok(vec![String::new(), "chat:".to_owned()]));
        assert_eq!(compared(&[("", "1", "b"), ("chat:", "2", "b")]), Err(vec!["chat:".to_owned()]));
        assert_eq!(in_words(&[String::new(), "chat:".to_owned()]), "channels without a namespace, \"chat:\"");
    }

    #[test]
    fn more_than_fit_into_a_handshake_are_refused() {
        let many = |count: usize| {
            let terms =
                |n| NamespaceTerms { name: format!("namespace-{n}:"), stored: String::new(), all: String::new() };
            Namespaces::new((0..count).map(terms))
        };
        let fitting = many(2000).expect("they fit");
        let encoded: usize = fitting.to_wire().iter().map(|one| one.encoded_len() + 8).sum();
        assert!(encoded + OTHER_BYTES <= HANDSHAKE_BYTES_MAX);
        assert!(many(10_000).expect_err("too many").contains("10000 namespaces"));
    }
}
