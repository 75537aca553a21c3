//! Gates of slots: open, but for the moment in which a slot moves to another disk.
//!
//! Whoever changes something passes the gate of the key's slot first, looks up the home after that, and stays within until what it
//! submitted is decided. So a slot whose gate has been closed is written by nobody, and whoever waited at it finds the new home.

use std::time::Duration;

use steadfast_flow::Env;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::StoreError;
use crate::layout::SLOTS;

/// See the module.
pub(crate) struct Gates(Vec<RwLock<()>>);

/// Leave to change something of a slot.
pub(crate) struct Pass<'a>(#[allow(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Nobody changes anything of some slots while this is held.
pub(crate) struct Closed<'a>(#[allow(dead_code, reason = "held")] Vec<RwLockWriteGuard<'a, ()>>);

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

    /// Closes gates, when all who are within have left; `None` when that took longer than `wait`. In ascending order, as those do who pass
    /// several.
    pub(crate) async fn close(&self, slots: &[usize], env: &Env, wait: Duration) -> Option<Closed<'_>> {
        debug_assert!(slots.is_sorted());
        let all = async {
            let mut closed = Vec::with_capacity(slots.len());
            for &slot in slots {
                closed.push(self.0[slot].write().await);
            }
            Closed(closed)
        };
        env.timeout(wait, all).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_closed_gate_lets_nobody_through_and_the_others_do() {
        let (gates, env) = (Gates::default(), Env::tokio());
        let within = gates.pass(3, &env, LONG).await.expect("open");
        assert!(gates.close(&[2, 3], &env, Duration::from_millis(5)).await.is_none(), "somebody is within");
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
