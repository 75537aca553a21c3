//! `serve`: from the configuration to a running server, and to its end.

mod commands;
pub mod engine;
mod exposure;
mod live;
pub mod many;
mod membership;
pub mod signals;
mod snapshots;
mod state;
mod watches;

use std::fmt::Arguments;
use std::future::Future;
use std::io::{IsTerminal, Write, stdout};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use steadfast_flow::{Connection, Env, Panicked, TokioRuntime};
use steadfast_live::{CONNECTIONS, LiveConfig};
use steadfast_s3::{EtagKind as S3Etag, Observer, RequestRecord, S3Door, S3Options};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use crate::admin::collect::StatusCollector;
use crate::admin::metrics::Requests;
use crate::admin::{Access, Admin};
use crate::block::Devices;
use crate::config::{Config, EtagKind};
use crate::control::socket::ControlSocket;
use crate::credentials::{self, Credentials, Origin};
use crate::datadir::DataDir;
use crate::disks::open::memory_beyond_settings;
use crate::net::descriptors::{self, Shares};
use crate::net::listener::{ADMIN_CONNECTIONS, Door, Port, Tls};
use crate::net::tls;
use crate::notify::{Forwarder, Targets};
use commands::ServerCommands;
use engine::Engine;
use live::LivePort;
use membership::Membership;
use signals::Signals;
use snapshots::Snapshots;
use state::{Serving, State};

/// Threads for work that blocks on the file system (the index), at most.
const BLOCKING_THREADS: usize = 32;

/// How long a stop waits for what is to be said of events that were forwarded.
const FORWARDER_DEADLINE: Duration = Duration::from_secs(5);

/// How long threads that are still busy may hold up the end of the process.
const THREADS_DEADLINE: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Why it could not start or stop cleanly, for people.
pub fn run(config: Config) -> Result<(), String> {
    let data = DataDir::create(&config.data.dir)?;
    let environment = (std::env::var("STEADFAST_ACCESS_KEY").ok(), std::env::var("STEADFAST_SECRET_KEY").ok());
    let (credentials, origin) = credentials::find(environment, &data.credentials())?;
    announce(&credentials, &origin);

    let threads = match config.server.threads {
        0 => std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get),
        threads => threads,
    };
    let main = runtime("serve", threads)?;
    // Hashing large bodies takes milliseconds: on threads of its own it does not hold up sockets.
    let compute = runtime("compute", threads)?;
    let compute_env = {
        let _inside = compute.enter();
        critical_env()
    };
    let ended = main.block_on(serve(&config, &data, credentials, compute_env));
    main.shutdown_timeout(THREADS_DEADLINE);
    compute.shutdown_timeout(THREADS_DEADLINE);
    ended
}

/// Runs a server that is no more than `work`, on one thread: the disks have threads of their own, and a request that
/// moves between two threads pays for their wake-ups. Measured for a block device of one export, 4 KiB reads: 102 us
/// instead of 131 at depth 1, and 55,000 a second instead of 51,000 at depth 32.
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

/// The environment of the runtime that the caller runs in, for a server: where a critical task or thread panics, the process ends at
/// once. What is in memory is in an unknown state then (no lock is poisoned), and everybody who needs the task would wait for
/// ever; what was acknowledged is on the disk, so a start is a way out that is walked after each crash anyway.
fn critical_env() -> Env {
    fn end(panic: &Panicked) {
        tracing::error!(
            task = panic.task,
            message = panic.message,
            "A PART THAT THE SERVER CANNOT DO WITHOUT HAS PANICKED: the process ends at once, to be started again. Everything \
             acknowledged is on the disk. Please report this as a bug, with the lines before this one"
        );
        std::process::abort();
    }
    Env::new(TokioRuntime::current().on_panic(end))
}

/// Says something on standard output. A server goes on where nobody reads that.
fn tell(what: Arguments<'_>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(what).and_then(|()| writeln!(out)) {
        tracing::warn!(%error, "standard output cannot be written");
    }
}

