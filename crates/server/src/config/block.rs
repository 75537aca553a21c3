//! Block devices: `[[block]]` tables.

use std::path::PathBuf;

use steadfast_block::Listen;
use toml::de::DeValue;

use super::error::nearest;
use super::setting::{Input, Paths, Setting};

/// A block device that is served over NBD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSpec {
    /// The name of the export.
    pub name: String,
    /// The durable disk: it holds all acknowledged data.
    pub durable: PathBuf,
    /// Fast local disks in front of it; several are striped.
    pub fast: Paths,
    /// Address for clients.
    pub listen: Listen,
    /// Whether writes are refused.
    pub read_only: bool,
}

const KEYS: [&str; 5] = ["name", "durable", "fast", "listen", "read_only"];
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Checks the name of a device.
///
/// # Errors
/// The rules of a name.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(format!(
            "{name:?} is not a name for a block device: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(())
}

impl BlockSpec {
    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let DeValue::Table(table) = value else {
            return Err("write [[block]] on a line, and name, durable, fast and listen below".to_owned());
        };
        let (mut name, mut durable, mut fast) = (String::new(), None, Paths::default());
        let (mut listen, mut read_only) = (None, false);
        for (key, value) in table {
            let input = Input::Value(value.get_ref());
            match key.get_ref().as_ref() {
                "name" => name = String::read(input)?,
                "durable" => durable = Some(PathBuf::read(input)?),
                "fast" => fast = Paths::read(input)?,
                "listen" => listen = Some(String::read(input)?.parse().map_err(|e| format!("listen: {e}"))?),
                "read_only" => read_only = bool::read(input).map_err(|e| format!("read_only: {e}"))?,
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    let near = near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")));
                    return Err(format!("a block device has no `{other}`{near}"));
                }
            }
        }
        check_name(&name)?;
        let missing = |key: &str| format!("the block device {name} needs `{key}`");
        let durable = durable.ok_or_else(|| missing("durable"))?;
        let listen = listen.ok_or_else(|| missing("listen"))?;
        Ok(Self { name, durable, fast, listen, read_only })
    }

    /// The device as a TOML table.
    pub fn to_toml(&self) -> String {
        let (name, durable) = (self.name.to_toml(), self.durable.to_toml());
        let (fast, listen) = (self.fast.to_toml(), self.listen.to_string().to_toml());
        format!(
            "\n[[block]]\nname = {name}\ndurable = {durable}\nfast = {fast}\nlisten = {listen}\nread_only = {}\n",
            self.read_only
        )
    }

    /// All its disks.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.durable).chain(&self.fast.0)
    }
}

/// Reads the tables.
///
/// # Errors
/// The first mistake.
pub(super) fn read(value: &DeValue<'_>) -> Result<Vec<BlockSpec>, String> {
    let DeValue::Array(items) = value else {
        return Err("write [[block]], with two brackets, for each block device".to_owned());
    };
    let specs = items.iter().map(|item| BlockSpec::from_value(item.get_ref())).collect::<Result<Vec<_>, _>>()?;
    for (i, spec) in specs.iter().enumerate() {
        for other in &specs[..i] {
            if other.name == spec.name {
                return Err(format!("there are two block devices of the name {:?}", spec.name));
            }
            if other.listen == spec.listen {
                return Err(format!("two block devices listen on {}", spec.listen));
            }
        }
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const GOOD: &str =
        "[[block]]\nname = \"db\"\ndurable = \"/dev/sdb\"\nfast = [\"/dev/nvme0n1\"]\nlisten = \"unix:/run/db\"\n";

    #[test]
    fn block_devices_are_read_and_written() {
        let config = parse(&format!("[output]\nlevel = \"warn\"\n\n{GOOD}")).expect("valid");
        assert_eq!((config.block.len(), &config.block[0].name[..], config.block[0].read_only), (1, "db", false));
        assert_eq!(parse(&config.to_toml()).expect("valid").block, config.block);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            (GOOD.replace("durable", "durabel"), "did you mean `durable`?"),
            (GOOD.replace("name = \"db\"", "name = \"a b\""), "not a name"),
            (GOOD.replace("unix:/run/db", "10.0.0.1:10809"), "loopback"),
            (GOOD.replace("[[block]]", "[block]"), "two brackets"),
            (format!("{GOOD}{GOOD}"), "two block devices"),
            (GOOD.replace("listen = \"unix:/run/db\"\n", ""), "needs `listen`"),
            (GOOD.replace("/dev/nvme0n1", "/dev/sdb"), "stands there twice"),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
