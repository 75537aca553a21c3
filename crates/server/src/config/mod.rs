//! The configuration: one TOML file, environment variables over it, command-line flags over both.
//!
//! An unknown key is refused with the nearest known one; a wrong value is reported with its
//! position and the expected form. All settings are declared once, in `settings.rs`; the dump and
//! the reference in `docs/operations.md` come from that list.

pub(crate) mod added_disks;
mod archive;
mod block;
mod buckets;
mod cluster;
mod disks;
mod edge;
mod error;
mod kinds;
mod literal;
pub(crate) mod live;
mod log_levels;
mod schema;
pub(crate) mod setting;
mod settings;
mod users;
mod webhooks;
mod window;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use steadfast_disk::FAST_DISKS_MAX;
use toml::de::{DeTable, DeValue};

pub use block::{BlockSpec, check_name as check_block_name};
pub use buckets::BucketSpec;
pub use cluster::{ClusterHomes, ClusterNodes};
pub use disks::{DiskSet, DiskSpec, DiskSpecs};
pub use edge::{EdgeBucketSpec, EdgeBuckets};
pub use error::{ConfigError, nearest};
pub use kinds::{Names, Networks, Secret, SecretText};
pub(crate) use literal::warning as literal_warning;
pub(crate) use log_levels::log_targets;
pub use schema::{SetError, Shown};
pub use setting::{Acknowledge, EtagKind, Input, IoMode, LogFormat, Paths, Setting, Size, human_size, parse_duration};

pub use users::{UserSpec, UserSpecs};
pub use webhooks::{Webhook, WebhookFormat, Webhooks};
pub use window::TimeOfDay;

pub use settings::{
    AccessSection, AdminSection, ArchiveSection, AuditSection, ClusterSection, CompactionSection, Config, DataSection,
    EdgeSection, EventsSection, LimitsSection, LiveSection, LogSection, OutputSection, S3Section, ScrubSection,
    ServerSection, StoreSection, SuperdiskSection, TlsSection,
};

/// The usual port for S3.
const S3_PORT: u16 = 9000;

/// Reads a configuration file's text, over the defaults.
///
/// # Errors
/// The first mistake, with its line and column.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    config.apply(text)?;
    config.check()?;
    Ok(config)
}

impl StoreSection {
    /// The size of the read cache, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.map_or_else(crate::memory::cache_bytes, |size| size.0)
    }
}

impl Config {
    /// Applies the text of a file over the present values.
    ///
    /// # Errors
    /// The first mistake, with its line and column.
    pub fn apply(&mut self, text: &str) -> Result<(), ConfigError> {
        let table = DeTable::parse(text).map_err(|e| {
            let error = ConfigError::new(format!("this is not TOML: {}", e.message()));
            e.span().map_or(error.clone(), |span| error.at(text, span.start))
        })?;
        for (section, value) in table.get_ref() {
            let name: &str = section.get_ref();
            if name == "block" {
                self.block = block::read(value.get_ref())
                    .map_err(|e| ConfigError::new(format!("[[block]]: {e}")).at(text, section.span().start))?;
                continue;
            }
            if name == "buckets" {
                self.buckets = buckets::read(value.get_ref())
                    .map_err(|e| ConfigError::new(format!("[[buckets]]: {e}")).at(text, section.span().start))?;
                continue;
            }
            let DeValue::Table(keys) = value.get_ref() else {
                let message = if Self::SECTIONS.contains(&name) {
                    format!("[{name}] is a section: write `[{name}]` on a line and its settings below")
                } else {
                    format!("`{name}` stands outside a section{}", outside_hint(name))
                };
                return Err(ConfigError::new(message).at(text, section.span().start));
            };
            if !Self::SECTIONS.contains(&name) {
                let error = describe(name, "", SetError::Section(Self::SECTIONS.to_vec()));
                return Err(error.at(text, section.span().start));
            }
            for (key, value) in keys {
                if name == "live" && matches!(value.get_ref(), DeValue::Table(_)) {
                    // Centrifugo's options: read together below.
                    continue;
                }
                self.set(name, key.get_ref(), Input::Value(value.get_ref())).map_err(|e| {
                    let place = if matches!(e, SetError::Value(_)) { value.span() } else { key.span() };
                    describe(name, key.get_ref(), e).at(text, place.start)
                })?;
            }
            if name == "live" {
                self.channels = live::tables_of(text).map_err(|e| e.at(text, section.span().start))?;
            }
        }
        self.literal.extend(literal::find(text));
        Ok(())
    }

