//! What must have survived a restart, and what is taken for there from then on.

use std::collections::BTreeMap;

use steadfast_log::Lsn;

use super::{Demand, Key, Model, Op, Order, Seen, State};

impl Model {
    /// The store was closed in order: what was answered must be there, but for `unknown` keys, whose disk was missing.
    pub fn closed(&mut self, unknown: impl Fn(&Key) -> bool) {
        for (_, ops) in self.keys.iter_mut().filter(|(key, _)| !unknown(key)) {
            ops.iter_mut().filter(|op| op.state == State::Acked).for_each(|op| op.durable = true);
        }
    }

    /// After a restart all keys have been read that could be, and this was seen. `clean`: the store had been closed, so everything
    /// answered must be there. Checks it, and from now on takes it for what is there; writes that were not seen are gone for good.
    /// Of keys that could not be read, nothing changes.
    ///
    /// # Errors
    /// When something that must have survived has not.
    pub fn restarted(&mut self, seen: &BTreeMap<Key, Seen>, clean: bool) -> Result<(), String> {
        for (key, state) in seen {
            if let Some((tag, version)) = state {
                let at = self.find(key, *tag)?;
                let Some(op) = self.keys.get_mut(key).and_then(|ops| ops.get_mut(at)) else { continue };
                if self.order == Order::Untold {
                    continue;
                }
                if op.version.is_some_and(|known| known != *version) {
                    return Err(format!("{key:?} came back with version {version}, not as {op:?}"));
                }
                op.version = Some(*version);
            }
        }
        let durable = self.keys.values().flatten().filter(|op| op.durable && op.state != State::Failed);
        let mut reached = durable.filter_map(|op| op.version).max().unwrap_or(0);
        reached = reached.max(seen.values().flatten().map(|(_, version)| *version).max().unwrap_or(0));
        reached = match self.order {
            Order::OneLog if clean => Lsn::MAX,
            Order::OneLog => reached,
            // What one disk has says nothing about another. After a close, see `closed`.
            Order::PerKey | Order::Untold => 0,
        };
        let clean = clean && self.order == Order::OneLog;
        loop {
            let mut needed = reached;
            for (key, state) in seen {
                let ops = self.keys.get(key).map_or(&[][..], Vec::as_slice);
                let must = |op: &Op| {
                    op.state != State::Failed
                        && (op.durable || (op.state == State::Acked && op.version.map_or(clean, |v| v <= reached)))
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
                            .filter(|op| op.tag.is_none() && op.state != State::Failed)
                            .filter(|op| Self::supersedes(ops, op, must).is_none())
                            .collect();
                        if deletes.is_empty() {
                            let newest = ops.iter().filter(|op| must(op)).max_by_key(|op| (op.version, op.end));
                            return Err(format!("LOST: after a restart {key:?} is gone: {newest:?}"));
                        }
                        // If only answered deletes explain it, the log reached the first of them.
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

    /// After a restart over a medium that has lost or damaged what it acknowledged: what was seen must once have been written.
    ///
    /// # Errors
    /// When it was not.
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
                    version: Some(*version).filter(|_| self.order != Order::Untold),
                    state: State::Acked,
                    lax: false,
                    durable: true,
                });
            }
        }
    }
}
