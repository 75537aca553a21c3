//! A session: its socket, its commands, its subscriptions and its expiries.

mod commands;
mod socket;

use std::sync::Arc;

use steadfast_flow::Connection;

use self::commands::CommandQueue;
pub(super) use self::socket::{Broken, Received, SessionSocket, Watched};
use super::subscriptions::Subscription;
use super::{Bounds, Opened};
use crate::session::{ConnectionInfo, SessionIdentity};

/// A session of a worker.
pub(super) struct Session {
    pub(super) generation: u32,
    pub(super) socket: SessionSocket,
    /// How it is connected. Its name and the headers of its request are its identity's once that is
    /// complete.
    pub(super) connection: ConnectionInfo,
    pub(super) commands: CommandQueue,
    pub(super) subscriptions: Vec<Subscription>,
    /// Set when it is connected.
    pub(super) identity: Option<Arc<SessionIdentity>>,
    /// Until it is connected: counts it among the unconnected sessions of its address.
    unconnected: Option<Arc<Connection>>,
    /// The deadline of an outstanding pong, monotonic milliseconds. Any input from the client
    /// clears it.
    pong_due_ms: Option<u64>,
    /// Expiry, milliseconds since the Unix epoch.
    pub(super) expires_ms: Option<u64>,
    /// The back end is being asked whether to extend the session.
    pub(super) refreshing: bool,
    /// When the worker next checks expiries of the session, milliseconds since the Unix epoch.
    pub(super) due: Option<u64>,
    /// The session is in the worker's list of sessions with output.
    pub(super) dirty: bool,
    _permit: Option<Box<dyn Send>>,
}

impl Session {
    pub(super) fn new(opened: Opened, generation: u32) -> Self {
        let Opened { socket, connection, unconnected, permit, lease, .. } = opened;
        Self {
            generation,
            socket: SessionSocket::new(socket, lease),
            commands: CommandQueue::new(connection.encoding, connection.deflate.is_some()),
            connection,
            subscriptions: Vec::new(),
            identity: None,
            unconnected,
            pong_due_ms: None,
            expires_ms: None,
            refreshing: false,
            due: None,
            dirty: false,
            _permit: permit,
        }
    }

    /// Takes the name and the headers of its request, for its identity.
    pub(super) fn take_connection(&mut self) -> ConnectionInfo {
        let (headers, session) = (self.connection.headers.take(), self.connection.session.take());
        ConnectionInfo { headers, session, ..self.connection.clone() }
    }

    /// The session is connected.
    pub(super) fn connected(&mut self, identity: Arc<SessionIdentity>, expires_ms: Option<u64>) {
        (self.identity, self.expires_ms) = (Some(identity), expires_ms);
        self.unconnected = None;
        self.commands.connected();
    }

    /// The index of the subscription to a channel.
    pub(super) fn index_of(&self, channel: &str) -> Option<usize> {
        self.subscriptions.iter().position(|s| *s.channel == *channel)
    }

    /// The index of a subscription, if this attempt made it.
    pub(super) fn index_of_attempt(&self, channel: &str, attempt: u64) -> Option<usize> {
        self.subscriptions.iter().position(|s| s.attempt == attempt && *s.channel == *channel)
    }

    /// When the next expiry of the session or its subscriptions is due, milliseconds since the Unix
    /// epoch. It is due at once where the back end decides, otherwise after the grace period.
    pub(super) fn next_end(&self, bounds: &Bounds) -> Option<u64> {
        let after = |grace: u64, refreshes: bool| if refreshes { 0 } else { grace };
        let own = self.expires_ms.filter(|_| !self.refreshing);
        let own = own.map(|ends| ends.saturating_add(after(bounds.expired_ms, bounds.refreshes)));
        let subscriptions = self.subscriptions.iter().filter(|subscription| !subscription.refreshing).filter_map(|s| {
            let ends = s.kind.expires_ms?;
            Some(ends.saturating_add(after(bounds.expired_sub_ms, s.kind.refreshed)))
        });
        own.into_iter().chain(subscriptions).min()
    }

    /// Records a ping. Returns the deadline to check, or `None` if an earlier ping already has an
    /// entry in the worker's list.
    pub(super) fn pinged(&mut self, due_ms: u64) -> Option<u64> {
        match self.pong_due_ms {
            Some(_) => None,
            None => {
                self.pong_due_ms = Some(due_ms);
                Some(due_ms)
            }
        }
    }

    /// Records input from the client.
    pub(super) fn lives(&mut self) {
        self.pong_due_ms = None;
    }

    /// Whether the pong with this deadline is missing.
    pub(super) fn owes_pong(&self, due_ms: u64) -> bool {
        self.pong_due_ms == Some(due_ms)
    }

    /// Releases everything but the socket after the end of the session. Keeps the queue if `waits`.
    pub(super) fn release(&mut self, waits: bool) {
        if !waits {
            self.socket.clear();
        }
        self.subscriptions = Vec::new();
        self.commands.clear();
        (self.connection.headers, self.connection.session) = (None, None);
        self.identity = None;
        (self.unconnected, self._permit) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use steadfast_flow::{Env, Lease};

    use super::*;
    use crate::protocol::{Encoding, Transport};

    #[tokio::test]
    async fn outstanding_pings_have_one_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let connection = ConnectionInfo::of(Encoding::Json, Transport::WebSocket);
        let lease = Lease::unlimited(&Env::tokio());
        let opened = Opened { socket, leftover: Vec::new(), connection, permit: None, unconnected: None, lease };
        let mut session = Session::new(opened, 0);
        assert_eq!(session.pinged(10), Some(10));
        assert_eq!((session.pinged(20), session.pinged(30)), (None, None), "a deadline is pending");
        assert!(session.owes_pong(10) && !session.owes_pong(20));
        session.lives();
        assert!(!session.owes_pong(10));
        assert_eq!(session.pinged(40), Some(40));
        assert!(session.owes_pong(40) && !session.owes_pong(10), "an old deadline ends no session");
    }
}
