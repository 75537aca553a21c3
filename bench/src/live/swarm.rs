//! Many sessions on one thread: an epoll loop with little work for each delivery, so that on a
//! small machine the server gets most of the CPU.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use steadfast_live::protocol::Encoding;
use steadfast_live::protocol::message::{Command, ConnectRequest, Reply, SubscribeRequest};

use super::wire::{self, Got, bad};

/// Sessions from one local address: below the number of ephemeral ports of the kernel.
const PER_ADDRESS: usize = 10_000;

/// Options of the sessions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Addresses of the endpoints. The sessions take turns.
    pub addresses: Vec<SocketAddr>,
    /// Path of the WebSocket.
    pub path: String,
    /// Encoding.
    pub encoding: Encoding,
    /// Token of the connect command; may be empty.
    pub token: String,
    /// Channel to subscribe to; none if empty.
    pub channel: String,
    /// No handshake and no commands, for the floor program.
    pub bare: bool,
}

/// An event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// It is ready; with whether it recovered, if it asked to.
    Ready(Option<bool>),
    /// It received a publication, live or by recovery.
    Got(Got),
    /// It has ended, with the code of the server; 0 without one.
    Closed(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Off,
    Opening,
    Upgrading,
    Connecting,
    Subscribing,
    Ready,
}

struct Session {
    socket: Option<TcpStream>,
    stage: Stage,
    /// Bytes of an incomplete frame.
    partial: Vec<u8>,
    /// Its position in the channel, once subscribed.
    epoch: Option<Rc<str>>,
    offset: u64,
    /// Whether it stopped reading.
    stalled: bool,
}

/// Many sessions; see the module.
pub struct Swarm {
    options: Options,
    epoll: OwnedFd,
    sessions: Vec<Session>,
    ready: Vec<epoll::Event>,
    buffer: Vec<u8>,
    /// The newest message with publications: most sessions get equal bytes, decoded once.
    last: (Vec<u8>, Vec<Got>),
    epoch: Rc<str>,
}

type EventHandler<'a> = &'a mut dyn FnMut(usize, Happening);

