//! The fast leg of a super-disk: its opening, the reasons not to use it, and its status.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_disk::{Disk, DiskOptions, Stripe, StripeOptions, Superdisk};
use steadfast_flow::Env;

use super::contents::{Contents, Found};
use super::open::{Member, Taking, look_at, open_file, open_with, options, stripe};
use super::plan::{Role, fast_file_bytes};
use crate::config::{Config, DiskSet};

/// Time limit for identifying a fast disk; opening the leg gets twice as much. Then the server
/// continues without the leg.
const FAST_PATIENCE: Duration = Duration::from_secs(2);

/// Why a fast leg is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LegFailure {
    kind: LegFailureKind,
    what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LegFailureKind {
    Missing,
    Foreign,
    Failed,
}

impl fmt::Display for LegFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

fn fail<T>(kind: LegFailureKind, what: impl Into<String>) -> Result<T, LegFailure> {
    Err(LegFailure { kind, what: what.into() })
}

/// Opens the fast leg, or returns why it is left out.
pub(super) async fn open_fast(
    config: &Config,
    set: &DiskSet,
    env: &Env,
    taking: Taking,
    members: &mut Vec<Member>,
) -> (Option<Arc<dyn Disk>>, Option<LegFailure>) {
    let paths = &set.fast;
    let mut found = Vec::new();
    for path in paths {
        let silent = || Found {
            device: false,
            size_bytes: 0,
            contents: Contents::Unreadable { why: format!("it did not answer for {} s", FAST_PATIENCE.as_secs()) },
        };
        found.push(env.timeout(FAST_PATIENCE, look_at(path, env)).await.unwrap_or_else(silent));
    }
    let begun = members.len();
    for (index, (path, found)) in paths.iter().zip(&found).enumerate() {
        let (path, found) = (path.clone(), found.clone());
        members.push(Member { role: Role::Fast, index, count: paths.len(), path, found, disk: None });
    }
    let opened = async {
        if taking == Taking::Safe {
            check_fast(paths, &found)?;
        }
        let mut disks = Vec::new();
        for (path, found) in paths.iter().zip(&found) {
            disks.push(open_fast_file(path, found, paths.len(), config, env).await?);
        }
        let leg = assemble_fast(&disks, &found, env, taking).await?;
        Ok((leg, disks))
    };
    let opened = env.timeout(FAST_PATIENCE * 2, opened).await;
    match opened.unwrap_or_else(|| fail(LegFailureKind::Failed, "it did not answer in time")) {
        Ok((leg, disks)) => {
            for (member, disk) in members[begun..].iter_mut().zip(disks) {
                member.disk = Some(disk);
            }
            (Some(leg), None)
        }
        Err(failure) => (None, Some(failure)),
    }
}

