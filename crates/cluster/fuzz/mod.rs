//! The fuzz target: bytes of another node after the handshake, for a node that is a home and a
//! front. Foreign bytes must not cause a panic. Not a public interface.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{BoxFuture, Env};
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{ChannelSink, IndexKind, Position, Publication, Store, StoreOptions};

use crate::channels::Channels;
use crate::events::LinkEvents;
use crate::frame::channels::{
    Command, Published, Request, Response, Watch, WatchNumber, Watched, WireClear, WireHistoryQuery, WirePosition,
    WirePublication, WirePublish, WireStore,
};
use crate::frame::members::{MemberCheck, MemberDone, MemberEvent, MemberList, WireMember, WirePresence};
use crate::frame::{FrameDecoder, Kind};
use crate::front::HistoryBounds;
use crate::options::ChannelsOptions;
use crate::outbox::Outbox;
use crate::roster::{NodeAddress, NodeIndex, Roster};
use crate::sessions::Sessions;

/// A node without sessions.
struct NoSessions;

impl ChannelSink for NoSessions {
    fn published(&self, _: &Arc<str>, _: u32, _: &Arc<Publication>) {}
}

impl Sessions for NoSessions {
    fn reset(&self, _: &Arc<str>, _: Position) {}

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

/// Bytes of the outbox to the other node.
const OUTBOX_BYTES: u64 = 1 << 20;

fn roster() -> Option<Roster> {
    let nodes =
        ["a", "b"].map(|name| NodeAddress { name: name.to_owned(), address: format!("{name}:1"), standby: None });
    let mut roster = Roster::new("a", nodes.into(), &["a".to_owned(), "b".to_owned()]).ok()?;
    roster.pin("h", "a").ok()?;
    roster.pin("r", "b").ok()?;
    Some(roster)
}

/// Valid frames of a front and of a home. Names of channels begin with `h` (here) or `r` (remote).
pub fn link_corpus() -> Vec<Vec<u8>> {
    let position = WirePosition { epoch: 1, offset: 1 };
    let publication = |offset| WirePublication { offset, time_ms: 5, body: Bytes::from_static(b"{}") };
    let member =
        || WireMember { client: Bytes::from_static(&[7; 16]), user: "ann".to_owned(), ..WireMember::default() };
    let request = |number, command| Kind::Request(Request { number, channel: "h".to_owned(), command: Some(command) });
    let store = WireStore { history_size: 5, history_ttl_ms: 60_000, ..WireStore::default() };
    let publish = |store, key: &str| {
        Command::Publish(WirePublish { body: Bytes::from_static(b"{}"), store, key: key.to_owned() })
    };
    let history = WireHistoryQuery { since: true, epoch: 1, limit: 5, bytes_max: 99, ..WireHistoryQuery::default() };
    let watch = |number, history| Watch { number, channel: "h".to_owned(), history, last: Some(position) };
    let front = vec![
        Kind::Watch(watch(1, true)),
        request(1, publish(Some(store), "")),
        request(2, publish(Some(store), "k")),
        request(3, publish(None, "")),
        request(4, Command::History(history)),
        Kind::MemberList(MemberList { number: 1, present: vec![member()], gone: vec![member()], last: true }),
        Kind::MemberEvent(MemberEvent { number: 1, member: member(), gone: true }),
        Kind::MemberCheck(MemberCheck { numbers: vec![1, 2], hashes: vec![1] }),
        request(5, Command::Presence(WirePresence { limit: 3 })),
        request(6, Command::Clear(WireClear {})),
        Kind::Unwatch(WatchNumber { number: 1 }),
        Kind::Watch(watch(2, false)),
    ];
    let home = vec![
        Kind::Published(Published { number: 1, publication: publication(1) }),
        Kind::Watched(Watched { number: 1, position, missed: vec![publication(1)], ..Watched::default() }),
        Kind::Published(Published { number: 1, publication: publication(2) }),
        Kind::MemberDone(MemberDone { number: 1, client: Bytes::from_static(&[1; 16]), gone: false }),
        Kind::MembersWanted(WatchNumber { number: 1 }),
        Kind::Announcement(MemberEvent { number: 1, member: member(), gone: false }),
        Kind::Response(Response { number: 1, ..Response::default() }),
        Kind::Cleared(WatchNumber { number: 1 }),
    ];
    [front, home].into_iter().map(|kinds| kinds.into_iter().flat_map(Kind::to_bytes).collect()).collect()
}

/// Handles the frames of another node. Returns a signature of the state and of the answers.
pub fn fuzz_link(data: &[u8]) -> u64 {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return 0 };
    runtime.block_on(link(data)).unwrap_or_default()
}

/// Runs the tasks that can continue.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn link(data: &[u8]) -> Option<u64> {
    let (env, disk): (_, Arc<dyn Disk>) = (Env::tokio(), Arc::new(MemDisk::growable(8 << 20)));
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    Log::format(&disk, &env, &format).await.ok()?;
    let (store, _) = Store::open(disk, IndexKind::memory(), env.clone(), StoreOptions::default()).await.ok()?;
    let channels = Channels::new(Some(store.clone()), Arc::new(roster()?), &ChannelsOptions::default(), env);
    let sessions: Arc<dyn Sessions> = Arc::new(NoSessions);
    channels.set_sessions(&sessions);
    let (outbox, frames) = Outbox::new(OUTBOX_BYTES);
    channels.on_up(NodeIndex(1), &outbox, false);
    // The first channel watches with number 1.
    let attached = channels.attach(&"r".into(), Some(HistoryBounds { size: 5, ttl_ms: 60_000 }));
    let member =
        WireMember { client: Bytes::from_static(&[1; 16]), announced: true, presence: true, ..WireMember::default() };
    let (client, member) = member.member()?;
    channels.member_joined("r", client, || member);

    settle().await;
    let (mut decoder, mut hash, mut error) = (FrameDecoder::default(), DefaultHasher::new(), None);
    decoder.established();
    decoder.push(data);
    while let Ok(Some(frame)) = decoder.next_frame() {
        let Some(kind) = frame.kind else { continue };
        error = channels.on_frame(NodeIndex(1), &outbox, kind).err();
        if error.is_some() {
            break;
        }
        // Tasks of requests run here.
        tokio::task::yield_now().await;
    }
    settle().await;
    hash.write_u8(u8::from(error.is_some()));
    let status = channels.status()?;
    for count in [status.watched, status.watches, status.histories_read, status.resets, status.gaps, status.members] {
        hash.write_u64(count.min(3));
    }
    let position = channels.open("r").ok()?.known_position().ok()?;
    hash.write_u64(position.map_or(0, |position| 1 + position.offset.min(3)));
    let mut frames = std::pin::pin!(frames);
    // The kinds of the answers.
    while let Some(Some(answer)) = frames.next().now_or_never() {
        hash.write_u8(answer.get(4).copied().unwrap_or_default());
    }
    drop(attached);
    channels.on_down(NodeIndex(1));
    let _ = store.close().await;
    Some(hash.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_frames_have_outcomes_of_their_own() {
        let mut outcomes: std::collections::BTreeSet<u64> =
            link_corpus().iter().map(|input| fuzz_link(input)).collect();
        outcomes.insert(fuzz_link(&[]));
        assert_eq!(outcomes.len(), 1 + link_corpus().len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn damaged_frames_cause_no_panic(
            which in 0..link_corpus().len(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            let mut input = link_corpus().swap_remove(which);
            for (at, byte) in flips {
                let at = at.index(input.len());
                input[at] = byte;
            }
            fuzz_link(&input);
        }
    }
}
