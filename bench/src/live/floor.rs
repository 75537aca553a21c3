//! The floor: the minimal work to send a message to many sockets. One thread, one `send` of the
//! same bytes to each socket.
//!
//! It has no handshake: a connection that sends nothing is a session. A frame from a connection
//! (with a length of four bytes in front) is sent to all others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;

/// Options of the floor.
#[derive(Debug, Clone, clap::Args)]
pub struct FloorArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

const LISTENER: u64 = u64::MAX;

/// Serves until it is killed; prints its address.
///
/// # Errors
/// The operating system's error.
pub fn run(args: &FloorArgs) -> io::Result<()> {
    let listener = TcpListener::bind(args.listen)?;
    // The standard library's backlog is too short for thousands at once.
    rustix::net::listen(&listener, 65_535)?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut sockets: Vec<Option<TcpStream>> = Vec::new();
    let mut free = Vec::new();
    let mut ready = Vec::with_capacity(1024);
    loop {
        ready.clear();
        epoll::wait(&epoll, spare_capacity(&mut ready), None)?;
        for event in &ready {
            if event.data.u64() == LISTENER {
                while let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(true)?;
                    socket.set_nodelay(true)?;
                    let place = free.pop().unwrap_or(sockets.len());
                    epoll::add(&epoll, &socket, epoll::EventData::new_u64(place as u64), epoll::EventFlags::IN)?;
                    if place == sockets.len() {
                        sockets.push(None);
                    }
                    sockets[place] = Some(socket);
                }
                continue;
            }
            let from = event.data.u64() as usize;
            match sockets.get_mut(from).and_then(Option::as_mut).map(frame) {
                Some(Ok(Some(frame))) => {
                    for (number, socket) in sockets.iter_mut().enumerate() {
                        if let (true, Some(socket)) = (number != from, socket) {
                            match socket.write(&frame) {
                                Ok(written) if written == frame.len() => {}
                                // The floor keeps no data for a session.
                                _ => eprintln!("a socket is full"),
                            }
                        }
                    }
                }
                Some(Ok(None) | Err(_)) => {
                    sockets[from] = None;
                    free.push(from);
                }
                None => {}
            }
        }
    }
}

/// A frame from a connection; `None` at its end.
fn frame(socket: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    match socket.read(&mut head) {
        Ok(4) => {}
        _ => return Ok(None),
    }
    let len = u32::from_be_bytes(head) as usize;
    if len > 1 << 20 {
        return Ok(None);
    }
    let mut frame = vec![0; len];
    let mut have = 0;
    while have < len {
        match socket.read(&mut frame[have..]) {
            Ok(0) => return Ok(None),
            Ok(more) => have += more,
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(Some(frame))
}