/// Checks whether these disks may form the fast leg.
fn check_fast(paths: &[PathBuf], found: &[Found]) -> Result<(), LegFailure> {
    for (path, found) in paths.iter().zip(found) {
        let shown = path.display();
        match &found.contents {
            Contents::Absent if path.starts_with("/dev") => {
                return fail(LegFailureKind::Missing, format!("{shown}: no such device"));
            }
            Contents::Unreadable { why } => return fail(LegFailureKind::Failed, format!("{shown}: {why}")),
            contents @ (Contents::Foreign { .. } | Contents::Pool { .. }) => {
                return fail(LegFailureKind::Foreign, format!("{shown} holds {contents}"));
            }
            contents @ Contents::StripeMember { .. } if paths.len() == 1 => {
                return fail(LegFailureKind::Foreign, format!("{shown} holds {contents}"));
            }
            contents @ Contents::FastLeg { .. } if paths.len() > 1 => {
                return fail(
                    LegFailureKind::Foreign,
                    format!("{shown} holds {contents}, alone and not one of several"),
                );
            }
            _ => {}
        }
    }
    let empty = found.iter().filter(|f| f.contents.is_empty()).count();
    if empty > 0 && empty < found.len() {
        let names = |pick: bool| {
            let picked = paths.iter().zip(found).filter(|(_, f)| f.contents.is_empty() == pick);
            picked.map(|(p, _)| p.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "{} is blank or missing, and {} belongs to a stripe that needs it: recreate the fast leg with `steadfast format --fast-only`",
            names(true),
            names(false)
        );
        return fail(LegFailureKind::Missing, what);
    }
    Ok(())
}

async fn open_fast_file(
    path: &Path,
    found: &Found,
    count: usize,
    config: &Config,
    env: &Env,
) -> Result<Arc<dyn Disk>, LegFailure> {
    let limit = if found.device {
        None
    } else {
        // An existing file keeps its size.
        match fast_file_bytes(config, count) {
            Ok(bytes) => Some(bytes),
            Err(_) if found.size_bytes > 0 => Some(found.size_bytes),
            Err(what) => return fail(LegFailureKind::Missing, what),
        }
    };
    let create = found.contents == Contents::Absent;
    let opened = open_file(path, config, env, limit, create).await;
    opened.or_else(|what| fail(if create { LegFailureKind::Missing } else { LegFailureKind::Failed }, what))
}

/// The leg as one disk; several blank disks are formatted as a stripe first.
async fn assemble_fast(
    disks: &[Arc<dyn Disk>],
    found: &[Found],
    env: &Env,
    taking: Taking,
) -> Result<Arc<dyn Disk>, LegFailure> {
    let all = taking == Taking::All;
    if disks.len() > 1 && (all || found.iter().all(|f| f.contents.is_empty())) {
        let made = Stripe::format(disks, env, &StripeOptions::default(), all).await;
        made.or_else(|e| fail(LegFailureKind::Failed, e.to_string()))?;
    }
    stripe(disks.to_vec()).await.or_else(|e| fail(LegFailureKind::Foreign, e))
}

/// Opens the fast leg alone, read-only.
///
/// # Errors
/// The reason, as a message.
pub async fn open_fast_alone(config: &Config, set: &DiskSet, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let mut disks = Vec::new();
    for path in &set.fast {
        let options = DiskOptions { read_only: true, ..options(config, None, false) };
        disks.push(open_with(path, options, env).await?);
    }
    stripe(disks).await
}

/// The state of a fast disk that was not opened.
pub(super) fn own_state(contents: &Contents) -> &'static str {
    match contents {
        Contents::Absent => "missing",
        Contents::Unreadable { .. } => "failed",
        Contents::Foreign { .. } | Contents::Pool { .. } => "foreign",
        Contents::Blank | Contents::StripeMember { .. } | Contents::FastLeg { .. } => "not used",
    }
}

/// The status of a super-disk.
#[derive(Debug, Clone)]
pub struct FastLeg {
    status: Value,
}

impl FastLeg {
    /// The status of the open super-disk of the set `name`. `failure`: why the leg is not in use;
    /// `wanted`: whether the configuration names a leg.
    pub(super) fn of(superdisk: &Superdisk, failure: Option<&LegFailure>, wanted: bool, name: &str) -> Self {
        let mut status = json!(superdisk.status());
        if let Some(failure) = failure {
            status["fast"] = match failure.kind {
                LegFailureKind::Missing => json!({"state": "missing", "why": failure.what}),
                LegFailureKind::Foreign => json!({"state": "foreign", "what": failure.what}),
                LegFailureKind::Failed => json!({"state": "failed", "why": failure.what, "at_start": true}),
            };
        }
        status["configured"] = json!(wanted);
        status["disk"] = json!(name);
        let mut fast = Self { status };
        let degraded = fast.degraded();
        fast.status["degraded"] = json!(degraded);
        fast
    }

    /// Reads it from a server's status; `None` without a super-disk.
    pub fn from_status(status: &Value) -> Option<Self> {
        status.is_object().then(|| Self { status: status.clone() })
    }

    /// The whole status, as JSON.
    pub fn status(&self) -> &Value {
        &self.status
    }

    /// The disk to which the fast leg belongs.
    pub fn disk(&self) -> &str {
        self.status["disk"].as_str().unwrap_or("?")
    }

    /// The state in one word.
    pub fn state(&self) -> &str {
        self.status["fast"]["state"].as_str().unwrap_or("missing")
    }

    /// Whether a fast leg is configured and not in use.
    pub fn degraded(&self) -> bool {
        self.status["configured"] == Value::Bool(true) && matches!(self.state(), "missing" | "foreign" | "failed")
    }

    /// Whether the fast leg failed at the start; only the next start retries it.
    pub fn failed_at_start(&self) -> bool {
        self.status["fast"]["at_start"] == Value::Bool(true)
    }

    /// The reason of the state, if it has one.
    pub fn why(&self) -> Option<&str> {
        ["what", "why"].iter().find_map(|key| self.status["fast"][key].as_str())
    }
}
