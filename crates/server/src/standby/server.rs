//! What a standby serves: its state on the admin port, and commands on the control socket.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use steadfast_archive::StandbyProgress;
use steadfast_flow::{BoxFuture, Env};
use tokio::sync::{mpsc, oneshot, watch};

use crate::admin::collect::StatusCollector;
use crate::admin::{Access, Admin, Source};
use crate::config::{Config, human_size};
use crate::control::socket::ControlSocket;
use crate::control::{Command, Commands, ProgressReporter};
use crate::datadir::DataDir;
use crate::net::listener::{ADMIN_CONNECTIONS, Port};
use crate::report::duration;
use crate::serve::ports::start;
use crate::serve::state::ProcessStatus;

/// Time that a stop gives the answers of the admin port.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// A request to promote the standby.
pub(super) struct PromoteRequest {
    /// Whether the owner may be alive.
    pub(super) force: bool,
    answer: oneshot::Sender<Result<Value, String>>,
}

impl PromoteRequest {
    /// Whether its client is gone, and does not expect it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.answer.is_closed()
    }

    /// Answers it.
    pub(super) fn answer(self, answer: Result<Value, String>) {
        // Its client may be gone.
        let _ = self.answer.send(answer);
    }
}

/// What a standby is doing.
pub(super) enum StandbyPhase {
    /// There is nothing to follow yet, for this reason.
    Waiting(String),
    /// It follows.
    Following(StandbyProgress),
    /// It is being promoted.
    Promoting(Option<StandbyProgress>),
}

/// The state of a standby, for the admin port.
pub(super) struct StandbyState {
    process: ProcessStatus,
    phase: RwLock<StandbyPhase>,
    env: Env,
    lag_warning: Duration,
}

impl StandbyState {
    /// Enters a phase.
    pub(super) fn enter(&self, phase: StandbyPhase) {
        *self.phase.write() = phase;
    }

    /// Why it does not serve.
    pub(super) fn not_ready(&self) -> String {
        match &*self.phase.read() {
            StandbyPhase::Waiting(why) => format!("a standby, which waits: {why}"),
            StandbyPhase::Promoting(_) => "a standby, which is being promoted".to_owned(),
            StandbyPhase::Following(progress) => {
                let status = progress.status();
                let owner = if status.owner.is_empty() { &status.from } else { &status.owner };
                match status.copied_ms {
                    None => format!(
                        "standby of {owner}: the first copy is being made, {} are left",
                        human_size(status.lag_bytes)
                    ),
                    Some(_) => format!("standby of {owner}, {} behind", duration(status.lag_seconds as u64)),
                }
            }
        }
    }

    /// Why it does not follow as it should.
    fn fault(&self) -> Option<String> {
        let StandbyPhase::Following(progress) = &*self.phase.read() else { return None };
        let status = progress.status();
        if status.lag_seconds < self.lag_warning.as_secs_f64() {
            return None;
        }
        let behind = format!("the standby is {} behind", duration(status.lag_seconds as u64));
        Some(match status.failing.or(status.error) {
            Some(why) => format!("{behind}: {why}"),
            None => format!("{behind}, and copies {}", human_size(status.lag_bytes)),
        })
    }

    /// Logs when it falls behind, and when it has caught up.
    fn watch(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        const EVERY: Duration = Duration::from_secs(1);
        let env = self.env.clone();
        env.clone().spawn_critical("standby watch", async move {
            let mut is_behind = false;
            while !*stop.borrow_and_update() {
                let fault = self.fault();
                match &fault {
                    Some(why) if !is_behind => tracing::error!("{why}. Promoted now, it would lack what is missing"),
                    None if is_behind => tracing::info!("the standby has caught up"),
                    _ => {}
                }
                is_behind = fault.is_some();
                tokio::select! {
                    _ = stop.changed() => {}
                    () = env.sleep(EVERY) => {}
                }
            }
        });
    }
}

