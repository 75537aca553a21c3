//! Who is present at a bound, and who of them makes room first.
//!
//! A bound that clients fill by being slow is no bound on work but a way to keep others out. So those who are present are known: by group (an
//! address), and by how long each has kept the server waiting. Where somebody else would have to wait, the one in the largest group that
//! has kept it waiting the longest goes. Nobody goes while there is room.
//!
//! A pause of a moment keeps nobody out, and is let be; but less so in a group that has as many places
//! as that of who comes: else one client could hold all of them by being busy now and then.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Env, KeyedGate, Pass, Refused};

/// Who has kept the server waiting for less is let be: a pause between two requests, or between two packets.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The same in a group that is as large as that of who comes, or larger.
const PAUSE_OF_MANY: Duration = Duration::from_millis(100);

/// Groups whose sizes differ by less than this factor, about, are as large as each other: who has kept the
/// server waiting the longest in all of them goes.
const ALIKE: usize = 8;

/// From one look at who may make room for a request that waits to the next: over all that wait for
/// the common bound, and over those of one group that wait for their own.
const RELIEF_EVERY: Duration = Duration::from_millis(100);

/// The group that an address belongs to: itself; of IPv6 the network of 64 bits, which is what one host is given.
pub fn group_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

/// How long a peer may keep us waiting. What it moves earns it time, at a rate; so one that moves a byte now and then gets no further than
/// one that stalls. Time in which we do not wait for it does not count.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    bytes_s: u64,
    spent: Duration,
    since: Option<Duration>,
}

impl Patience {
    /// For a peer that may be `limit` behind `bytes_s` bytes a second; 0: it need only move something within `limit`.
    pub fn new(limit: Duration, bytes_s: u64) -> Self {
        Self { limit, bytes_s, spent: Duration::ZERO, since: None }
    }

    /// It keeps us waiting; how long it may go on with that. Zero: too long.
    pub fn waits(&mut self, now: Duration) -> Duration {
        self.since.get_or_insert(now);
        self.limit.saturating_sub(self.spent(now))
    }

    /// It has moved `bytes`.
    pub fn moved(&mut self, now: Duration, bytes: u64) {
        self.spent = self.spent(now);
        self.since = None;
        if bytes > 0 {
            let earned = match self.bytes_s {
                0 => self.limit,
                rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
            };
            self.spent = self.spent.saturating_sub(earned);
        }
    }

    /// How long it has kept us waiting beyond what it has earned.
    pub fn spent(&self, now: Duration) -> Duration {
        self.spent + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Begins anew.
    pub fn renew(&mut self) {
        self.spent = Duration::ZERO;
        self.since = None;
    }
}

/// What is done when a member is told to go, where nobody waits for it.
type Tell = Box<dyn FnOnce() + Send>;

struct Member {
    /// When it began to keep us waiting, in milliseconds of [`Env::now`], plus one; 0: it does not.
    waits_since: AtomicU64,
    /// It has a request that is not answered yet.
    asks: AtomicBool,
    /// It has been told to go.
    goes: AtomicBool,
    told: Notify,
    tell: Mutex<Option<Tell>>,
}

impl Member {
    fn go(&self) {
        self.goes.store(true, Relaxed);
        self.told.notify_one();
        if let Some(tell) = self.tell.lock().take() {
            tell();
        }
    }
}

/// Whose turn it is to make room.
#[derive(Clone, Copy)]
enum Who {
    /// Those who have a request that is being served.
    Asking,
    /// Everybody, for somebody who comes, in whose group there are so many already.
    Present(usize),
}

/// How large a member's group is, about; whether it has kept us waiting for more than a moment, or has no request at least; and for how long.
type Rank = (u32, u8, u64);

#[derive(Default)]
struct Group {
    members: BTreeMap<u64, Arc<Member>>,
    /// Before this time, in milliseconds, nobody is looked for in it.
    next_look: u64,
}

#[derive(Default)]
struct Members {
    next: u64,
    groups: BTreeMap<Arc<str>, Group>,
    /// The same of all groups, for requests that wait.
    next_look: u64,
}

struct Shared {
    env: Env,
    members: Mutex<Members>,
    relieved: AtomicU64,
}

/// See the module. Cloning shares it.
#[derive(Clone)]
pub struct Crowd(Arc<Shared>);

impl Crowd {
    /// An empty one.
    pub fn new(env: Env) -> Self {
        Self(Arc::new(Shared { env, members: Mutex::default(), relieved: AtomicU64::new(0) }))
    }

