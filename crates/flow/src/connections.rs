//! The connections of a port: their number per address, and which are idle.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Env;

/// The group of an address: an IPv4 address itself, or the /64 network of an IPv6 address, because
/// one host is assigned a whole /64.
pub fn group_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

struct ConnectionEntry {
    /// When the connection became idle, in milliseconds of [`Env::now`], plus one; 0 while it is
    /// not idle.
    idle_since: AtomicU64,
    close: Notify,
}

#[derive(Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Arc<ConnectionEntry>>,
    by_group: HashMap<Arc<str>, usize>,
}

struct ConnectionsShared {
    env: Env,
    group_max: usize,
    open: Mutex<Open>,
}

/// The open connections of a port. Cloning shares them.
#[derive(Clone)]
pub struct Connections(Arc<ConnectionsShared>);

impl Connections {
    /// Creates the table of a port. Each address group (see [`group_of`]) may open `group_max`
    /// connections.
    pub fn new(group_max: usize, env: Env) -> Self {
        Self(Arc::new(ConnectionsShared { env, group_max, open: Mutex::default() }))
    }

    /// Registers a connection of `address`, idle at first; `None` when its group has `group_max`
    /// connections. An `exempt` address (of a proxy that stands for many clients) is not limited.
    pub fn open(&self, address: IpAddr, exempt: bool) -> Option<Connection> {
        let group: Arc<str> = group_of(address).into();
        let entry = Arc::new(ConnectionEntry { idle_since: AtomicU64::new(0), close: Notify::new() });
        let mut open = self.0.open.lock();
        let count = open.by_group.entry(group.clone()).or_default();
        if *count >= self.0.group_max && !exempt {
            return None;
        }
        *count += 1;
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, entry.clone());
        drop(open);
        let connection = Connection { of: self.clone(), address, group, exempt, number, entry };
        connection.idle();
        Some(connection)
    }

    /// Requests the longest-idle connection to close if it has been idle for `idle_min` or longer.
    /// Returns whether it did.
    pub fn close_idle(&self, idle_min: Duration) -> bool {
        let open = self.0.open.lock();
        let since = |entry: &Arc<ConnectionEntry>| entry.idle_since.load(Relaxed);
        let Some(oldest) = open.entries.values().filter(|entry| since(entry) > 0).min_by_key(|entry| since(entry))
        else {
            return false;
        };
        if Duration::from_millis(millis(self.0.env.now()).saturating_sub(since(oldest))) < idle_min {
            return false;
        }
        // A connection is requested to close only once.
        oldest.idle_since.store(0, Relaxed);
        oldest.close.notify_one();
        true
    }
}

/// Converts a time of the environment's clock to milliseconds, plus one.
fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.0.open.lock();
        write!(f, "Connections({} of {} addresses)", open.entries.len(), open.by_group.len())
    }
}

/// One connection. Dropping it removes it from the table.
#[derive(Debug)]
pub struct Connection {
    of: Connections,
    address: IpAddr,
    group: Arc<str>,
    exempt: bool,
    number: u64,
    entry: Arc<ConnectionEntry>,
}

impl std::fmt::Debug for ConnectionEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionEntry")
    }
}

impl Connection {
    /// Creates a connection that belongs to no port.
    pub fn alone(address: IpAddr, env: Env) -> Self {
        let of = Connections::new(usize::MAX, env);
        let entry = Arc::new(ConnectionEntry { idle_since: AtomicU64::new(0), close: Notify::new() });
        Self { of, address, group: group_of(address).into(), exempt: false, number: 0, entry }
    }

    /// The client's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The group of the client's address.
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// The key of the shares that the client's address has of bounds: its group, or `None` for an
    /// exempt address, which stands for many clients.
    pub fn share_key(&self) -> Option<Arc<str>> {
        (!self.exempt).then(|| self.group.clone())
    }

    /// Marks the connection as serving a request.
    pub fn busy(&self) {
        self.entry.idle_since.store(0, Relaxed);
    }

    /// Marks the connection as idle.
    pub fn idle(&self) {
        self.idle_at(self.of.0.env.now());
    }

    /// Like [`Connection::idle`], for a caller that has read the clock.
    pub fn idle_at(&self, now: Duration) {
        self.entry.idle_since.store(millis(now), Relaxed);
    }

    /// Completes when the idle connection must close because the port is full.
    pub fn closing(&self) -> Closing {
        Closing(self.entry.clone())
    }
}

/// See [`Connection::closing`].
#[derive(Debug)]
pub struct Closing(Arc<ConnectionEntry>);

impl Closing {
    /// Completes when the connection must close.
    pub async fn requested(self) {
        self.0.close.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.of.0.open.lock();
        open.entries.remove(&self.number);
        if let Some(count) = open.by_group.get_mut(&self.group) {
            *count -= 1;
            if *count == 0 {
                open.by_group.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Clock, Held};

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn an_address_gets_its_share_and_a_proxy_any_number() {
        let connections = Connections::new(2, Clock::default().env());
        let open = |last| connections.open(address(last), last == 9);
        let (one, _two) = (open(1), open(1));
        assert!(one.is_some() && open(1).is_none() && open(2).is_some());
        drop(one);
        assert!(open(1).is_some());
        let proxied: Vec<_> = (0..5).map(|_| open(9)).collect();
        assert!(proxied.iter().all(Option::is_some));
        drop(proxied);
        assert_eq!(format!("{connections:?}"), "Connections(1 of 1 addresses)");
    }

    #[test]
    fn the_connection_that_is_idle_the_longest_is_closed() {
        let clock = Clock::default();
        let connections = Connections::new(9, clock.env());
        let seconds = Duration::from_secs;
        let open = |last| connections.open(address(last), false).expect("below its share");
        let (busy, first) = (open(1), open(2));
        busy.busy();
        clock.advance(seconds(1));
        let second = open(3);
        let closes = |one: &Connection| Held::new(one.closing().requested()).poll().is_some();
        assert!(!connections.close_idle(seconds(2)), "one second is too short");
        clock.advance(seconds(1));
        assert!(connections.close_idle(seconds(2)));
        assert!(closes(&first) && !closes(&second) && !closes(&busy));
        assert!(!connections.close_idle(seconds(2)), "each connection is requested to close once");
        clock.advance(seconds(1));
        second.busy();
        assert!(!connections.close_idle(seconds(0)), "a connection with a request is not idle");
        second.idle();
        assert!(connections.close_idle(seconds(0)) && closes(&second));
    }

    #[test]
    fn a_host_has_many_addresses_of_ipv6() {
        let group = |address: &str| group_of(address.parse().expect("an address"));
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:1"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
    }
}
