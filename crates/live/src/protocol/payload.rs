//! The payload of a frame.

use bytes::Bytes;

/// The longest head of a frame, bytes: that of a WebSocket frame of the server.
const HEAD_MAX: usize = 10;

/// Capacity of a new payload, bytes.
const ROOM: usize = 128 - HEAD_MAX;

/// Capacity that a frame may keep beyond a quarter of its length, bytes.
const SPARE_MAX: usize = 512;

/// The payload of a frame, with room for the head, so that it becomes a frame without a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Default for Payload {
    fn default() -> Self {
        Self::with_capacity(ROOM)
    }
}

impl Payload {
    /// An empty payload with room for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Vec::with_capacity(HEAD_MAX + bytes);
        buffer.resize(HEAD_MAX, 0);
        Self(buffer)
    }

    /// The payload so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0[HEAD_MAX..]
    }

    /// The buffer, to append to it.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The frame: the head and the payload. The head has at most 10 bytes.
    pub fn with_head(mut self, head: &[u8]) -> Bytes {
        let at = HEAD_MAX - head.len();
        self.0[at..HEAD_MAX].copy_from_slice(head);
        // The bounds of queues count lengths, so a long frame keeps little more than its length.
        if self.0.capacity() > self.0.len() + self.0.len() / 4 + SPARE_MAX {
            self.0.shrink_to_fit();
        }
        Bytes::from(self.0).slice(at..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_keeps_little_more_than_its_length() {
        for len in [100, 70_000] {
            let mut payload = Payload::default();
            payload.buffer().reserve_exact(10 * len);
            payload.buffer().resize(HEAD_MAX + len, b'x');
            let frame = payload.with_head(&[1, 2]);
            assert_eq!((frame.len(), &frame[..3]), (len + 2, &[1, 2, b'x'][..]));
            let kept = frame.try_into_mut().expect("it has one owner").capacity();
            assert!(kept <= len + len / 4 + SPARE_MAX + HEAD_MAX, "{kept} bytes for {len}");
        }
    }
}
