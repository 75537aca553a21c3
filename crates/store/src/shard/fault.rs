//! Why a record was not applied.

use crate::StoreError;
use crate::index::IndexError;
use crate::record::Value;
use crate::record::wire::Malformed;

/// Why a record was not applied.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The record itself cannot be decoded.
    Record(Malformed),
    /// The index could not read the key's current value.
    Index(IndexError),
}

impl From<Malformed> for Fault {
    fn from(e: Malformed) -> Self {
        Self::Record(e)
    }
}

impl From<IndexError> for Fault {
    fn from(e: IndexError) -> Self {
        Self::Index(e)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Record(e) => e.into(),
            Fault::Index(e) => e.into(),
        }
    }
}

/// Decodes an indexed value.
pub(crate) fn valued(value: &[u8]) -> Result<Value<'_>, Fault> {
    Value::decode(value).map_err(|e| Fault::Index(IndexError::damaged(e.to_string())))
}
