//! Log lines: structured, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, log_targets};

/// Starts logging.
///
/// # Errors
/// When the setting is wrong or logging has been started before.
pub fn init(format: LogFormat, setting: &str) -> Result<(), String> {
    let registry = tracing_subscriber::registry().with(log_targets(setting)?);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(layer.json()).try_init(),
    }
    .map_err(|e| e.to_string())
}
