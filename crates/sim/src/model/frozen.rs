//! What a snapshot may show.

use std::collections::BTreeMap;

use super::{Key, Model, State};

/// What a snapshot may show of each key: the tags of writes, `None` for nothing. Of a key that is not named, nothing.
#[derive(Debug, Clone, Default)]
pub struct Frozen(BTreeMap<Key, Vec<Option<u64>>>);

impl Model {
    /// What a snapshot may show that was asked for at `start` and is made by now: of each key what a reader may have seen at some
    /// moment in between.
    pub fn freeze(&self, start: u64) -> Frozen {
        let mut all = BTreeMap::new();
        for (key, ops) in &self.keys {
            let must = |op: &super::Op| op.state != State::Failed && op.end.is_some_and(|end| end < start);
            let mut may: Vec<Option<u64>> = ops
                .iter()
                .filter(|op| op.state != State::Failed && Self::supersedes(ops, op, must).is_none())
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
    /// Holds everything that was read of a snapshot against what it may show. From then on it may show nothing else.
    ///
    /// # Errors
    /// What it must not show, or lacks.
    pub fn check(&mut self, seen: &BTreeMap<Key, u64>) -> Result<(), String> {
        if let Some(key) = seen.keys().find(|key| !self.0.contains_key(*key)) {
            return Err(format!("a snapshot shows {key:?}, which was written later"));
        }
        for (key, may) in &mut self.0 {
            let shown = seen.get(key).copied();
            if !may.contains(&shown) {
                return Err(format!("a snapshot shows {shown:?} of {key:?}, where there may have been {may:?}"));
            }
            *may = vec![shown];
        }
        Ok(())
    }
}
