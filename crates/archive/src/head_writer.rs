//! Replaces the head of an archive.

use bytes::Bytes;
use steadfast_net::{EntityTag, RemoteError};

use crate::attempts::{Attempts, Pause};
use crate::document::{DocumentKind, decode, encode};
use crate::error::ArchiveError;
use crate::head::Head;
use crate::name::HEAD;

/// Most bytes of a head.
pub(crate) const HEAD_BYTES_MAX: u64 = 8 << 20;

/// A head that is known: it was read, or its replacement was answered.
#[derive(Debug, Clone)]
pub(crate) struct KnownHeadObject {
    pub(crate) head: Head,
    /// The bytes of the log that it names.
    pub(crate) payload: Bytes,
    pub(crate) body: Bytes,
    tag: EntityTag,
}

/// The tenure of a head, for the simulator.
#[doc(hidden)]
pub fn tenure_of_head(body: &Bytes) -> Option<u64> {
    decode::<Head>(DocumentKind::Head, body).ok().map(|(head, _)| head.tenure)
}

/// How a replacement ended.
pub(crate) enum Replaced {
    /// The head is the new one.
    Done(KnownHeadObject),
    /// The head is another one: another process has replaced it.
    Taken(Head),
}

impl KnownHeadObject {
    /// Reads the head once; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store, and [`ArchiveError::Broken`] within the result.
    pub(crate) async fn read_once(attempts: &Attempts) -> Result<Option<Result<Self, ArchiveError>>, RemoteError> {
        let object = match attempts.read_once(HEAD, None, HEAD_BYTES_MAX).await {
            Ok(object) => object,
            Err(RemoteError::Missing) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(tag) = object.tag else {
            return Ok(Some(Err(ArchiveError::broken(HEAD, "the store gave no entity tag"))));
        };
        let decoded = decode(DocumentKind::Head, &object.body).map_err(ArchiveError::document(HEAD));
        Ok(Some(decoded.map(|(head, payload)| Self { head, payload, body: object.body, tag })))
    }

    /// Reads a head that must exist.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if it was removed or is not one any more.
    pub(crate) async fn read(attempts: &Attempts) -> Result<Self, ArchiveError> {
        let mut pause = Pause::new();
        loop {
            match Self::read_once(attempts).await {
                Ok(Some(head)) => return head,
                Ok(None) => return Err(ArchiveError::broken(HEAD, "it was removed")),
                Err(_) => attempts.wait(&mut pause).await?,
            }
        }
    }

    /// Creates the first head: one attempt.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn create_once(attempts: &Attempts, head: Head) -> Result<Self, RemoteError> {
        let body = encode(DocumentKind::Head, &head, &[]);
        let tag = attempts.create_once(HEAD, std::slice::from_ref(&body)).await?;
        Ok(Self { head, payload: Bytes::new(), body, tag })
    }

    /// Gives the archive another owner, with the same cut. `None`: there is no further head.
    ///
    /// # Errors
    /// Those of [`KnownHeadObject::replace`].
    pub(crate) async fn take(self, attempts: &Attempts, next: Option<Head>) -> Result<Replaced, ArchiveError> {
        let next = next.ok_or_else(|| ArchiveError::broken(HEAD, "its version is impossible"))?;
        assert_eq!(next.cut, self.head.cut, "a claim changes nothing");
        let payload = self.payload.clone();
        self.replace(attempts, next, &[payload]).await
    }

    /// Replaces this head by `next`, which has a payload. Without a clear answer the same bytes are
    /// sent again, until it is known what happened.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] if the head was removed or is not one any more.
    pub(crate) async fn replace(
        self,
        attempts: &Attempts,
        next: Head,
        payload: &[Bytes],
    ) -> Result<Replaced, ArchiveError> {
        assert_eq!(next.version, self.head.version + 1, "each head has the next version");
        let body = encode(DocumentKind::Head, &next, payload);
        assert!((body.len() as u64) < HEAD_BYTES_MAX, "a head of {} bytes", body.len());
        let (mut pause, mut over) = (Pause::new(), self.tag);
        loop {
            if let Ok(tag) = attempts.replace_once(HEAD, &body, &over).await {
                let (head, payload) = decode(DocumentKind::Head, &body).expect("it was encoded here");
                return Ok(Replaced::Done(Self { head, payload, body, tag }));
            }
            // It may have happened, or may still happen: only a later version decides.
            match Self::read_once(attempts).await {
                Ok(Some(there)) => {
                    let there = there?;
                    if there.body == body {
                        return Ok(Replaced::Done(there));
                    }
                    if there.head.version >= next.version {
                        return Ok(Replaced::Taken(there.head));
                    }
                    if there.body != self.body {
                        return Err(ArchiveError::broken(HEAD, "it was put back to an earlier state"));
                    }
                    over = there.tag;
                }
                Ok(None) => return Err(ArchiveError::broken(HEAD, "it was removed")),
                Err(_) => {}
            }
            attempts.wait(&mut pause).await?;
        }
    }
}
