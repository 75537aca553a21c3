//! Where the archive is.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_net::{DirectoryStore, RemotePlace, RemoteStore, S3Credentials, S3Place, S3Store, Secret};

use super::kinds::SecretText;
use super::settings::ArchiveSection;

/// Time after which a request to the store has no clear answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The shortest lease: heartbeats of a slow store must arrive.
const LEASE_MIN: Duration = Duration::from_secs(5);

/// The region of an endpoint that has no other.
const REGION: &str = "us-east-1";

impl ArchiveSection {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first mistake.
    pub(super) fn check(&self, zoned: bool) -> Result<(), String> {
        let Some(to) = &self.to else {
            return if self.standby {
                Err("a standby follows an archive: name it in archive.to".to_owned())
            } else {
                Ok(())
            };
        };
        let place = RemotePlace::parse(to).map_err(|e| format!("archive.to: {e}"))?;
        let of_s3 = [&self.endpoint, &self.region, &self.access_key];
        if matches!(place, RemotePlace::Directory(_)) && of_s3.iter().any(|value| value.is_some()) {
            return Err("archive.endpoint, archive.region and archive.access_key are for s3:// only".to_owned());
        }
        if zoned {
            return Err("archive.to: a pool on zones cannot have an archive yet".to_owned());
        }
        if self.lease().is_some_and(|lease| lease < LEASE_MIN) {
            return Err("archive.lease: at least 5 s, or 0 s for none".to_owned());
        }
        if self.lease().is_some() && matches!(place, RemotePlace::Directory(_)) {
            return Err("archive.lease: it needs a store that several machines reach, such as s3://".to_owned());
        }
        self.secret().check("archive.secret_key")?;
        if self.access_key.is_some() == self.secret().is_empty() {
            return Err("give archive.access_key and archive.secret_key together, or neither".to_owned());
        }
        Ok(())
    }

    /// The length of the lease; `None`: clients are answered without one.
    pub fn lease(&self) -> Option<Duration> {
        Some(self.lease).filter(|lease| !lease.is_zero())
    }

    fn secret(&self) -> SecretText {
        let file = self.secret_key_file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        SecretText { text: self.secret_key.0.clone(), file, env: String::new() }
    }

    /// The store; `None` without an archive.
    ///
    /// # Errors
    /// What is wrong with the place, or with the credentials.
    pub fn store(&self, env: &Env) -> Result<Option<Arc<dyn RemoteStore>>, String> {
        let Some(to) = &self.to else { return Ok(None) };
        Ok(Some(match RemotePlace::parse(to)? {
            RemotePlace::Directory(path) => {
                Arc::new(DirectoryStore::new(&path, env.clone()).map_err(|e| format!("archive.to: {e}"))?)
            }
            RemotePlace::Bucket { bucket, prefix } => {
                let credentials = self.credentials()?;
                let aws = || format!("https://s3.{}.amazonaws.com", credentials.region);
                let endpoint = self.endpoint.clone().unwrap_or_else(aws);
                let place = S3Place { endpoint, bucket, prefix, credentials };
                let store = S3Store::new(place, REQUEST_TIMEOUT, env.clone());
                Arc::new(store.map_err(|e| format!("archive.endpoint: {e}"))?)
            }
        }))
    }

    fn credentials(&self) -> Result<S3Credentials, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let region = self.region.clone().or_else(|| variable("AWS_REGION")).unwrap_or_else(|| REGION.to_owned());
        if let Some(access_key) = self.access_key.clone() {
            let secret = self.secret().read().map_err(|e| format!("archive.secret_key_file: {e}"))?;
            let secret_key = Secret(secret.unwrap_or_default());
            return Ok(S3Credentials { region, access_key, secret_key, session_token: None });
        }
        let need = |name: &str| {
            variable(name).ok_or_else(|| format!("the archive needs archive.access_key, or {name} in the environment"))
        };
        Ok(S3Credentials {
            region,
            access_key: need("AWS_ACCESS_KEY_ID")?,
            secret_key: Secret(need("AWS_SECRET_ACCESS_KEY")?),
            session_token: variable("AWS_SESSION_TOKEN").map(Secret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn with(settings: &[(&str, &str)]) -> Result<Config, String> {
        let mut config = Config::default();
        for (name, value) in settings {
            config.set_text(name, value).map_err(|e| e.to_string())?;
        }
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn mistakes_are_named() {
        for (settings, why) in [
            (&[("archive.to", "acme/chat")][..], "archive.to: acme/chat: write s3://"),
            (&[("archive.standby", "true")], "name it in archive.to"),
            (&[("archive.to", "file:///x"), ("archive.endpoint", "http://a")], "are for s3:// only"),
            (&[("archive.to", "s3://b/x"), ("archive.lease", "4 s")], "at least 5 s"),
            (&[("archive.to", "file:///x"), ("archive.lease", "10 s")], "several machines"),
            (&[("archive.to", "s3://b/x"), ("archive.access_key", "a")], "together, or neither"),
            (&[("archive.to", "s3://b/x"), ("archive.secret_key", "a")], "together, or neither"),
            (&[("archive.to", "s3://b/x"), ("data.zone_size", "1 MiB"), ("data.pool_size", "1 GiB")], "on zones"),
        ] {
            let refused = with(settings).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_store_needs_no_more_than_its_place_and_keys() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let env = Env::tokio();
        assert!(with(&[]).expect("valid").archive.store(&env).expect("nothing").is_none());
        let keys =
            [("archive.access_key", "a"), ("archive.secret_key", "b"), ("archive.endpoint", "http://127.0.0.1:1")];
        let config = with(&[&[("archive.to", "s3://acme/chat")], &keys[..]].concat()).expect("valid");
        let store = config.archive.store(&env).expect("a store").expect("one");
        assert!(store.describe().contains("acme"), "{}", store.describe());
        let missing = with(&[("archive.to", "file:///does/not/exist")]).expect("valid");
        assert!(missing.archive.store(&env).expect_err("missing").contains("create the directory"));
    }
}
