//! The disks of a pool, each with its fast disks.

use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::error::nearest;
use super::kinds::read_list;
use super::setting::{Input, Paths, Setting};

/// A disk of a pool of several, with its own log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskSpec {
    /// The disk that holds all acknowledged data.
    pub path: PathBuf,
    /// Its fast disks, which make it a super-disk; empty for a single disk.
    pub fast: Paths,
}

/// The disks of a pool of several: paths, or tables with a path and fast disks. As text it is the
/// same list, or commas separate the disks, and ` + ` separates a disk from its fast disks.
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
        let disks = read_list(input, EXPECTED, DiskSpec::from_text, DiskSpec::from_value)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_list_in_brackets_or_disks_between_commas() {
        let read = |text: &str| DiskSpecs::read(Input::Text(text));
        let disk = |path: &str, fast: &[&str]| DiskSpec {
            path: path.into(),
            fast: Paths(fast.iter().map(PathBuf::from).collect()),
        };
        let expected = DiskSpecs(vec![disk("/a/x0", &["/f"]), disk("/a/x1", &[])]);
        for text in ["/a/x0 + /f,/a/x1", "[{ path = \"/a/x0\", fast = [\"/f\"] }, '/a/x1']", &expected.to_toml()] {
            assert_eq!(read(text).as_ref(), Ok(&expected), "{text}");
        }
        assert_eq!(read(" [\"/a/x1\"] "), Ok(DiskSpecs(vec![disk("/a/x1", &[])])));
        assert_eq!((read(""), read("[]")), (Ok(DiskSpecs::default()), Ok(DiskSpecs::default())));
        for wrong in ["[/a/x0, /a/x1]", "[\"/a/x0\"", "[\"/a/x0\"] /b"] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.starts_with("this begins like a list and is not one"), "{error}");
        }
    }
}
