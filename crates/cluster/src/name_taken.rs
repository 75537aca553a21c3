//! Why a process must give way to another one of its name.

use std::fmt;

/// Why a process must end: another one has the name of its node. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameTaken {
    /// Two processes have one name, by mistake.
    Duplicate(String),
    /// The other one owns the archive of the pool by now.
    Superseded(String),
}

impl fmt::Display for NameTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Duplicate(why) | Self::Superseded(why)) = self;
        f.write_str(why)
    }
}