    /// Somebody of this address comes, and is idle at first.
    pub fn join(&self, address: IpAddr) -> Seat {
        let member = Arc::new(Member {
            waits_since: AtomicU64::new(0),
            asks: AtomicBool::new(false),
            goes: AtomicBool::new(false),
            told: Notify::new(),
            tell: Mutex::default(),
        });
        let group: Arc<str> = group_of(address).into();
        let mut members = self.0.members.lock();
        let number = members.next;
        members.next += 1;
        members.groups.entry(group.clone()).or_default().members.insert(number, member.clone());
        drop(members);
        let now_in = Mutex::new(group.clone());
        let seat = Seat { crowd: self.clone(), address, group, now_in, number, member };
        seat.idle();
        seat
    }

    /// Has one go for somebody of this address who comes: of the largest groups, the one who has kept
    /// us waiting the longest, and for more than a moment. One goes at a time: while one has not left yet, nobody else is told. Whether there was
    /// one.
    pub fn relieve(&self, address: IpAddr) -> bool {
        let members = self.0.members.lock();
        let present = members.size(&group_of(address));
        self.relieve_among(members.groups.values(), Who::Present(present))
    }

    /// Enters a gate, whose keys are groups. While there is no place, one who keeps us waiting with a request makes room: anybody, where
    /// all places are taken; where this group has taken its share, one of itself, for nobody else's place is of any use to it.
    ///
    /// # Errors
    /// As [`KeyedGate::enter`].
    pub async fn enter(&self, gate: &KeyedGate, group: &str, wait: Duration) -> Result<Pass, Refused> {
        self.enter_as(gate, group, wait, true).await
    }

    /// The same of somebody who comes and is not of the crowd yet: anybody makes room who is.
    ///
    /// # Errors
    /// As [`KeyedGate::enter`].
    pub async fn arrive(&self, gate: &KeyedGate, group: &str, wait: Duration) -> Result<Pass, Refused> {
        self.enter_as(gate, group, wait, false).await
    }

    async fn enter_as(&self, gate: &KeyedGate, group: &str, wait: Duration, asking: bool) -> Result<Pass, Refused> {
        let all_full = AtomicBool::new(false);
        let mut entering = pin!(gate.enter_noting(group, wait, &all_full));
        if let Poll::Ready(entered) = poll!(entering.as_mut()) {
            return entered;
        }
        loop {
            self.relieve_for(group, all_full.load(Relaxed), asking);
            tokio::select! {
                biased;
                entered = entering.as_mut() => return entered,
                () = self.0.env.sleep(RELIEF_EVERY) => {}
            }
        }
    }

    /// Has one make room for a request of this group that waits, unless that was looked at just now. There may be many that wait.
    fn relieve_for(&self, group: &str, all_full: bool, asking: bool) -> bool {
        let now = self.now_ms();
        let mut members = self.0.members.lock();
        let who = match asking {
            true => Who::Asking,
            false => Who::Present(members.size(group)),
        };
        let next_look = match all_full {
            true => &mut members.next_look,
            false => match members.groups.get_mut(group) {
                Some(group) => &mut group.next_look,
                None => return false,
            },
        };
        if now < *next_look {
            return false;
        }
        *next_look = now + RELIEF_EVERY.as_millis() as u64;
        match all_full {
            true => self.relieve_among(members.groups.values(), who),
            false => self.relieve_among(members.groups.get(group), who),
        }
    }

    fn relieve_among<'a>(&self, groups: impl IntoIterator<Item = &'a Group>, who: Who) -> bool {
        let now = self.now_ms();
        let [pause, short] = [PAUSE_MAX, PAUSE_OF_MANY].map(|pause| pause.as_millis() as u64);
        let mut best: Option<(Rank, &Arc<Member>)> = None;
        for group in groups {
            let size = group.members.len();
            let of_many = size > 1 && matches!(who, Who::Present(present) if size >= present);
            for member in group.members.values() {
                let since = member.waits_since.load(Relaxed);
                let waited = now.saturating_sub(since);
                if member.goes.load(Relaxed) {
                    return false;
                }
                let asks = member.asks.load(Relaxed);
                let rank = match () {
                    () if since == 0 || matches!(who, Who::Asking) && !asks => continue,
                    () if waited > pause => 2,
                    () if of_many && waited > short => u8::from(!asks),
                    () => continue,
                };
                let rank = (size.ilog(ALIKE), rank, waited);
                if best.is_none_or(|(first, _)| rank > first) {
                    best = Some((rank, member));
                }
            }
        }
        let Some((_, member)) = best else { return false };
        member.go();
        self.0.relieved.fetch_add(1, Relaxed);
        true
    }

