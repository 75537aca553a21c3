//! The encryption of bodies: a key derived from the secret key of the caller, and an authenticated
//! cipher over fragments.
//!
//! ```text
//! salt:32 cipher:1 nonce:8 fragment*
//! ```
//!
//! A fragment is 16 KiB of text, or the rest, and a tag of 16 bytes. Its nonce is that of the
//! payload and a counter of 32 bits, little endian. The counter 0 makes the tag of an empty text,
//! which is authenticated data of each fragment behind a byte that marks the last one.
//! Source: `encrypt.go` of madmin-go 3.0, and sio-go 0.3.

use std::num::NonZeroU32;

use argon2::{Algorithm, Argon2, Params, Version};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};

const SALT_BYTES: usize = 32;
const NONCE_BYTES: usize = 8;
const HEADER_BYTES: usize = SALT_BYTES + 1 + NONCE_BYTES;
const TAG_BYTES: usize = 16;
const FRAGMENT_BYTES: usize = 16 << 10;

/// The ciphers, with the function that derives their key.
const ARGON2_AES: u8 = 0;
const ARGON2_CHACHA20: u8 = 1;
const PBKDF2_AES: u8 = 2;

/// The memory of Argon2id, in KiB. MinIO chose it.
const ARGON2_MEMORY_KIB: u32 = 64 << 10;
const ARGON2_LANES: u32 = 4;
const PBKDF2_ROUNDS: NonZeroU32 = NonZeroU32::new(8192).expect("not 0");

/// The cipher of one payload.
struct PayloadCipher {
    key: LessSafeKey,
    nonce: [u8; NONCE_BYTES],
    /// The tag that the first nonce makes.
    first_tag: [u8; TAG_BYTES],
}

