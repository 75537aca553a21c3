//! The keys with which clients sign: from the environment, else generated once and stored.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde::{Deserialize, Serialize};

/// An access key with its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// Identifies the key; not secret.
    pub access_key: String,
    /// Signs requests.
    pub secret_key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, secret)", self.access_key)
    }
}

/// The source of the credentials in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `STEADFAST_ACCESS_KEY` and `STEADFAST_SECRET_KEY`.
    Environment,
    /// A file of an earlier start.
    File(PathBuf),
    /// Generated now and stored in this file: to be shown once.
    Generated(PathBuf),
}

/// Finds the credentials: `environment` (access key, secret key), else the file at `path`. If
/// neither exists, generates a pair and stores it there.
///
/// # Errors
/// The mistake and what to do.
pub fn find(environment: (Option<String>, Option<String>), path: &Path) -> Result<(Credentials, Origin), String> {
    match environment {
        (Some(access_key), Some(secret_key)) => {
            let credentials = Credentials { access_key, secret_key };
            credentials.check().map_err(|e| format!("STEADFAST_ACCESS_KEY and STEADFAST_SECRET_KEY: {e}"))?;
            return Ok((credentials, Origin::Environment));
        }
        (None, None) => {}
        (Some(_), None) => return Err("STEADFAST_ACCESS_KEY is set without STEADFAST_SECRET_KEY: set both".to_owned()),
        (None, Some(_)) => return Err("STEADFAST_SECRET_KEY is set without STEADFAST_ACCESS_KEY: set both".to_owned()),
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((read(path, &text)?, Origin::File(path.to_owned()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let credentials =
                Credentials::generate().map_err(|e| format!("the operating system returned no random numbers: {e}"))?;
            credentials.store(path).map_err(|e| format!("{}: cannot be written: {e}", path.display()))?;
            Ok((credentials, Origin::Generated(path.to_owned())))
        }
        Err(e) => Err(format!("{}: cannot be read: {e}", path.display())),
    }
}

fn read(path: &Path, text: &str) -> Result<Credentials, String> {
    let shown = path.display();
    let mode = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!("other users can read {shown} (mode {:o}): chmod 600 {shown}", mode & 0o777));
    }
    let credentials: Credentials = serde_json::from_str(text)
        .map_err(|e| format!("{shown}: {e}; correct it, or remove it to get new credentials"))?;
    credentials.check().map_err(|e| format!("{shown}: {e}"))?;
    Ok(credentials)
}

impl Credentials {
    /// Generates an access key of 20 characters and a secret of 40 (238 random bits).
    ///
    /// # Errors
    /// When the operating system returns no random numbers.
    pub fn generate() -> Result<Self, String> {
        const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        const MIXED: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        Ok(Self { access_key: format!("SF{}", random_text(18, UPPER)?), secret_key: random_text(40, MIXED)? })
    }

    fn check(&self) -> Result<(), String> {
        let plain = |s: &str| s.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b',' && b != b'=');
        if self.access_key.len() < 3 || self.access_key.len() > 128 || !plain(&self.access_key) {
            return Err("the access key must be 3 to 128 printable characters without '/', ',' or '='".to_owned());
        }
        if self.secret_key.len() < 8 || self.secret_key.len() > 256 {
            return Err("the secret key must be 8 to 256 characters".to_owned());
        }
        Ok(())
    }

    /// Writes them atomically, readable by the owner only.
    fn store(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        let temporary = path.with_extension("new");
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => std::fs::File::open(parent)?.sync_all(),
            _ => std::fs::File::open(".")?.sync_all(),
        }
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
    fn generated_once_and_kept_for_the_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("credentials.json");
        let (first, origin) = find((None, None), &path).expect("generated");
        assert_eq!(origin, Origin::Generated(path.clone()));
        assert_eq!((first.access_key.len(), first.secret_key.len()), (20, 40));
        assert_eq!(std::fs::metadata(&path).expect("stored").permissions().mode() & 0o777, 0o600);
        let (second, origin) = find((None, None), &path).expect("read");
        assert_eq!(origin, Origin::File(path.clone()));
        assert_eq!(first, second);
        let other = tempfile::tempdir().expect("a directory");
        let (third, _) = find((None, None), &other.path().join("c.json")).expect("generated");
        assert_ne!(first, third);
    }

    #[test]
    fn the_environment_goes_first_and_must_be_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("credentials.json");
        let both = (Some("access".to_owned()), Some("secretsecret".to_owned()));
        let (found, origin) = find(both, &path).expect("valid");
        assert_eq!((found.access_key.as_str(), origin), ("access", Origin::Environment));
        assert!(!path.exists());
        assert!(find((Some("access".to_owned()), None), &path).expect_err("half").contains("STEADFAST_SECRET_KEY"));
        assert!(
            find((None, Some("secretsecret".to_owned())), &path).expect_err("half").contains("STEADFAST_ACCESS_KEY")
        );
        assert!(find((Some("a/b".to_owned()), Some("secretsecret".to_owned())), &path).is_err());
        assert!(find((Some("access".to_owned()), Some("short".to_owned())), &path).is_err());
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("credentials.json");
        find((None, None), &path).expect("generated");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(find((None, None), &path).expect_err("open to all").contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        std::fs::write(&path, "{\"access_key\": \"abc\"").expect("write");
        assert!(find((None, None), &path).expect_err("cut").contains("remove it"));
    }

    #[test]
    fn debug_hides_the_secret() {
        let c = Credentials { access_key: "name".into(), secret_key: "hidden-words".into() };
        assert!(!format!("{c:?}").contains("hidden"));
    }
}
