//! Links between nodes of one process, over a network in memory or over loopback.

mod channels;
mod hanging;
mod hub;
mod links;
mod members;
mod pool;
mod sockets;
