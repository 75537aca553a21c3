//! MD5 of bodies: where they arrive when they are small, many at once by a worker when they are large.

mod lanes;
mod pool;

use ::md5::{Digest as _, Md5};
use bytes::Bytes;

pub(crate) use pool::Md5Pool;
use pool::Md5Stream;

/// The MD5 of one body in the making.
pub(crate) enum BodyMd5 {
    /// Computed by whoever brings the pieces.
    Here(Box<Md5>),
    /// Computed by the pool.
    Pooled(Md5Stream),
}

impl BodyMd5 {
    /// By the pool where one is given.
    pub(crate) fn new(pool: Option<&Md5Pool>) -> Self {
        match pool {
            Some(pool) => Self::Pooled(pool.stream()),
            None => Self::Here(Box::default()),
        }
    }

    pub(crate) async fn update(&mut self, piece: &Bytes) {
        match self {
            Self::Here(md5) => md5.update(piece),
            Self::Pooled(stream) => stream.update(piece.clone()).await,
        }
    }

    /// `None` when the pool has gone, as it does with its door.
    pub(crate) async fn finish(self) -> Option<[u8; 16]> {
        match self {
            Self::Here(md5) => Some(md5.finalize().into()),
            Self::Pooled(stream) => stream.finish().await,
        }
    }
}
