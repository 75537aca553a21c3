//! The options of the live door, which are Centrifugo's: from the tables in `[live]`, or from a file of Centrifugo's.

use std::path::Path;

use serde_json::{Map, Value};
use steadfast_live::LiveConfig;

use super::{Config, ConfigError};

/// Options that name what is not a setting of Steadfast's own.
fn read(options: Map<String, Value>) -> Result<LiveConfig, ConfigError> {
    serde_json::from_value(Value::Object(options)).map_err(|e| {
        let mut message = e.to_string();
        if message.contains("unknown field") {
            message += "; an option of Centrifugo's that is not named here is not supported: leave it out";
        }
        ConfigError::new(message)
    })
}

impl Config {
    /// The options of the live door, from wherever they stand.
    ///
    /// # Errors
    /// When they stand in two places, or the first mistake in the file.
    pub(crate) fn live_options(&self) -> Result<LiveConfig, ConfigError> {
        match &self.live.config {
            Some(_) if self.channels != LiveConfig::default() => Err(ConfigError::new(
                "live.config names a file of Centrifugo's, and there are tables of its options in [live] too: keep one of them",
            )),
            Some(path) => of_file(path),
            None => Ok(self.channels.clone()),
        }
    }
}

/// The options in the `[live]` section of a configuration, which is valid TOML.
///
/// # Errors
/// The first mistake.
pub(super) fn tables_of(text: &str) -> Result<LiveConfig, ConfigError> {
    let whole: toml::Table = text.parse().map_err(|e| ConfigError::new(format!("this is not TOML: {e}")))?;
    let mut options = Map::new();
    for (name, value) in whole.get("live").and_then(toml::Value::as_table).into_iter().flatten() {
        if value.is_table() {
            let value = serde_json::to_value(value).map_err(|e| ConfigError::new(e.to_string()))?;
            options.insert(name.clone(), value);
        }
    }
    read(options)
}

/// The options in a configuration file of Centrifugo's, in JSON or TOML.
///
/// # Errors
/// When it cannot be read, or the first mistake in it.
fn of_file(path: &Path) -> Result<LiveConfig, ConfigError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| ConfigError::new(format!("cannot be read: {e}")).from(shown.clone()))?;
    let parsed = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => serde_json::from_str::<Map<String, Value>>(&text).map_err(|e| format!("this is not JSON: {e}")),
        Some("toml") => toml::from_str::<Map<String, Value>>(&text).map_err(|e| format!("this is not TOML: {e}")),
        _ => Err("expected a file that ends with .json or .toml; convert others to one of these".to_owned()),
    };
    let options = parsed.map_err(|e| ConfigError::new(e).from(shown.clone()))?;
    let config = read(options).map_err(|e| e.from(shown.clone()))?;
    config.check().map_err(|e| ConfigError::new(e.to_string()).from(shown))?;
    Ok(config)
}