fn announce(credentials: &Credentials, origin: &Origin) {
    match origin {
        Origin::Environment => tracing::info!("credentials: from the environment"),
        Origin::File(path) => tracing::info!(path = %path.display(), "credentials: from a file"),
        // What a service manager takes from standard output it keeps, and others may read it.
        Origin::Generated(path) if !stdout().is_terminal() => tell(format_args!(
            "New credentials, kept in {} (only its owner can read it): access key {}",
            path.display(),
            credentials.access_key
        )),
        // To standard output, not to the log: logs are kept and sent to other places.
        Origin::Generated(path) => tell(format_args!(
            "New credentials, shown once and kept in {}:\n  access key {}\n  secret key {}",
            path.display(),
            credentials.access_key,
            credentials.secret_key
        )),
    }
}

async fn serve(config: &Config, data: &DataDir, keys: Credentials, compute: Env) -> Result<(), String> {
    let env = critical_env();
    for warning in memory_beyond_settings(config) {
        tracing::warn!("{warning}");
    }
    tracing::info!("read cache: {}", crate::report::size(config.store.cache_bytes()));
    let mut signals = Signals::new()?;
    let live_options = config.live_options().map_err(|e| e.to_string())?;
    let mut warnings = exposure::check(config, &live_options)?;
    warnings.extend(exposure::readable_secrets(config, &live_options));
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let shares = connection_shares(config, &live_options);
    exposure::watch_certificate(config, &env);
    let tls = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => {
            Some(Tls { acceptor: tls::acceptor(certificate, key)?, timeout: config.limits.header_timeout })
        }
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let s3_port = Port::bind(config.s3.listen, shares.s3, tls.clone(), "s3.listen").await?;
    let proxies = config.limits.trusted_proxies.0.clone();
    let s3_port = s3_port
        .share(config.limits.address_share, move |address| proxies.iter().any(|network| network.contains(address)));
    let admin_port = Port::bind(config.admin.listen, ADMIN_CONNECTIONS, None, "admin.listen").await?;
    let live_port = LivePort::bind(config, tls, shares).await?;
    let addresses = (address(&s3_port)?, address(&admin_port)?);
    let live = live_port.as_ref().map(LivePort::announced).unwrap_or_default();

    let state = Arc::new(State::new(env.clone(), s3_port.stats()));
    let mut registry = Registry::with_prefix("steadfast");
    let requests = Requests::register(&mut registry);
    registry.register_collector(Box::new(StatusCollector::new(state.clone())));
    let admin = Admin::new(state.clone(), registry, Access::new(&config.admin), env.clone());
    let (stop_admin, admin_stopped) = watch::channel(false);
    let admin_ended = start(&env, admin_port, admin, admin_stopped, Duration::from_secs(1));

    let opened = tokio::select! {
        biased;
        name = signals.next() => Err(name),
        opened = Engine::open(config, data, &env) => Ok(opened),
    };
    let engine = match opened {
        Ok(engine) => engine?,
        // Opening writes nothing that a crash could not interrupt.
        Err(name) => {
            tracing::info!(signal = name, "stopped before the pool was open");
            return Ok(());
        }
    };
    let devices = match Devices::open(&config.block, config, &env).await {
        Ok(devices) => devices,
        Err(why) => {
            let _ = engine.close(config.server.stop_deadline, &env).await;
            return Err(why);
        }
    };
    let block = devices.addresses().iter().map(|device| format!(" block:{device}")).collect::<String>();
    state.block(devices.list());
    let (stop_block, block_stopped) = watch::channel(false);
    let (block_done, block_ended) = oneshot::channel();
    env.spawn_critical("block devices", async move {
        devices.serve(block_stopped).await;
        let _ = block_done.send(());
    });
    let control = ControlSocket::bind(data.path())
        .inspect_err(|why| {
            // Some file systems have no sockets. Serving needs none.
            tracing::warn!(
                "{why}. Commands to this server are not possible; put data.dir onto a local file system for them"
            );
        })
        .ok();
    let served = serve_engine(
        config,
        &env,
        &engine,
        &state,
        keys,
        compute,
        requests,
        (s3_port, live_port),
        control,
        &mut signals,
        || {
            tell(format_args!(
                "steadfast {} ready: s3={scheme}://{} admin=http://{}{live}{block}",
                env!("CARGO_PKG_VERSION"),
                addresses.0,
                addresses.1
            ));
        },
    );
    let served = served.await;
    state.stopping();
    let _ = stop_block.send(true);
    let _ = block_ended.await;
    let closed = engine.close(config.server.stop_deadline, &env).await;
    let _ = stop_admin.send(true);
    let _ = admin_ended.await;
    served.and(closed)?;
    tracing::info!("stopped");
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the one place where everything comes together")]
async fn serve_engine(
    config: &Config,
    env: &Env,
    engine: &Engine,
    state: &Arc<State>,
    keys: Credentials,
    compute: Env,
    requests: Requests,
    (port, live): (Port, Option<LivePort>),
    control: Option<ControlSocket>,
    signals: &mut Signals,
    ready: impl FnOnce(),
) -> Result<(), String> {
    let observer: Arc<dyn Observer> = Arc::new(Measured(requests));
    let (stop, stopped) = watch::channel(false);
    let live = live.map(|live| live.serve(config, engine.store(), env, stopped.clone())).transpose()?;
    let node = live.as_ref().map(|live| live.node.clone());
    let options = s3_options(config, keys, Targets::new(config, node.clone()));
    let forwarder = Forwarder::new(config, engine.store(), node.clone(), options.region.clone(), env)?;
    let door = S3Door::build(engine.store().clone(), env.clone(), options, Some(compute), Some(observer))
        .map_err(|e| e.to_string())?;
    // Without the live port there are no clients that publish.
    let publish_reserve = if node.is_some() { config.live.publish_reserve } else { 0 };
    let publish_reserve = u8::try_from(publish_reserve).unwrap_or(100);
    let webhooks = forwarder.webhooks();
    state.serving(Serving { engine: engine.clone(), door: door.clone(), live: node, webhooks, publish_reserve });
    let forwarded = forwarder.start(&stopped);
    watches::start(env, engine, state);
    let membership = Membership::new(engine.clone(), config, env);
    env.spawn_critical("disks that left", membership.clone().tidy(stopped.clone()));
    if let Some(control) = control {
        let snapshots = Snapshots::new(env, &config.data.dir, config.snapshots.export_rate.0);
        let commands = Arc::new(ServerCommands { state: state.clone(), snapshots, membership });
        env.spawn_critical("control", control.run(env.clone(), commands, stopped.clone()));
    }
    let ended = start(env, port, S3(door), stopped, config.server.stop_deadline);
    ready();
    let signal = signals.next().await;
    tracing::info!(signal, "stopping: what was accepted is finished; a second signal ends at once");
    state.stopping();
    let _ = stop.send(true);
    let mut grpc = None;
    if let Some(live) = live {
        // What they still write takes no longer than a moment: they never wait for a client.
        env.blocking(move || live.workers.stop()).await;
        grpc = live.grpc;
    }
    if env.timeout(FORWARDER_DEADLINE, forwarded).await.is_none() {
        tracing::warn!("events of objects that were forwarded may be forwarded again after the next start");
    }
    let both = async {
        let grpc = match grpc {
            Some(grpc) => grpc.await.unwrap_or(0),
            None => 0,
        };
        grpc + ended.await.unwrap_or(0)
    };
    let cut_off = tokio::select! {
        biased;
        cut_off = both => cut_off,
        signal = signals.next() => {
            tracing::warn!(signal, "not waiting for the requests that are being served");
            return Ok(());
        }
    };
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "cut off: not finished within server.stop_deadline");
    }
    Ok(())
}

