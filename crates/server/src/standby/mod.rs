//! A standby: the disks of this data directory follow the archive of another machine's pool, until
//! it is promoted. The same process then serves the pool.

mod following;
mod pool;
mod server;

use steadfast_flow::Env;

use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::plan::{Plan, Role, Scope};
use crate::seal_key;
use crate::serve::ServeError;
use crate::serve::signals::Signals;
use following::Following;
use server::StandbyServer;

/// Whether the data directory is to be a standby: it is one, or has no pool and is to become one.
///
/// # Errors
/// What contradicts the configuration.
fn is_standby(config: &Config, data: &DataDir) -> Result<bool, String> {
    if !config.archive.standby {
        DataDir::refuse_restoring(data.path())?;
        return Ok(false);
    }
    if data.standby().exists() {
        return Ok(true);
    }
    DataDir::refuse_restoring(data.path())?;
    if config.is_front()? {
        return Err("archive.standby: cluster.homes does not name this node, so it has no pool".to_owned());
    }
    if config.data.zone_size.is_some() {
        return Err("data.zone_size: a pool on zones has no archive".to_owned());
    }
    let plan = Plan::make(config, Scope { pool: true, force: false, begun: false })?;
    let mut durable = plan.disks.iter().filter(|disk| disk.role == Role::Durable);
    if durable.any(|disk| !disk.found.contents.is_empty()) {
        return Ok(false);
    }
    let missing: Vec<_> = plan.disks.iter().map(|disk| disk.path.clone()).collect();
    data.refuse_to_forget(&missing)?;
    Ok(true)
}

/// Refuses a standby that could not serve once it is promoted.
fn check_keys(config: &Config, data: &DataDir) -> Result<(), String> {
    let has_root = std::env::var_os("STEADFAST_ACCESS_KEY").is_some() || data.path().join("credentials.json").exists();
    let seal = config.access.seal_key_file.is_some() || seal_key::is_in_environment();
    let missing = match (has_root, seal || data.path().join("seal.key").exists()) {
        (true, true) => return Ok(()),
        (false, true) => "credentials.json",
        (true, false) => "seal.key",
        (false, false) => "credentials.json and seal.key",
    };
    Err(format!(
        "archives hold no credentials: copy {missing} of the pool's server to {}, or set the variables of them",
        data.path().display()
    ))
}

/// Follows the archive until the standby is promoted, if the data directory is one. Returns whether
/// the pool is to be served now; not so after a signal.
///
/// # Errors
/// Why it cannot follow, as a message.
pub async fn run(config: &Config, data: &DataDir, signals: &mut Signals, env: &Env) -> Result<bool, ServeError> {
    if !is_standby(config, data)? {
        return Ok(true);
    }
    check_keys(config, data)?;
    let (server, requests) = StandbyServer::start(config, data, env).await?;
    let following = Following { config, data, state: server.state(), env };
    let ended = tokio::select! {
        biased;
        name = signals.next() => {
            tracing::info!(signal = name, "the standby stops");
            Ok(false)
        }
        promoted = following.run(requests) => promoted.map(|()| true),
    };
    server.stop().await;
    ended
}
