//! Pairs of an access key and its secret key.

use std::fmt;

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde::{Deserialize, Serialize};

/// An access key with its secret key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPair {
    /// Identifies the key; not secret.
    pub access_key: String,
    /// Signs requests.
    pub secret_key: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({}, secret)", self.access_key)
    }
}

impl KeyPair {
    /// Generates an access key of 20 characters and a secret key of 40 (238 random bits).
    ///
    /// # Errors
    /// When the operating system returns no random numbers.
    pub fn generate() -> Result<Self, String> {
        const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        const MIXED: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let text = |len, alphabet| {
            random_text(len, alphabet).map_err(|e| format!("the operating system returned no random numbers: {e}"))
        };
        Ok(Self { access_key: format!("SF{}", text(18, UPPER)?), secret_key: text(40, MIXED)? })
    }

    /// Checks a pair that was chosen elsewhere.
    ///
    /// # Errors
    /// What is wrong, as a message.
    pub fn check(&self) -> Result<(), String> {
        let plain = |s: &str| s.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b',' && b != b'=');
        if self.access_key.len() < 3 || self.access_key.len() > 128 || !plain(&self.access_key) {
            return Err("the access key must be 3 to 128 printable characters without '/', ',' or '='".to_owned());
        }
        if self.secret_key.len() < 8 || self.secret_key.len() > 256 {
            return Err("the secret key must be 8 to 256 characters".to_owned());
        }
        Ok(())
    }
}

/// Text of `len` characters of `alphabet`, all equally likely: bytes past the last whole multiple
/// of the alphabet are drawn again.
fn random_text(len: usize, alphabet: &[u8]) -> Result<String, String> {
    let fair = 256 / alphabet.len() * alphabet.len();
    let mut text = String::with_capacity(len);
    let mut bytes = [0u8; 64];
    while text.len() < len {
        OsRng.try_fill_bytes(&mut bytes).map_err(|e| e.to_string())?;
        let fitting = bytes.iter().filter(|b| usize::from(**b) < fair);
        text.extend(fitting.take(len - text.len()).map(|b| char::from(alphabet[usize::from(*b) % alphabet.len()])));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_secret() {
        let pair = KeyPair { access_key: "name".into(), secret_key: "hidden-words".into() };
        assert!(!format!("{pair:?}").contains("hidden"));
    }

    #[test]
    fn a_generated_pair_is_valid_and_new() {
        let (first, second) = (KeyPair::generate().expect("a pair"), KeyPair::generate().expect("a pair"));
        assert_eq!((first.access_key.len(), first.secret_key.len()), (20, 40));
        assert_eq!(first.check(), Ok(()));
        assert_ne!(first, second);
    }
}
