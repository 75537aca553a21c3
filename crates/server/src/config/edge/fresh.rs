//! How long what came from an origin is served.

use std::time::Duration;

use steadfast_edge::Fresh;

use super::{Input, Setting};
use crate::config::schema::check_range;

/// The keys.
pub(super) const KEYS: [&str; 3] = ["fresh", "stale_if_error", "negative"];

const STALE_IF_ERROR: Duration = Duration::from_secs(24 * 3600);
const NEGATIVE: Duration = Duration::from_secs(10);
/// In microseconds: ten years.
const LONGEST_US: u64 = 315_360_000_000_000;

/// How long what came from an origin is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshSpec {
    /// Without asking the origin.
    pub fresh: Fresh,
    /// After that, when the origin fails.
    pub stale_if_error: Duration,
    /// That the origin has no such object.
    pub negative: Duration,
}

impl Default for FreshSpec {
    fn default() -> Self {
        Self { fresh: Fresh::Origin, stale_if_error: STALE_IF_ERROR, negative: NEGATIVE }
    }
}

impl FreshSpec {
    pub(super) fn set(&mut self, key: &str, input: Input<'_>) -> Result<(), String> {
        let text = String::read(input)?;
        let time = |text: &str| {
            // "0" needs no unit.
            let time = if text == "0" { Duration::ZERO } else { Duration::read(Input::Text(text))? };
            check_range(&time, (0, LONGEST_US)).map(|()| time)
        };
        match (key, text.as_str()) {
            ("fresh", "origin") => self.fresh = Fresh::Origin,
            ("fresh", "forever") => self.fresh = Fresh::Forever,
            ("fresh", other) => {
                let time = time(other).map_err(|why| format!("{why}; or use \"origin\" or \"forever\""))?;
                self.fresh = Fresh::Fallback(time);
            }
            ("stale_if_error", text) => self.stale_if_error = time(text)?,
            (_, text) => self.negative = time(text)?,
        }
        Ok(())
    }

    pub(super) fn to_toml(self, all: &mut Vec<String>) {
        match self.fresh {
            Fresh::Origin => {}
            Fresh::Fallback(time) => all.push(format!("fresh = {}", time.to_toml())),
            Fresh::Forever => all.push("fresh = \"forever\"".to_owned()),
        }
        let default = Self::default();
        if self.stale_if_error != default.stale_if_error {
            all.push(format!("stale_if_error = {}", self.stale_if_error.to_toml()));
        }
        if self.negative != default.negative {
            all.push(format!("negative = {}", self.negative.to_toml()));
        }
    }
}
