//! Joins and leaves of a channel, sent to its subscribers: immediately while they are rare,
//! otherwise in batches.
//!
//! When N sessions return to a channel, sending each join to each subscriber takes N times N
//! messages. So a pause follows each batch, longer with more subscribers, and one message carries
//! the joins and leaves of the pause. A join and a leave of one client within a pause become the
//! leave alone, since presence may have shown the client in between. The bytes of a batch are
//! bounded, and the rest waits for the next batch. Leaves whose joins were never sent are bounded
//! too. A subscriber that follows joins and leaves converges to the presence of the channel.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::outgoing::bytes_of;
use crate::protocol::message::Push;

/// Pause between batches: one millisecond for each `SUBSCRIBERS_PER_MS` subscribers, within
/// `PAUSE_MS`, milliseconds.
const SUBSCRIBERS_PER_MS: usize = 20;
pub(super) const PAUSE_MS: (usize, usize) = (50, 1000);

/// Bytes of a batch for all subscribers together, and its bounds for each subscriber.
const BATCH_BYTES: usize = 16 << 20;
const MESSAGE_BYTES: (usize, usize) = (4 << 10, 64 << 10);

fn pause_ms(subscribers: usize) -> u64 {
    (subscribers / SUBSCRIBERS_PER_MS).clamp(PAUSE_MS.0, PAUSE_MS.1) as u64
}

fn message_bytes_max(subscribers: usize) -> usize {
    (BATCH_BYTES / subscribers.max(1)).clamp(MESSAGE_BYTES.0, MESSAGE_BYTES.1)
}

/// Bytes of waiting leaves whose joins were never sent. Beyond the bound, the join and the leave
/// are both dropped.
const UNANNOUNCED_LEAVES_BYTES: usize = 1 << 20;

/// The joins and leaves of a channel that wait.
#[derive(Default)]
pub(super) struct Announcements {
    /// When the next batch may be sent, milliseconds.
    next_ms: u64,
    /// The waiting pushes, one for each client, in the order of their arrival. Leaves precede
    /// joins, so that the membership that subscribers see does not grow while pushes wait.
    waiting: BTreeMap<(Kind, u64), Waiting>,
    by_client: HashMap<Uuid, (Kind, u64)>,
    count: u64,
    /// Bytes of waiting leaves whose joins were never sent.
    unannounced: usize,
    /// A task will send the waiting pushes.
    awaited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Leave,
    Join,
}

struct Waiting {
    client: Uuid,
    push: Push,
    /// Subscribers have received the join of the client.
    known: bool,
}

impl Waiting {
    fn unannounced_bytes(&self) -> usize {
        if self.push.leave.is_some() && !self.known { bytes_of(&self.push) } else { 0 }
    }
}

/// What happens to a new push.
pub(super) enum Announced {
    /// It is sent now.
    AtOnce(Box<Push>),
    /// It waits, and a task must call [`Announcements::next_batch`] after this pause, milliseconds.
    After(u64),
    /// It waits for such a task, or is dropped.
    Waits,
}

impl Announcements {
    /// Takes a push for `subscribers` subscribers. It waits if their partitions do not `keep_up`.
    pub(super) fn announce(
        &mut self,
        client: Uuid,
        push: Push,
        now_ms: u64,
        subscribers: usize,
        keep_up: bool,
    ) -> Announced {
        if !self.awaited && now_ms >= self.next_ms && keep_up {
            self.next_ms = now_ms + pause_ms(subscribers);
            return Announced::AtOnce(Box::new(push));
        }
        self.add(client, push);
        if self.awaited || self.waiting.is_empty() {
            return Announced::Waits;
        }
        self.awaited = true;
        Announced::After(self.next_ms.saturating_sub(now_ms).max(1))
    }

    /// Takes the next batch, which is empty if the partitions do not `keep_up`. Returns it with the
    /// pause before the next call, milliseconds, if more pushes wait.
    pub(super) fn next_batch(&mut self, now_ms: u64, subscribers: usize, keep_up: bool) -> (Vec<Push>, Option<u64>) {
        let pause_ms = pause_ms(subscribers);
        let pushes = if keep_up { self.take(message_bytes_max(subscribers)) } else { Vec::new() };
        self.next_ms = now_ms + pause_ms;
        self.awaited = !self.waiting.is_empty();
        (pushes, self.awaited.then_some(pause_ms))
    }

