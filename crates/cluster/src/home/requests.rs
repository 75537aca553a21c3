//! Requests of other nodes to the home of a channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use prost::Message;
use steadfast_flow::{Budget, Env, Permit};
use steadfast_log::{Durability, Priority};
use steadfast_store::{ChannelHandle, ChannelSink, HistoryQuery, NewPublication, Position, Publication};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::{ANSWER_PERMITS, ANSWER_PUBLICATIONS_MAX, FrontLink, Home, READ_PERMITS};
use crate::error::ChannelError;
use crate::frame::channels::{Command, Request, Response, WireHistoryQuery, WirePublish, WireStore, to_wire};
use crate::frame::members::WireMember;
use crate::frame::{FRAME_BYTES_MAX, Kind};
use crate::keys::KeyHash;
use crate::options::ChannelsOptions;
use crate::outbox::Outbox;
use crate::publish::{Accepted, Publish, StoreTerms};
use crate::roster::NodeIndex;

/// Pages of an outbox, and the largest page, bytes: an answer of some pages and the largest
/// publication each fit into a frame.
const PAGES: u64 = 64;
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// Requests of all other nodes that may be under way; other bounds are lower.
const UNDER_WAY_MAX: u32 = 1 << 24;

/// The requests of other nodes.
pub(crate) struct Requests {
    /// A permit for each one that is under way. A stop takes all of them.
    under_way: Arc<Semaphore>,
    /// Bytes of publications in a page of an answer.
    pub(super) page_bytes: usize,
    /// Histories read since the start.
    pub(crate) histories: AtomicU64,
}

impl Requests {
    pub(super) fn new(outbox_bytes_max: u64) -> Self {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX as usize));
        Self { under_way, page_bytes: page_bytes(outbox_bytes_max), histories: AtomicU64::new(0) }
    }

    /// A request begins, and is under way until the permit is dropped.
    ///
    /// # Errors
    /// The node stops.
    fn begin(&self) -> Result<OwnedSemaphorePermit, ChannelError> {
        self.under_way.clone().try_acquire_owned().map_err(|_| ChannelError::Stopping)
    }

    /// Refuses further requests, and waits until those under way are answered.
    pub(crate) async fn finish(&self) {
        if let Ok(all) = self.under_way.acquire_many(UNDER_WAY_MAX).await {
            all.forget();
        }
    }
}

/// Bytes of publications in a page.
fn page_bytes(outbox_bytes_max: u64) -> usize {
    (outbox_bytes_max / PAGES).clamp(1, PAGE_BYTES_MAX) as usize
}

/// Publishers of a link. Publications of one channel have the same one, which keeps their order.
const PUBLISHERS: usize = 16;

/// Publications that may wait for a publisher.
const PUBLISHER_QUEUE: usize = 1024;

/// A publication that waits to be submitted.
pub(super) struct QueuedPublish {
    number: u64,
    channel: String,
    publish: WirePublish,
    permit: Permit,
    under_way: OwnedSemaphorePermit,
}

/// Queue of a task that submits publications.
pub(super) type Publisher = mpsc::Sender<QueuedPublish>;

/// Memory for the publications of a node that are queued or not committed, bytes: as large as an
/// outbox. A front holds a part of one, and all of it may arrive at once after a pause.
pub(super) fn publications(options: &ChannelsOptions, env: &Env) -> Budget {
    Budget::new("publications of a node", options.outbox_bytes_max.max(1), env.clone())
}

/// Queues a publication for the publisher of its channel.
///
/// # Errors
/// [`ChannelError::Busy`] when the memory of the link or the queue is full.
fn queue(
    front: &FrontLink,
    at: usize,
    (number, channel, publish): (u64, String, WirePublish),
    under_way: OwnedSemaphorePermit,
) -> Result<(), ChannelError> {
    // One publication always fits.
    let bytes = front.publications.clamp((channel.len() + publish.encoded_len()) as u64);
    let permit = front.publications.try_acquire(bytes).map_err(|_| ChannelError::Busy)?;
    // The frame shares its memory with other frames: a copy frees it.
    let publish = WirePublish { body: Bytes::copy_from_slice(&publish.body), ..publish };
    let publisher = front.publishers.get(at).ok_or(ChannelError::Busy)?;
    publisher.try_send(QueuedPublish { number, channel, publish, permit, under_way }).map_err(|_| ChannelError::Busy)
}

