//! `serve`: starts a server from its configuration, runs it and stops it.

pub mod archive;
mod cluster;
mod commands;
mod declared;
pub mod edge;
mod ending;
pub mod engine;
mod error;
mod exposure;
mod front;
mod live;
pub mod many;
mod membership;
pub mod point;
mod pool;
pub(crate) mod ports;
mod preflight;
mod s3;
pub mod signals;
pub(crate) mod state;
mod watches;

use std::fmt::Arguments;
use std::future::Future;
use std::io::{IsTerminal, Write, stdout};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use prometheus_client::registry::Registry;
use steadfast_cluster::Channels;
use steadfast_flow::{Env, Lease, Panicked, TokioRuntime};
use steadfast_users::{KeyPair, Seal};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use crate::admin::collect::StatusCollector;
use crate::admin::metrics::Requests;
use crate::admin::{Access, Admin};
use crate::block::Devices;
use crate::config::Config;
use crate::control::socket::ControlSocket;
use crate::credentials::{self, Origin};
use crate::datadir::{DataDir, KeyFiles};
use crate::disks::open::memory_beyond_settings;
use crate::net::listener::{ADMIN_CONNECTIONS, Port};
use crate::seal_key;
use archive::{ArchivePlan, PoolArchive};
use cluster::{ClusterNode, ClusterPort};
use commands::ServerCommands;
use ending::Ending;
use engine::Engine;
pub use error::ServeError;
use front::FrontDoor;
use live::LivePort;
use point::PointRequest;
use pool::PoolParts;
use ports::{address, connection_shares, start};
use preflight::CheckedConfig;
pub use preflight::check_live;
use s3::S3PortDoor;
use signals::Signals;
use state::{Serving, State};

/// Maximum number of threads for work that blocks on the file system (the index).
const BLOCKING_THREADS: usize = 32;

/// Time that a stop waits until forwarded events are recorded as done.
const FORWARDER_DEADLINE: Duration = Duration::from_secs(5);

/// Time that busy threads may delay the exit of the process.
const THREADS_DEADLINE: Duration = Duration::from_secs(5);

/// What comes before a pool is served: a standby follows until it is promoted. Returns whether to
/// serve.
pub type Before = for<'a> fn(
    &'a Config,
    &'a DataDir,
    &'a mut Signals,
    &'a Env,
) -> Pin<Box<dyn Future<Output = Result<bool, ServeError>> + 'a>>;

/// Serves until SIGTERM or SIGINT: its pool, or a state of an archive if there is a request.
/// `before` comes first.
///
/// # Errors
/// Why the server could not start or stop cleanly, as a message.
pub fn run(config: Config, point: Option<PointRequest>, before: Before) -> Result<(), ServeError> {
    let threads = match config.server.threads {
        0 => std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get),
        threads => threads,
    };
    let main = runtime("serve", threads)?;
    // Hashing large bodies takes milliseconds; separate threads keep it from delaying sockets.
    let compute = runtime("compute", threads)?;
    let compute_env = {
        let _inside = compute.enter();
        critical_env()
    };
    let ended = main.block_on(async {
        let temporary = point.as_ref().map(|_| PointRequest::directory()).transpose()?;
        let given = config;
        let config = match &temporary {
            Some(dir) => PointRequest::configuration(&given, dir.path()),
            None => given.clone(),
        };
        // A mistake leaves no file behind.
        let checked = preflight::check(&config, &critical_env())?;
        let data = DataDir::create(&config.data.dir)?;
        let mut signals = Signals::new()?;
        if !before(&config, &data, &mut signals, &critical_env()).await? {
            return Ok(());
        }
        let keys = match &point {
            Some(_) => PointRequest::key_files(&given, &data)?,
            None => KeyFiles::in_dir(data.path()),
        };
        // A front has no S3 service.
        let credentials = if config.is_front()? { None } else { Some(find_secrets(&config, &data, &keys)?) };
        serve(&config, point.as_ref(), checked, (&data, &mut signals), credentials, compute_env).await
    });
    main.shutdown_timeout(THREADS_DEADLINE);
    compute.shutdown_timeout(THREADS_DEADLINE);
    ended
}

