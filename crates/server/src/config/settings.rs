//! All settings, declared once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::disks::DiskSpecs;
use super::kinds::{Names, Networks, Secret};
use super::schema::sections;
use super::setting::{EtagKind, IoMode, LogFormat, Origins, Paths, Size};
use super::webhooks::Webhooks;
use super::window::TimeOfDay;

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

sections! {
    /// The process.
    server: ServerSection {
        /// Threads that serve requests; 0: as many as cores.
        threads: usize = 0, in 0..=1024;
        /// How long a stop waits for requests that are being served.
        stop_deadline: Duration = Duration::from_secs(30), in 0..=3_600_000_000;
    }

    /// Where the data is.
    data: DataSection {
        /// Directory of the pool (unless set below), the index, the credentials and the lock.
        dir: PathBuf = PathBuf::from("steadfast-data");
        /// The pool: a file or a block device, relative to `dir`. Empty: the file `pool` in `dir`.
        pool: Option<PathBuf> = None;
        /// Instead of `pool`: several disks, each with a log of its own and its share of the objects, as in ["/dev/sdb", "/dev/sdc"].
        /// Throughput grows with them; one that is missing takes only its own share with it. A disk with fast disks beside it (see superdisk) is
        /// written as { path = "/dev/sdb", fast = ["/dev/nvme0n1"] }, or "/dev/sdb + /dev/nvme0n1" where it is text.
        disks: DiskSpecs = DiskSpecs::default();
        /// Instead of `pool`: several equal disks, written in turns as one, as in ["/dev/sdb", "/dev/sdc"]. `steadfast format` makes it. Without
        /// one of them the pool cannot be read.
        stripe: Paths = Paths::default();
        /// The largest size that a pool file may grow to, set when it is made. Empty: what the file system has.
        pool_size: Option<Size> = None, in 33_554_432..=1_152_921_504_606_846_976;
        /// Size of an extent, set when the pool is made; a power of two. Empty: chosen from the pool's size.
        extent_size: Option<Size> = None, in 1_048_576..=2_147_483_648;
        /// For trials, set when the pool is made: drive each disk as if it were a zoned device (SMR, ZNS) with zones of this size, which are only
        /// written in order; `pool_size` must be set for files. A real zoned device is recognised by itself. Empty: no zones.
        zone_size: Option<Size> = None, in 262_144..=2_147_483_648;
        /// How many such zones may be open at a time, as devices limit it; 0 for no limit.
        zone_open_max: usize = 14, in 0..=65_536;
        /// How the disk is driven: "auto", "uring" or "threads".
        io: IoMode = IoMode::Auto;
        /// Requests given to the disk at a time.
        queue_depth: usize = 64, in 1..=4096;
        /// Memory for data on its way to the disk.
        write_buffers: Size = Size::mib(96), in 33_554_432..=1_099_511_627_776;
        /// Memory for data that is read from the disk.
        read_buffers: Size = Size::mib(96), in 33_554_432..=1_099_511_627_776;
        /// Where damage has taken records and the index is gone too, nobody knows what they said. What is not found is then refused, and so is
        /// what they may have replaced or deleted. "true" gives the latter all the same, to save what there is.
        serve_doubtful: bool = false;
        /// For one start, after disks of the pool were restored from a snapshot: throws the index away and rebuilds it from the disks.
        /// `serve --restored` says the same.
        restored: bool = false;
    }

    /// A super-disk: fast local disks beside a pool on a slow or distant one. Writes are answered when the pool has them, reads come from the
    /// fast disks. These may be lost, wiped or replaced at any time, at the price of speed alone.
    superdisk: SuperdiskSection {
        /// The fast disks: devices, or files relative to `data.dir`; several are written in turns as one. None: no super-disk. In a pool of
        /// several disks they stand in data.disks, beside the disk that they are for.
        fast: Paths = Paths::default();
        /// How large each file among them is made. Empty: those of a disk together as large as `data.pool_size`.
        fast_size: Option<Size> = None, in 33_554_432..=1_152_921_504_606_846_976;
        /// Bytes a second that are copied onto fast disks that are new or were away, at most, for each super-disk; "0 B" for no bound.
        rebuild_rate: Size = Size::mib(100), in 0..=1_099_511_627_776;
    }

    /// How data becomes durable.
    log: LogSection {
        /// Data that was accepted and is not on disk yet, at most; over it, writes wait and then get "slow down".
        write_budget: Size = Size::mib(64), in 16_777_216..=1_099_511_627_776;
        /// How long an asynchronous write may wait for its flush.
        async_window: Duration = Duration::from_millis(10), in 100..=10_000_000;
        /// Whether a flush may wait a little for more commits. It adapts: a lone client never waits.
        gather: bool = true;
        /// How far ahead of its writes a pool file is filled with zeros, which makes flushes cheaper; "0 B" for never.
        prefill_ahead: Size = Size::mib(32), in 0..=1_073_741_824;
        /// Pieces of large bodies on their way to the disk at a time.
        body_writes: usize = 16, in 1..=1024;
    }

    /// How space of deleted and overwritten data is won back: what is still needed of an extent is moved, the extent is used again.
    compaction: CompactionSection {
        /// Whether it runs. Without it, a pool only fills.
        enabled: bool = true;
        /// Bytes read and written for it a second, at most, while there is space; "0 B" for no bound. When space is low there is none.
        rate: Size = Size::mib(64), in 0..=1_099_511_627_776;
        /// How much of an extent must be dead for the rest of it to be moved, in percent.
        dead_percent: usize = 50, in 1..=100;
        /// The same when space is low.
        dead_percent_low: usize = 10, in 1..=100;
        /// Space is low when less than this is free, in percent of what the pool may grow to.
        low_percent: usize = 15, in 0..=90;
        /// How often to look for work.
        interval: Duration = Duration::from_secs(1), in 10_000..=3_600_000_000;
    }

    /// How everything stored is read and compared with its checksums in the background.
    scrub: ScrubSection {
        /// Whether it runs.
        enabled: bool = true;
        /// Bytes read for it a second, at most; "0 B" for no bound.
        rate: Size = Size::mib(16), in 0..=1_099_511_627_776;
        /// From the end of one pass to the beginning of the next, and from the start to the first.
        interval: Duration = Duration::from_secs(6 * 3600), in 1_000_000..=31_536_000_000_000;
        /// The part of the day, in UTC, in which passes begin and go on, as in "01:00-05:00 UTC"; they pause outside it. Empty: all of it.
        window: Option<TimeOfDay> = None;
    }

    /// Objects.
    store: StoreSection {
        /// Bodies up to this size are committed within their record, in one write; larger ones stream.
        inline_max: Size = Size::kib(128), in 0..=1_048_576;
        /// How long a write waits for room in a budget before it is told to slow down.
        write_wait: Duration = Duration::from_secs(10), in 0..=600_000_000;
        /// Read cache, in memory; "0 B" for none. Empty: an eighth of the memory (of the limit of a cgroup), at least 256 MiB.
        cache: Option<Size> = None, in 0..=17_592_186_044_416;
        /// The newest publications of channels in use, in memory, of all channels together; "0 B" for none. What is not there is read from the disk.
        channel_tails: Size = Size::mib(128), in 0..=17_592_186_044_416;
        /// Cache of the index, in memory.
        index_cache: Size = Size::mib(64), in 1_048_576..=1_099_511_627_776;
        /// What all downloads together may have read ahead, in memory.
        read_ahead: Size = Size::mib(64), in 1_048_576..=1_099_511_627_776;
        /// Uploads in parts that are older are given up. Empty: never.
        upload_expiry: Option<Duration> = None, in 60_000_000..=31_536_000_000_000;
        /// How long the wall clock must stay where it has stepped to, by itself or while the server was off for more than a day, before uploads and
        /// publications that are over by it are removed. "0 s": at once.
        clock_confirm: Duration = Duration::from_secs(3600), in 0..=2_592_000_000_000;
        /// Bytes a second at which objects are moved between the disks of a pool; "0 B" for no bound.
        move_rate: Size = Size::mib(100), in 0..=17_592_186_044_416;
    }

    /// Snapshots.
    snapshots: SnapshotsSection {
        /// How many there may be.
        max: usize = 256, in 1..=4096;
        /// Bytes that an export reads a second at most; "0 B" for no bound.
        export_rate: Size = Size::mib(64), in 0..=1_099_511_627_776;
    }

    /// The S3 door.
    s3: S3Section {
        /// Address to listen on. Port 0: one that is free, printed at start.
        listen: SocketAddr = local(9000);
        /// Domain for virtual-host style (`bucket.domain`), for instance "s3.example.org". Empty: path style only.
        domain: Option<String> = None;
        /// Pages of these origins may use the port from browsers (CORS), as in ["https://app.example.com"]; ["*"] for all. They need signatures, or
        /// presigned URLs, as everybody does.
        allowed_origins: Origins = Origins::default();
        /// Entity tags: "md5", or "fast" for a cheap checksum where clients do not need MD5.
        etag: EtagKind = EtagKind::Md5;
    }

    /// Events of objects: that one was created or removed. They go to channels and webhooks that the notifications of a bucket name, as
    /// arn:steadfast:channel:::NAME and arn:steadfast:webhook:::NAME, and to channels that mirror a bucket (`mirror_bucket` of a namespace).
    events: EventsSection {
        /// Webhooks, as in [{ name = "app", url = "https://app.example.com/hook", authorization = "Bearer secret" }]. Also `secret`, which requests are
        /// signed with; `_file` or `_env` behind the two names a file or a variable of the environment that holds it. `headers = { "X-Name" = "value" }`;
        /// `server_ca_pem`, `cert_pem`, `key_pem`, `server_name` and `insecure_skip_verify` for TLS.
        webhooks: Webhooks = Webhooks::default();
        /// Events that may wait to be forwarded; who would make more waits, for at most `store.write_wait`, and is told to slow down then.
        waiting: usize = 10_000, in 1..=10_000_000;
        /// Events that are kept for each webhook until it has taken them; of more, the oldest are given up.
        webhook_queue: usize = 100_000, in 1..=100_000_000;
        /// How long a webhook may take to answer. One that fails is asked again.
        webhook_timeout: Duration = Duration::from_secs(10), in 1_000..=600_000_000;
        /// Requests to a webhook at a time; those of one object are always one after another. 1: all in order.
        webhook_parallel: usize = 8, in 1..=256;
        /// An event that a webhook answered so often with another status than 2xx is put among its dead letters; 0: never. No answer does not count.
        webhook_tries: usize = 20, in 0..=1_000_000;
        /// The same for an event that has been posted for so long; 0: for ever.
        webhook_give_up: Duration = Duration::from_secs(86_400), in 0..=31_536_000_000_000;
        /// Dead letters that are kept for each webhook; of more, the oldest are given up.
        webhook_dead_letters: usize = 10_000, in 1..=100_000_000;
    }

    /// The live door: channels for Centrifugo's client SDKs. Beside what is here, it takes Centrifugo's own options in their own nesting, as in
    /// [live.client.token] or [[live.channel.namespaces]].
    live: LiveSection {
        /// Address to listen on. Port 0: one that is free, printed at start. Empty: no live door.
        listen: Option<SocketAddr> = Some(local(8000));
        /// A configuration file of Centrifugo's (JSON, TOML or YAML) that says the rest, instead of tables here.
        config: Option<PathBuf> = None;
        /// Where everybody may do everything (`client.insecure`, `http_api.insecure`), the port listens only on this machine, unless this
        /// says that more is meant.
        insecure_anywhere: bool = false;
        /// Threads that sessions are shared out to; 0: as many as cores.
        partitions: usize = 0, in 0..=1024;
        /// Whether the port speaks TLS when `tls` is set; not behind a proxy that does it.
        tls: bool = true;
        /// Connections from one address; 0: any number. Behind a proxy all come from its address.
        address_connections: usize = 0, in 0..=1_000_000;
        /// Publications that a session may make in a second; more get the temporary error 111. 0: any number.
        publish_rate: usize = 1000, in 0..=1_000_000;
        /// Share of each disk, in percent, that publications of clients leave free for objects and for what the back end publishes; clients
        /// get a temporary error 100 then. 0: none.
        publish_reserve: usize = 10, in 0..=90;
        /// Longest message that is compressed (where `websocket.compression` is on): other sessions of the same thread wait meanwhile.
        compression_max: Size = Size::mib(1), in 0..=1_073_741_824;
        /// Connects that are worked on at a time.
        connects: usize = 512, in 1..=1_000_000;
        /// Subscribes that are worked on at a time.
        subscribes: usize = 512, in 1..=1_000_000;
        /// Reads of histories, for recoveries too, at a time.
        history_reads: usize = 256, in 1..=1_000_000;
        /// Requests of a proxy to its back end at a time.
        proxy_requests: usize = 256, in 1..=100_000;
        /// Calls of the API over gRPC (`grpc_api.enabled`) that are carried out at a time.
        grpc_calls: usize = 256, in 1..=100_000;
        /// Requests of the API over HTTP that are carried out at a time,
        api_requests: usize = 1024, in 1..=100_000;
        /// and what their bodies may take in memory together.
        api_bytes: Size = Size::mib(64), in 10_485_760..=1_099_511_627_776;
        /// What the publications in one answer may take: a history ends there, and goes on with the next request; a recovery that needs more is none.
        history_max: Size = Size::mib(4), in 65_536..=1_073_741_824;
        /// What long answers (histories, recoveries, presence, those of the API) may take in memory until their clients have taken them, together. Beyond that, at once: the temporary error 111, or `recovered: false`.
        answers_memory: Size = Size::mib(256), in 16_777_216..=1_099_511_627_776;
        /// How many may wait for each of these; more get the temporary error 111 at once.
        waiting: usize = 20_000, in 0..=1_000_000;
        /// Connections to the port of the API over gRPC; further ones wait to be accepted.
        grpc_connections: usize = 1024, in 1..=1_000_000;
    }

    /// TLS for the S3 port and the live port: both files, in PEM, or neither.
    tls: TlsSection {
        /// Certificate chain, the server's own first.
        certificate: Option<PathBuf> = None;
        /// Private key (PKCS #8, PKCS #1 or SEC 1).
        key: Option<PathBuf> = None;
    }

    /// The admin port: health, metrics, status. Without a token everybody who reaches it may read all of that: do not expose it.
    admin: AdminSection {
        /// Address to listen on. Port 0: one that is free, printed at start.
        listen: SocketAddr = local(9001);
        /// What metrics and status ask for, as `Authorization: Bearer TOKEN`. Empty: nothing. Health is for everybody.
        token: Secret = Secret::default();
        /// Names by which the port may be called, beside its addresses and localhost: what a page in a browser reaches by another name it may not
        /// read. Empty: any name where it listens on more than this machine.
        hosts: Names = Names::default();
    }

    /// What clients may hold.
    limits: LimitsSection {
        /// Connections to the S3 port; further ones wait to be accepted.
        connections: usize = 4096, in 1..=1_000_000;
        /// Requests to the S3 port that are served at a time.
        requests: usize = 1024, in 1..=1_000_000;
        /// Requests that may wait for their turn; more are told to slow down at once.
        requests_waiting: usize = 4096, in 0..=1_000_000;
        /// How long a request waits for its turn before it is told to slow down.
        request_wait: Duration = Duration::from_secs(5), in 0..=600_000_000;
        /// A request (S3, a command of a live client, one to the server API) that takes so long is logged, with the time of each stage, and
        /// counted. What its client takes to send a body or to take the answer does not count. "0 s": none is.
        slow_request: Duration = Duration::from_secs(1), in 0..=86_400_000_000;
        /// Memory for the XML in request bodies (DeleteObjects, CompleteMultipartUpload); each counts 8 times its length, and must come within `stall_timeout`. Beyond that: SlowDown (503) at once.
        xml_memory: Size = Size::mib(128), in 33_554_432..=1_099_511_627_776;
        /// How long a client may take to send a request's header, and how long an idle connection is kept.
        header_timeout: Duration = Duration::from_secs(30), in 1_000..=86_400_000_000;
        /// How long a client may send nothing of a body, or take nothing of an answer; and how far it may be behind `client_rate_min` in doing so.
        stall_timeout: Duration = Duration::from_secs(30), in 1_000..=86_400_000_000;
        /// Bytes a second that a client must send of a body (S3), and take of an answer or of what waits for it (S3 and live); "0 B": something in each `stall_timeout` will do.
        client_rate_min: Size = Size::kib(4), in 0..=1_073_741_824;
        /// Answers of more than 256 KiB that are being sent at a time; they count no longer as requests that are served.
        answers: usize = 2048, in 1..=1_000_000;
        /// How much of `connections`, `requests` and `answers` one address may have, in percent (of IPv6 a network of 64 bits), and how much of the live port's connections before they have sent `connect`. A further connection is closed at once. Proxies named in `trusted_proxies` may have all connections.
        address_share: usize = 25, in 1..=100;
        /// Proxies in front of the S3 port, as in ["10.0.0.0/8"]: their X-Forwarded-For says whose share it is.
        trusted_proxies: Networks = Networks::default();
        /// File descriptors that connections may not take: they are for the disks, the index, the admin port and commands.
        reserved_files: usize = 256, in 32..=1_000_000;
    }

    /// What the server logs, to standard error.
    output: OutputSection {
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
        /// Levels: one for all of ours (error, warn, info, debug, trace), or `target=level,...`.
        level: String = "info".to_owned();
    }
}