/// How many connections each port may have, so that all of them together leave file descriptors for the rest.
fn connection_shares(config: &Config, live: &LiveConfig) -> Shares {
    let limit = descriptors::raise();
    let asked = match (config.live.listen, live.client.connection_limit) {
        (None, _) => 0,
        (Some(_), 0) => CONNECTIONS,
        (Some(_), limit) => limit,
    };
    let grpc = if live.grpc_api.enabled { config.live.grpc_connections } else { 0 };
    let streams = [
        live.http_stream.enabled,
        live.sse.enabled,
        live.uni_http_stream.enabled,
        live.uni_sse.enabled,
        live.uni_websocket.enabled,
    ];
    let tls = config.tls.certificate.is_some() && config.live.tls;
    let live_files = if tls || streams.contains(&true) { 3 } else { 1 };
    let wanted = Shares { s3: config.limits.connections, grpc, live: asked, live_files };
    let shares = descriptors::share(limit, config.limits.reserved_files, wanted);
    let mut less = Vec::new();
    for (name, wanted, got) in [
        ("limits.connections", wanted.s3, shares.s3),
        ("live.grpc_connections", wanted.grpc, shares.grpc),
        ("live.client.connection_limit", live.client.connection_limit, shares.live),
    ] {
        if got < wanted {
            less.push(format!("{name} {got} instead of {wanted}"));
        }
    }
    if !less.is_empty() {
        tracing::warn!(
            limit,
            "fewer connections than configured, for this process may have only so many file descriptors: {}. Raise the limit (`ulimit -n`, \
             LimitNOFILE of systemd)",
            less.join(", ")
        );
    }
    shares
}