    /// Sets one value from text, `name` being `section.key`.
    ///
    /// # Errors
    /// When there is no such setting or the value is wrong.
    pub fn set_text(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let Some((section, key)) = name.split_once('.') else {
            return Err(ConfigError::new(format!("`{name}` is not of the form section.key{}", outside_hint(name))));
        };
        self.set(section, key, Input::Text(value)).map_err(|e| describe(section, key, e))?;
        self.literal.retain(|(place, _)| literal::setting(place) != name);
        Ok(())
    }

    /// Applies environment variables `STEADFAST_<SECTION>_<KEY>`. The variables in `RESERVED`, the
    /// secret keys of origins and the addresses of Kubernetes services are not settings.
    ///
    /// # Errors
    /// A variable with the prefix that is no setting, or has a wrong value.
    pub fn apply_env(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<(), ConfigError> {
        let names: Vec<(String, String)> = self
            .shown()
            .iter()
            .map(|s| {
                let name = format!("{}.{}", s.section, s.key);
                (format!("STEADFAST_{}", name.replace('.', "_").to_uppercase()), name)
            })
            .collect();
        for (variable, value) in variables {
            if !variable.starts_with("STEADFAST_")
                || RESERVED.contains(&variable.as_str())
                || edge::is_secret_variable(&variable)
                || is_of_a_service(&variable, &value)
            {
                continue;
            }
            let Some((_, name)) = names.iter().find(|(known, _)| *known == variable) else {
                let lower = variable.to_lowercase();
                let lowered: Vec<(String, &str)> = names.iter().map(|(n, _)| (n.to_lowercase(), n.as_str())).collect();
                let reserved = RESERVED.iter().map(|name| (name.to_lowercase(), *name));
                let lowered: Vec<(String, &str)> = lowered.into_iter().chain(reserved).collect();
                let near = nearest(&lower, lowered.iter().map(|(n, _)| n.as_str()))
                    .and_then(|near| lowered.iter().find(|(n, _)| n == near))
                    .map(|(_, n)| format!(": did you mean {n}?"));
                let message = format!("there is no such setting{}", near.unwrap_or_default());
                return Err(ConfigError::new(message).from(format!("environment variable {variable}")));
            };
            self.set_text(name, &value).map_err(|e| e.from(format!("environment variable {variable}")))?;
        }
        Ok(())
    }

    /// Applies a file over the present values.
    ///
    /// # Errors
    /// When it cannot be read, or the first mistake in it.
    pub fn apply_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::new(format!("cannot be read: {e}")).from(shown.clone()))?;
        self.files.push(path.to_owned());
        self.apply(&text).map_err(|e| e.from(shown))
    }

    /// The address of the S3 port; `None`: a front has none, unless it is set.
    pub(crate) fn s3_listen(&self) -> Option<SocketAddr> {
        // A mistake in the list of nodes is reported by its own check.
        let usual = || (!self.is_front().unwrap_or(false)).then(|| SocketAddr::from(([127, 0, 0, 1], S3_PORT)));
        self.s3.listen.or_else(usual)
    }

    /// Checks rules that concern several settings.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return Err(ConfigError::new(
                "TLS needs both tls.certificate and tls.key: set the other one, or neither for plain HTTP",
            ));
        }
        let s3 = self.s3_listen().filter(|s3| s3.port() != 0);
        if s3 == Some(self.admin.listen) {
            return Err(ConfigError::new(format!(
                "s3.listen and admin.listen are both {}: give one of them another port",
                self.admin.listen
            )));
        }
        if let Some(live) = self.live.listen.filter(|live| live.port() != 0)
            && (Some(live) == s3 || live == self.admin.listen)
        {
            return Err(ConfigError::new(format!(
                "live.listen and another port are both {live}: give one of them another port, or leave live.listen empty for no live port"
            )));
        }
        if self.names_many() && self.data.pool.is_some() {
            return Err(ConfigError::new("data.disks and data.pool both say where the pool is: set one of them"));
        }
        if let Some(bytes) = self.data.extent_size
            && !bytes.0.is_power_of_two()
        {
            return Err(ConfigError::new(format!("data.extent_size is {bytes}: use a power of two")));
        }
        let stripe = !self.data.stripe.0.is_empty();
        if stripe && self.data.pool.is_some() {
            return Err(ConfigError::new("data.pool and data.stripe both say where the pool is: set one of them"));
        }
        if stripe && self.names_many() {
            return Err(ConfigError::new("data.disks and data.stripe both say where the pool is: set one of them"));
        }
        if self.names_many() && !self.superdisk.fast.0.is_empty() {
            return Err(ConfigError::new(
                "superdisk.fast needs one pool disk (data.pool or data.stripe): with data.disks, name fast disks beside the disk that \
                 they belong to, as in disks = [{ path = \"/dev/sdb\", fast = [\"/dev/nvme0n1\"] }]",
            ));
        }
        if self.data.zone_size.is_some() {
            let sets = self.disk_sets();
            if sets.iter().any(|set| !set.fast.is_empty()) {
                return Err(ConfigError::new(
                    "data.zone_size cannot be combined with fast disks: a super-disk has no zones",
                ));
            }
            let file = |path: &PathBuf| !path.starts_with("/dev");
            if self.data.pool_size.is_none() && sets.iter().flat_map(|set| &set.durable).any(file) {
                return Err(ConfigError::new(
                    "data.zone_size divides a file into zones at its creation: set its size with data.pool_size",
                ));
            }
        }
        if self.data.stripe.0.len() == 1 {
            return Err(ConfigError::new("data.stripe names one disk: use data.pool for that, or name two or more"));
        }
        let fast = self.disk_sets().into_iter().map(|set| set.fast.len());
        if fast.chain(self.block.iter().map(|device| device.fast.0.len())).any(|count| count > FAST_DISKS_MAX) {
            return Err(ConfigError::new(format!("a super-disk has at most {FAST_DISKS_MAX} fast disks")));
        }
        let mut known: Vec<PathBuf> = Vec::new();
        let pool = self.disk_sets().into_iter().flat_map(|set| set.durable.into_iter().chain(set.fast));
        for path in pool.chain(self.block.iter().flat_map(|device| device.paths().cloned())) {
            if known.contains(&path) {
                return Err(ConfigError::new(format!(
                    "{} stands there twice: disks of the pool, fast disks and disks of block devices must be different disks",
                    path.display()
                )));
            }
            known.push(path);
        }
        self.archive.check(self.data.zone_size.is_some()).map_err(ConfigError::new)?;
        self.edge.check().map_err(ConfigError::new)?;
        self.cluster.check().map_err(ConfigError::new)?;
        self.check_node().map_err(ConfigError::new)?;
        self.channels.check().map_err(|e| ConfigError::new(e.to_string()))?;
        log_targets(&self.output.level).map(|_| ()).map_err(|e| ConfigError::new(format!("output.level: {e}")))
    }

    /// The configuration in force, as a file with comments.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        let mut section = "";
        for shown in self.shown() {
            if shown.section != section {
                if !section.is_empty() {
                    out.push('\n');
                }
                section = shown.section;
                for line in Self::section_doc(section) {
                    out.push_str(&format!("#{line}\n"));
                }
                out.push_str(&format!("[{section}]\n"));
            }
            for line in shown.doc {
                out.push_str(&format!("#{line}\n"));
            }
            out.push_str(&format!("{} = {}\n", shown.key, shown.value));
        }
        self.block.iter().for_each(|device| out.push_str(&device.to_toml()));
        self.buckets.iter().for_each(|bucket| out.push_str(&bucket.to_toml()));
        out
    }

    /// Whether the pool has several disks with a log each.
    pub fn is_many(&self) -> bool {
        self.names_many() || !added_disks::read(&self.data.dir).is_empty()
    }

    /// Whether the configuration itself names disks each with its own log.
    fn names_many(&self) -> bool {
        !self.data.disks.0.is_empty()
    }

    /// The disks of each of the pool's logs; at least one.
    pub fn disk_sets(&self) -> Vec<DiskSet> {
        let mut sets = self.named_sets();
        for path in added_disks::read(&self.data.dir) {
            if !sets.iter().any(|set| set.durable.contains(&path)) {
                sets.push(DiskSet { durable: vec![path], fast: Vec::new(), hint: true });
            }
        }
        sets
    }

    fn named_sets(&self) -> Vec<DiskSet> {
        let in_dir = |paths: &Paths| paths.0.iter().map(|path| self.data.dir.join(path)).collect::<Vec<_>>();
        if self.names_many() {
            let one = |disk: &DiskSpec| DiskSet {
                durable: vec![self.data.dir.join(&disk.path)],
                fast: in_dir(&disk.fast),
                hint: false,
            };
            return self.data.disks.0.iter().map(one).collect();
        }
        let durable = match &self.data.pool {
            _ if !self.data.stripe.0.is_empty() => in_dir(&self.data.stripe),
            Some(path) => vec![self.data.dir.join(path)],
            None => vec![self.data.dir.join("pool")],
        };
        vec![DiskSet { durable, fast: in_dir(&self.superdisk.fast), hint: false }]
    }
}

