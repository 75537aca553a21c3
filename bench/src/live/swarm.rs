//! Many sessions on one thread: an epoll loop that costs little for each delivery, so that on a small machine the server gets most of the CPU.

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

/// Sessions from one address of this machine: below the number of ports that the kernel gives out.
const PER_ADDRESS: usize = 10_000;

/// What sessions connect to, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the endpoint listens.
    pub address: SocketAddr,
    /// Of the WebSocket.
    pub path: String,
    /// How to speak.
    pub encoding: Encoding,
    /// For the connect command; may be empty.
    pub token: String,
    /// What to subscribe to; nothing if empty.
    pub channel: String,
    /// No handshake and no commands: the floor program's side.
    pub bare: bool,
}

/// What happens to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// It is as far as it should come; with whether it has recovered, where it asked to.
    Ready(Option<bool>),
    /// It got a publication, live or by recovery.
    Got(Got),
    /// It has ended: the server's code, 0 if there was none.
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
    /// Bytes of a frame that is not whole.
    partial: Vec<u8>,
    /// Where it is in the channel, once it is.
    epoch: Option<Rc<str>>,
    offset: u64,
    /// It reads nothing.
    stalled: bool,
}

/// See the module.
pub struct Swarm {
    options: Options,
    epoll: OwnedFd,
    sessions: Vec<Session>,
    ready: Vec<epoll::Event>,
    buffer: Vec<u8>,
    /// The newest message with publications: most sessions get the same bytes, which are decoded once.
    last: (Vec<u8>, Vec<Got>),
    epoch: Rc<str>,
}

type Told<'a> = &'a mut dyn FnMut(usize, Happening);

impl Swarm {
    /// With so many sessions, none of which is open.
    ///
    /// # Errors
    /// What the operating system says.
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

    /// How many sessions there are, open or not.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The offset up to which a session was told that it has all.
    pub fn offset(&self, session: usize) -> u64 {
        self.sessions[session].offset
    }

    /// Whether a session has a connection.
    pub fn is_open(&self, session: usize) -> bool {
        self.sessions[session].socket.is_some()
    }