impl From<WireStore> for StoreTerms {
    fn from(store: WireStore) -> Self {
        Self {
            history_size: store.history_size,
            history_ttl_ms: store.history_ttl_ms,
            durability: if store.asynchronous { Durability::Async } else { Durability::Sync },
            priority: if store.reserved { Priority::Delete } else { Priority::Write },
            leaves_percent: store.leaves_percent.min(100) as u8,
        }
    }
}

impl From<StoreTerms> for WireStore {
    fn from(terms: StoreTerms) -> Self {
        Self {
            history_size: terms.history_size,
            history_ttl_ms: terms.history_ttl_ms,
            asynchronous: terms.durability == Durability::Async,
            reserved: terms.priority == Priority::Delete,
            leaves_percent: terms.leaves_percent.into(),
        }
    }
}

fn respond(outbox: &Outbox, number: u64, result: Result<Response, ChannelError>) {
    let response = match result {
        Ok(response) => Response { number, ..response },
        Err(error) => Response { number, error: error as u32, ..Response::default() },
    };
    let frame = Kind::Response(response).to_bytes();
    if frame.len() > FRAME_BYTES_MAX {
        return respond(outbox, number, Err(ChannelError::TooLarge));
    }
    outbox.send(frame);
}

fn at(position: Position) -> Response {
    Response { position: position.into(), ..Response::default() }
}

/// Carries out requests for channels of this node.
#[derive(Clone, Copy)]
pub(crate) struct HomeRequests<'a>(pub(crate) &'a Home);

