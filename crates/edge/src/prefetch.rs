//! Fetching ahead of requests.

use bytes::BytesMut;
use futures::{StreamExt, TryStreamExt};

use crate::edge::{Edge, Fetched};
use crate::error::EdgeError;
use crate::origin::OriginPage;
use crate::passed::Wanted;

/// Longest answer with a page of a listing, in bytes.
const LISTING_BYTES_MAX: usize = 4 << 20;

/// What became of a key that was to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetched {
    /// It was fetched: its size in bytes.
    Fetched(u64),
    /// It is stored: its size in bytes.
    Stored(u64),
    /// It cannot be stored.
    NotStorable,
}

impl Edge {
    /// Fetches an object whole, unless it is stored and fresh.
    ///
    /// # Errors
    /// Those of [`Edge::get`].
    pub async fn prefetch(&self, bucket: &str, key: &str) -> Result<Prefetched, EdgeError> {
        let entry = self.entry(bucket, key)?;
        Ok(match self.find(entry, key, &Wanted::default()).await?.found {
            Fetched::Object(reader) => Prefetched::Stored(reader.info().size),
            Fetched::Passed(_) => Prefetched::NotStorable,
            Fetched::Fill(reader) => {
                let size = reader.info().size;
                // A reader makes the fill fetch all segments.
                reader.stream(0..size).try_for_each(async |_| Ok(())).await?;
                Prefetched::Fetched(size)
            }
        })
    }

    /// A page of what the origin lists: keys that begin with `prefix` and follow `after`. `None`
    /// for an origin that cannot list.
    ///
    /// # Errors
    /// [`EdgeError`]: the origin failed, or its answer is not a listing.
    pub async fn list_origin(&self, bucket: &str, prefix: &str, after: &str) -> Result<Option<OriginPage>, EdgeError> {
        let bucket_state = &self.entry_of(bucket)?.bucket_state;
        let Some(answer) = bucket_state.origin.list(prefix, after) else { return Ok(None) };
        let _connection = bucket_state.connect_ahead().await?;
        bucket_state.counters.requested();
        let read = async {
            let mut answer = answer.await.map_err(|error| bucket_state.unreachable(prefix, &error))?;
            if answer.status != 200 {
                return Err(bucket_state.unexpected(prefix, answer.status));
            }
            let mut body = BytesMut::new();
            while let Some(piece) = answer.body.next().await {
                body.extend_from_slice(&piece.map_err(|reason| bucket_state.wrong_answer(prefix, &reason))?);
                if body.len() > LISTING_BYTES_MAX {
                    return Err(bucket_state.wrong_answer(prefix, "its listing is too long"));
                }
            }
            OriginPage::read(&body, bucket_state.origin.prefix(), after)
                .map_err(|reason| bucket_state.wrong_answer(prefix, &reason))
        };
        let page = bucket_state.env.timeout(2 * bucket_state.options.timeout, read).await;
        page.unwrap_or(Err(EdgeError::Timeout)).map(Some)
    }
}
