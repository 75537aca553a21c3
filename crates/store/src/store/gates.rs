//! Gates of slots: open, except for the moment in which a slot moves to another disk.
//!
//! A writer passes the gate of the key's slot first, then looks up the home, and stays inside until
//! its submitted records are decided. So a slot with a closed gate has no writers, and a writer
//! that waited at the gate finds the new home.

use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::StoreError;
use crate::layout::SLOTS;

/// The gates of all slots.
pub(crate) struct Gates(Vec<RwLock<()>>);

/// Permission to change a slot.
pub(crate) struct Pass<'a>(#[allow(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Excludes writers from some slots while it is held.
pub(crate) struct ClosedGates<'a>(#[allow(dead_code, reason = "held")] Vec<RwLockWriteGuard<'a, ()>>);

impl Default for Gates {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| RwLock::new(())).collect())
    }
}

impl Gates {
    /// Passes a gate; waits while it is closed, at most for `wait`.
    ///
    /// # Errors
    /// [`StoreError::Busy`] after that.
    pub(crate) async fn pass(&self, slot: usize, env: &Env, wait: Duration) -> Result<Pass<'_>, StoreError> {
        if let Ok(pass) = self.0[slot].try_read() {
            return Ok(Pass(pass));
        }
        env.timeout(wait, self.0[slot].read())
            .await
            .map(Pass)
            .ok_or(StoreError::Busy("writes to a slot that is moving"))
    }

    /// Closes gates once all writers inside have left; `None` when that takes longer than `wait`.
    /// In ascending order, like writers that pass several gates.
    pub(crate) async fn close(&self, slots: &[usize], env: &Env, wait: Duration) -> Option<ClosedGates<'_>> {
        assert!(slots.is_sorted_by(|a, b| a < b), "gates are closed in ascending order, each once");
        let all = async {
            let mut closed = Vec::with_capacity(slots.len());
            for &slot in slots {
                closed.push(self.0[slot].write().await);
            }
            ClosedGates(closed)
        };
        env.timeout(wait, all).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_closed_gate_blocks_only_its_slot() {
        let (gates, env) = (Gates::default(), Env::tokio());
        let within = gates.pass(3, &env, LONG).await.expect("open");
        assert!(gates.close(&[2, 3], &env, Duration::from_millis(5)).await.is_none(), "a writer is inside");
        drop(gates.pass(2, &env, Duration::ZERO).await.expect("open again"));
        let mut closing = std::pin::pin!(gates.close(&[2, 3], &env, LONG));
        assert!(futures::poll!(closing.as_mut()).is_pending());
        drop(within);
        let closed = closing.await.expect("closed");
        let refused = gates.pass(3, &env, Duration::from_millis(5)).await;
        assert!(matches!(refused, Err(StoreError::Busy(_))));
        gates.pass(4, &env, Duration::ZERO).await.expect("open");
        let mut waiting = std::pin::pin!(gates.pass(2, &env, LONG));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(closed);
        waiting.await.expect("open");
    }
}
