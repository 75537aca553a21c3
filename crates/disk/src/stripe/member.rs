//! The label of a member: its stripe, and its place in it.

use std::io;
use std::sync::Arc;

use crate::label::{Found, Label, VERSION_1, field, look, u32_at, u64_at};
use crate::{BLOCK, Disk};

const MAGIC: [u8; 8] = *b"STEADSTR";
/// Offsets of the two copies of the label on a member.
pub(super) const LABELS: [u64; 2] = [0, 512 << 10];

/// The content of a member's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) stripe: [u8; 16],
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) chunk_bytes: u64,
}

impl Member {
    pub(super) fn encode(&self) -> [u8; BLOCK] {
        let mut label = Label::new(MAGIC, VERSION_1);
        label.put(16, &self.stripe);
        label.put(32, &self.index.to_le_bytes());
        label.put(36, &self.count.to_le_bytes());
        label.put(40, &self.chunk_bytes.to_le_bytes());
        label.seal()
    }

    pub(crate) fn look(block: &[u8]) -> Found<Self> {
        look(block, MAGIC, VERSION_1, |b, _| Self {
            stripe: field(b, 16),
            index: u32_at(b, 32),
            count: u32_at(b, 36),
            chunk_bytes: u64_at(b, 40),
        })
    }
}

/// Reads a member's label; either copy is enough.
pub(super) async fn read_label(disk: &Arc<dyn Disk>) -> io::Result<Member> {
    let mut why = "it holds no label of a stripe: it is missing, blank or of something else".to_owned();
    for offset in LABELS {
        if offset + BLOCK as u64 > disk.len() {
            continue;
        }
        match disk.read(offset, BLOCK).await {
            Ok(block) => match Member::look(&block) {
                Found::Label(member) => return Ok(member),
                Found::Damaged => why = "its label is damaged".into(),
                Found::Version(version) => why = format!("its label is of format version {version}"),
                Found::Blank | Found::Other => {}
            },
            Err(error) => why = format!("its label cannot be read: {error}"),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("stripe member {}: {why}", disk.describe())))
}
