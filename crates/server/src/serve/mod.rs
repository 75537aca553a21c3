//! `serve`: from the configuration to a running server, and to its end.

pub mod engine;
pub mod many;
mod signals;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use steadfast_flow::Env;
use steadfast_s3::{EtagKind as S3Etag, Observer, RequestRecord, S3Door, S3Options};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use crate::admin::Admin;
use crate::admin::collect::StatusCollector;
use crate::admin::metrics::Requests;
use crate::config::{Config, EtagKind};
use crate::credentials::{self, Credentials, Origin};
use crate::datadir::DataDir;
use crate::disks::words;
use crate::net::listener::{Door, Port, Tls};
use crate::net::tls;
use engine::Engine;
use signals::Signals;
use state::{Serving, State};

/// Connections to the admin port at a time.
const ADMIN_CONNECTIONS: usize = 64;

/// Threads for work that blocks on the file system (the index), at most.
const BLOCKING_THREADS: usize = 32;

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
        Env::tokio()
    };
    let ended = main.block_on(serve(&config, &data, credentials, compute_env));
    main.shutdown_timeout(THREADS_DEADLINE);
    compute.shutdown_timeout(THREADS_DEADLINE);
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

fn announce(credentials: &Credentials, origin: &Origin) {
    match origin {
        Origin::Environment => tracing::info!("credentials: from the environment"),
        Origin::File(path) => tracing::info!(path = %path.display(), "credentials: from a file"),
        // To standard output, not to the log: logs are kept and sent to other places.
        Origin::Generated(path) => println!(
            "New credentials, shown once and kept in {}:\n  access key {}\n  secret key {}",
            path.display(),
            credentials.access_key,
            credentials.secret_key
        ),
    }
}

