//! Commands to a running server: `steadfast disk add` and others use a Unix socket in its data
//! directory.
//!
//! They do not use the admin port, which may have no authentication: only users that may write into
//! the data directory may command the server.
//! One connection carries one command. Both sides write lines of JSON:
//!
//! ```text
//! client   {"command":"status"}
//! server   {"progress":{...}}      any number of them
//! server   {"done":{...}}          or {"error":"why, and what to do"}
//! ```
//!
//! A client that disconnects stops the reports, not the work: long work is a task of its own, which
//! the command starts, or finds running, and then follows.

pub mod client;
pub mod socket;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_flow::BoxFuture;
use steadfast_users::UserAction;
use tokio::sync::watch;

/// Name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

/// Maximum length of a line, in bytes. A status with many disks is the longest answer.
pub const LINE_BYTES_MAX: usize = 64 << 20;

/// Maximum length of a command, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;

/// A command to a running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Returns the status, as `/status` of the admin port.
    Status {},
    /// Starts or stops a pass of the scrub, or neither. Returns a list: the scrub of each disk.
    Scrub {
        /// The action.
        action: ScrubAction,
    },
    /// Adds a disk to the pool and moves its share of the keys to it.
    DiskAdd {
        /// The disk: absolute, or relative to the data directory.
        path: PathBuf,
        /// Whether to answer at the end of the move, not at its beginning.
        wait: bool,
    },
    /// Moves all data off a disk and takes it out of the pool.
    DiskDrain {
        /// Its path or its identity.
        disk: String,
        /// As above.
        wait: bool,
    },
    /// Adds a disk to the pool, moves all data of another disk to it, and takes that one out.
    DiskReplace {
        /// Path or identity of the disk to take out.
        old: String,
        /// Path of the new disk.
        new: PathBuf,
        /// As above.
        wait: bool,
    },
    /// Lists the queues of webhooks, each with its first failing event.
    WebhookList {},
    /// Lists a webhook's dead letters.
    WebhookDead {
        /// Its name.
        name: String,
    },
    /// Dead-letters the failing events of a webhook.
    WebhookSkip {
        /// Its name.
        name: String,
    },
    /// Removes the queued events of a webhook, configured or not.
    WebhookPurge {
        /// Its name.
        name: String,
        /// Whether to remove its dead letters instead.
        dead: bool,
    },
    /// Puts the dead letters of a webhook into its queue again.
    WebhookRetry {
        /// Its name.
        name: String,
    },
    /// Does something to users and their keys.
    User {
        /// What.
        action: UserAction,
    },
    /// Purges objects of a bucket with an origin.
    EdgePurge {
        /// Its name.
        bucket: String,
        /// A key, or what the keys begin with.
        key: String,
        /// Whether all keys that begin with `key` are meant.
        prefix: bool,
    },
    /// Fetches objects into a bucket with an origin.
    EdgeFill {
        /// Its name.
        bucket: String,
        /// The keys.
        keys: Vec<String>,
        /// All keys that the origin lists and that begin with this, instead of `keys`.
        prefix: Option<String>,
    },
    /// Promotes a standby.
    Promote {
        /// Whether the owner may be alive.
        force: bool,
    },
    /// Gives up disks that are lost for good.
    DiskForget {
        /// Their paths or identities.
        disks: Vec<String>,
    },
    /// Resumes a failed move of keys.
    DiskResume {
        /// As above.
        wait: bool,
    },
}

impl Command {
    /// What happens to the command if the server stops meanwhile, as a message.
    pub fn cut_off(&self) -> &'static str {
        match self {
            Self::DiskAdd { .. } | Self::DiskDrain { .. } | Self::DiskReplace { .. } | Self::DiskResume { .. } => {
                "the server resumes the move when it runs again"
            }
            Self::Status {}
            | Self::Scrub { .. }
            | Self::DiskForget { .. }
            | Self::WebhookList {}
            | Self::WebhookDead { .. }
            | Self::WebhookSkip { .. }
            | Self::WebhookPurge { .. }
            | Self::WebhookRetry { .. }
            | Self::User { .. }
            | Self::EdgePurge { .. }
            | Self::EdgeFill { .. }
            | Self::Promote { .. } => "try again when it runs",
        }
    }
}

/// An action on the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubAction {
    /// Starts a pass, regardless of the schedule.
    Start,
    /// Stops the running pass.
    Stop,
    /// Changes nothing.
    Status,
}

/// A line from the server: progress reports, then the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The progress.
    Progress(Value),
    /// The result.
    Done(Value),
    /// The failure, as a message.
    Error(String),
}

/// Reports the progress of a command to its client. A slow client skips reports and gets the
/// latest.
#[derive(Debug, Clone)]
pub struct ProgressReporter(watch::Sender<Value>);

impl ProgressReporter {
    /// A reporter to this channel.
    pub fn new(sender: watch::Sender<Value>) -> Self {
        Self(sender)
    }

    /// Reports the progress.
    pub fn progress(&self, value: Value) {
        self.0.send_replace(value);
    }
}

/// Executes commands.
pub trait Commands: Send + Sync + 'static {
    /// Executes a command and returns its result. The future is dropped when the client
    /// disconnects: long work is a task of its own.
    ///
    /// # Errors
    /// Why the command failed and what to do, as a message.
    fn run(&self, command: Command, reporter: ProgressReporter) -> BoxFuture<'_, Result<Value, String>>;
}
