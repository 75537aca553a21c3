//! The seal: encrypts the secret keys that the pool stores.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// The length of the key, in bytes.
const KEY_BYTES: usize = 32;

/// Encrypts secret keys with ChaCha20-Poly1305. A sealed secret opens only with the same key, and
/// only for the access key that it was sealed for.
pub struct Seal(LessSafeKey);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(secret)")
    }
}

impl Seal {
    /// Generates the text of a key: 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the operating system returns no random numbers.
    pub fn generate() -> Result<String, String> {
        let bytes: [u8; KEY_BYTES] = random()?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads the text of a key, as `openssl rand -hex 32` prints it.
    ///
    /// # Errors
    /// The text is no key, as a message that does not repeat it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("a seal key is {} hexadecimal digits: make one with `openssl rand -hex 32`", 2 * KEY_BYTES);
        let text = text.trim();
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong());
        let bytes: Result<Vec<u8>, String> = (0..text.len()).step_by(2).map(digits).collect();
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes?).map_err(|_| wrong())?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Seals the secret of an access key, as base64 of the nonce, the encrypted text and its tag.
    ///
    /// # Errors
    /// When the operating system returns no random numbers.
    pub(crate) fn seal(&self, access_key: &str, secret: &str) -> Result<String, String> {
        // At random: a pool seals far fewer than the 2^32 secrets that are safe with one key.
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut sealed = secret.as_bytes().to_vec();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(access_key.as_bytes()),
                &mut sealed,
            )
            .map_err(|_| "the secret key cannot be sealed".to_owned())?;
        Ok(STANDARD_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// The secret of an access key; `None`: another key sealed it, or it is damaged.
    pub(crate) fn open(&self, access_key: &str, sealed: &str) -> Option<String> {
        let mut bytes = STANDARD_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = bytes.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(access_key.as_bytes()), text).ok()?;
        std::str::from_utf8(opened).ok().map(str::to_owned)
    }
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| "the operating system returned no random numbers".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seal() -> Seal {
        Seal::parse(&Seal::generate().expect("a key")).expect("a key")
    }

    proptest! {
        #[test]
        fn only_the_same_key_opens_it_for_the_same_access_key(secret: String, junk: String) {
            let (ours, theirs) = (seal(), seal());
            let sealed = ours.seal("A", &secret).expect("sealed");
            prop_assert_eq!(ours.open("A", &sealed), Some(secret.clone()));
            prop_assert_eq!(ours.open("B", &sealed), None);
            prop_assert_eq!(theirs.open("A", &sealed), None);
            prop_assert_eq!(ours.open("A", &junk), None);
            prop_assert_ne!(ours.seal("A", &secret).expect("sealed"), sealed);
        }
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_repeated() {
        for text in ["", "12", &"g".repeat(64), &"é".repeat(32), &"a".repeat(66)] {
            let why = Seal::parse(text).expect_err("no key");
            assert!(text.is_empty() || !why.contains(text), "{why}");
        }
        assert!(Seal::parse(&format!("{}\n", "aB".repeat(32))).is_ok());
    }
}
