//! Options that several commands share.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use steadfast_flow::Env;
use steadfast_net::{RemoteStore, S3Credentials, Secret};

use crate::config::{Config, ConfigError};

/// Sources of the configuration: a file; the environment overrides it; flags override both.
#[derive(Args, Debug, Clone)]
pub struct ConfigArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "STEADFAST_CONFIG")]
    pub config: Option<PathBuf>,

    /// Set one setting; overrides the file and the environment; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Reads the configuration; `flags` are the flag, the setting and the value of other options.
    ///
    /// # Errors
    /// The first mistake.
    pub fn load(&self, flags: &[(&str, &str, Option<String>)]) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        if let Some(path) = &self.config {
            config.apply_file(path)?;
        }
        // A variable that is not UTF-8 has no valid value of ours; errors still show its name.
        config.apply_env(
            std::env::vars_os()
                .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())),
        )?;
        for set in &self.set {
            let Some((name, value)) = set.split_once('=') else {
                return Err(ConfigError::new("expected SECTION.KEY=VALUE").from(format!("--set {set}")));
            };
            config.set_text(name.trim(), value.trim()).map_err(|e| e.from("--set"))?;
        }
        for (flag, setting, value) in flags {
            if let Some(value) = value {
                config.set_text(setting, value).map_err(|e| e.from(*flag))?;
            }
        }
        config.check()?;
        Ok(config)
    }
}

/// A data directory and its configuration.
#[derive(Args, Debug, Clone)]
pub struct DataArgs {
    /// Data directory [default: steadfast-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// I/O method: uring, threads or auto [default: auto]
    #[arg(long, value_name = "HOW")]
    pub io: Option<String>,

    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

impl DataArgs {
    /// Reads the configuration; `more` as the flags of [`ConfigArgs::load`].
    ///
    /// # Errors
    /// The first mistake.
    pub fn load(&self, more: &[(&str, &str, Option<String>)]) -> Result<Config, ConfigError> {
        let data = self.data.as_ref().map(|d| d.to_string_lossy().into_owned());
        let mut flags = vec![("--data", "data.dir", data), ("--io", "data.io", self.io.clone())];
        flags.extend(more.iter().cloned());
        self.config.load(&flags)
    }
}

/// The place of an archive: as given, else as configured.
#[derive(Args, Debug, Clone)]
pub struct ArchiveArgs {
    /// The archive: s3://BUCKET/PREFIX or file:///DIRECTORY [default: archive.to]
    #[arg(value_name = "URL")]
    pub url: Option<String>,

    /// URL of the S3 endpoint, for s3://BUCKET/PREFIX [default: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,

    /// Region of the endpoint [default: AWS_REGION, or us-east-1]
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,
}

impl ArchiveArgs {
    /// Puts the place into a configuration. One that is given is used without the endpoint and the
    /// keys of another that is configured.
    ///
    /// # Errors
    /// The first mistake.
    pub fn put(&self, config: &mut Config) -> Result<(), String> {
        if let Some(url) = self.url.as_ref().filter(|url| config.archive.to.as_ref() != Some(url)) {
            for name in ["endpoint", "region", "access_key", "secret_key", "secret_key_file"] {
                config.set_text(&format!("archive.{name}"), "").map_err(|e| e.to_string())?;
            }
            config.archive.to = Some(url.clone());
            let endpoint = std::env::var("AWS_ENDPOINT_URL").ok();
            config.archive.endpoint = endpoint.filter(|given| url.starts_with("s3://") && !given.is_empty());
        }
        for (given, setting) in
            [(&self.endpoint, &mut config.archive.endpoint), (&self.region, &mut config.archive.region)]
        {
            if given.is_some() {
                setting.clone_from(given);
            }
        }
        config.check().map_err(|e| e.to_string())
    }

    fn store(config: &Config, env: &Env) -> Result<Arc<dyn RemoteStore>, String> {
        let store = config.archive.store(env)?;
        store.ok_or_else(|| "give the URL of the archive, or a configuration with archive.to".to_owned())
    }

    /// Reads the configuration, and opens the place.
    ///
    /// # Errors
    /// The first mistake.
    pub fn open(&self, config: &ConfigArgs, env: &Env) -> Result<Arc<dyn RemoteStore>, String> {
        let mut config = config.load(&[]).map_err(|e| e.to_string())?;
        self.put(&mut config)?;
        Self::store(&config, env)
    }

    /// The same with the configuration of a data directory, which is returned.
    ///
    /// # Errors
    /// The first mistake.
    pub fn open_with(&self, data: &DataArgs, env: &Env) -> Result<(Config, Arc<dyn RemoteStore>), String> {
        let mut config = data.load(&[]).map_err(|e| e.to_string())?;
        self.put(&mut config)?;
        let store = Self::store(&config, env)?;
        Ok((config, store))
    }
}

/// An S3 endpoint, for `s3://BUCKET/PREFIX`.
#[derive(Args, Debug)]
pub struct EndpointArgs {
    /// URL of the S3 endpoint, for s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL")]
    pub endpoint: Option<String>,

    /// Region of the endpoint
    #[arg(long, value_name = "NAME", env = "AWS_REGION", default_value = "us-east-1")]
    pub region: String,
}

impl EndpointArgs {
    /// The endpoint's URL, and the credentials from the environment.
    ///
    /// # Errors
    /// A variable is not set.
    pub fn endpoint_and_credentials(&self) -> Result<(String, S3Credentials), String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let need = |name: &str| variable(name).ok_or_else(|| format!("{name} is not set"));
        let region = &self.region;
        let endpoint = self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let credentials = S3Credentials {
            region: region.clone(),
            access_key: need("AWS_ACCESS_KEY_ID")?,
            secret_key: Secret(need("AWS_SECRET_ACCESS_KEY")?),
            session_token: variable("AWS_SESSION_TOKEN").map(Secret),
        };
        Ok((endpoint, credentials))
    }
}
