//! The services of a server with a pool: S3, the edge, events, and commands on disks.

use std::sync::Arc;

use steadfast_cluster::Channels;
use steadfast_edge::Edge;
use steadfast_flow::Env;
use steadfast_live::Node;
use steadfast_minio::Administration;
use steadfast_s3::{AuditSink, Observer, S3Door};
use steadfast_users::Users;
use tokio::sync::watch;

use super::Secrets;
use super::engine::Engine;
use super::membership::Membership;
use super::s3::{self, Measured};
use super::state::State;
use super::watches;
use crate::admin::metrics::Requests;
use crate::audit::AuditLog;
use crate::config::Config;
use crate::notify::{Forwarder, Targets, WebhookQueues};

/// What the services need besides the configuration.
pub(super) struct PoolParts {
    pub engine: Engine,
    pub secrets: Secrets,
    /// Threads for hashing.
    pub compute: Env,
    pub requests: Requests,
}

/// The open services of a server with a pool.
#[derive(Clone)]
pub struct Pool {
    /// Disk and store.
    pub engine: Engine,
    /// The S3 service.
    pub door: S3Door,
    /// The users.
    pub users: Users,
    /// The audit log; `None`: there is none.
    pub audit: Option<AuditLog>,
    /// The buckets with an origin.
    pub edge: Option<Edge>,
    /// The queues of the webhooks.
    pub webhooks: Arc<WebhookQueues>,
}

impl PoolParts {
    /// Opens the services, with the node of the live port if there is one.
    ///
    /// # Errors
    /// A setting that cannot be used, as a message.
    pub(super) fn open(
        self,
        config: &Config,
        (node, channels): (Option<Arc<Node>>, Channels),
        edge: Option<Edge>,
        env: &Env,
    ) -> Result<(Pool, Forwarder), String> {
        let Self { engine, secrets, compute, requests } = self;
        let root = secrets.root;
        let store = engine.store();
        let users_max = config.access.users_max;
        let users = Users::open(store.clone(), env.clone(), secrets.seal, &root.access_key, users_max)?;
        let observer: Arc<dyn Observer> = Arc::new(Measured(requests));
        let audit = config
            .audit
            .file
            .as_ref()
            .map(|file| AuditLog::open(&config.data.dir.join(file), config.audit.lines_max, env));
        let audit = audit.transpose()?;
        let mut options = s3::options(config, (root, users.clone()), Targets::new(config, node.clone()), edge.clone());
        options.administration = Some(Administration::new(users.clone(), store.clone(), env.clone(), compute.clone()));
        options.audit = audit.clone().map(|audit| Arc::new(audit) as Arc<dyn AuditSink>);
        let forwarder = Forwarder::new(config, store, (node, channels), options.region.clone(), env)?;
        let door = S3Door::build(store.clone(), env.clone(), options, Some(compute), Some(observer))
            .map_err(|e| e.to_string())?;
        let webhooks = forwarder.webhooks();
        Ok((Pool { engine, door, users, audit, edge, webhooks }, forwarder))
    }
}

impl Pool {
    /// Starts the tasks that watch the disks, until `stop` is set. The result executes commands on
    /// them.
    pub(super) fn start(
        &self,
        config: &Config,
        env: &Env,
        state: &Arc<State>,
        stop: &watch::Receiver<bool>,
    ) -> Membership {
        watches::start(env, &self.engine, state);
        let membership = Membership::new(self.engine.clone(), config, env);
        env.spawn_critical("disks that left", membership.clone().tidy(stop.clone()));
        membership
    }
}