impl Swarm {
    /// Creates `sessions` closed sessions.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn new(options: Options, count: usize) -> io::Result<Self> {
        let session = |_| Session {
            socket: None,
            stage: Stage::Off,
            partial: Vec::new(),
            epoch: None,
            offset: 0,
            stalled: false,
        };
        Ok(Self {
            options,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sessions: (0..count).map(session).collect(),
            ready: Vec::with_capacity(1024),
            buffer: vec![0; 64 << 10],
            last: Default::default(),
            epoch: "".into(),
        })
    }

    /// The endpoint of a session. The options have at least one.
    fn address(&self, number: usize) -> SocketAddr {
        self.options.addresses[number % self.options.addresses.len()]
    }

    /// The number of sessions, open or not.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The offset up to which the session has all publications, by the server's account.
    pub fn offset(&self, session: usize) -> u64 {
        self.sessions[session].offset
    }

    /// Whether a session has a connection.
    pub fn is_open(&self, session: usize) -> bool {
        self.sessions[session].socket.is_some()
    }

    /// Begins to open a session; `window_bytes` limits its receive buffer. A session with a
    /// position asks to recover from it.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn open(&mut self, number: usize, window_bytes: Option<usize>) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if let Some(bytes) = window_bytes {
            sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        // A reset drops the connection at once, as a network failure would, and frees the port.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        let address = self.address(number);
        if address.ip().is_loopback() {
            let last = 2 + number / PER_ADDRESS;
            let own = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, u8::try_from(last).map_err(bad)?), 0);
            net::bind(&socket, &own)?;
        }
        match net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number as u64), flags)?;
        let session = &mut self.sessions[number];
        session.socket = Some(socket.into());
        session.stage = Stage::Opening;
        session.stalled = false;
        session.partial = Vec::new();
        Ok(())
    }

    /// Drops a session's connection without a close frame.
    pub fn drop_connection(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        session.socket = None;
        session.stage = Stage::Off;
        session.partial = Vec::new();
    }

    /// Stops reading on the session.
    pub fn stall(&mut self, number: usize) {
        self.sessions[number].stalled = true;
    }

    /// Resumes reading, and processes the received data at once.
    pub fn resume(&mut self, number: usize, handler: EventHandler<'_>) {
        self.sessions[number].stalled = false;
        self.readable(number, true, handler);
    }

    /// Processes received data; waits for it up to `wait`.
    ///
    /// # Errors
    /// When the server violates the protocol or refuses a command.
    pub fn poll(&mut self, wait: Duration, handler: EventHandler<'_>) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &ready {
            let (number, flags) = (event.data.u64() as usize, event.flags);
            if self.sessions[number].stage == Stage::Opening && flags.contains(epoll::EventFlags::OUT) {
                self.opened(number, handler);
            }
            let comes =
                epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if flags.intersects(comes) && !self.sessions[number].stalled {
                // The end may have arrived together with data, and epoll does not report it again.
                let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                self.readable(number, flags.intersects(ended), handler);
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn closed(&mut self, number: usize, code: u16, handler: EventHandler<'_>) {
        if self.sessions[number].socket.is_some() {
            self.drop_connection(number);
            handler(number, Happening::Closed(code));
        }
    }

    fn write(&mut self, number: usize, bytes: &[u8], handler: EventHandler<'_>) {
        let Some(socket) = &mut self.sessions[number].socket else { return };
        // Commands are small: a socket that accepts only a part is broken.
        match socket.write(bytes) {
            Ok(written) if written == bytes.len() => {}
            _ => self.closed(number, 0, handler),
        }
    }

    fn opened(&mut self, number: usize, handler: EventHandler<'_>) {
        if self.options.bare {
            self.sessions[number].stage = Stage::Ready;
            return handler(number, Happening::Ready(None));
        }
        self.sessions[number].stage = Stage::Upgrading;
        let asks = wire::upgrade(&self.address(number).to_string(), &self.options.path, self.options.encoding);
        self.write(number, &asks, handler);
    }

    /// Reads the available data; `to_end` if a short read may be followed by more data.
    fn readable(&mut self, number: usize, to_end: bool, handler: EventHandler<'_>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(socket) = &mut self.sessions[number].socket {
            match socket.read(&mut buffer) {
                Ok(0) => self.closed(number, 0, handler),
                Ok(len) => {
                    if let Err(error) = self.bytes(number, &buffer[..len], handler) {
                        eprintln!("session {number}: {error}");
                        self.closed(number, 0, handler);
                    }
                    if len < buffer.len() && !to_end {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed(number, 0, handler),
            }
        }
        self.buffer = buffer;
    }

    fn bytes(&mut self, number: usize, bytes: &[u8], handler: EventHandler<'_>) -> io::Result<()> {
        if self.sessions[number].partial.is_empty() {
            let used = self.take(number, bytes, handler)?;
            self.sessions[number].partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut all = std::mem::take(&mut self.sessions[number].partial);
            all.extend_from_slice(bytes);
            let used = self.take(number, &all, handler)?;
            self.sessions[number].partial = all.split_off(used);
        }
        Ok(())
    }

    fn take(&mut self, number: usize, bytes: &[u8], handler: EventHandler<'_>) -> io::Result<usize> {
        let mut at = 0;
        if self.sessions[number].stage == Stage::Upgrading {
            let Some(len) = wire::upgraded(bytes)? else { return Ok(0) };
            at = len;
            self.sessions[number].stage = Stage::Connecting;
            let connect = ConnectRequest { token: self.options.token.clone(), ..ConnectRequest::default() };
            self.command(number, &Command { id: 1, connect: Some(connect), ..Command::default() }, handler)?;
        }
        while self.sessions[number].socket.is_some()
            && let Some(frame) = wire::frame(&bytes[at..])?
        {
            let payload = &bytes[at + frame.begin..at + frame.end];
            at += frame.end;
            match frame.opcode {
                1 | 2 => self.message(number, payload, handler)?,
                8 => {
                    let code = payload.get(..2).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
                    self.closed(number, code, handler);
                }
                _ => {}
            }
        }
        Ok(at)
    }

    fn command(&mut self, number: usize, command: &Command, handler: EventHandler<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        wire::put_command(self.options.encoding, command, &mut out)?;
        self.write(number, &out, handler);
        Ok(())
    }

    fn message(&mut self, number: usize, payload: &[u8], handler: EventHandler<'_>) -> io::Result<()> {
        if self.last.0 != payload {
            let replies = wire::replies(self.options.encoding, payload)?;
            let publications = replies.iter().map(|reply| reply.push.as_ref()?.publication.as_ref());
            let Some(publications) = publications.collect::<Option<Vec<_>>>().filter(|found| !found.is_empty()) else {
                return replies.into_iter().try_for_each(|reply| self.reply(number, reply, handler));
            };
            let found = publications.into_iter().filter_map(wire::got).collect();
            self.last = (payload.to_vec(), found);
        }
        let session = &mut self.sessions[number];
        for got in &self.last.1 {
            session.offset = session.offset.max(got.offset);
            handler(number, Happening::Got(*got));
        }
        Ok(())
    }

    fn reply(&mut self, number: usize, reply: Reply, handler: EventHandler<'_>) -> io::Result<()> {
        if let Some(error) = reply.error {
            // Like an SDK: retry after a temporary error with a reconnect.
            if error.temporary {
                self.closed(number, 0, handler);
                return Ok(());
            }
            return Err(bad(format!("refused: {} {}", error.code, error.message)));
        }
        if let Some(publication) = reply.push.as_ref().and_then(|push| push.publication.as_ref()) {
            if let Some(got) = wire::got(publication) {
                self.sessions[number].offset = self.sessions[number].offset.max(got.offset);
                handler(number, Happening::Got(got));
            }
        } else if reply.connect.is_some() {
            if self.options.channel.is_empty() {
                self.sessions[number].stage = Stage::Ready;
                handler(number, Happening::Ready(None));
                return Ok(());
            }
            let session = &mut self.sessions[number];
            session.stage = Stage::Subscribing;
            let subscribe = SubscribeRequest {
                channel: self.options.channel.clone(),
                recover: session.epoch.is_some(),
                epoch: session.epoch.as_deref().unwrap_or_default().to_owned(),
                offset: session.offset,
                recoverable: true,
                positioned: true,
                ..SubscribeRequest::default()
            };
            self.command(number, &Command { id: 2, subscribe: Some(subscribe), ..Command::default() }, handler)?;
        } else if let Some(result) = reply.subscribe {
            if *self.epoch != *result.epoch {
                self.epoch = result.epoch.as_str().into();
            }
            let session = &mut self.sessions[number];
            session.stage = Stage::Ready;
            session.epoch = Some(self.epoch.clone());
            // As an SDK: the missed publications follow the offset of the answer.
            session.offset = result.offset;
            for got in result.publications.iter().filter_map(wire::got) {
                session.offset = session.offset.max(got.offset);
                handler(number, Happening::Got(got));
            }
            handler(number, Happening::Ready(result.was_recovering.then_some(result.recovered)));
        } else if reply.push.is_none() && reply.id == 0 {
            let mut pong = Vec::new();
            wire::put_pong(self.options.encoding, &mut pong);
            self.write(number, &pong, handler);
        }
        Ok(())
    }
}
