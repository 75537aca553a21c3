//! Block devices: the data partition of a durable disk with fast disks in front of it, over NBD.

pub mod make;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use steadfast_block::{Export, ExportOptions, Limits, Server, Window, find_data};
use steadfast_flow::Env;
use tokio::sync::watch;

use crate::config::{BlockSpec, Config, DiskSet, Size};
use crate::disks::open::{Disks, Taking};

/// The disk settings for one block device. `len`: the size of the durable disk in bytes.
fn settings_of(config: &Config, len: u64) -> Config {
    let mut settings = Config { superdisk: config.superdisk.clone(), ..Config::default() };
    settings.data.io = config.data.io;
    settings.data.queue_depth = config.data.queue_depth;
    // Neither the durable file nor a fast file grows beyond it.
    settings.data.pool_size = Some(Size(len));
    settings
}

/// Opens the disks of a device whose data is in `window`.
async fn open_disks(
    spec: &BlockSpec,
    config: &Config,
    window: Window,
    env: &Env,
    taking: Taking,
) -> Result<Disks, String> {
    let set = DiskSet { durable: vec![spec.durable.clone()], fast: spec.fast.0.clone(), hint: false };
    // The MiB behind the data belongs to the disk.
    let end = window.start + window.len;
    Disks::open_for_block(&settings_of(config, end + window.start), &set, env, taking, (window.start, end)).await
}

async fn data_of(durable: &Path, env: &Env) -> Result<Window, String> {
    let path = durable.to_owned();
    let found = env.blocking(move || find_data(&path)).await;
    found.ok_or_else(|| "the partition table could not be read".to_owned())?.map_err(|e| e.to_string())
}

/// An open block device.
pub struct Device {
    spec: BlockSpec,
    disks: Disks,
    export: Arc<Export>,
}

impl Device {
    /// Opens the disks of a device. A fast leg that cannot be used is left out.
    ///
    /// # Errors
    /// When the durable disk cannot be used, as a message.
    pub async fn open(spec: &BlockSpec, config: &Config, env: &Env) -> Result<Arc<Self>, String> {
        let named = |error: String| format!("block device {}: {error}", spec.name);
        let window = data_of(&spec.durable, env).await.map_err(named)?;
        let disks = open_disks(spec, config, window, env, Taking::Safe).await.map_err(named)?;
        let options = ExportOptions {
            description: format!("Steadfast block device on {}", spec.durable.display()),
            window: Some(window),
            read_only: spec.read_only,
            ..ExportOptions::new(&spec.name)
        };
        let export = Export::new(options, disks.top().clone(), env.clone()).map_err(|e| named(e.to_string()))?;
        Ok(Arc::new(Self { spec: spec.clone(), disks, export }))
    }

    /// The status, as JSON.
    pub fn status(&self) -> Value {
        let name = self.disks.name();
        let rows = self.disks.list().into_iter().map(|mut row| {
            row["pool_disk"] = json!(name);
            row
        });
        let superdisks: Vec<Value> = self.disks.superdisk().iter().map(|fast| fast.status().clone()).collect();
        json!({
            "name": self.spec.name,
            "listen": self.spec.listen.to_string(),
            "export": self.export.status(),
            "disks": rows.collect::<Vec<_>>(),
            "superdisks": superdisks,
        })
    }

    /// Warnings of a device that serves.
    pub fn warnings(&self) -> Vec<String> {
        let name = &self.spec.name;
        let mut warnings: Vec<String> = self
            .disks
            .hanging()
            .into_iter()
            .map(|(path, ms)| {
                format!("block device {name}: {} has not answered a request for {} s", path.display(), ms / 1000)
            })
            .collect();
        if let Some(failure) = self.export.status().failure {
            warnings.push(format!("block device {name}: writes are refused after an error: {failure}"));
        }
        warnings
    }
}

/// The block devices of a server.
pub struct Devices {
    servers: Vec<Server>,
    devices: Vec<Arc<Device>>,
}

impl Devices {
    /// Opens all devices and listens. No connection is accepted before [`Devices::serve`].
    ///
    /// # Errors
    /// When one cannot be opened, as a message.
    pub async fn open(specs: &[BlockSpec], config: &Config, env: &Env) -> Result<Self, String> {
        let (mut servers, mut devices) = (Vec::new(), Vec::new());
        for spec in specs {
            let device = Device::open(spec, config, env).await?;
            let exports = vec![device.export.clone()];
            let server = Server::bind(&spec.listen, exports, Limits::default(), env.clone()).await;
            servers.push(server.map_err(|e| format!("block device {}: {e}", spec.name))?);
            devices.push(device);
        }
        Ok(Self { servers, devices })
    }

    /// The devices.
    pub fn list(&self) -> Vec<Arc<Device>> {
        self.devices.clone()
    }

    /// The address of each device, for the ready line.
    pub fn addresses(&self) -> Vec<String> {
        let one = |(device, server): (&Arc<Device>, &Server)| {
            let listen = server.local().map_or_else(|_| device.spec.listen.to_string(), |local| local.to_string());
            format!("{}={listen}", device.spec.name)
        };
        self.devices.iter().zip(&self.servers).map(one).collect()
    }

    /// Serves until `stop` is true, then completes the requests in flight, and flushes and closes
    /// the disks.
    pub async fn serve(self, stop: watch::Receiver<bool>) {
        let stopped = |mut stop: watch::Receiver<bool>| async move {
            // An error means that the sender was dropped, which ends the server too.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let servers = self.servers.into_iter().map(|server| server.serve(stopped(stop.clone())));
        futures::future::join_all(servers).await;
        futures::future::join_all(self.devices.iter().map(|device| device.disks.close())).await;
    }
}
