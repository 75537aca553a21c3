//! What commands over the control socket do.

use std::sync::Arc;

use serde_json::Value;
use steadfast_flow::BoxFuture;

use super::membership::Membership;
use super::snapshots::Snapshots;
use super::state::State;
use crate::admin::Source;
use crate::control::{Command, Commands, Tell};

/// Carries out commands on a server that serves.
pub struct ServerCommands {
    /// How the server is.
    pub state: Arc<State>,
    /// What carries out those about snapshots.
    pub snapshots: Snapshots,
    /// For its disks.
    pub membership: Membership,
}

impl ServerCommands {
    async fn waited(&self, wait: bool, tell: &Tell) -> Result<Value, String> {
        if wait { self.membership.follow(tell).await } else { Ok(self.membership.result(None)) }
    }
}

impl Commands for ServerCommands {
    fn run(&self, command: Command, tell: Tell) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move {
            match command {
                Command::Status {} => Ok(self.state.status()),
                Command::SnapshotCreate { name } => self.snapshots.create(&self.state.store()?, &name).await,
                Command::SnapshotList {} => Ok(self.snapshots.list(&self.state.store()?)),
                Command::SnapshotDelete { name } => self.snapshots.delete(&self.state.store()?, &name).await,
                Command::SnapshotExport { name, since, to, bytes_s } => {
                    self.snapshots.export(&self.state.store()?, (name, since), &to, bytes_s, &tell).await
                }
                Command::SnapshotRestore { name, from, overwrite } => {
                    self.snapshots.restore(&self.state.store()?, &name, &from, overwrite, &tell).await
                }
                Command::Scrub { action } => {
                    let engine =
                        self.state.engine().ok_or("the server does not serve (it starts or stops): try again")?;
                    engine.scrub(action)
                }
                Command::DiskAdd { path, wait } => {
                    self.membership.add(&path, None).await?;
                    self.waited(wait, &tell).await
                }
                Command::DiskDrain { disk, wait } => {
                    self.membership.drain(disk).await?;
                    self.waited(wait, &tell).await
                }
                Command::DiskReplace { old, new, wait } => {
                    self.membership.add(&new, Some(old)).await?;
                    self.waited(wait, &tell).await
                }
                Command::WebhookList {} => self.state.webhooks()?.list().await,
                Command::WebhookDead { name } => self.state.webhooks()?.dead_letters(&name).await,
                Command::WebhookSkip { name } => self.state.webhooks()?.skip(&name),
                Command::WebhookPurge { name, dead } => self.state.webhooks()?.purge(&name, dead).await,
                Command::WebhookRetry { name } => self.state.webhooks()?.retry(&name).await,
                Command::DiskForget { disks } => self.membership.forget(disks).await,
                Command::DiskResume { wait } => {
                    self.membership.resume()?;
                    self.waited(wait, &tell).await
                }
            }
        })
    }
}