fn address(port: &Port) -> Result<SocketAddr, String> {
    port.address().map_err(|e| format!("the address of a port cannot be read: {e}"))
}

/// Runs a port as a task; the result tells how many connections were cut off.
fn start(
    env: &Env,
    port: Port,
    door: impl Door,
    stop: watch::Receiver<bool>,
    deadline: Duration,
) -> oneshot::Receiver<usize> {
    let (tx, rx) = oneshot::channel();
    let inner = env.clone();
    env.spawn_critical("port", async move {
        let _ = tx.send(port.run(inner, door, stop, deadline).await);
    });
    rx
}

fn s3_options(config: &Config, keys: Credentials, targets: Targets) -> S3Options {
    S3Options {
        targets: Some(Arc::new(targets)),
        credentials: vec![(keys.access_key, keys.secret_key)],
        domains: config.s3.domain.iter().cloned().collect(),
        https: config.tls.certificate.is_some(),
        allowed_origins: config.s3.allowed_origins.0.clone(),
        etag: match config.s3.etag {
            EtagKind::Md5 => S3Etag::Md5,
            EtagKind::Fast => S3Etag::Opaque,
        },
        requests_max: config.limits.requests,
        requests_waiting_max: config.limits.requests_waiting,
        request_wait: config.limits.request_wait,
        slow_request: config.limits.slow_request,
        xml_memory_bytes: config.limits.xml_memory.0,
        header_timeout: config.limits.header_timeout,
        body_stall: config.limits.stall_timeout,
        response_stall: config.limits.stall_timeout,
        client_bytes_s_min: config.limits.client_rate_min.0,
        answers_max: config.limits.answers,
        address_share_percent: config.limits.address_share,
        trusted_proxies: config.limits.trusted_proxies.0.clone(),
        ..S3Options::default()
    }
}

/// The S3 door on a port.
#[derive(Clone)]
struct S3(S3Door);

impl Door for S3 {
    async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut connection = std::pin::pin!(self.0.connection_of(io, connection));
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => Some(ended),
            () = stop => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(e) = ended {
            tracing::debug!(%peer, error = %e, "connection ended");
        }
    }
}

/// Tells the metrics of requests.
struct Measured(Requests);

impl Observer for Measured {
    fn finished(&self, r: &RequestRecord) {
        self.0.record(r.operation, r.status, r.bytes_in, r.bytes_out, r.duration, r.complete);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const IN_A_PROCESS: &str = "STEADFAST_TEST_PANIC";

    /// The process is this test itself, once more.
    #[test]
    #[allow(clippy::panic, reason = "what is tested")]
    fn a_panic_of_what_the_server_cannot_do_without_ends_the_process() {
        if std::env::var_os(IN_A_PROCESS).is_some() {
            let runtime = runtime("test", 1).expect("a runtime");
            runtime.block_on(async { critical_env().spawn("not critical", async { panic!("goes on") }) });
            runtime.block_on(async { critical_env().spawn_critical("critical", async { panic!("ends") }) });
            return runtime.block_on(std::future::pending());
        }
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        let name = "serve::tests::a_panic_of_what_the_server_cannot_do_without_ends_the_process";
        let output = command.args(["--exact", name, "--nocapture"]).env(IN_A_PROCESS, "1").output().expect("it ran");
        assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{output:?}");
    }
}
