//! The allowed content of a snapshot.

use std::collections::BTreeMap;

use super::{Key, Model, OpState};

/// The allowed content of a snapshot for each key: tags of writes, `None` for no object. A key that
/// is not listed must have no object.
#[derive(Debug, Clone, Default)]
pub struct Frozen(BTreeMap<Key, Vec<Option<u64>>>);

impl Model {
    /// The allowed content of a snapshot that was requested at `start` and created by now: for each
    /// key, what a reader may have seen at some time in between.
    pub fn freeze(&self, start: u64) -> Frozen {
        let mut all = BTreeMap::new();
        for (key, ops) in &self.keys {
            let must = |op: &super::Op| op.state != OpState::Failed && op.end.is_some_and(|end| end < start);
            let mut may: Vec<Option<u64>> = ops
                .iter()
                .filter(|op| op.state != OpState::Failed && Self::supersedes(ops, op, must).is_none())
                .map(|op| op.tag)
                .collect();
            if !ops.iter().any(must) {
                may.push(None);
            }
            all.insert(key.clone(), may);
        }
        Frozen(all)
    }
}

impl Frozen {
    /// Compares the whole content of a snapshot with the allowed content. From then on, only this
    /// content is allowed.
    ///
    /// # Errors
    /// If it shows forbidden content or lacks required content.
    pub fn check(&mut self, seen: &BTreeMap<Key, u64>) -> Result<(), String> {
        if let Some(key) = seen.keys().find(|key| !self.0.contains_key(*key)) {
            return Err(format!("a snapshot shows {key:?}, which was written later"));
        }
        for (key, may) in &mut self.0 {
            let shown = seen.get(key).copied();
            if !may.contains(&shown) {
                return Err(format!("a snapshot shows {shown:?} of {key:?}, but may only show one of {may:?}"));
            }
            *may = vec![shown];
        }
        Ok(())
    }
}
