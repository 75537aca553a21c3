//! How much of what came from an origin is kept.

use std::time::Duration;

use super::{Input, Setting, Size};
use crate::config::schema::check_range;

/// The keys.
pub(super) const KEYS: [&str; 2] = ["space", "age"];

/// In microseconds: one second to ten years.
const AGE_US: (u64, u64) = (1_000_000, 315_360_000_000_000);
/// The least space above 0: a few small segments.
const SPACE_BYTES_MIN: u64 = 1 << 20;

/// How much of what came from an origin is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceSpec {
    /// Bytes; 0: as much as the pool allows.
    pub space: Size,
    /// Time after the last use; `None`: for ever.
    pub age: Option<Duration>,
}

impl SpaceSpec {
    pub(super) fn set(&mut self, key: &str, input: Input<'_>) -> Result<(), String> {
        match key {
            "space" => {
                let space = Size::read(input)?;
                if (1..SPACE_BYTES_MIN).contains(&space.0) {
                    return Err(format!("{space} is too little: use at least 1 MiB, or 0"));
                }
                self.space = space;
            }
            _ => {
                let age = Duration::read(input)?;
                check_range(&age, AGE_US)?;
                self.age = Some(age);
            }
        }
        Ok(())
    }

    pub(super) fn to_toml(self, all: &mut Vec<String>) {
        if self.space.0 > 0 {
            all.push(format!("space = {}", self.space.to_toml()));
        }
        all.extend(self.age.map(|age| format!("age = {}", age.to_toml())));
    }
}
