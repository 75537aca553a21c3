//! The keys of the root identity: from the environment, else generated once and stored.

use std::path::{Path, PathBuf};

use steadfast_users::KeyPair;

use crate::private_file;

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
pub fn find(environment: (Option<String>, Option<String>), path: &Path) -> Result<(KeyPair, Origin), String> {
    match environment {
        (Some(access_key), Some(secret_key)) => {
            let credentials = KeyPair { access_key, secret_key };
            credentials.check().map_err(|e| format!("STEADFAST_ACCESS_KEY and STEADFAST_SECRET_KEY: {e}"))?;
            return Ok((credentials, Origin::Environment));
        }
        (None, None) => {}
        (Some(_), None) => return Err("STEADFAST_ACCESS_KEY is set without STEADFAST_SECRET_KEY: set both".to_owned()),
        (None, Some(_)) => return Err("STEADFAST_SECRET_KEY is set without STEADFAST_ACCESS_KEY: set both".to_owned()),
    }
    if let Some(text) = private_file::read(path)? {
        return Ok((parse(path, &text)?, Origin::File(path.to_owned())));
    }
    let credentials = KeyPair::generate()?;
    let text = serde_json::to_string_pretty(&credentials).map_err(|e| e.to_string())?;
    private_file::store(path, &text)?;
    Ok((credentials, Origin::Generated(path.to_owned())))
}

fn parse(path: &Path, text: &str) -> Result<KeyPair, String> {
    let shown = path.display();
    let credentials: KeyPair = serde_json::from_str(text)
        .map_err(|e| format!("{shown}: {e}; correct it, or remove it to get new credentials"))?;
    credentials.check().map_err(|e| format!("{shown}: {e}"))?;
    Ok(credentials)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
}
