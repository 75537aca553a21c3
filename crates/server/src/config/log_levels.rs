//! The levels of log lines by module.

use tracing_subscriber::filter::Targets;

/// The levels for a setting such as `info` or `warn,steadfast_log=debug`.
///
/// Libraries get lower levels. `s3s` has a span for every request and logs an error for each 404,
/// `lsm_tree` logs each of its steps, and `rustls` each client that sends an address as a name. A
/// target in the setting overrides that.
///
/// # Errors
/// The mistake, as a message.
pub fn log_targets(setting: &str) -> Result<Targets, String> {
    let wrong =
        |_| format!("expected a level (error, warn, info, debug, trace, off) or target=level pairs, found {setting:?}");
    // The parser would read a single word as a target at every level.
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

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels() {
        let t = log_targets("info").expect("valid");
        assert!(t.would_enable("steadfast_log", &Level::INFO));
        assert!(!t.would_enable("steadfast_log", &Level::DEBUG));
        assert!(!t.would_enable("s3s::ops", &Level::ERROR));
        assert!(!t.would_enable("lsm_tree", &Level::INFO));
        let t = log_targets("warn,steadfast_log=debug,s3s=info").expect("valid");
        assert!(t.would_enable("steadfast_log", &Level::DEBUG));
        assert!(t.would_enable("s3s", &Level::INFO));
        assert!(!t.would_enable("steadfast_store", &Level::INFO));
        assert!(log_targets("loud").is_err());
        assert!(log_targets("steadfast=loud").is_err());
        assert!(log_targets("").is_err());
    }
}