    /// How many were told to go.
    pub fn relieved(&self) -> u64 {
        self.0.relieved.load(Relaxed)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.env.now().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

impl Members {
    fn size(&self, group: &str) -> usize {
        self.groups.get(group).map_or(0, |group| group.members.len())
    }

    fn take(&mut self, group: &str, number: u64) -> Option<Arc<Member>> {
        let found = self.groups.get_mut(group)?;
        let member = found.members.remove(&number);
        if found.members.is_empty() {
            self.groups.remove(group);
        }
        member
    }
}

impl std::fmt::Debug for Crowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crowd({} groups)", self.0.members.lock().groups.len())
    }
}

/// The presence of one; it leaves when this is dropped.
#[derive(Debug)]
pub struct Seat {
    crowd: Crowd,
    address: IpAddr,
    group: Arc<str>,
    /// Where it counts.
    now_in: Mutex<Arc<str>>,
    number: u64,
    member: Arc<Member>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Member")
    }
}

impl Seat {
    /// The crowd that it is of.
    pub fn crowd(&self) -> &Crowd {
        &self.crowd
    }

    /// Whose it is.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The group of that.
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// It counts with this group from now on: who is behind the address is known now, as that of a
    /// proxy tells nothing.
    pub fn regroup(&self, group: &Arc<str>) {
        let mut now_in = self.now_in.lock();
        if *now_in == *group {
            return;
        }
        let mut members = self.crowd.0.members.lock();
        if let Some(member) = members.take(&now_in, self.number) {
            members.groups.entry(group.clone()).or_default().members.insert(self.number, member);
        }
        *now_in = group.clone();
    }

    /// It has a request, which is being worked on.
    pub fn asks(&self) {
        self.member.asks.store(true, Relaxed);
        self.member.waits_since.store(0, Relaxed);
    }

    /// It has none, from now on.
    pub fn idle(&self) {
        self.member.asks.store(false, Relaxed);
        self.member.waits_since.store(self.crowd.now_ms(), Relaxed);
    }

    /// It has kept us waiting for so long, and still does.
    pub fn waits(&self, spent: Duration) {
        let spent = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        self.member.waits_since.store(self.crowd.now_ms().saturating_sub(spent).max(1), Relaxed);
    }

    /// It keeps us waiting no longer.
    pub fn goes_on(&self) {
        match self.member.asks.load(Relaxed) {
            true => self.member.waits_since.store(0, Relaxed),
            false => self.idle(),
        }
    }

    /// Tells whoever holds its connection when it is to go.
    pub fn leaving(&self) -> Leaving {
        Leaving(self.member.clone())
    }

    /// The same for who does not wait: `tell` is called then, and must not block or use the crowd.
    pub fn on_leaving(&self, tell: impl FnOnce() + Send + 'static) {
        let mut told = self.member.tell.lock();
        match self.member.goes.load(Relaxed) {
            true => {
                drop(told);
                tell();
            }
            false => *told = Some(Box::new(tell)),
        }
    }
}

/// See [`Seat::leaving`].
#[derive(Debug)]
pub struct Leaving(Arc<Member>);

