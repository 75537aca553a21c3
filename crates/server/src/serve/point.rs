//! A state of an archived pool that is served read-only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use steadfast_archive::{ArchiveReader, ImageDisk};
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_store::{IndexKind, PoolDisk, Store};
use steadfast_users::Seal;
use tempfile::TempDir;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::engine::store_options;
use super::many::PoolDisks;
use crate::config::{
    AccessSection, ArchiveSection, AuditSection, CompactionSection, Config, DataSection, LiveSection, ScrubSection,
    StoreSection,
};
use crate::datadir::{DataDir, KeyFiles};
use crate::disks::open::Disks;
use crate::{private_file, seal_key};

/// For how long requests to the archive are repeated before a read fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of one read: a request to a store costs more than the bytes.
const READ_BYTES: u32 = 1 << 20;

/// Which state of which archive is served.
pub struct PointRequest {
    /// The archive.
    pub archive: ArchiveSection,
    /// The last state that is not later than this, in milliseconds since the Unix epoch; `None`:
    /// the newest.
    pub at_ms: Option<u64>,
}

/// The state that a server serves read-only.
#[derive(Debug, Clone, Serialize)]
pub struct ServedPoint {
    /// The archive.
    pub from: String,
    /// When the state was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

impl ServedPoint {
    /// When the state was taken, as in `2026-11-26T10:00:00.5Z`.
    pub(super) fn time(&self) -> String {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.time_ms) * 1_000_000).ok();
        at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| self.time_ms.to_string())
    }
}

impl PointRequest {
    /// Makes the data directory of such a server, which is removed when it is dropped.
    ///
    /// # Errors
    /// It cannot be made, as a message.
    pub(super) fn directory() -> Result<TempDir, String> {
        let made = tempfile::Builder::new().prefix("steadfast-at-").tempdir();
        made.map_err(|e| format!("{}: a directory cannot be made: {e}", std::env::temp_dir().display()))
    }

    /// The configuration of such a server: ports, limits, access and channels as they are given,
    /// and nothing that writes or that belongs to another pool.
    pub(super) fn configuration(config: &Config, dir: &Path) -> Config {
        Config {
            server: config.server.clone(),
            data: DataSection {
                dir: dir.to_owned(),
                serve_doubtful: config.data.serve_doubtful,
                ..DataSection::default()
            },
            access: AccessSection { users: Default::default(), ..config.access.clone() },
            audit: AuditSection { file: None, ..config.audit.clone() },
            s3: config.s3.clone(),
            store: StoreSection { upload_expiry: None, ..config.store.clone() },
            compaction: CompactionSection { enabled: false, ..CompactionSection::default() },
            scrub: ScrubSection { enabled: false, ..ScrubSection::default() },
            admin: config.admin.clone(),
            // Whether there is room does not matter: publications are refused for another reason.
            live: LiveSection { publish_reserve: 0, ..config.live.clone() },
            limits: config.limits.clone(),
            tls: config.tls.clone(),
            output: config.output.clone(),
            channels: config.channels.clone(),
            files: config.files.clone(),
            literal: config.literal.clone(),
            ..Config::default()
        }
    }

    /// The files with the keys: those of the configured data directory, as far as it has them, else
    /// those of `own`, which this server has while it runs.
    ///
    /// # Errors
    /// A file cannot be written, as a message.
    pub(super) fn key_files(config: &Config, own: &DataDir) -> Result<KeyFiles, String> {
        let (given, own) = (KeyFiles::in_dir(&config.data.dir), KeyFiles::in_dir(own.path()));
        let is_given = config.access.seal_key_file.is_some() || seal_key::is_in_environment();
        if !given.seal_key.exists() && !is_given {
            let shown = given.seal_key.display();
            tracing::warn!("users of the pool cannot sign in: {shown} does not exist. The root credentials work");
            private_file::store(&own.seal_key, &Seal::generate()?)?;
        }
        let first = |given: PathBuf, own: PathBuf| if given.exists() { given } else { own };
        Ok(KeyFiles {
            credentials: first(given.credentials, own.credentials),
            seal_key: first(given.seal_key, own.seal_key),
        })
    }

    /// Opens the state: reads its manifest, and rebuilds the index from what it names.
    ///
    /// # Errors
    /// Why the archive cannot be read, as a message.
    pub(super) async fn open(
        &self,
        config: &Config,
        data: &DataDir,
        env: &Env,
    ) -> Result<(PoolDisks, Store, ServedPoint), String> {
        let begun = env.now();
        let store = self.archive.store(env)?.ok_or("no archive is given")?;
        let reader = ArchiveReader::new(store.clone(), Some(PATIENCE), env);
        let state = match self.at_ms {
            Some(at_ms) => reader.at(at_ms).await,
            None => reader.newest().await,
        };
        let state = state.map_err(|e| e.to_string())?;
        let point = ServedPoint { from: store.describe(), time_ms: state.time_ms() };
        let mut options = store_options(config, None)?;
        options.log.for_reading = true;
        options.read_piece_bytes = READ_BYTES;
        options.read_ahead_bytes_max = options.read_ahead_bytes_max.max(16 * u64::from(READ_BYTES));
        let images = state.open();
        let as_disk = |(name, image): (&str, &ImageDisk)| {
            let disk: Arc<dyn Disk> = Arc::new(image.clone());
            Disks::of(name.to_owned(), disk)
        };
        let disks = PoolDisks::of(images.disks().map(as_disk));
        let given: Vec<PoolDisk> = disks.given();
        let index = IndexKind::Lsm(data.index());
        let opened = images.opening(Store::open_pool(given, index, env.clone(), options)).await;
        let (store, report) = opened.map_err(|e| format!("{}: {e}", point.from))?;
        if let Some(what) = images.lacking(&report) {
            let what = format!("{}: the archive lacks something of this state: {what}", point.from);
            if !config.data.serve_doubtful {
                let _ = store.close().await;
                return Err(format!("{what}. Try another time, or serve what it has: data.serve_doubtful = true"));
            }
            tracing::error!("{what}");
        }
        tracing::info!(
            took_ms = env.now().saturating_sub(begun).as_millis(),
            disks = report.disks.len(),
            records = report.replayed_records,
            "the state is open"
        );
        Ok((disks, store, point))
    }
}