impl HomeRequests<'_> {
    /// Tasks that submit the publications that arrive on a link, until it ends.
    pub(super) fn start_publishers(self, outbox: &Outbox) -> Vec<Publisher> {
        let Some(home) = self.0.me.upgrade() else { return Vec::new() };
        let start = |_| {
            let (sender, mut queue) = mpsc::channel::<QueuedPublish>(PUBLISHER_QUEUE);
            let (home, outbox) = (home.clone(), outbox.clone());
            self.0.env.spawn_critical("cluster publisher", async move {
                while let Some(queued) = queue.recv().await {
                    // Its front already reported that the outcome is unknown.
                    if outbox.is_closed() {
                        return;
                    }
                    HomeRequests(&home).publish_for(&outbox, queued).await;
                }
            });
            sender
        };
        (0..PUBLISHERS).map(start).collect()
    }

    /// Carries out a request of a node.
    pub(crate) fn on_request(self, node: NodeIndex, outbox: &Outbox, request: Request) {
        let Request { number, channel, command } = request;
        let Some(home) = self.0.me.upgrade() else { return };
        let outbox = outbox.clone();
        let under_way = match self.0.requests.begin() {
            Ok(under_way) => under_way,
            Err(error) => return respond(&outbox, number, Err(error)),
        };
        match command {
            Some(Command::Publish(publish)) => {
                let front = self.0.front(node).lock();
                let at = self.0.watchers.spread(&channel, PUBLISHERS);
                if let Err(error) = queue(&front, at, (number, channel, publish), under_way) {
                    respond(&outbox, number, Err(error));
                }
            }
            Some(Command::History(query)) => self.0.env.spawn("cluster history", async move {
                let history = HomeRequests(&home).history_for(node, &outbox, &channel, query).await;
                respond(&outbox, number, history);
                drop(under_way);
            }),
            Some(Command::Clear(_)) => self.0.env.spawn("cluster history removal", async move {
                let cleared = HomeRequests(&home).clear(&channel).await;
                respond(&outbox, number, cleared.map(|()| Response::default()));
                drop(under_way);
            }),
            Some(Command::Presence(presence)) => self.0.env.spawn("cluster presence", async move {
                let listed = HomeRequests(&home).presence_for(node, &outbox, &channel, presence.limit).await;
                respond(&outbox, number, listed);
                drop(under_way);
            }),
            Some(Command::Call(call)) => self.0.env.spawn("cluster call", async move {
                let body = home.sessions().call(call.body).await;
                // A call may wait for other nodes, so its answer takes its permits afterwards.
                let pages = body.len().div_ceil(home.requests.page_bytes).clamp(1, READ_PERMITS);
                let _permits = HomeRequests(&home).read_permits(node, &outbox, pages).await;
                respond(&outbox, number, Ok(Response { body, ..Response::default() }));
                drop(under_way);
            }),
            None => respond(&outbox, number, Err(ChannelError::Internal)),
        }
    }

    /// Submits a publication of a node, and responds after its commit, or when a publisher of this
    /// node would not wait longer.
    async fn publish_for(self, outbox: &Outbox, queued: QueuedPublish) {
        if let Some(keep_up) = self.0.keep_up() {
            keep_up.await;
        }
        let QueuedPublish { number, channel, publish: WirePublish { body, store, key }, permit, under_way } = queued;
        let (outbox, mut permit) = (outbox.clone(), Some(permit));
        // A publication with a key may outlive its answer.
        let publish = Publish { body, permit: permit.take_if(|_| !key.is_empty()), key };
        let accepted = match (store, self.handle(&channel)) {
            (Some(terms), Ok(handle)) => self.store(handle, terms.into(), publish).await,
            (Some(_), Err(error)) => Err(error),
            (None, _) => self.deliver(&channel, publish).await,
        };
        match accepted {
            Ok(accepted) => self.0.env.spawn("cluster publication", async move {
                accepted.report(|committed| respond(&outbox, number, committed.map(at))).await;
                drop((permit, under_way));
            }),
            Err(error) => respond(&outbox, number, Err(error)),
        }
    }

    /// Publishes in a channel of this node.
    pub(crate) async fn store(
        self,
        handle: ChannelHandle,
        terms: StoreTerms,
        publish: Publish,
    ) -> Result<Accepted, ChannelError> {
        let Publish { body, key, permit } = publish;
        let keyed = (!key.is_empty()).then(|| (KeyHash::new(&key), handle.clone()));
        let key = keyed.as_ref().map(|(key, _)| key.0);
        let submit = async move {
            if terms.leaves_percent > 0 && handle.spare_percent()? < terms.leaves_percent {
                return Err(ChannelError::DiskNearlyFull);
            }
            let StoreTerms { history_size, history_ttl_ms, durability, priority, .. } = terms;
            let new = NewPublication { body, history_size, history_ttl_ms, durability, priority, key };
            Ok(Accepted::Pending(handle.submit(new).await?))
        };
        match keyed {
            None => submit.await,
            Some((key, stored)) => Ok(self.keyed(stored.name().clone(), Some(stored), key, permit, submit)),
        }
    }

    /// Delivers a publication of a channel of this node, here and to other nodes, without storing
    /// it.
    pub(crate) async fn deliver(self, channel: &str, publish: Publish) -> Result<Accepted, ChannelError> {
        let Publish { body, key, permit } = publish;
        let (Some(home), name) = (self.0.me.upgrade(), Arc::<str>::from(channel)) else {
            return Err(ChannelError::Stopping);
        };
        let to = name.clone();
        let submit = async move {
            let publication = Arc::new(Publication { offset: 0, time_ms: home.env.wall_ms(), body });
            home.published(&to, 0, &publication);
            Ok(Accepted::Delivered)
        };
        if key.is_empty() { submit.await } else { Ok(self.keyed(name, None, KeyHash::new(&key), permit, submit)) }
    }

    /// Publishes once for all attempts with a key. The key stays in flight until the result is
    /// certain, so a retry never publishes twice. `stored`: the channel keeps keys.
    pub(crate) fn keyed(
        self,
        channel: Arc<str>,
        stored: Option<ChannelHandle>,
        key: KeyHash,
        permit: Option<Permit>,
        submit: impl Future<Output = Result<Accepted, ChannelError>> + Send + 'static,
    ) -> Accepted {
        let publishing = async move {
            let published = submit.await?.resolved().await;
            drop(permit);
            published
        };
        let keys = self.0.keys.clone();
        Accepted::Keyed(Box::pin(async move { keys.once(&channel, stored.as_ref(), key, publishing).await }))
    }

    fn handle(self, channel: &str) -> Result<ChannelHandle, ChannelError> {
        match self.0.watchers.handle(channel) {
            Some(handle) => Ok(handle),
            None => self.0.open(channel),
        }
    }

    /// Permits to read that many pages for an answer on a link. Answers are not read while the
    /// outbox has much to send.
    pub(super) async fn read_permits(
        self,
        node: NodeIndex,
        outbox: &Outbox,
        pages: usize,
    ) -> Result<OwnedSemaphorePermit, ChannelError> {
        let reads = self.0.front(node).lock().reads.clone().ok_or(ChannelError::HomeUnreachable)?;
        let permits = reads.acquire_many_owned(pages as u32).await.map_err(|_| ChannelError::HomeUnreachable)?;
        outbox.drained().await;
        Ok(permits)
    }

    async fn history_for(
        self,
        node: NodeIndex,
        outbox: &Outbox,
        channel: &str,
        query: WireHistoryQuery,
    ) -> Result<Response, ChannelError> {
        let bytes_max =
            usize::try_from(query.bytes_max).unwrap_or(usize::MAX).min(ANSWER_PERMITS * self.0.requests.page_bytes);
        let _permits = self.read_permits(node, outbox, bytes_max.div_ceil(self.0.requests.page_bytes).max(1)).await?;
        self.0.requests.histories.fetch_add(1, Relaxed);
        let query = query.query();
        let query = HistoryQuery { limit: query.limit.min(ANSWER_PUBLICATIONS_MAX), ..query };
        let history = self.handle(channel)?.history_within(query, bytes_max).await?;
        let publications = to_wire(&history.publications);
        Ok(Response { publications, complete: history.complete, ..at(history.position) })
    }

    async fn presence_for(
        self,
        node: NodeIndex,
        outbox: &Outbox,
        channel: &str,
        limit: u64,
    ) -> Result<Response, ChannelError> {
        let sessions = self.0.sessions();
        let (clients, users) = sessions.presence_counts(channel);
        let mut response = Response { clients, users, ..Response::default() };
        if limit > 0 {
            let _permits = self.read_permits(node, outbox, ANSWER_PERMITS).await?;
            let members = sessions.presence(channel, usize::try_from(limit).unwrap_or(usize::MAX));
            let (mut bytes, count) = (0, members.len());
            let wire = members.into_iter().map(|(client, member)| WireMember::new(client, &member, false));
            response.members = wire
                .take_while(|member| {
                    bytes += member.encoded_len();
                    bytes <= ANSWER_PERMITS * self.0.requests.page_bytes
                })
                .collect();
            if response.members.len() < count {
                // Part of the list would look like the whole.
                return Err(ChannelError::LimitExceeded);
            }
        }
        Ok(response)
    }

    /// Removes the history of a channel, also from the memory of other nodes.
    pub(crate) async fn clear(self, channel: &str) -> Result<(), ChannelError> {
        self.handle(channel)?.clear().await?;
        self.0.watchers.clear(channel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::channels::{Watched, WirePublication};

    #[test]
    fn a_page_and_a_further_publication_fit_into_a_frame_whatever_the_outbox() {
        for outbox in [1, 32 << 20, 64 << 20, 1 << 30, 16 << 30] {
            let publication = |bytes| {
                let body = vec![0; bytes].into();
                WirePublication { offset: u64::MAX, time_ms: u64::MAX, body }
            };
            let small = page_bytes(outbox) / ANSWER_PUBLICATIONS_MAX;
            let mut missed = vec![publication(small); ANSWER_PUBLICATIONS_MAX];
            missed.push(publication(8 << 20));
            let page = Watched { number: u64::MAX, missed, more: true, ..Watched::default() };
            assert!(Kind::Watched(page).to_bytes().len() <= FRAME_BYTES_MAX, "{outbox}");
        }
        assert_eq!(page_bytes(64 << 20), 1 << 20);
    }
}
