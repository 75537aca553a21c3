//! Objects that no state names any more. Earlier states name them, and can be restored for a while.

use std::collections::BTreeSet;

use crate::changes::Part;
use crate::head::{Period, SegmentRun};
use crate::name::{ObjectName, UseId};

/// Objects that states since the last base named, and the newest one may not. An upload that no
/// state will name counts as one of them.
#[derive(Debug, Default)]
pub(crate) struct Dropped(BTreeSet<ObjectName>);

impl Dropped {
    /// Notes parts of a use that a later state does not have.
    pub(crate) fn note<'a>(&mut self, of: UseId, parts: impl IntoIterator<Item = &'a Part>) {
        self.0.extend(parts.into_iter().filter_map(|part| part.source.object(of)));
    }

    /// The objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectName> {
        self.0.iter().copied()
    }

    /// Adds others.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Ends a period: takes the objects that it named or wrote, but for those in which bytes of the
    /// newest state lie. No later state names what is taken.
    pub(crate) fn take(&mut self, ended: &Period, live: impl Iterator<Item = ObjectName>) -> Vec<ObjectName> {
        let mut all = std::mem::take(&mut self.0);
        all.insert(ObjectName::Base(ended.base));
        all.extend(SegmentRun::all(&ended.segments).map(ObjectName::Segment));
        live.for_each(|live| _ = all.remove(&live));
        all.into_iter().collect()
    }
}
