//! Tenures: which of two processes with the name of one home owns its pool.

use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message;

use crate::roster::NodeIndex;

/// The time in which one process owns the pool of a home. The archive of the pool numbers it: each
/// start and each promotion of a standby begins a later one.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Tenure {
    /// The identity of the archive; empty: the pool has none.
    #[prost(string, tag = "1")]
    pub archive: String,
    /// Its number in the archive, from 1; 0: none.
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

impl Tenure {
    /// Whether this is a later tenure than `other`. Tenures of different archives have no order.
    pub(crate) fn supersedes(&self, other: &Self) -> bool {
        !self.archive.is_empty() && self.archive == other.archive && self.number > other.number
    }

    fn check(&self, latest: &Self) -> Result<(), String> {
        if !latest.supersedes(self) {
            return Ok(());
        }
        Err(format!(
            "the process that answers has tenure {}, and another one has tenure {}: it does not own the archive of its pool \
             any more. If the archive was put back to an earlier state, restart this node",
            self.number, latest.number
        ))
    }
}

/// The tenure of this process now.
pub type OwnTenure = Arc<dyn Fn() -> Tenure + Send + Sync>;

/// The tenure of this process, and the latest of each node that it has had a link to.
pub(crate) struct Tenures {
    own: (NodeIndex, OwnTenure),
    latest: Vec<Mutex<Tenure>>,
}

impl Tenures {
    pub(crate) fn new(nodes: usize, node: NodeIndex, own: OwnTenure) -> Self {
        Self { own: (node, own), latest: (0..nodes).map(|_| Mutex::default()).collect() }
    }

    pub(crate) fn own(&self) -> Tenure {
        self.own.1()
    }

    /// The latest tenure of a node that is known here.
    pub(crate) fn latest(&self, node: NodeIndex) -> Tenure {
        if node == self.own.0 { self.own() } else { self.latest[usize::from(node.0)].lock().clone() }
    }

    /// Checks the tenure of a node's process.
    ///
    /// # Errors
    /// A later one is known; the text is for operators.
    pub(crate) fn check(&self, node: NodeIndex, tenure: &Tenure) -> Result<(), String> {
        tenure.check(&self.latest(node))
    }

    /// As [`Tenures::check`], and notes the tenure. A process without an archive changes nothing.
    pub(crate) fn note(&self, node: NodeIndex, tenure: &Tenure) -> Result<(), String> {
        assert!(node != self.own.0, "the tenure of this process is not noted");
        let mut latest = self.latest[usize::from(node.0)].lock();
        tenure.check(&latest)?;
        if !tenure.archive.is_empty() {
            latest.clone_from(tenure);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(archive: &str, number: u64) -> Tenure {
        Tenure { archive: archive.to_owned(), number }
    }

    #[test]
    fn a_node_never_returns_to_an_earlier_tenure_of_an_archive() {
        let tenures = Tenures::new(2, NodeIndex(0), Arc::new(|| of("x", 7)));
        let other = NodeIndex(1);
        assert_eq!(
            (tenures.own().number, tenures.latest(NodeIndex(0)).number, tenures.latest(other).number),
            (7, 7, 0)
        );
        for (tenure, expected) in [
            (of("x", 2), true),
            (of("x", 2), true),
            (of("x", 1), false),
            (of("x", 3), true),
            // A pool that got another archive.
            (of("y", 1), true),
        ] {
            assert_eq!(tenures.check(other, &tenure).is_ok(), expected, "{tenure:?}");
            assert_eq!(tenures.note(other, &tenure).is_ok(), expected, "{tenure:?}");
            assert_eq!(tenures.latest(other) == tenure, expected, "{tenure:?}");
        }
        tenures.note(other, &of("", 0)).expect("a process without an archive");
        assert_eq!(tenures.latest(other), of("y", 1));
    }
}
