//! What a start checks before it makes the first file or binds a port.

use steadfast_flow::Env;
use steadfast_live::{CentrifugoOptions, LiveConfig};

use super::live::LivePlan;
use super::ports::tls_of;
use super::{cluster, exposure};
use crate::config::Config;
use crate::disks::paths;
use crate::net::listener::Tls;

/// A configuration that has passed the checks.
pub(super) struct CheckedConfig {
    /// The options of the live port.
    pub(super) live: LiveConfig,
    /// TLS of the ports.
    pub(super) tls: Option<Tls>,
    /// The live port, if there is one.
    pub(super) plan: Option<LivePlan>,
    /// Warnings for the log.
    pub(super) warnings: Vec<String>,
}

/// Checks all that can be checked without a change: settings, the files that they name, and disks.
///
/// # Errors
/// The first mistake, as a message.
pub(super) fn check(config: &Config, env: &Env) -> Result<CheckedConfig, String> {
    let checked = check_ports(config, env)?;
    cluster::pinned(config)?;
    if !config.is_front()? {
        paths::check(config)?;
        config.edge.edge_buckets(&|name| std::env::var(name).ok())?;
    }
    Ok(checked)
}

fn check_ports(config: &Config, env: &Env) -> Result<CheckedConfig, String> {
    let read = config.centrifugo_options().map_err(|e| e.to_string())?;
    let live = read.config.clone();
    let mut warnings = exposure::check(config, &live)?;
    warnings.extend(exposure::readable_secrets(config, &live));
    if config.roster(&live)?.is_some() {
        live.namespaces()?;
    }
    let tls = tls_of(config)?;
    let plan = LivePlan::make(config, read, tls.clone(), env)?;
    Ok(CheckedConfig { live, tls, plan, warnings })
}

/// Checks the options of the live port as a start does.
///
/// # Errors
/// The first mistake, as a message.
pub fn check_live(config: &mut Config, env: &Env) -> Result<CentrifugoOptions, String> {
    config.adopt_http_server().map_err(|e| e.to_string())?;
    check_ports(config, env)?;
    config.centrifugo_options().map_err(|e| e.to_string())
}
