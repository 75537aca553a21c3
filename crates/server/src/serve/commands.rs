//! Commands over the control socket.

use std::sync::Arc;

use serde_json::Value;
use steadfast_edge::Edge;
use steadfast_flow::BoxFuture;

use super::edge;
use super::membership::Membership;
use super::state::{NO_POOL, State};
use crate::admin::Source;
use crate::control::{Command, Commands, ProgressReporter};

/// Executes commands on a serving server.
pub struct ServerCommands {
    /// State of the server.
    pub state: Arc<State>,
    /// Disk commands.
    /// `None`: the node has no pool.
    pub membership: Option<Membership>,
    /// The buckets with an origin.
    pub edge: Option<Edge>,
}

impl ServerCommands {
    fn membership(&self) -> Result<&Membership, String> {
        self.membership.as_ref().ok_or_else(|| NO_POOL.to_owned())
    }

    fn edge(&self) -> Result<&Edge, String> {
        self.edge.as_ref().ok_or_else(|| "no bucket has an origin: see edge.buckets".to_owned())
    }

    async fn waited(&self, wait: bool, reporter: &ProgressReporter) -> Result<Value, String> {
        if wait { self.membership()?.follow(reporter).await } else { Ok(self.membership()?.result(None)) }
    }
}

impl Commands for ServerCommands {
    fn run(&self, command: Command, reporter: ProgressReporter) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move {
            match command {
                Command::Status {} => Ok(self.state.status()),
                Command::Scrub { action } => self.state.pool()?.engine.scrub(action),
                Command::DiskAdd { path, wait } => {
                    self.membership()?.add(&path, None).await?;
                    self.waited(wait, &reporter).await
                }
                Command::DiskDrain { disk, wait } => {
                    self.membership()?.drain(disk).await?;
                    self.waited(wait, &reporter).await
                }
                Command::DiskReplace { old, new, wait } => {
                    self.membership()?.add(&new, Some(old)).await?;
                    self.waited(wait, &reporter).await
                }
                Command::WebhookList {} => self.state.pool()?.webhooks.list().await,
                Command::WebhookDead { name } => self.state.pool()?.webhooks.dead_letters(&name).await,
                Command::WebhookSkip { name } => self.state.pool()?.webhooks.skip(&name),
                Command::WebhookPurge { name, dead } => self.state.pool()?.webhooks.purge(&name, dead).await,
                Command::WebhookRetry { name } => self.state.pool()?.webhooks.retry(&name).await,
                Command::User { action } => self.state.pool()?.users.run(action).await.map_err(|e| e.to_string()),
                Command::EdgePurge { bucket, key, prefix } => edge::purge(self.edge()?, &bucket, &key, prefix).await,
                Command::EdgeFill { bucket, keys, prefix } => {
                    edge::fill(self.edge()?, &bucket, &keys, prefix.as_deref(), &reporter).await
                }
                Command::Promote { .. } => Err("this server is no standby: it serves its own pool".to_owned()),
                Command::DiskForget { disks } => self.membership()?.forget(disks).await,
                Command::DiskResume { wait } => {
                    self.membership()?.resume()?;
                    self.waited(wait, &reporter).await
                }
            }
        })
    }
}
