//! Commands that change a running server: `steadfast disk add` and the like speak to it over a Unix socket in its data directory.
//!
//! Not over the admin port, which has no authentication: who may write into the data directory may command the server, nobody else.
//! One connection is one command. Both sides write lines of JSON:
//!
//! ```text
//! client   {"command":"status"}
//! server   {"progress":{...}}      any number of them
//! server   {"done":{...}}          or {"error":"why, and what to do"}
//! ```
//!
//! A client that goes away ends the watching, not the work: what lasts is a task of its own, which its command starts or finds under
//! way and then follows.

pub mod client;
pub mod socket;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_flow::BoxFuture;
use tokio::sync::watch;

use crate::backup::place::PlaceSpec;

/// Name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

/// The longest line that either side reads, in bytes: a status with many disks is the longest answer.
pub const LINE_BYTES_MAX: usize = 64 << 20;

/// The longest command, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

/// What a server can be told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Tell how it is: what `/status` on the admin port says.
    Status {},
    /// Begin a pass of the scrub, end the one that is going on, or tell how it is. The answer is a list: the scrub of each disk.
    Scrub {
        /// Which of these.
        action: ScrubAction,
    },
    /// Make a snapshot.
    SnapshotCreate {
        /// Its name.
        name: String,
    },
    /// Tell which snapshots there are.
    SnapshotList {},
    /// Delete a snapshot.
    SnapshotDelete {
        /// Its name.
        name: String,
    },
    /// Export a snapshot.
    SnapshotExport {
        /// Its name.
        name: String,
        /// An older export in the same place.
        since: Option<String>,
        /// Where to.
        to: PlaceSpec,
        /// Bytes read a second at most, instead of what is configured.
        bytes_s: Option<u64>,
    },
    /// Restore an export.
    SnapshotRestore {
        /// Its name.
        name: String,
        /// Where it is.
        from: PlaceSpec,
        /// Whether to replace what is there.
        overwrite: bool,
    },
    /// Take a disk into the pool and give it its share of the keys.
    DiskAdd {
        /// The disk: absolute, or relative to the data directory.
        path: PathBuf,
        /// Answer when the keys have arrived, not when they begin to be moved.
        wait: bool,
    },
    /// Empty a disk and take it out of the pool.
    DiskDrain {
        /// Its path or its identity.
        disk: String,
        /// As above.
        wait: bool,
    },
    /// Take a disk into the pool, give it all that another has, and take that one out.
    DiskReplace {
        /// Path or identity of the one that leaves.
        old: String,
        /// The one that comes.
        new: PathBuf,
        /// As above.
        wait: bool,
    },
    /// Tell of the queues of webhooks, and what is in the way of each.
    WebhookList {},
    /// Tell of a webhook's dead letters.
    WebhookDead {
        /// Its name.
        name: String,
    },
    /// Put what a webhook does not take among its dead letters.
    WebhookSkip {
        /// Its name.
        name: String,
    },
    /// Remove what waits for a webhook, in the configuration or not.
    WebhookPurge {
        /// Its name.
        name: String,
        /// Remove its dead letters instead.
        dead: bool,
    },
    /// Put the dead letters of a webhook into its queue again.
    WebhookRetry {
        /// Its name.
        name: String,
    },
    /// Give up disks that are lost for good.
    DiskForget {
        /// Their paths or identities.
        disks: Vec<String>,
    },
    /// Go on with moving keys where that has failed.
    DiskResume {
        /// As above.
        wait: bool,
    },
}

impl Command {
    /// What becomes of the command when the server goes away while it works on it, for people.
    pub fn cut_off(&self) -> &'static str {
        match self {
            Self::SnapshotExport { .. } => {
                "nothing of the export counts: the same command begins anew when the server runs again"
            }
            Self::SnapshotRestore { .. } => {
                "what had been restored stays: when the server runs again, the same command with --overwrite restores the rest"
            }
            Self::DiskAdd { .. } | Self::DiskDrain { .. } | Self::DiskReplace { .. } | Self::DiskResume { .. } => {
                "what it had begun it goes on with when it runs again"
            }
            Self::Status {}
            | Self::Scrub { .. }
            | Self::SnapshotCreate { .. }
            | Self::SnapshotList {}
            | Self::SnapshotDelete { .. }
            | Self::DiskForget { .. }
            | Self::WebhookList {}
            | Self::WebhookDead { .. }
            | Self::WebhookSkip { .. }
            | Self::WebhookPurge { .. }
            | Self::WebhookRetry { .. } => "ask again when it runs",
        }
    }
}

/// What is to be done about the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubAction {
    /// Begin a pass, whatever the schedule says.
    Start,
    /// End the one that is going on.
    Stop,
    /// Nothing.
    Status,
}

/// What a server says while it works on a command, and at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// How far it is.
    Progress(Value),
    /// It is done; the result.
    Done(Value),
    /// It could not be done, for people.
    Error(String),
}

/// Tells whoever waits for a command how far it is. Only the latest word counts: a slow reader skips some.
#[derive(Debug, Clone)]
pub struct Tell(watch::Sender<Value>);

impl Tell {
    /// One that this hears.
    pub fn new(heard: watch::Sender<Value>) -> Self {
        Self(heard)
    }

    /// Says it.
    pub fn progress(&self, value: Value) {
        self.0.send_replace(value);
    }
}

/// What carries out commands.
pub trait Commands: Send + Sync + 'static {
    /// Carries out one and gives its result. Dropped when the client goes away: what lasts is a task of its own.
    ///
    /// # Errors
    /// Why it could not be done and what to do, for people.
    fn run(&self, command: Command, tell: Tell) -> BoxFuture<'_, Result<Value, String>>;
}
