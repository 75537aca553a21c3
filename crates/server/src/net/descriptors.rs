//! File descriptors: connections, disks, the index, the admin port and commands need them. Any
//! client may open connections, so connections do not get the last ones.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::listener::ADMIN_CONNECTIONS;

/// Minimum number of connections of the S3 port, even if its share is smaller.
const S3_CONNECTIONS_MIN: usize = 512;

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// To the S3 port.
    pub s3: usize,
    /// To the port of the API over gRPC.
    pub grpc: usize,
    /// To the live port.
    pub live: usize,
    /// Descriptors of each live connection: one if all are plain WebSockets; else its socket and
    /// the socket pair to its worker.
    pub live_files: usize,
}

/// Raises the limit of this process to its hard limit and returns it.
pub fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Divides `limit` descriptors: `reserved` for everything but connections; of the rest at most an
/// eighth for gRPC. With a live port, the S3 port gets at most a quarter: one connection serves
/// many requests.
pub fn share(limit: usize, reserved: usize, wanted: Shares) -> Shares {
    // The limit is too low for any division; half of it is kept for disks, index and commands.
    let reserved = reserved.saturating_add(ADMIN_CONNECTIONS).min(limit / 2);
    let free = limit - reserved;
    let grpc = wanted.grpc.min(free / 8);
    let s3 = match wanted.live {
        0 => wanted.s3.min(free - grpc),
        _ => wanted.s3.min((free / 4).max(S3_CONNECTIONS_MIN)).min((free - grpc) / 2),
    };
    let live = wanted.live.min((free - grpc - s3) / wanted.live_files.max(1));
    Shares { s3: s3.max(1), grpc, live, ..wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Shares = Shares { s3: 4096, grpc: 0, live: 1 << 20, live_files: 3 };

    #[test]
    fn connections_do_not_get_the_last_descriptors() {
        for limit in [256, 1024, 1200, 20_000, 1 << 20, usize::MAX] {
            let got = share(limit, 256, Shares { grpc: 1024, ..WANTED });
            let most = got.s3 + got.grpc + got.live_files * got.live + ADMIN_CONNECTIONS;
            assert!(limit - most >= 256.min(limit / 2 - ADMIN_CONNECTIONS), "{limit}: {got:?}");
            assert!(got.s3 > 0 && got.live > 0, "{limit}: {got:?}");
        }
    }

    #[test]
    fn what_is_wanted_is_had_where_there_is_enough() {
        assert_eq!(share(usize::MAX, 256, WANTED), WANTED);
        let sessions = share(20_000, 256, Shares { live_files: 1, ..WANTED });
        assert!(sessions.live >= 15_000 && sessions.s3 == WANTED.s3, "{sessions:?}");
        let streams = share(20_000, 256, WANTED);
        assert!(streams.live >= 5_000 && streams.s3 == WANTED.s3, "{streams:?}");
        let few = share(1024, 256, WANTED);
        assert!(few.live >= 90 && few.s3 >= 300, "{few:?}");
        let alone = Shares { live: 0, ..WANTED };
        assert_eq!(share(8192, 256, alone), alone);
        assert_eq!(share(1200, 256, alone).s3, 1200 - 256 - ADMIN_CONNECTIONS);
    }

    #[test]
    fn the_limit_is_raised() {
        let raised = raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert_eq!(now.current.map_or(usize::MAX, |limit| limit as usize), raised);
    }
}