    /// Queues a push for the next batch. It replaces a waiting push of the same client.
    fn add(&mut self, client: Uuid, push: Push) {
        let before = self.by_client.remove(&client).and_then(|at| self.waiting.remove(&at));
        let kind = if push.leave.is_some() { Kind::Leave } else { Kind::Join };
        // Without a waiting push, the join of a leaving client was sent, and that of a joining
        // client was not.
        let known = before.as_ref().map_or(kind == Kind::Leave, |before| before.known);
        if let Some(before) = &before {
            self.unannounced -= before.unannounced_bytes();
        }
        // Presence may have shown the client in between, so its leave is sent though its join was
        // not.
        if kind == Kind::Leave && !known && self.unannounced + bytes_of(&push) > UNANNOUNCED_LEAVES_BYTES {
            return;
        }
        self.count += 1;
        let at = (kind, self.count);
        self.by_client.insert(client, at);
        let waiting = Waiting { client, push, known };
        self.unannounced += waiting.unannounced_bytes();
        self.waiting.insert(at, waiting);
    }

    /// Whether no push waits, and no task.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.by_client.is_empty() && !self.awaited
    }

    /// Takes the next batch: at most `bytes_max` bytes, and at least one push.
    fn take(&mut self, bytes_max: usize) -> Vec<Push> {
        let (mut pushes, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.waiting.first_entry() {
            bytes += bytes_of(&next.get().push);
            if !pushes.is_empty() && bytes > bytes_max {
                break;
            }
            let next = next.remove();
            self.by_client.remove(&next.client);
            self.unannounced -= next.unannounced_bytes();
            pushes.push(next.push);
        }
        pushes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::protocol::message::{ClientInfo, Presence};

    /// The join or leave of client `n`.
    pub(in crate::channels) fn push(n: u128, joins: bool) -> Push {
        let user = n.to_string();
        let presence = Some(Presence { info: Some(ClientInfo { user, ..ClientInfo::default() }) });
        let (join, leave) = if joins { (presence, None) } else { (None, presence) };
        Push { channel: "c".into(), join, leave, ..Push::default() }
    }

    #[test]
    fn the_last_join_or_leave_of_a_client_waits() {
        let mut announcements = Announcements::default();
        let one = Uuid::from_u128(1);
        // Presence may have shown the client between its join and its leave.
        announcements.add(one, push(1, true));
        announcements.add(one, push(1, false));
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]));
        // The join was sent; the client leaves, joins and leaves.
        announcements.add(one, push(1, false));
        announcements.add(one, push(1, true));
        announcements.add(one, push(1, false));
        // A single push is sent, however large it is.
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]));
        announcements.add(one, push(1, true));
        announcements.add(Uuid::from_u128(2), push(2, false));
        assert!(matches!(&announcements.take(1)[..], [Push { leave: Some(_), .. }]), "leaves first");
        assert!(matches!(&announcements.take(1)[..], [Push { join: Some(_), .. }]));
        assert!(announcements.waiting.is_empty() && announcements.by_client.is_empty());
        assert_eq!(announcements.unannounced, 0);
    }

    #[test]
    fn leaves_whose_joins_were_never_sent_are_bounded() {
        let mut announcements = Announcements::default();
        for n in 0..100_000 {
            announcements.add(Uuid::from_u128(n), push(n, true));
            announcements.add(Uuid::from_u128(n), push(n, false));
        }
        let waiting = announcements.waiting.len();
        assert!((1_000..50_000).contains(&waiting), "{waiting}");
        assert!(announcements.unannounced <= UNANNOUNCED_LEAVES_BYTES);
        assert_eq!(announcements.take(usize::MAX).len(), waiting);
        assert_eq!(announcements.unannounced, 0);
    }

    #[test]
    fn more_subscribers_get_fewer_and_smaller_batches() {
        assert_eq!((pause_ms(1), message_bytes_max(1)), (50, 64 << 10));
        assert_eq!((pause_ms(4000), message_bytes_max(4000)), (200, 4194));
        assert_eq!((pause_ms(1 << 20), message_bytes_max(1 << 20)), (1000, 4 << 10));
    }
}