impl Source for StandbyState {
    fn not_ready(&self) -> Option<String> {
        Some(Self::not_ready(self))
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn status(&self) -> Value {
        let mut status = self.process.describe(Some(Self::not_ready(self)));
        status["standby"] = match &*self.phase.read() {
            StandbyPhase::Waiting(why) => json!({"state": "waiting", "error": why}),
            StandbyPhase::Following(progress) => with_state("following", Some(progress)),
            StandbyPhase::Promoting(progress) => with_state("promoting", progress.as_ref()),
        };
        status
    }
}

fn with_state(state: &str, progress: Option<&StandbyProgress>) -> Value {
    let mut shown = progress.map_or_else(|| json!({}), |progress| json!(progress.status()));
    shown["state"] = json!(state);
    shown
}

/// Executes commands on a standby.
struct StandbyCommands {
    state: Arc<StandbyState>,
    promote: mpsc::Sender<PromoteRequest>,
}

impl Commands for StandbyCommands {
    fn run(&self, command: Command, _: ProgressReporter) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move {
            match command {
                Command::Status {} => Ok(self.state.status()),
                Command::Promote { force } => {
                    let (answer, answered) = oneshot::channel();
                    let stopping = || "the standby stops".to_owned();
                    self.promote.send(PromoteRequest { force, answer }).await.map_err(|_| stopping())?;
                    answered.await.unwrap_or_else(|_| Err(stopping()))
                }
                _ => Err(format!("{}: it has no pool before it is promoted", self.state.not_ready())),
            }
        })
    }
}

/// The admin port and the control socket of a standby.
pub(super) struct StandbyServer {
    state: Arc<StandbyState>,
    stop: watch::Sender<bool>,
    admin_ended: oneshot::Receiver<usize>,
    control_ended: oneshot::Receiver<()>,
}

impl StandbyServer {
    /// Starts to serve them. Returns the requests to promote the standby.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub(super) async fn start(
        config: &Config,
        data: &DataDir,
        env: &Env,
    ) -> Result<(Self, mpsc::Receiver<PromoteRequest>), String> {
        let port = Port::bind(config.admin.listen, ADMIN_CONNECTIONS, None, "admin.listen").await?;
        let address = port.address().map_err(|e| format!("the address of a port cannot be read: {e}"))?;
        let state = Arc::new(StandbyState {
            process: ProcessStatus::new(env),
            phase: RwLock::new(StandbyPhase::Waiting("the archive is being read".to_owned())),
            env: env.clone(),
            lag_warning: config.archive.lag_warning,
        });
        let (stop, stopped) = watch::channel(false);
        let mut registry = Registry::with_prefix("steadfast");
        registry.register_collector(Box::new(StatusCollector::new(state.clone())));
        let admin = Admin::new(state.clone(), registry, Access::new(&config.admin), env.clone());
        let admin_ended = start(env, port, admin, stopped.clone(), STOP_WAIT);
        let (promote, requests) = mpsc::channel(1);
        let commands = Arc::new(StandbyCommands { state: state.clone(), promote });
        let socket = ControlSocket::bind(data.path())?;
        let (ended, control_ended) = oneshot::channel();
        let control = socket.run(env.clone(), commands, stopped.clone());
        env.spawn_critical("control", async move {
            control.await;
            let _ = ended.send(());
        });
        state.clone().watch(stopped);
        crate::serve::print_line(format_args!(
            "steadfast {} standby: admin=http://{address}",
            env!("CARGO_PKG_VERSION")
        ));
        Ok((Self { state, stop, admin_ended, control_ended }, requests))
    }

    /// The state.
    pub(super) fn state(&self) -> Arc<StandbyState> {
        self.state.clone()
    }

    /// Ends both. Their addresses are free when this has returned.
    pub(super) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.admin_ended.await;
        let _ = self.control_ended.await;
    }
}