    /// Begins to open a session; `window_bytes` bounds what the kernel takes in for it. One that had a position asks to recover from it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(&mut self, number: usize, window_bytes: Option<usize>) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if let Some(bytes) = window_bytes {
            sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        // What is dropped is dropped at once, as when a network goes away; and no port is kept waiting.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        if self.options.address.ip().is_loopback() {
            let last = 2 + number / PER_ADDRESS;
            let own = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, u8::try_from(last).map_err(bad)?), 0);
            net::bind(&socket, &own)?;
        }
        match net::connect(&socket, &self.options.address) {
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

    /// Drops a session's connection without a word.
    pub fn drop_connection(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        session.socket = None;
        session.stage = Stage::Off;
        session.partial = Vec::new();
    }

    /// The session reads nothing any more.
    pub fn stall(&mut self, number: usize) {
        self.sessions[number].stalled = true;
    }

    /// It reads again: what has come is looked at now.
    pub fn resume(&mut self, number: usize, told: Told<'_>) {
        self.sessions[number].stalled = false;
        self.readable(number, true, told);
    }

    /// Takes in what has come, waiting for it no longer than this.
    ///
    /// # Errors
    /// When a server does not speak the protocol, or refuses.
    pub fn poll(&mut self, wait: Duration, told: Told<'_>) -> io::Result<()> {
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
                self.opened(number, told);
            }
            let comes =
                epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if flags.intersects(comes) && !self.sessions[number].stalled {
                // The end may have come together with data, and is not told again.
                let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                self.readable(number, flags.intersects(ended), told);
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn closed(&mut self, number: usize, code: u16, told: Told<'_>) {
        if self.sessions[number].socket.is_some() {
            self.drop_connection(number);
            told(number, Happening::Closed(code));
        }
    }

    fn write(&mut self, number: usize, bytes: &[u8], told: Told<'_>) {
        let Some(socket) = &mut self.sessions[number].socket else { return };
        // Commands are small: a socket that does not take one whole is broken.
        match socket.write(bytes) {
            Ok(written) if written == bytes.len() => {}
            _ => self.closed(number, 0, told),
        }
    }

    fn opened(&mut self, number: usize, told: Told<'_>) {
        if self.options.bare {
            self.sessions[number].stage = Stage::Ready;
            return told(number, Happening::Ready(None));
        }
        self.sessions[number].stage = Stage::Upgrading;
        let asks = wire::upgrade(&self.options.address.to_string(), &self.options.path, self.options.encoding);
        self.write(number, &asks, told);
    }

    /// Reads what there is; `to_end` where a short read does not mean that there is no more.
    fn readable(&mut self, number: usize, to_end: bool, told: Told<'_>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(socket) = &mut self.sessions[number].socket {
            match socket.read(&mut buffer) {
                Ok(0) => self.closed(number, 0, told),
                Ok(len) => {
                    if let Err(error) = self.bytes(number, &buffer[..len], told) {
                        eprintln!("session {number}: {error}");
                        self.closed(number, 0, told);
                    }
                    if len < buffer.len() && !to_end {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed(number, 0, told),
            }
        }
        self.buffer = buffer;
    }

    fn bytes(&mut self, number: usize, bytes: &[u8], told: Told<'_>) -> io::Result<()> {
        if self.sessions[number].partial.is_empty() {
            let used = self.take(number, bytes, told)?;
            self.sessions[number].partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut all = std::mem::take(&mut self.sessions[number].partial);
            all.extend_from_slice(bytes);
            let used = self.take(number, &all, told)?;
            self.sessions[number].partial = all.split_off(used);
        }
        Ok(())
    }

    fn take(&mut self, number: usize, bytes: &[u8], told: Told<'_>) -> io::Result<usize> {
        let mut at = 0;
        if self.sessions[number].stage == Stage::Upgrading {
            let Some(len) = wire::upgraded(bytes)? else { return Ok(0) };
            at = len;
            self.sessions[number].stage = Stage::Connecting;
            let connect = ConnectRequest { token: self.options.token.clone(), ..ConnectRequest::default() };
            self.command(number, &Command { id: 1, connect: Some(connect), ..Command::default() }, told)?;
        }
        while self.sessions[number].socket.is_some()
            && let Some(frame) = wire::frame(&bytes[at..])?
        {
            let payload = &bytes[at + frame.begin..at + frame.end];
            at += frame.end;
            match frame.opcode {
                1 | 2 => self.message(number, payload, told)?,
                8 => {
                    let code = payload.get(..2).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
                    self.closed(number, code, told);
                }
                _ => {}
            }
        }
        Ok(at)
    }

    fn command(&mut self, number: usize, command: &Command, told: Told<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        wire::put_command(self.options.encoding, command, &mut out)?;
        self.write(number, &out, told);
        Ok(())
    }

    fn message(&mut self, number: usize, payload: &[u8], told: Told<'_>) -> io::Result<()> {
        if self.last.0 != payload {
            let replies = wire::replies(self.options.encoding, payload)?;
            let publications = replies.iter().map(|reply| reply.push.as_ref()?.publication.as_ref());
            let Some(publications) = publications.collect::<Option<Vec<_>>>().filter(|found| !found.is_empty()) else {
                return replies.into_iter().try_for_each(|reply| self.reply(number, reply, told));
            };
            let found = publications.into_iter().filter_map(wire::got).collect();
            self.last = (payload.to_vec(), found);
        }
        let session = &mut self.sessions[number];
        for got in &self.last.1 {
            session.offset = session.offset.max(got.offset);
            told(number, Happening::Got(*got));
        }
        Ok(())
    }

    fn reply(&mut self, number: usize, reply: Reply, told: Told<'_>) -> io::Result<()> {
        if let Some(error) = reply.error {
            // As an SDK would: what is temporary is tried again after a reconnect.
            if error.temporary {
                self.closed(number, 0, told);
                return Ok(());
            }
            return Err(bad(format!("refused: {} {}", error.code, error.message)));
        }
        if let Some(publication) = reply.push.as_ref().and_then(|push| push.publication.as_ref()) {
            if let Some(got) = wire::got(publication) {
                self.sessions[number].offset = self.sessions[number].offset.max(got.offset);
                told(number, Happening::Got(got));
            }
        } else if reply.connect.is_some() {
            if self.options.channel.is_empty() {
                self.sessions[number].stage = Stage::Ready;
                told(number, Happening::Ready(None));
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
            self.command(number, &Command { id: 2, subscribe: Some(subscribe), ..Command::default() }, told)?;
        } else if let Some(result) = reply.subscribe {
            if *self.epoch != *result.epoch {
                self.epoch = result.epoch.as_str().into();
            }
            let session = &mut self.sessions[number];
            session.stage = Stage::Ready;
            session.epoch = Some(self.epoch.clone());
            for got in result.publications.iter().filter_map(wire::got) {
                told(number, Happening::Got(got));
            }
            session.offset = result.offset;
            told(number, Happening::Ready(result.was_recovering.then_some(result.recovered)));
        } else if reply.push.is_none() && reply.id == 0 {
            let mut pong = Vec::new();
            wire::put_pong(self.options.encoding, &mut pong);
            self.write(number, &pong, told);
        }
        Ok(())
    }
}