impl Leaving {
    /// Completes when the seat is to be left.
    pub async fn told(self) {
        self.0.told.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let now_in = self.now_in.lock();
        drop(self.crowd.0.members.lock().take(&now_in, self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyedGateOptions;
    use crate::testing::{Clock, Held};

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_byte_now_and_then_does_not_renew_patience() {
        let mut patience = Patience::new(seconds(30), 1000);
        let mut now = seconds(0);
        for _ in 0..2 {
            assert!(patience.waits(now) > seconds(1));
            now += seconds(14);
            patience.moved(now, 1);
        }
        assert!(patience.waits(now) < seconds(3));
        patience.moved(now, 5000);
        assert!(patience.waits(now) > seconds(6), "what it moves earns time");
        patience.moved(now, 1 << 40);
        assert_eq!(patience.waits(now), seconds(30), "but not more than there is at first");
        // Without a rate any byte will do.
        let mut patience = Patience::new(seconds(30), 0);
        patience.waits(seconds(0));
        patience.moved(seconds(29), 1);
        assert_eq!(patience.waits(seconds(29)), seconds(30));
    }

    #[test]
    fn the_one_who_waits_longest_in_the_largest_group_goes_first() {
        let clock = Clock::default();
        let crowd = Crowd::new(clock.env());
        let join = |address: &str| crowd.join(address.parse().expect("an address"));
        let lonely = join("10.0.0.1");
        clock.advance(seconds(5));
        let many: Vec<Seat> = (0..3).map(|_| join("10.0.0.2")).collect();
        let relieve = || crowd.relieve([10, 0, 0, 3].into());
        let relieve_asking = || crowd.relieve_among(crowd.0.members.lock().groups.values(), Who::Asking);
        assert!(relieve(), "there is one who is idle");
        assert!(Held::new(lonely.leaving().told()).poll().is_some());
        drop(lonely);
        clock.advance(seconds(3));
        many[0].goes_on();
        many[1].asks();
        many[2].asks();
        many[2].waits(seconds(9));
        let lonely = join("10.0.0.1");
        lonely.waits(seconds(60));
        assert!(relieve_asking());
        assert!(Held::new(many[2].leaving().told()).poll().is_some());
        assert_eq!(crowd.relieved(), 2);
        assert!(!relieve(), "one at a time");
        drop(many);
        assert!(!relieve_asking(), "the lonely one has no request");
        assert!(relieve());
        assert!(!relieve(), "each is told once");
        drop(lonely);
        assert_eq!(format!("{crowd:?}"), "Crowd(0 groups)");
    }

    #[test]
    fn who_holds_most_places_makes_room_though_it_pauses_for_a_moment_only() {
        let clock = Clock::default();
        let crowd = Crowd::new(clock.env());
        let join = |last: u8| crowd.join([10, 0, 0, last].into());
        let lonely = join(1);
        clock.advance(seconds(5));
        let mut many: Vec<Seat> = (0..20).map(|_| join(2)).collect();
        many[0].asks();
        clock.advance(seconds(1));
        for (coming, who) in [(3, "another"), (2, "one of theirs")] {
            assert!(crowd.relieve([10, 0, 0, coming].into()), "{who} comes");
            assert!(Held::new(lonely.leaving().told()).poll().is_none());
            let gone = many.iter().position(|seat| Held::new(seat.leaving().told()).poll().is_some());
            assert_ne!(gone.expect("one of the many"), 0, "not the one with a request");
            drop(many.remove(gone.expect("one of the many")));
        }
        // Where nobody has many, a pause of a moment is let be.
        drop(many.split_off(1));
        clock.advance(seconds(9));
        assert!(crowd.relieve([10, 0, 0, 3].into()));
        assert!(Held::new(lonely.leaving().told()).poll().is_some());
    }

    #[test]
    fn who_comes_over_a_proxy_counts_as_who_it_is() {
        let clock = Clock::default();
        let crowd = Crowd::new(clock.env());
        let over_proxy: Vec<Seat> = (0..40).map(|_| crowd.join([10, 0, 0, 1].into())).collect();
        let (greedy, modest): (Arc<str>, Arc<str>) = ("1.1.1.1".into(), "2.2.2.2".into());
        over_proxy[0].regroup(&modest);
        over_proxy[1..].iter().for_each(|seat| seat.regroup(&greedy));
        clock.advance(seconds(9));
        over_proxy[1..].iter().for_each(Seat::idle);
        clock.advance(seconds(3));
        assert!(crowd.relieve([10, 0, 0, 1].into()));
        assert!(Held::new(over_proxy[0].leaving().told()).poll().is_none(), "though it is idle for longer");
        assert_eq!(format!("{crowd:?}"), "Crowd(2 groups)");
        over_proxy.iter().for_each(|seat| seat.regroup(seat.group()));
        assert_eq!(format!("{crowd:?}"), "Crowd(1 groups)");
        drop(over_proxy);
        assert_eq!(format!("{crowd:?}"), "Crowd(0 groups)");
    }

    #[test]
    fn who_does_not_wait_is_called() {
        let clock = Clock::default();
        let crowd = Crowd::new(clock.env());
        let seat = crowd.join([10, 0, 0, 1].into());
        let called = Arc::new(AtomicU64::new(0));
        let call = || {
            let called = called.clone();
            move || {
                called.fetch_add(1, Relaxed);
            }
        };
        seat.on_leaving(call());
        assert_eq!(called.load(Relaxed), 0);
        clock.advance(seconds(3));
        assert!(crowd.relieve([10, 0, 0, 2].into()));
        assert_eq!(called.load(Relaxed), 1);
        seat.on_leaving(call());
        assert_eq!(called.load(Relaxed), 2, "told before it said how");
    }

    #[test]
    fn who_comes_gets_the_place_that_is_made() {
        let slow = Slow::new(2);
        let (first, _second) = (slow.gate.try_enter("10.0.0.2"), slow.gate.try_enter("10.0.0.2"));
        slow.own.idle();
        slow.other.idle();
        slow.clock.advance(seconds(3));
        let (crowd, gate) = (slow.crowd.clone(), slow.gate.clone());
        let mut comes = Held::new(async move { crowd.arrive(&gate, "10.0.0.9", seconds(60)).await });
        assert!(comes.poll().is_none());
        assert_eq!(slow.crowd.relieved(), 1, "one who has no request");
        drop((slow.own, first));
        assert!(slow.gate.try_enter("10.0.0.8").is_err(), "it is not for who came later");
        assert!(comes.poll().expect("its turn").is_ok());
    }

    /// A gate with two places, of which one key has one at most, and someone slow in each of two groups.
    struct Slow {
        clock: Clock,
        crowd: Crowd,
        gate: KeyedGate,
        own: Seat,
        other: Seat,
    }

    impl Slow {
        fn new(key_limit: usize) -> Self {
            let clock = Clock::default();
            let crowd = Crowd::new(clock.env());
            let options = KeyedGateOptions { limit: 2, waiting_max: 9, key_limit, key_waiting_max: 9 };
            let gate = KeyedGate::new("test", options, clock.env());
            let slow = |address: &str| {
                let seat = crowd.join(address.parse().expect("an address"));
                seat.asks();
                seat.waits(Duration::ZERO);
                seat
            };
            let (own, other) = (slow("10.0.0.1"), slow("10.0.0.2"));
            clock.advance(seconds(9));
            Self { clock, crowd, gate, own, other }
        }

        fn enter(&self, group: &'static str) -> Held<Result<Pass, Refused>> {
            let (crowd, gate) = (self.crowd.clone(), self.gate.clone());
            Held::new(async move { crowd.enter(&gate, group, seconds(60)).await })
        }
    }

    #[test]
    fn who_waits_for_its_own_share_has_nobody_else_closed() {
        let slow = Slow::new(1);
        let _inside = slow.gate.try_enter("10.0.0.1").expect("room");
        let mut waiters = [slow.enter("10.0.0.1"), slow.enter("10.0.0.1")];
        let own = Held::new(slow.own.leaving().told()).poll();
        assert!(own.is_none(), "nobody waits yet");
        assert!(waiters.iter_mut().all(|one| one.poll().is_none()));
        assert_eq!(slow.crowd.relieved(), 1);
        assert!(Held::new(slow.own.leaving().told()).poll().is_some(), "one of its own goes");
        drop(slow.own);
        for _ in 0..20 {
            slow.clock.advance(RELIEF_EVERY);
            assert!(waiters.iter_mut().all(|one| one.poll().is_none()));
        }
        assert!(Held::new(slow.other.leaving().told()).poll().is_none(), "there is a place left for others");
        assert_eq!(slow.crowd.relieved(), 1);
    }

    #[test]
    fn who_waits_for_any_place_has_the_slowest_closed() {
        let slow = Slow::new(2);
        let inside = [slow.gate.try_enter("10.0.0.2"), slow.gate.try_enter("10.0.0.2")];
        let mut waiter = slow.enter("10.0.0.9");
        assert!(waiter.poll().is_none());
        assert_eq!(slow.crowd.relieved(), 1);
        drop((slow.own, inside));
        assert!(waiter.poll().expect("served").is_ok());
    }

    #[test]
    fn those_who_wait_look_once_in_a_while_all_together() {
        let slow = Slow::new(2);
        let _inside = [slow.gate.try_enter("10.0.0.2"), slow.gate.try_enter("10.0.0.2")];
        let mut waiters = [slow.enter("10.0.0.8"), slow.enter("10.0.0.9")];
        assert!(waiters[0].poll().is_none());
        let told = Held::new(slow.own.leaving().told()).poll().or(Held::new(slow.other.leaving().told()).poll());
        assert!(told.is_some());
        drop(slow.own);
        assert!(waiters[1].poll().is_none());
        assert_eq!(slow.crowd.relieved(), 1, "it has been looked at just now");
        slow.clock.advance(RELIEF_EVERY);
        assert!(waiters.iter_mut().all(|one| one.poll().is_none()));
        assert_eq!(slow.crowd.relieved(), 2);
    }

    #[test]
    fn a_host_has_many_addresses_of_ipv6() {
        let group = |address: &str| group_of(address.parse().expect("an address"));
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:1"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
    }
}
