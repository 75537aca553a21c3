//! File descriptors: each connection takes one, and so do disks, the index, the admin port and commands. Connections, which anybody may open, do
//! not get the last ones.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::listener::ADMIN_CONNECTIONS;

/// The S3 port gets as many connections, even where that is more than its part.
const S3_CONNECTIONS_MIN: usize = 512;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// To the S3 port.
    pub s3: usize,
    /// To the port of the API over gRPC.
    pub grpc: usize,
    /// To the live door.
    pub live: usize,
    /// How many descriptors each of these takes: one where all are plain WebSockets; else its socket, and the pair over which it reaches its
    /// worker.
    pub live_files: usize,
}

/// Raises the limit of this process as far as it may, and tells what it is.
pub fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Shares `limit` descriptors out: `reserved` for everything but connections; of the rest at most an eighth for gRPC, and where there is a live door
/// a small part for the S3 port, of which a connection serves many requests.
pub fn share(limit: usize, reserved: usize, wanted: Shares) -> Shares {
    // Under a limit this low nothing is right; but half of it goes to what keeps the server going.
    let reserved = reserved.saturating_add(ADMIN_CONNECTIONS).min(limit / 2);
    let free = limit - reserved;
    let grpc = wanted.grpc.min(free / 8);
    let s3 = match wanted.live {
        0 => wanted.s3.min(free - grpc),
        _ => wanted.s3.min((free / 32).max(S3_CONNECTIONS_MIN)).min((free - grpc) / 2),
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
        assert!(sessions.live >= 19_000 && sessions.s3 >= S3_CONNECTIONS_MIN, "{sessions:?}");
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