/// Runs `work` as the whole server, on one thread. The disks have their own threads, and a request
/// that moves between two threads pays for their wake-ups. Measured for a block device of one
/// export, 4 KiB reads: 102 us instead of 131 at depth 1, and 55,000 a second instead of 51,000 at
/// depth 32.
///
/// # Errors
/// Those of the work.
pub fn run_alone<W: Future<Output = Result<(), String>>>(work: impl FnOnce(Env) -> W) -> Result<(), String> {
    let main = runtime("serve", 1)?;
    let ended = main.block_on(async { work(critical_env()).await });
    main.shutdown_timeout(THREADS_DEADLINE);
    ended
}

fn runtime(name: &str, threads: usize) -> Result<Runtime, String> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|e| format!("the threads cannot be started: {e}"))
}

/// The environment of the caller's runtime, for a server. A panic of a critical task or thread ends
/// the process at once: the state in memory is unknown (no lock is poisoned), and users of the task
/// would wait for ever. Acknowledged data is on the disk, so a restart recovers, as after any
/// crash.
fn critical_env() -> Env {
    fn end(panic: &Panicked) {
        tracing::error!(
            task = panic.task,
            message = panic.message,
            "A CRITICAL TASK HAS PANICKED: the process ends now and must be restarted. Acknowledged data is on the disk. Please \
             report this as a bug, with the lines before this one"
        );
        std::process::abort();
    }
    Env::new(TokioRuntime::current().on_panic(end))
}

/// Prints a line on standard output. A closed standard output does not stop the server.
pub(crate) fn print_line(what: Arguments<'_>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(what).and_then(|()| writeln!(out)) {
        tracing::warn!(%error, "standard output cannot be written");
    }
}

/// The secrets of a server with a pool.
struct Secrets {
    /// The key of the root identity.
    root: KeyPair,
    /// Seals the secrets of users.
    seal: Seal,
}

/// Finds the secrets, or makes them, and announces where the credentials are.
fn find_secrets(config: &Config, data: &DataDir, keys: &KeyFiles) -> Result<Secrets, String> {
    let variable = |name| std::env::var(name).ok();
    let environment = (variable("STEADFAST_ACCESS_KEY"), variable("STEADFAST_SECRET_KEY"));
    if environment == (None, None) && !keys.credentials.exists() {
        // Clients of the pool have the old ones.
        data.refuse_new_credentials()?;
    }
    let (root, origin) = credentials::find(environment, &keys.credentials)?;
    announce(&root, &origin);
    let given = variable(seal_key::VARIABLE);
    let seal = seal_key::find(given.as_deref(), config.access.seal_key_file.as_deref(), &keys.seal_key)?;
    Ok(Secrets { root, seal })
}

fn announce(credentials: &KeyPair, origin: &Origin) {
    match origin {
        Origin::Environment => tracing::info!("credentials: from the environment"),
        Origin::File(path) => tracing::info!(path = %path.display(), "credentials: from a file"),
        // A service manager keeps standard output, and others may read it.
        Origin::Generated(path) if !stdout().is_terminal() => print_line(format_args!(
            "New credentials, kept in {} (only its owner can read it): access key {}",
            path.display(),
            credentials.access_key
        )),
        // To standard output, not to the log: logs are kept and sent elsewhere.
        Origin::Generated(path) => print_line(format_args!(
            "New credentials, shown once and kept in {}:\n  access key {}\n  secret key {}",
            path.display(),
            credentials.access_key,
            credentials.secret_key
        )),
    }
}

