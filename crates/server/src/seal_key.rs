//! The key that seals the secrets of users in the pool: from the environment or a file, else
//! generated once and stored.

use std::path::Path;

use steadfast_users::Seal;

use crate::private_file;

/// The environment variable of the key.
pub const VARIABLE: &str = "STEADFAST_SEAL_KEY";

/// Whether the environment has the key.
pub fn is_in_environment() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Finds the key: `variable` is the value of [`VARIABLE`], `configured` the file of
/// `access.seal_key_file`. Without both it is in the file `own`, which is made if it is absent.
///
/// # Errors
/// The mistake and what to do.
pub fn find(variable: Option<&str>, configured: Option<&Path>, own: &Path) -> Result<Seal, String> {
    if let Some(text) = variable {
        return Seal::parse(text).map_err(|e| format!("{VARIABLE}: {e}"));
    }
    if let Some(path) = configured {
        // A manager of secrets may give the file another mode.
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| format!("access.seal_key_file: {}: cannot be read: {e}", path.display()))?;
        return Seal::parse(&text).map_err(|e| format!("{}: {e}", path.display()));
    }
    if let Some(text) = private_file::read(own)? {
        return Seal::parse(&text).map_err(|e| format!("{}: {e}", own.display()));
    }
    let text = Seal::generate()?;
    private_file::store(own, &text)?;
    tracing::info!(path = %own.display(), "a seal key has been made: the secrets of users need it, so keep a copy");
    Seal::parse(&text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_generated_once_unless_it_is_given() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, given) = (dir.path().join("seal.key"), dir.path().join("given"));
        find(None, None, &own).expect("generated");
        let text = std::fs::read_to_string(&own).expect("stored");
        assert_eq!(std::fs::metadata(&own).expect("stored").permissions().mode() & 0o777, 0o600);
        find(None, None, &own).expect("read");
        assert_eq!(std::fs::read_to_string(&own).expect("stored"), text, "it is kept");
        std::fs::remove_file(&own).expect("removed");
        assert!(find(None, Some(&given), &own).expect_err("absent").contains("access.seal_key_file"));
        std::fs::write(&given, &text).expect("written");
        find(None, Some(&given), &own).expect("read");
        find(Some(&text), Some(&given), &own).expect("read");
        assert!(find(Some("no key"), None, &own).expect_err("wrong").contains(VARIABLE));
        assert!(!own.exists());
    }
}