async fn serve(config: &Config, data: &DataDir, keys: Credentials, compute: Env) -> Result<(), String> {
    let env = Env::tokio();
    let mut signals = Signals::new()?;
    let tls = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => {
            Some(Tls { acceptor: tls::acceptor(certificate, key)?, timeout: config.limits.header_timeout })
        }
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let s3_port = Port::bind(config.s3.listen, config.limits.connections, tls, "s3.listen").await?;
    let admin_port = Port::bind(config.admin.listen, ADMIN_CONNECTIONS, None, "admin.listen").await?;
    let addresses = (address(&s3_port)?, address(&admin_port)?);

    let state = Arc::new(State::new(env.clone(), s3_port.stats()));
    let mut registry = Registry::with_prefix("steadfast");
    let requests = Requests::register(&mut registry);
    registry.register_collector(Box::new(StatusCollector::new(state.clone())));
    let admin = Admin::new(state.clone(), registry, env.clone());
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
    let served = serve_engine(config, &env, &engine, &state, keys, compute, requests, s3_port, &mut signals, || {
        println!(
            "steadfast {} ready: s3={scheme}://{} admin=http://{}",
            env!("CARGO_PKG_VERSION"),
            addresses.0,
            addresses.1
        );
    });
    let served = served.await;
    state.stopping();
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
    port: Port,
    signals: &mut Signals,
    ready: impl FnOnce(),
) -> Result<(), String> {
    let observer: Arc<dyn Observer> = Arc::new(Measured(requests));
    let door =
        S3Door::build(engine.store().clone(), env.clone(), s3_options(config, keys), Some(compute), Some(observer))
            .map_err(|e| e.to_string())?;
    state.serving(Serving { engine: engine.clone(), door: door.clone() });
    env.spawn("latch watch", watch_latch(env.clone(), engine.clone(), state.clone()));
    env.spawn("damage watch", watch_damage(env.clone(), engine.clone(), state.clone()));
    env.spawn("super-disk watch", watch_superdisk(env.clone(), engine.clone(), state.clone()));
    let (stop, stopped) = watch::channel(false);
    let mut ended = start(env, port, S3(door), stopped, config.server.stop_deadline);
    ready();
    let signal = signals.next().await;
    tracing::info!(signal, "stopping: what was accepted is finished; a second signal ends at once");
    state.stopping();
    let _ = stop.send(true);
    let cut_off = tokio::select! {
        biased;
        cut_off = &mut ended => cut_off.unwrap_or(0),
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
    env.spawn("port", async move {
        let _ = tx.send(port.run(inner, door, stop, deadline).await);
    });
    rx
}

fn s3_options(config: &Config, keys: Credentials) -> S3Options {
    S3Options {
        credentials: vec![(keys.access_key, keys.secret_key)],
        domains: config.s3.domain.iter().cloned().collect(),
        etag: match config.s3.etag {
            EtagKind::Md5 => S3Etag::Md5,
            EtagKind::Fast => S3Etag::Opaque,
        },
        requests_max: config.limits.requests,
        requests_waiting_max: config.limits.requests_waiting,
        request_wait: config.limits.request_wait,
        header_timeout: config.limits.header_timeout,
        body_stall: config.limits.stall_timeout,
        response_stall: config.limits.stall_timeout,
        ..S3Options::default()
    }
}

/// Says once, and loudly, that the log takes no more writes, and what to do about it.
async fn watch_latch(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(200);
    let mut told = BTreeSet::new();
    while !state.is_stopping() {
        for (disk, why) in engine.disks_in_trouble() {
            if told.insert(disk.clone()) {
                tracing::error!(
                    "THE DISK {disk} DOES NOT TAKE PART: {why}. Only objects on it are concerned; `steadfast status` says how many. \
                     What to do: look at the disk (dmesg, smartctl -a); repair or replace it; then restart the server"
                );
            }
        }
        if let Some(trouble) = engine.trouble() {
            tracing::error!(
                "WRITES ARE REFUSED: {trouble}. Everything acknowledged is on the disk and can be read. What to do: look at the \
                 disk (dmesg, smartctl -a, free space); repair or replace it; then restart the server. Writes that were \
                 answered \"outcome unknown\" may or may not be there after the restart. /health/ready answers 503 until then"
            );
            return;
        }
        env.sleep(EVERY).await;
    }
}

/// Says of each damage that the scrub finds what it concerns and what to do about it, once.
async fn watch_damage(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    let mut known = BTreeMap::new();
    while !state.is_stopping() {
        for (damage, subjects) in engine.damage_since(&mut known) {
            let concerns =
                if subjects.is_empty() { "cannot be told from what is left".to_owned() } else { subjects.join(", ") };
            tracing::error!(
                extent = damage.extent, offset = damage.offset, what = %damage.what, %concerns,
                "STORED DATA IS DAMAGED. Reads of it answer with an error, never with wrong bytes. What to do: look at the disk \
                 (smartctl -a, dmesg), copy what is concerned again from its source, and replace the disk if more follows"
            );
        }
        env.sleep(EVERY).await;
    }
}

/// Says when the fast leg changes its state, and what to do about it.
async fn watch_superdisk(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(500);
    // Whatever is written makes a place of the fast leg unclean for a moment: only what lasts is said.
    const LASTS: u32 = 4;
    let (mut said, mut seen, mut lasted) = (String::new(), String::new(), 0);
    let (mut quarantined, mut healed) = (0, [0; 2]);
    while !state.is_stopping() {
        let Some(fast) = engine.superdisk() else { return };
        let n = |key: &str| fast.status()[key].as_u64().unwrap_or_default();
        if fast.state() == seen {
            lasted += 1;
        } else {
            fast.state().clone_into(&mut seen);
            lasted = 0;
        }
        let passing = matches!(fast.state(), "clean" | "rebuilding") && lasted < LASTS;
        if fast.state() != said && !passing {
            let line = words::line(&fast);
            match words::advice(&fast) {
                Some(advice) => tracing::warn!("super-disk: {advice}"),
                None => tracing::info!("super-disk: {line}"),
            }
            fast.state().clone_into(&mut said);
        }
        if n("regions_quarantined") > quarantined {
            quarantined = n("regions_quarantined");
            tracing::warn!(
                regions = quarantined,
                "super-disk: parts of the fast leg failed again and again and are not used any more; they are served from the pool. What \
                 to do: look at the fast disks (smartctl -a, dmesg) and replace the one that wears out"
            );
        }
        // The fast leg heals in passing; damage of the pool itself deserves a word each time.
        let now = [n("healed_fast"), n("healed_durable")];
        if now[1] > healed[1] {
            tracing::warn!(
                healed = now[1] - healed[1],
                "super-disk: damaged places of the pool were healed from the fast leg. What to do: look at the pool's disk (smartctl -a, \
                 dmesg), and replace it if more follows"
            );
        }
        if now[0] > healed[0] {
            tracing::info!(
                healed = now[0] - healed[0],
                "super-disk: damaged places of the fast leg were healed from the pool"
            );
        }
        healed = now;
        env.sleep(EVERY).await;
    }
}

/// The S3 door on a port.
#[derive(Clone)]
struct S3(S3Door);

impl Door for S3 {
    async fn serve<T>(&self, io: T, peer: SocketAddr, stop: impl Future<Output = ()> + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut connection = std::pin::pin!(self.0.connection(io));
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
    fn finished(&self, r: &RequestRecord<'_>) {
        self.0.record(r.operation, r.status, r.bytes_in, r.bytes_out, r.duration, r.complete);
    }
}