impl PayloadCipher {
    /// The cipher of a payload with this header. Takes 64 MiB and tens of milliseconds.
    ///
    /// # Errors
    /// A cipher that is unknown, as a message.
    fn new(secret_key: &str, header: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let (salt, rest) = header.split_at(SALT_BYTES);
        let (cipher, nonce) = (rest[0], &rest[1..]);
        let mut bytes = [0u8; 32];
        match cipher {
            ARGON2_AES | ARGON2_CHACHA20 => {
                let params = Params::new(ARGON2_MEMORY_KIB, 1, ARGON2_LANES, Some(bytes.len()));
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.map_err(|e| e.to_string())?);
                argon2.hash_password_into(secret_key.as_bytes(), salt, &mut bytes).map_err(|e| e.to_string())?;
            }
            PBKDF2_AES => {
                pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, PBKDF2_ROUNDS, salt, secret_key.as_bytes(), &mut bytes);
            }
            other => return Err(format!("the cipher {other} of the body is unknown")),
        }
        let algorithm = if cipher == ARGON2_CHACHA20 { &CHACHA20_POLY1305 } else { &AES_256_GCM };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &bytes).expect("a key of its length"));
        let nonce = nonce.try_into().expect("of its length");
        let mut cipher = Self { key, nonce, first_tag: [0; TAG_BYTES] };
        let tag = cipher.key.seal_in_place_separate_tag(cipher.nonce(0), Aad::empty(), &mut []);
        cipher.first_tag.copy_from_slice(tag.expect("an empty text").as_ref());
        Ok(cipher)
    }

    fn nonce(&self, counter: u32) -> Nonce {
        let mut nonce = [0u8; NONCE_LEN];
        nonce[..NONCE_BYTES].copy_from_slice(&self.nonce);
        nonce[NONCE_BYTES..].copy_from_slice(&counter.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn authenticated(&self, last: bool) -> Aad<[u8; 1 + TAG_BYTES]> {
        let mut data = [0u8; 1 + TAG_BYTES];
        data[0] = if last { 0x80 } else { 0 };
        data[1..].copy_from_slice(&self.first_tag);
        Aad::from(data)
    }
}

/// Decrypts a body. Takes 64 MiB and tens of milliseconds.
///
/// # Errors
/// The body is not one that this secret key has encrypted, as a message.
pub(crate) fn decrypt(secret_key: &str, body: &[u8]) -> Result<Vec<u8>, String> {
    let Some((header, sealed)) = body.split_first_chunk::<HEADER_BYTES>() else {
        return Err("the body is too short to be encrypted".to_owned());
    };
    let cipher = PayloadCipher::new(secret_key, header)?;
    let mut text = Vec::with_capacity(sealed.len());
    let (mut rest, mut counter) = (sealed, 0u32);
    loop {
        let (fragment, after) = rest.split_at(rest.len().min(FRAGMENT_BYTES + TAG_BYTES));
        rest = after;
        counter += 1;
        let mut fragment = fragment.to_vec();
        let opened =
            cipher.key.open_in_place(cipher.nonce(counter), cipher.authenticated(rest.is_empty()), &mut fragment);
        text.extend_from_slice(opened.map_err(|_| "the body was encrypted with another secret key".to_owned())?);
        if rest.is_empty() {
            return Ok(text);
        }
    }
}

/// Encrypts a body. Takes 64 MiB and tens of milliseconds.
///
/// # Errors
/// When the operating system returns no random numbers.
pub(crate) fn encrypt(secret_key: &str, text: &[u8]) -> Result<Vec<u8>, String> {
    let mut header = [0u8; HEADER_BYTES];
    SystemRandom::new().fill(&mut header).map_err(|_| "the operating system returned no random numbers".to_owned())?;
    header[SALT_BYTES] = ARGON2_AES;
    encrypt_with(secret_key, &header, text)
}

fn encrypt_with(secret_key: &str, header: &[u8; HEADER_BYTES], text: &[u8]) -> Result<Vec<u8>, String> {
    let cipher = PayloadCipher::new(secret_key, header)?;
    let mut body = header.to_vec();
    let (mut rest, mut counter) = (text, 0u32);
    loop {
        let (fragment, after) = rest.split_at(rest.len().min(FRAGMENT_BYTES));
        rest = after;
        counter += 1;
        let mut fragment = fragment.to_vec();
        let authenticated = cipher.authenticated(rest.is_empty());
        let sealed = cipher.key.seal_in_place_append_tag(cipher.nonce(counter), authenticated, &mut fragment);
        sealed.map_err(|_| "the answer cannot be encrypted".to_owned())?;
        body.extend_from_slice(&fragment);
        if rest.is_empty() {
            return Ok(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with the fast derivation, for tests that make many.
    fn header() -> [u8; HEADER_BYTES] {
        let mut header = [7u8; HEADER_BYTES];
        header[SALT_BYTES] = PBKDF2_AES;
        header
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(20))]
        #[test]
        fn what_was_encrypted_is_decrypted(length in 0usize..70_000) {
            let text: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let body = encrypt_with("secret", &header(), &text).expect("encrypted");
            let tags = length.div_ceil(FRAGMENT_BYTES).max(1) * TAG_BYTES;
            assert_eq!(body.len(), HEADER_BYTES + length + tags);
            assert_eq!(decrypt("secret", &body).expect("decrypted"), text);
        }
    }

    #[test]
    fn each_cipher_works_and_its_answers_differ() {
        for cipher in [ARGON2_AES, ARGON2_CHACHA20, PBKDF2_AES] {
            let mut header = header();
            header[SALT_BYTES] = cipher;
            let body = encrypt_with("secret", &header, b"text").expect("encrypted");
            assert_eq!(decrypt("secret", &body).expect("decrypted"), b"text");
            decrypt("other", &body).expect_err("another secret");
        }
        let (first, second) = (encrypt("secret", b"").expect("encrypted"), encrypt("secret", b"").expect("encrypted"));
        assert_ne!(first, second);
        assert_eq!(decrypt("secret", &first).expect("decrypted"), b"");
    }

    /// What `EncryptData` of madmin-go 3.0.109 made with the secret `hidden-words`.
    const OF_MADMIN: &str = concat!(
        "c914882c368151762c2a09a07c205e6755227f17aa26ca912b127caba1d03339",
        "0006f781e702ad1c7f8bc72a6b402bed586d5f543703098e3ea59c130128bc1d",
        "91aff13ac34e6fb17457a2e5f5b4c3c63c5bceefa3daba76854061c748770628",
        "ac0d2345db25576c",
    );

    #[test]
    fn what_madmin_encrypted_is_decrypted() {
        let digits = |at| u8::from_str_radix(&OF_MADMIN[at..at + 2], 16).expect("hexadecimal");
        let body: Vec<u8> = (0..OF_MADMIN.len()).step_by(2).map(digits).collect();
        let text = decrypt("hidden-words", &body).expect("decrypted");
        assert_eq!(text, br#"{"secretKey":"secretsecret","status":"enabled"}"#);
        let header = body.first_chunk().expect("a header");
        assert_eq!(encrypt_with("hidden-words", header, &text).expect("encrypted"), body);
    }

    #[test]
    fn a_changed_body_is_refused() {
        let text = vec![1u8; 2 * FRAGMENT_BYTES + 10];
        let body = encrypt_with("secret", &header(), &text).expect("encrypted");
        for at in [0, SALT_BYTES, SALT_BYTES + 1, HEADER_BYTES, body.len() - 1, HEADER_BYTES + FRAGMENT_BYTES] {
            let mut changed = body.clone();
            changed[at] ^= 1;
            decrypt("secret", &changed).expect_err("changed");
        }
        // Whole fragments cut off, repeated or exchanged.
        let sealed = FRAGMENT_BYTES + TAG_BYTES;
        let (first, second) = (HEADER_BYTES + sealed, HEADER_BYTES + 2 * sealed);
        let exchanged = [&body[..HEADER_BYTES], &body[first..second], &body[HEADER_BYTES..first], &body[second..]];
        for changed in [body[..first].to_vec(), body[..second].to_vec(), exchanged.concat()] {
            decrypt("secret", &changed).expect_err("changed");
        }
        for length in 0..HEADER_BYTES + TAG_BYTES {
            decrypt("secret", &body[..length]).expect_err("short");
        }
    }
}
