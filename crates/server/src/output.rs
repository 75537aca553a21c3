//! Log lines: structured, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// The levels that hold for a setting such as `info` or `warn,steadfast_log=debug`.
///
/// Libraries below are quiet: `s3s` has a span for every request and logs an error for each 404, `lsm_tree` tells of each of its
/// steps, and `rustls` of each client that puts an address where a name belongs. A target named in the setting overrides that.
///
/// # Errors
/// What is wrong with it, for people.
pub fn targets(setting: &str) -> Result<Targets, String> {
    let wrong =
        |_| format!("expected a level (error, warn, info, debug, trace, off) or target=level pairs, found {setting:?}");
    // A lone word would be read as a target at every level.
    let has_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or(part).trim();
        !level.is_empty() && level.parse::<tracing_subscriber::filter::LevelFilter>().is_ok()
    };
    if !setting.split(',').all(has_level) {
        return Err(wrong(()));
    }
    format!("s3s=off,hyper=warn,rustls=warn,rustls::msgs::handshake=error,lsm_tree=warn,{setting}")
        .parse()
        .map_err(|_| wrong(()))
}

/// Starts logging.
///
/// # Errors
/// When the setting is wrong or logging has been started before.
pub fn init(format: LogFormat, setting: &str) -> Result<(), String> {
    let registry = tracing_subscriber::registry().with(targets(setting)?);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(layer.json()).try_init(),
    }
    .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels() {
        let t = targets("info").expect("valid");
        assert!(t.would_enable("steadfast_log", &Level::INFO));
        assert!(!t.would_enable("steadfast_log", &Level::DEBUG));
        assert!(!t.would_enable("s3s::ops", &Level::ERROR));
        assert!(!t.would_enable("lsm_tree", &Level::INFO));
        let t = targets("warn,steadfast_log=debug,s3s=info").expect("valid");
        assert!(t.would_enable("steadfast_log", &Level::DEBUG));
        assert!(t.would_enable("s3s", &Level::INFO));
        assert!(!t.would_enable("steadfast_store", &Level::INFO));
        assert!(targets("loud").is_err());
        assert!(targets("steadfast=loud").is_err());
        assert!(targets("").is_err());
    }
}
