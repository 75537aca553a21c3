//! What must have survived a restart, and the known state from then on.

use std::collections::BTreeMap;

use steadfast_log::Lsn;

use super::{Demand, Key, Model, Op, OpState, Order, Seen};

impl Model {
    /// Records a clean close: all acknowledged writes must survive, except those of `unknown` keys,
    /// whose disk was missing.
    pub fn closed(&mut self, unknown: impl Fn(&Key) -> bool) {
        for (_, ops) in self.keys.iter_mut().filter(|(key, _)| !unknown(key)) {
            ops.iter_mut().filter(|op| op.state == OpState::Acked).for_each(|op| op.durable = true);
        }
    }

    /// Checks the content of all readable keys after a restart. With `clean`, the store had been
    /// closed, so all acknowledged writes must be present. From then on, the content is the known
    /// state, and writes that were not seen are lost for good. The state of unreadable keys does
    /// not change.
    ///
    /// # Errors
    /// If a write that must have survived is lost.
    pub fn restarted(&mut self, seen: &BTreeMap<Key, Seen>, clean: bool) -> Result<(), String> {
        for (key, state) in seen {
            if let Some((tag, version)) = state {
                let at = self.find(key, *tag)?;
                let Some(op) = self.keys.get_mut(key).and_then(|ops| ops.get_mut(at)) else { continue };
                if self.order == Order::Unordered {
                    continue;
                }
                if op.version.is_some_and(|known| known != *version) {
                    return Err(format!("{key:?} has version {version} after a restart, but was {op:?}"));
                }
                op.version = Some(*version);
            }
        }
        let durable = self.keys.values().flatten().filter(|op| op.durable && op.state != OpState::Failed);
        let mut reached = durable.filter_map(|op| op.version).max().unwrap_or(0);
        reached = reached.max(seen.values().flatten().map(|(_, version)| *version).max().unwrap_or(0));
        reached = match self.order {
            Order::OneLog if clean => Lsn::MAX,
            Order::OneLog => reached,
            // The versions of one disk say nothing about another. For a clean close, see `closed`.
            Order::PerKey | Order::Unordered => 0,
        };
        let clean = clean && self.order == Order::OneLog;
        loop {
            let mut needed = reached;
            for (key, state) in seen {
                let ops = self.keys.get(key).map_or(&[][..], Vec::as_slice);
                let must = |op: &Op| {
                    op.state != OpState::Failed
                        && (op.durable || (op.state == OpState::Acked && op.version.map_or(clean, |v| v <= reached)))
                };
                match state {
                    Some((tag, _)) => {
                        let Some(op) = ops.iter().find(|op| op.tag == Some(*tag)) else { continue };
                        if let Some(newer) = Self::supersedes(ops, op, must) {
                            return Err(format!("LOST: after a restart {key:?} shows {op:?} instead of {newer:?}"));
                        }
                    }
                    None => {
                        if !ops.iter().any(must) {
                            continue;
                        }
                        let deletes: Vec<&Op> = ops
                            .iter()
                            .filter(|op| op.tag.is_none() && op.state != OpState::Failed)
                            .filter(|op| Self::supersedes(ops, op, must).is_none())
                            .collect();
                        if deletes.is_empty() {
                            let newest = ops.iter().filter(|op| must(op)).max_by_key(|op| (op.version, op.end));
                            return Err(format!("LOST: after a restart {key:?} is missing: {newest:?}"));
                        }
                        // If only acknowledged deletes explain it, the log reached the first of
                        // them.
                        if self.order == Order::OneLog
                            && deletes.iter().all(|op| op.version.is_some_and(|v| v > reached))
                        {
                            needed = needed.max(deletes.iter().filter_map(|op| op.version).min().unwrap_or(0));
                        }
                    }
                }
            }
            if needed == reached {
                break;
            }
            reached = needed;
        }
        self.rebase(seen);
        Ok(())
    }

    /// Checks the content after a restart on a damaged medium: each object must once have been
    /// written.
    ///
    /// # Errors
    /// If an object was never written.
    pub fn restarted_damaged(&mut self, seen: &BTreeMap<Key, Seen>) -> Result<(), String> {
        for (key, state) in seen {
            let Some((tag, _)) = state else { continue };
            match self.contents.get(tag) {
                Some(content) if content.key == *key && !content.refused => {}
                other => return Err(format!("WRONG {key:?} shows tag {tag}: {other:?}")),
            }
        }
        self.rebase(seen);
        Ok(())
    }

    fn rebase(&mut self, seen: &BTreeMap<Key, Seen>) {
        let now = self.tick();
        for (key, ops) in &mut self.keys {
            let Some(state) = seen.get(key) else { continue };
            *self.eras.entry(key.clone()).or_default() += 1;
            ops.clear();
            if let Some((tag, version)) = state {
                ops.push(Op {
                    tag: Some(*tag),
                    demand: Demand::None,
                    start: now,
                    end: Some(now),
                    version: Some(*version).filter(|_| self.order != Order::Unordered),
                    state: OpState::Acked,
                    lax: false,
                    durable: true,
                });
            }
        }
    }
}