/// Variables with the prefix that are not settings.
const RESERVED: [&str; 4] =
    ["STEADFAST_ACCESS_KEY", "STEADFAST_SECRET_KEY", crate::seal_key::VARIABLE, "STEADFAST_CONFIG"];

/// Whether Kubernetes sets the variable in each pod, because a service has the name `steadfast` or
/// one that begins with `steadfast-`. The variables of a service are `NAME_SERVICE_HOST`,
/// `NAME_SERVICE_PORT[_PORTNAME]`, `NAME_PORT` and `NAME_PORT_80_TCP[_PROTO|_PORT|_ADDR]`.
fn is_of_a_service(variable: &str, value: &str) -> bool {
    let is_url = |text: &str| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    let of_a_port = || {
        let (_, rest) = variable.split_once("_PORT_")?;
        let mut parts = rest.split('_');
        let is_number = parts.next()?.bytes().all(|b| b.is_ascii_digit());
        let is_protocol = matches!(parts.next()?, "TCP" | "UDP" | "SCTP");
        let is_part = parts.next().is_none_or(|part| matches!(part, "PROTO" | "PORT" | "ADDR"));
        Some(is_number && is_protocol && is_part && parts.next().is_none())
    };
    variable.ends_with("_SERVICE_HOST")
        || variable.ends_with("_SERVICE_PORT")
        || variable.contains("_SERVICE_PORT_")
        || variable.ends_with("_PORT") && is_url(value)
        || of_a_port().unwrap_or(false)
}

/// A hint for a key outside a section: the sections that have it.
fn outside_hint(key: &str) -> String {
    let homes: Vec<String> =
        Config::default().shown().iter().filter(|s| s.key == key).map(|s| format!("{}.{}", s.section, s.key)).collect();
    if homes.is_empty() { String::new() } else { format!(": did you mean {}?", homes.join(" or ")) }
}

fn describe(section: &str, key: &str, error: SetError) -> ConfigError {
    ConfigError::new(match error {
        SetError::Section(known) => match nearest(section, known.iter().copied()) {
            Some(near) => format!("there is no section [{section}]: did you mean [{near}]?"),
            None => format!("there is no section [{section}]; there are {}", known.join(", ")),
        },
        SetError::Key(known) => match nearest(key, known.iter().copied()) {
            Some(near) => format!("there is no setting `{key}` in [{section}]: did you mean `{near}`?"),
            None => {
                let hint = outside_hint(key);
                if hint.is_empty() {
                    format!("there is no setting `{key}` in [{section}]; there are {}", known.join(", "))
                } else {
                    format!("there is no setting `{key}` in [{section}]{hint}")
                }
            }
        },
        SetError::Value(message) => format!("{section}.{key}: {message}"),
    })
}

#[cfg(test)]
mod tests;