/// Starts all parts of the server, serves, and stops them in reverse order. Without
/// `secrets` the server has no pool.
async fn serve(
    config: &Config,
    point: Option<&PointRequest>,
    checked: CheckedConfig,
    (data, signals): (&DataDir, &mut Signals),
    secrets: Option<Secrets>,
    compute: Env,
) -> Result<(), ServeError> {
    let env = critical_env();
    let CheckedConfig { live: live_options, tls, plan, warnings } = checked;
    log_warnings(config, warnings, secrets.is_some());
    let shares = connection_shares(config, &live_options);
    exposure::watch_certificate(config, &env);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let lease = Lease::unlimited(&env);
    let s3_port = s3::bind(config, shares.s3, tls).await?.map(|port| port.lease(&lease));
    let admin_port = Port::bind(config.admin.listen, ADMIN_CONNECTIONS, None, "admin.listen").await?;
    let live_port = OptionFuture::from(plan.map(|plan| LivePort::bind(plan, shares, &lease))).await.transpose()?;
    let cluster_port = ClusterPort::bind(config, &live_options, &lease, &env).await?;
    let s3 = s3_port.as_ref().map(address).transpose()?.map(|address| format!(" s3={scheme}://{address}"));
    let (s3, admin_address) = (s3.unwrap_or_default(), address(&admin_port)?);
    let live = live_port.as_ref().map(LivePort::announced).unwrap_or_default();
    let cluster = cluster_port.as_ref().map(ClusterPort::announced).unwrap_or_default();

    let state = Arc::new(State::new(&env, s3_port.as_ref().map(Port::stats)));
    let mut registry = Registry::with_prefix("steadfast");
    let requests = Requests::register(&mut registry);
    registry.register_collector(Box::new(StatusCollector::new(state.clone())));
    let admin = Admin::new(state.clone(), registry, Access::new(&config.admin), env.clone());
    let (stop_admin, admin_stopped) = watch::channel(false);
    let admin_ended = start(&env, admin_port, admin, admin_stopped, Duration::from_secs(1));

    let archive_plan = ArchivePlan::new(config, data, &env).await?;
    let engine = match &secrets {
        None => {
            Engine::refuse_pool(config, data)?;
            None
        }
        Some(_) => match open_engine(config, point, data, archive_plan.as_ref(), &env, signals).await? {
            Some(engine) => Some(engine),
            None => return Ok(()),
        },
    };
    let archive = match engine.as_ref().zip(archive_plan) {
        Some((engine, plan)) => match start_archive(plan, config, data, engine, (&lease, &env), signals).await {
            Ok(Some(archive)) => {
                archive.watch(&env, &state);
                Some(archive)
            }
            ended => {
                let _ = engine.close(config.server.stop_deadline, &env).await;
                return ended.map(drop);
            }
        },
        None => None,
    };
    let devices = open_devices(config, engine.as_ref(), cluster_port.as_ref(), &env).await?;
    let block = devices.addresses().iter().map(|device| format!(" block:{device}")).collect::<String>();
    state.block(devices.list());
    let (stop_rest, rest_stopped) = watch::channel(false);
    let block_ended = start_block(&env, devices, rest_stopped.clone());
    let channels = cluster::channels(config, cluster_port.as_ref(), engine.as_ref().map(Engine::store), &env)?;
    let cluster_node = cluster_port.map(|port| port.open(config, &env, &state, &channels, archive.clone()));
    let own_name = cluster_node.as_ref().map(ClusterNode::own_name);
    let mut links_ended = None;
    let links = &mut links_ended;
    let connect = || *links = cluster_node.map(|node| node.start(&env, &rest_stopped));
    let control = bind_control(data);
    let at = engine.as_ref().and_then(Engine::point).map(|point| format!(" at={}", point.time())).unwrap_or_default();
    let pool = engine.clone().zip(secrets).map(|(engine, secrets)| PoolParts { engine, secrets, compute, requests });
    let ready = || {
        print_line(format_args!(
            "steadfast {} ready:{s3} admin=http://{admin_address}{live}{block}{cluster}{at}",
            env!("CARGO_PKG_VERSION"),
        ));
    };
    let starts = Starts { connect, ready };
    let served = async {
        let ending = Ending::new(signals, own_name, archive.as_ref(), &lease).await?;
        serve_ports(config, &env, pool, &state, (s3_port, live_port, channels), control, ending, starts).await
    };
    let served = served.await;
    state.stopping();
    let _ = stop_rest.send(true);
    let _ = block_ended.await;
    let _ = OptionFuture::from(links_ended).await;
    if let Some((archive, engine)) = archive.as_ref().zip(engine.as_ref()) {
        archive.stop(matches!(served, Ok(true)), engine, config.server.stop_deadline, &env).await;
        if matches!(served, Err(ServeError::Superseded(_))) {
            archive::note_superseded(data, &env).await;
        }
    }
    let closed = close_engine(engine.as_ref(), config, &env).await;
    let _ = stop_admin.send(true);
    let _ = admin_ended.await;
    served?;
    closed?;
    tracing::info!("stopped");
    Ok(())
}

