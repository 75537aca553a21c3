//! Guarantees of the whole server, tested over a Unix socket with a hand-written client.

mod client;
mod faults;
mod sessions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_block::{Export, ExportOptions, Limits, Listen, Server, Window};
use steadfast_disk::{Disk, Faults, Faulty, MemDisk};
use steadfast_flow::Env;
use tokio::sync::oneshot;

const MIB: u64 = 1 << 20;

/// A server over memory with fault injection.
struct World {
    _folder: tempfile::TempDir,
    path: PathBuf,
    exports: Vec<Arc<Export>>,
    faults: Faults,
    disk: Arc<dyn Disk>,
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl World {
    /// The exports `first` (4 MiB from 1 MiB on), and `second`, read-only (1 MiB from 5 MiB on).
    async fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("nbd");
        let (env, faults) = (Env::tokio(), Faults::new());
        let disk: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(MemDisk::fixed(8 * MIB)), faults.clone()));
        let export = |name: &str, start, len, read_only| {
            let options = ExportOptions {
                window: Some(Window { start, len }),
                description: format!("the {name}"),
                read_only,
                limits,
                ..ExportOptions::new(name)
            };
            Export::new(options, disk.clone(), env.clone()).expect("valid")
        };
        let exports = vec![export("first", MIB, 4 * MIB, false), export("second", 5 * MIB, MIB, true)];
        let listen = Listen::Unix(path.clone());
        let server = Server::bind(&listen, exports.clone(), limits, env.clone()).await.expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        env.spawn("server", async move {
            server
                .serve(async {
                    let _ = stopped.await;
                })
                .await;
            let _ = end.send(());
        });
        Self { _folder: folder, path, exports, faults, disk, stop, ended }
    }

    fn export(&self) -> &Export {
        &self.exports[0]
    }

    /// Waits for a condition, with a deadline.
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let env = Env::tokio();
        let waiting = async {
            while !condition(self) {
                env.sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(env.timeout(Duration::from_secs(20), waiting).await.is_some(), "never: {what}");
    }

    async fn shut_down(self) {
        let _ = self.stop.send(());
        self.ended.await.expect("ended");
        assert!(!self.path.exists());
    }
}
