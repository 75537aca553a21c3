//! Recognises disks of Steadfast by their labels, for tools that inspect raw bytes before a disk is
//! used.

use crate::label::{Found, uuid_text};
use crate::stripe::Member;
use crate::superdisk::pair::{DURABLE_MAGIC, FAST_MAGIC, Identity};

/// Offsets of the labels on a disk, in bytes; each label may be absent.
pub const MARK_OFFSETS: [u64; 4] = [0, 512 << 10, 256 << 10, 768 << 10];

/// The role of a disk according to its label. UUIDs are in their usual text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// One disk of a stripe.
    StripeMember {
        /// UUID of the stripe.
        stripe: String,
        /// Number of the member, from 0.
        index: u32,
        /// Number of members.
        count: u32,
        /// Size of a chunk in bytes.
        chunk_bytes: u64,
    },
    /// The fast leg of a super-disk.
    Fast {
        /// UUID of the pair.
        pair: String,
        /// Generation in which the leg last belonged to the pair.
        generation: u64,
    },
    /// The durable leg of a super-disk.
    Durable {
        /// UUID of the pair.
        pair: String,
        /// Number of openings of the pair.
        generation: u64,
    },
    /// A label of Steadfast that is damaged or of another version; the text names the defect.
    Damaged(String),
}

/// Decodes the label of a block that was read at one of [`MARK_OFFSETS`]; `None` when it is not a
/// label of Steadfast.
pub fn mark(block: &[u8]) -> Option<Mark> {
    match Member::look(block) {
        Found::Label(m) => {
            let (stripe, chunk_bytes) = (uuid_text(&m.stripe), m.chunk_bytes);
            return Some(Mark::StripeMember { stripe, index: m.index, count: m.count, chunk_bytes });
        }
        Found::Damaged => return Some(Mark::Damaged("a disk of a stripe: its label is damaged".into())),
        Found::Version(version) => {
            return Some(Mark::Damaged(format!("a disk of a stripe: its label is of format version {version}")));
        }
        Found::Blank | Found::Other => {}
    }
    for magic in [FAST_MAGIC, DURABLE_MAGIC] {
        match Identity::look(block, magic) {
            Found::Label(id) => {
                let (pair, generation) = (uuid_text(&id.pair), id.generation);
                return Some(if magic == FAST_MAGIC {
                    Mark::Fast { pair, generation }
                } else {
                    Mark::Durable { pair, generation }
                });
            }
            Found::Damaged => return Some(Mark::Damaged("a leg of a super-disk: its label is damaged".into())),
            Found::Version(version) => {
                let text = format!("a leg of a super-disk: its label is of format version {version}");
                return Some(Mark::Damaged(text));
            }
            Found::Blank | Found::Other => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{BLOCK, Disk, MemDisk, Stripe, StripeOptions, Superdisk, SuperdiskOptions};
    use steadfast_flow::Env;

    async fn marks(disk: &Arc<dyn Disk>) -> Vec<Mark> {
        let mut found = Vec::new();
        for offset in MARK_OFFSETS {
            found.extend(mark(&disk.read(offset, BLOCK).await.expect("read")));
        }
        found
    }

    #[tokio::test]
    async fn disks_are_recognised_by_their_role() {
        let env = Env::tokio();
        let disk = || -> Arc<dyn Disk> { Arc::new(MemDisk::fixed(16 << 20)) };
        let blank = disk();
        assert_eq!(marks(&blank).await, []);
        let members = [disk(), disk()];
        Stripe::format(&members, &env, &StripeOptions::default(), false).await.expect("made");
        let found = marks(&members[1]).await;
        assert!(found.len() == 2 && matches!(&found[0], Mark::StripeMember { index: 1, count: 2, .. }), "{found:?}");
        let durable = disk();
        let superdisk = Superdisk::open(durable.clone(), None, env, SuperdiskOptions::default()).await.expect("open");
        let found = marks(&durable).await;
        assert!(
            found.len() == 2 && found.iter().all(|m| matches!(m, Mark::Durable { generation: 1, .. })),
            "{found:?}"
        );
        superdisk.close().await;
    }
}
