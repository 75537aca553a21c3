//! The disks of a pool, each with its fast disks.

use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::error::nearest;
use super::setting::{Input, Paths, Setting};

/// A disk of a pool of several, with its own log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSpec {
    /// The disk that holds all acknowledged data.
    pub path: PathBuf,
    /// Its fast disks, which make it a super-disk; empty for a single disk.
    pub fast: Paths,
}

/// The disks of a pool of several: paths, or tables with a path and fast disks. As text, commas
/// separate the disks, and ` + ` separates a disk from its fast disks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSpecs(pub Vec<DiskSpec>);

const EXPECTED: &str =
    "a list of disks such as [\"/dev/sdb\", \"/dev/sdc\"], or [{ path = \"/dev/sdb\", fast = [\"/dev/nvme0n1\"] }]";
const KEYS: [&str; 2] = ["path", "fast"];

impl DiskSpec {
    fn from_text(text: &str) -> Result<Self, String> {
        let mut parts = text.split(" + ").map(str::trim);
        let path = parts.next().filter(|path| !path.is_empty()).ok_or_else(|| format!("expected {EXPECTED}"))?;
        Ok(Self { path: path.into(), fast: Paths(parts.filter(|part| !part.is_empty()).map(PathBuf::from).collect()) })
    }

    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let table = match value {
            DeValue::String(path) if !path.is_empty() => {
                return Ok(Self { path: PathBuf::from(path.as_ref()), fast: Paths::default() });
            }
            DeValue::Table(table) => table,
            _ => return Err(format!("expected {EXPECTED}")),
        };
        let mut this = Self::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "path" => this.path = PathBuf::read(Input::Value(value.get_ref()))?,
                "fast" => this.fast = Paths::read(Input::Value(value.get_ref()))?,
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    return Err(format!("a disk has no `{other}`{}", near.unwrap_or("; it has path and fast".into())));
                }
            }
        }
        if this.path.as_os_str().is_empty() {
            return Err("a disk needs a `path`".to_owned());
        }
        Ok(this)
    }
}

impl Setting for DiskSpecs {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let disks: Vec<DiskSpec> = match &input {
            Input::Text(text) => text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(DiskSpec::from_text)
                .collect::<Result<_, _>>()?,
            Input::Value(DeValue::Array(items)) => {
                items.iter().map(|item| DiskSpec::from_value(item.get_ref())).collect::<Result<_, _>>()?
            }
            // A single one may be written without brackets.
            Input::Value(DeValue::String(path)) if path.is_empty() => Vec::new(),
            Input::Value(value) => vec![DiskSpec::from_value(value)?],
        };
        let mut known: Vec<&Path> = Vec::new();
        for path in disks.iter().flat_map(|disk| std::iter::once(&disk.path).chain(&disk.fast.0)) {
            if known.contains(&path.as_path()) {
                return Err(format!("{} stands there twice", path.display()));
            }
            known.push(path);
        }
        Ok(Self(disks))
    }

    fn to_toml(&self) -> String {
        let one = |disk: &DiskSpec| {
            let path = disk.path.to_toml();
            if disk.fast.0.is_empty() { path } else { format!("{{ path = {path}, fast = {} }}", disk.fast.to_toml()) }
        };
        format!("[{}]", self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// The disks of one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSet {
    /// The durable disk, or those of a stripe in order.
    pub durable: Vec<PathBuf>,
    /// Their fast disks, in order; empty: no super-disk.
    pub fast: Vec<PathBuf>,
    /// Whether it is a hint from an earlier run, not from the configuration.
    pub hint: bool,
}

impl DiskSet {
    /// The name of the set.
    pub fn name(&self) -> String {
        self.durable.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}
