//! Creates the disks of a pool, for `steadfast format` and the first start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::{Disk, Stripe, StripeOptions, ZonedOptions};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};

use super::contents::Contents;
use super::open::open_file;
use super::plan::{Plan, Planned, Role, Scope};
use crate::config::Config;

/// Bytes in front of the zones of a disk with emulated zones.
const ZONES_BEGIN: u64 = 1 << 20;

/// The layout of a pool.
pub fn format_options(config: &Config, force: bool) -> FormatOptions {
    let zones = config.data.zone_size.map(|size| ZonedOptions {
        zone_bytes: size.0,
        zone_capacity_bytes: 0,
        conventional_bytes: ZONES_BEGIN,
        open_zones_max: config.data.zone_open_max as u32,
    });
    FormatOptions { extent_bytes: config.data.extent_size.map(|size| size.0), force, zones, ..FormatOptions::default() }
}

/// Creates a pool file under a temporary name and renames it, so that no partial pool exists.
/// Replaces an existing file.
///
/// # Errors
/// When space is missing, or the file system's error.
pub async fn create(path: &Path, config: &Config, env: &Env) -> Result<(), String> {
    let shown = path.display().to_string();
    let fail = |e: io::Error| format!("{shown}: {e}");
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unfinished: PathBuf = path.with_file_name(name);
    match std::fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let limit = config.data.pool_size.map(|size| size.0);
    let made = async {
        let disk = open_file(&unfinished, config, env, limit, true).await?;
        Log::format(&disk, env, &format_options(config, false)).await.map_err(|e| format!("{shown}: {e}"))?;
        drop(disk);
        std::fs::rename(&unfinished, path).map_err(fail)
    };
    if let Err(why) = made.await {
        // The first error is returned.
        let _ = std::fs::remove_file(&unfinished);
        return Err(why);
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|d| d.sync_all()).map_err(fail)
}

/// Formats the disks of a plan without refusals, each log separately. Removes the files of fast
/// legs; pairing the legs creates them again.
///
/// # Errors
/// The disks' errors.
pub async fn format(config: &Config, plan: &Plan, scope: Scope, env: &Env) -> Result<(), String> {
    for disk in plan.disks.iter().filter(|disk| disk.role == Role::Fast) {
        if !disk.found.device && !disk.found.contents.is_empty() {
            remove_file(disk)?;
        }
    }
    if !scope.pool {
        return Ok(());
    }
    let logs = plan.disks.last().map_or(0, |disk| disk.disks);
    for log in 0..logs {
        let of = |disk: &&Planned| disk.disk == log && disk.role == Role::Durable;
        let disks: Vec<&Planned> = plan.disks.iter().filter(of).collect();
        let done = plan.begun && disks.iter().all(|disk| matches!(disk.found.contents, Contents::Pool { .. }));
        if !done {
            durable(config, &disks, scope, env).await?;
        }
    }
    Ok(())
}

async fn durable(config: &Config, disks: &[&Planned], scope: Scope, env: &Env) -> Result<(), String> {
    if let [one] = disks
        && !one.found.device
    {
        return create(&one.path, config, env).await;
    }
    let limit = config.data.pool_size.map(|size| size.0);
    let mut opened = Vec::new();
    for disk in disks {
        opened.push(open_file(&disk.path, config, env, limit, !disk.found.device).await?);
    }
    let pool = match &opened[..] {
        [one] => one.clone(),
        all => {
            Stripe::format(all, env, &StripeOptions::default(), scope.force).await.map_err(|e| e.to_string())?;
            Stripe::open(opened).await.map_err(|e| e.to_string())?
        }
    };
    if scope.force && pool.len() >= HEAD_BYTES {
        // The label of an older pair would remain beside the new superblock.
        wipe(&pool, HEAD_BYTES).await?;
    }
    let formatted = Log::format(&pool, env, &format_options(config, scope.force)).await;
    formatted.map(|_| ()).map_err(|e| format!("{}: {e}", pool.describe()))
}

/// Where the pool's own head ends.
const HEAD_BYTES: u64 = 1 << 20;

fn remove_file(disk: &Planned) -> Result<(), String> {
    match std::fs::remove_file(&disk.path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", disk.path.display())),
        _ => Ok(()),
    }
}

async fn wipe(disk: &Arc<dyn Disk>, bytes: u64) -> Result<(), String> {
    let fail = |e: io::Error| format!("{}: {e}", disk.describe());
    let zeros = Bytes::from(vec![0u8; 1 << 20]);
    let end = bytes.min(disk.len());
    let mut at = 0;
    while at < end {
        let len = (end - at).min(zeros.len() as u64);
        disk.write(at, zeros.slice(..len as usize)).await.map_err(fail)?;
        at += len;
    }
    disk.flush().await.map_err(fail)
}