/// Logs the settings that an operator should know of.
fn log_warnings(config: &Config, mut warnings: Vec<String>, has_pool: bool) {
    warnings.extend(config.literal.iter().map(|(place, shown)| crate::config::literal_warning(place, shown)));
    if has_pool {
        warnings.extend(memory_beyond_settings(config));
        tracing::info!("read cache: {}", crate::config::human_size(config.store.cache_bytes()));
    } else {
        tracing::info!("this node is a front: it opens no pool, and no S3 port unless s3.listen is set");
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

async fn close_engine(engine: Option<&Engine>, config: &Config, env: &Env) -> Result<(), String> {
    match engine {
        Some(engine) => engine.close(config.server.stop_deadline, env).await,
        None => Ok(()),
    }
}

/// Opens the pool; `None` if a signal arrives first.
async fn open_engine(
    config: &Config,
    point: Option<&PointRequest>,
    data: &DataDir,
    archive: Option<&ArchivePlan>,
    env: &Env,
    signals: &mut Signals,
) -> Result<Option<Engine>, String> {
    let opening = async {
        match point {
            Some(point) => Engine::open_point(point, config, data, env).await,
            None => Engine::open(config, data, archive.map(ArchivePlan::gate), env).await,
        }
    };
    let opened = tokio::select! {
        biased;
        name = signals.next() => Err(name),
        opened = opening => Ok(opened),
    };
    match opened {
        Ok(engine) => engine.map(Some),
        // Opening is safe to interrupt, as a crash would.
        Err(name) => {
            tracing::info!(signal = name, "stopped before the pool was open");
            Ok(None)
        }
    }
}

/// Starts the archive of an open pool; `None` if a signal arrives first.
async fn start_archive(
    plan: ArchivePlan,
    config: &Config,
    data: &DataDir,
    engine: &Engine,
    (lease, env): (&Lease, &Env),
    signals: &mut Signals,
) -> Result<Option<PoolArchive>, ServeError> {
    tokio::select! {
        biased;
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the archive was known");
            Ok(None)
        }
        started = plan.start(config, data, engine, lease.clone(), env) => started.map(Some),
    }
}

/// Opens the block devices of a server whose pool is open. Closes the pool after an error.
async fn open_devices(
    config: &Config,
    engine: Option<&Engine>,
    cluster_port: Option<&ClusterPort>,
    env: &Env,
) -> Result<Devices, String> {
    let opened = async {
        if let Some(engine) = engine.filter(|engine| engine.point().is_none()) {
            cluster::take_pool(config, cluster_port, engine.store()).await?;
        }
        Devices::open(&config.block, config, env).await
    };
    let opened = opened.await;
    if opened.is_err() {
        let _ = close_engine(engine, config, env).await;
    }
    opened
}

/// Serves the block devices as a task until `stop` is set. The receiver completes when they are
/// closed.
fn start_block(env: &Env, devices: Devices, stop: watch::Receiver<bool>) -> oneshot::Receiver<()> {
    let (done, ended) = oneshot::channel();
    env.spawn_critical("block devices", async move {
        devices.serve(stop).await;
        let _ = done.send(());
    });
    ended
}

/// Creates the control socket; `None` where the file system has no sockets.
fn bind_control(data: &DataDir) -> Option<ControlSocket> {
    ControlSocket::bind(data.path())
        .inspect_err(|why| {
            // Some file systems have no sockets; the server runs without one.
            tracing::warn!(
                "{why}. Commands to this server are not possible; they need data.dir on a local file system"
            );
        })
        .ok()
}

/// What happens once while the ports start.
struct Starts<C, R> {
    /// Opens the links to other nodes, once the sessions can take what they tell.
    connect: C,
    /// Announces that all ports serve.
    ready: R,
}

/// Serves the ports until a signal or another end, and completes the accepted requests. Returns
/// whether it has completed all of them.
#[allow(clippy::too_many_arguments, reason = "the one place where all parts meet")]
async fn serve_ports(
    config: &Config,
    env: &Env,
    pool: Option<PoolParts>,
    state: &Arc<State>,
    (port, live, channels): (Option<Port>, Option<LivePort>, Channels),
    control: Option<ControlSocket>,
    mut ending: Ending<'_>,
    starts: Starts<impl FnOnce(), impl FnOnce()>,
) -> Result<bool, ServeError> {
    let takes_writes = pool.as_ref().is_some_and(|pool| pool.engine.point().is_none());
    let edge = match &pool {
        Some(pool) if takes_writes => s3::open_edge(config, pool.engine.store(), env).await?,
        _ => None,
    };
    let (stop, stopped) = watch::channel(false);
    let live = live.map(|live| live.serve(config, channels.clone(), state, env, stopped.clone())).transpose()?;
    let node = live.as_ref().map(|live| live.node.clone());
    (starts.connect)();
    let pool = pool.map(|parts| parts.open(config, (node.clone(), channels), edge, env)).transpose()?;
    let (pool, forwarder) = pool.unzip();
    if let Some(pool) = &pool {
        declared::create(config, pool.engine.store(), &pool.users).await?;
    }
    // Without the live port no client publishes.
    let publish_reserve = if node.is_some() { config.live.publish_reserve } else { 0 };
    let publish_reserve = u8::try_from(publish_reserve).unwrap_or(100);
    state.serving(Serving { pool: pool.clone(), live: node, publish_reserve });
    // Events of an earlier state were forwarded when they occurred.
    let forwarded = forwarder.filter(|_| takes_writes).map(|forwarder| forwarder.start(&stopped));
    let membership = pool.as_ref().map(|pool| pool.start(config, env, state, &stopped));
    if let Some(control) = control {
        let edge = pool.as_ref().and_then(|pool| pool.edge.clone());
        let commands = Arc::new(ServerCommands { state: state.clone(), membership, edge });
        env.spawn_critical("control", control.run(env.clone(), commands, stopped.clone()));
    }
    let deadline = config.server.stop_deadline;
    let ended = port.map(|port| match pool {
        Some(pool) => start(env, port, S3PortDoor(pool.door), stopped, deadline),
        None => start(env, port, FrontDoor::new(config, env), stopped, deadline),
    });
    (starts.ready)();
    let end = ending.next().await;
    match &end {
        Ok(signal) => {
            tracing::info!(signal, "stopping: accepted requests are completed; a second signal stops at once");
        }
        Err(ServeError::Failed(why) | ServeError::Refused(why) | ServeError::Superseded(why)) => {
            tracing::error!("stopping: {why}")
        }
    }
    state.stopping();
    let _ = stop.send(true);
    let mut grpc = None;
    if let Some(live) = live {
        // Their last writes take a moment only: they never wait for a client.
        env.blocking(move || live.workers.stop()).await;
        grpc = live.grpc;
    }
    if env.timeout(FORWARDER_DEADLINE, OptionFuture::from(forwarded)).await.is_none() {
        tracing::warn!("events of objects that were forwarded may be forwarded again after the next start");
    }
    let both = async {
        let ended = [OptionFuture::from(grpc).await, OptionFuture::from(ended).await];
        ended.into_iter().flatten().map(|cut_off| cut_off.unwrap_or(0)).sum::<usize>()
    };
    let cut_off = tokio::select! {
        biased;
        cut_off = both => cut_off,
        signal = ending.signals.next() => {
            tracing::warn!(signal, "not waiting for the requests in progress");
            return end.map(|_| false);
        }
    };
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "cut off: not finished within server.stop_deadline");
    }
    end.map(|_| cut_off == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const IN_A_PROCESS: &str = "STEADFAST_TEST_PANIC";

    /// The test runs itself as a child process.
    #[test]
    #[allow(clippy::panic, reason = "what is tested")]
    fn a_panic_of_what_the_server_cannot_do_without_ends_the_process() {
        if std::env::var_os(IN_A_PROCESS).is_some() {
            let runtime = runtime("test", 1).expect("a runtime");
            runtime.block_on(async { critical_env().spawn("not critical", async { panic!("continues") }) });
            runtime.block_on(async { critical_env().spawn_critical("critical", async { panic!("ends") }) });
            return runtime.block_on(std::future::pending());
        }
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        let name = "serve::tests::a_panic_of_what_the_server_cannot_do_without_ends_the_process";
        let output = command.args(["--exact", name, "--nocapture"]).env(IN_A_PROCESS, "1").output().expect("it ran");
        assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{output:?}");
    }
}
