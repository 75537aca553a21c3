//! MD5 of bodies: small ones where they arrive, many large ones at once on a worker.

mod lanes;
mod pool;

use ::md5::{Digest as _, Md5};
use bytes::Bytes;

pub(crate) use pool::Md5Pool;
use pool::Md5Stream;

/// The MD5 of one body under computation.
pub(crate) enum BodyMd5 {
    /// Computed by the caller of [`BodyMd5::update`].
    Here(Box<Md5>),
    /// Computed by the pool.
    Pooled(Md5Stream),
}

impl BodyMd5 {
    /// A new MD5, on the pool if one is given.
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

    /// The digest; `None` when the pool has been dropped, as it is with its door.
    pub(crate) async fn finish(self) -> Option<[u8; 16]> {
        match self {
            Self::Here(md5) => Some(md5.finalize().into()),
            Self::Pooled(stream) => stream.finish().await,
        }
    }
}
