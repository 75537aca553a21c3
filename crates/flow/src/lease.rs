//! Until when a process may answer its clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::env::Env;

/// The end of a lease that does not end.
const NEVER: u64 = u64::MAX;

struct LeaseEnd {
    /// The end in nanoseconds of [`Env::boot_time`].
    end_ns: AtomicU64,
    env: Env,
}

/// Until when a process may answer its clients; another process may take its place after that.
///
/// An answer is determined first, then the lease is looked at, and then its bytes are sent. So a
/// process that was paused meanwhile sends nothing that another one has made untrue. Clones share
/// it.
#[derive(Clone)]
pub struct Lease(Arc<LeaseEnd>);

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({:?})", self.left())
    }
}

impl Lease {
    /// A lease that does not end.
    pub fn unlimited(env: &Env) -> Self {
        Self(Arc::new(LeaseEnd { end_ns: AtomicU64::new(NEVER), env: env.clone() }))
    }

    /// Ends the lease now, until it is renewed.
    pub fn end(&self) {
        self.0.end_ns.store(0, SeqCst);
    }

    /// The lease ends at this time of [`Env::boot_time`].
    pub fn renew(&self, end: Duration) {
        let end_ns = u64::try_from(end.as_nanos()).unwrap_or(NEVER);
        assert!(end_ns < NEVER, "a lease of a process that keeps one has an end");
        self.0.end_ns.store(end_ns, SeqCst);
    }

    /// Whether the process may answer now.
    pub fn holds(&self) -> bool {
        self.left().is_none_or(|left| !left.is_zero())
    }

    /// Time for which the process may answer; `None`: without end.
    pub fn left(&self) -> Option<Duration> {
        match self.0.end_ns.load(SeqCst) {
            NEVER => None,
            end_ns => Some(Duration::from_nanos(end_ns).saturating_sub(self.0.env.boot_time())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_holds_until_its_end() {
        let env = Env::tokio();
        let lease = Lease::unlimited(&env);
        assert!(lease.holds() && lease.left().is_none(), "it does not end");
        lease.end();
        assert!(!lease.holds(), "it was ended");
        let (soon, later) = (Duration::from_millis(50), Duration::from_secs(60));
        lease.clone().renew(env.boot_time() + later);
        assert!(lease.holds() && lease.left().is_some_and(|left| left <= later));
        lease.renew(env.boot_time() + soon);
        env.sleep(soon).await;
        assert!(!lease.holds(), "it has ended");
    }
}
