//! All settings, declared once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::cluster::{ClusterHomes, ClusterNodes};
use super::disks::DiskSpecs;
use super::edge::EdgeBuckets;
use super::kinds::{BucketNames, Names, Networks, Secret};
use super::schema::sections;
use super::setting::{Acknowledge, EtagKind, IoMode, LogFormat, Origins, Paths, Size};
use super::users::UserSpecs;
use super::webhooks::Webhooks;
use super::window::TimeOfDay;

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

sections! {
    /// The process.
    server: ServerSection {
        /// Threads that serve requests; 0: one for each core.
        threads: usize = 0, in 0..=1024;
        /// Time that a stop waits for requests in progress.
        stop_deadline: Duration = Duration::from_secs(30), in 0..=3_600_000_000;
    }

    /// Where the data is.
    data: DataSection {
        /// Directory of the pool (unless set below), the index, the credentials and the lock.
        dir: PathBuf = PathBuf::from("steadfast-data");
        /// The pool: a file or a block device, relative to `dir`. Empty: the file `pool` in `dir`.
        pool: Option<PathBuf> = None;
        /// Instead of `pool`: several disks, as in ["/dev/sdb", "/dev/sdc"]. Each has its own log
        /// and stores its share of the objects; a missing disk affects its own share only. A disk
        /// with fast disks (see superdisk) is { path = "/dev/sdb", fast = ["/dev/nvme0n1"] }, or as
        /// text "/dev/sdb + /dev/nvme0n1".
        disks: DiskSpecs = DiskSpecs::default();
        /// Instead of `pool`: several equal disks striped as one, as in ["/dev/sdb", "/dev/sdc"].
        /// `steadfast format` creates it. If one of the disks is missing, the pool cannot be read.
        stripe: Paths = Paths::default();
        /// Maximum size of a pool file, set when it is created. Empty: the size of the file system.
        pool_size: Option<Size> = None, in 33_554_432..=1_152_921_504_606_846_976;
        /// Size of an extent, set when the pool is created; a power of two. Empty: 1 GiB on a
        /// device, and 64 MiB in a file; more on a file system beyond 1 TiB, less in a small pool.
        extent_size: Option<Size> = None, in 1_048_576..=2_147_483_648;
        /// For trials, set when the pool is created: drives each disk like a zoned device (SMR,
        /// ZNS) with zones of this size, written in order only. Files also need `pool_size`. Real
        /// zoned devices are recognised without this setting. Empty: no zones.
        zone_size: Option<Size> = None, in 262_144..=2_147_483_648;
        /// Maximum number of open zones with `zone_size`, as devices limit it; 0: no limit.
        zone_open_max: usize = 14, in 0..=65_536;
        /// I/O method: "auto", "uring" or "threads".
        io: IoMode = IoMode::Auto;
        /// Maximum number of requests in progress at a disk.
        queue_depth: usize = 64, in 1..=4096;
        /// Memory for data on its way to the disk.
        write_buffers: Size = Size::mib(96), in 33_554_432..=1_099_511_627_776;
        /// Memory for data read from the disk.
        read_buffers: Size = Size::mib(96), in 33_554_432..=1_099_511_627_776;
        /// If damage destroyed records and the index is lost too, the lost records are unknown. The
        /// server then refuses keys that it cannot find, and objects that those records may have
        /// replaced or deleted. "true" serves such objects, to save what remains.
        serve_doubtful: bool = false;
        /// For one start, after disks of the pool were restored from a snapshot: discards the
        /// index, rebuilds it from the disks, and gives every channel another epoch. `serve
        /// --restored` has the same effect.
        restored: bool = false;
    }

    /// A super-disk: fast local disks in front of a pool on a slow or distant disk. A write is
    /// acknowledged when the pool has flushed it; reads come from the fast disks. Losing, wiping or
    /// replacing fast disks costs speed only.
    superdisk: SuperdiskSection {
        /// The fast disks: devices, or files relative to `data.dir`; several are striped. Empty: no
        /// super-disk. In a pool of several disks, name them in data.disks with their disk.
        fast: Paths = Paths::default();
        /// Size of each fast file that is created. Empty: the files of a disk together have the
        /// size of `data.pool_size`.
        fast_size: Option<Size> = None, in 33_554_432..=1_152_921_504_606_846_976;
        /// Maximum bytes a second copied to fast disks that are new or were absent, for each
        /// super-disk; "0 B": no limit.
        rebuild_rate: Size = Size::mib(100), in 0..=1_099_511_627_776;
    }

    /// How data becomes durable.
    log: LogSection {
        /// Maximum accepted data that is not on disk yet. Above it, writes wait for at most
        /// `store.write_wait`, then get SlowDown (503).
        write_budget: Size = Size::mib(64), in 16_777_216..=1_099_511_627_776;
        /// Maximum time between an asynchronous write and its flush.
        async_window: Duration = Duration::from_millis(10), in 100..=10_000_000;
        /// Lets a flush wait briefly for more commits. The wait adapts; a single client never
        /// waits.
        gather: bool = true;
        /// Length of zeros written ahead of the data in a pool file, which makes flushes cheaper;
        /// "0 B": none.
        prefill_ahead: Size = Size::mib(32), in 0..=1_073_741_824;
        /// Maximum number of chunks of large bodies being written at a time.
        body_writes: usize = 16, in 1..=1024;
    }

    /// Compaction reclaims the space of deleted and overwritten data: it moves the live data out of
    /// an extent and frees the extent.
    compaction: CompactionSection {
        /// Runs compaction. Without it the pool only fills.
        enabled: bool = true;
        /// Maximum bytes read and written a second; "0 B": no limit. When space is low, there is no
        /// limit.
        rate: Size = Size::mib(64), in 0..=1_099_511_627_776;
        /// Share of an extent, in percent, that must be dead before its live data is moved.
        dead_percent: usize = 50, in 1..=100;
        /// The same share when space is low.
        dead_percent_low: usize = 10, in 1..=100;
        /// Space is low below this free share, in percent of the size to which the pool may grow.
        low_percent: usize = 15, in 0..=90;
        /// Time between two searches for work.
        interval: Duration = Duration::from_secs(1), in 10_000..=3_600_000_000;
    }

    /// The scrub reads all stored data in the background and verifies its checksums.
    scrub: ScrubSection {
        /// Runs the scrub.
        enabled: bool = true;
        /// Maximum bytes read a second; "0 B": no limit.
        rate: Size = Size::mib(16), in 0..=1_099_511_627_776;
        /// Time from the end of one pass to the start of the next, and from the start to the first.
        interval: Duration = Duration::from_secs(6 * 3600), in 1_000_000..=31_536_000_000_000;
        /// Part of the day in UTC in which passes run, as in "01:00-05:00 UTC"; outside it they
        /// pause. Empty: the whole day.
        window: Option<TimeOfDay> = None;
    }

    /// Objects.
    store: StoreSection {
        /// Bodies up to this size are committed within their record, in one write; larger ones are
        /// streamed.
        inline_max: Size = Size::kib(128), in 0..=1_048_576;
        /// Maximum time that a write waits for a budget before it gets SlowDown (503).
        write_wait: Duration = Duration::from_secs(10), in 0..=600_000_000;
        /// Memory for the read cache; "0 B": none. Empty: an eighth of the memory (of the limit of
        /// a cgroup), at least 256 MiB.
        cache: Option<Size> = None, in 0..=17_592_186_044_416;
        /// Memory for the newest publications of channels in use, for all channels together; "0 B":
        /// none. Other publications are read from the disk.
        channel_tails: Size = Size::mib(128), in 0..=17_592_186_044_416;
        /// Memory for the cache of the index.
        index_cache: Size = Size::mib(64), in 1_048_576..=1_099_511_627_776;
        /// Memory for the read-ahead of all downloads together.
        read_ahead: Size = Size::mib(1), in 1_048_576..=1_099_511_627_776;
        /// Age at which multipart uploads are aborted. Empty: never.
        upload_expiry: Option<Duration> = None, in 60_000_000..=31_536_000_000_000;
        /// After the wall clock has stepped, or was set while the server was off for more than a
        /// day: time that it must stay there before uploads and publications that expired by it are
        /// removed. "0 s": at once.
        clock_confirm: Duration = Duration::from_secs(3600), in 0..=2_592_000_000_000;
        /// Maximum bytes a second moved between the disks of a pool; "0 B": no limit.
        move_rate: Size = Size::mib(100), in 0..=17_592_186_044_416;
    }

    /// The archive: the log of the pool follows into a bucket or a directory, in the background.
    archive: ArchiveSection {
        /// Where it is: s3://BUCKET/PREFIX or file:///DIRECTORY. Each pool needs a prefix of its
        /// own. `steadfast probe` checks whether a store is fit. Empty: no archive.
        to: Option<String> = None;
        /// URL of the S3 endpoint. Empty: that of AWS in the region.
        endpoint: Option<String> = None;
        /// Region of the endpoint. Empty: AWS_REGION, or us-east-1.
        region: Option<String> = None;
        /// Access key. Empty: AWS_ACCESS_KEY_ID and the other AWS_ variables of the environment.
        access_key: Option<String> = None;
        /// Secret key.
        secret_key: Secret = Secret::default();
        /// A file with the secret key, instead of `secret_key`.
        secret_key_file: Option<PathBuf> = None;
        /// Follow the archive of another machine's pool onto the disks of this one, as long as it
        /// has no pool: a standby. `serve --standby` has the same effect.
        standby: bool = false;
        /// When a write is answered: "local", when the pool's own disks have it; "archived", when
        /// the archive has it too. Then a lost machine loses nothing, each write costs a round trip
        /// to the store, and while that is away, writes get 503 after `store.write_wait`.
        acknowledge: Acknowledge = Acknowledge::Local;
        /// Take-over without an operator: the pool answers its clients only while it holds a lease
        /// of this length, which it renews in the archive, and a standby takes the archive over
        /// when that has ended. Set it on both. While the store is away for longer, the pool
        /// closes its connections. "0 s": an operator promotes a standby.
        lease: Duration = Duration::ZERO, in 0..=600_000_000;
        /// Time between two looks at the log, or of a standby at the archive. The archive is at
        /// most this and one upload behind.
        interval: Duration = Duration::from_secs(1), in 10_000..=3_600_000_000;
        /// Time for which earlier states can be restored. What only older ones name is deleted.
        retention: Duration = Duration::from_secs(604_800), in 3_600_000_000..=315_360_000_000_000;
        /// Maximum number of uploads at a time. Each has up to 8 MiB in memory.
        uploads: usize = 4, in 1..=64;
        /// Age of the oldest change that the archive lacks, above which the server warns.
        lag_warning: Duration = Duration::from_secs(60), in 1_000_000..=31_536_000_000_000;
        /// Time that a start waits for the store before it serves without it. The first start with
        /// an archive does not serve without it, nor one after a stop that handed it over.
        start_wait: Duration = Duration::from_secs(10), in 100_000..=3_600_000_000;
    }

    /// The S3 port.
    s3: S3Section {
        /// Address to listen on. Port 0: a free port, printed at the start. Empty: 127.0.0.1:9000,
        /// and no S3 port at a front of a cluster.
        listen: Option<SocketAddr> = None;
        /// Domain for virtual-host style (`bucket.domain`), for instance "s3.example.org". Empty:
        /// path style only.
        domain: Option<String> = None;
        /// Origins of web pages that may use the port from browsers (CORS), as in
        /// ["https://app.example.com"]; ["*"]: all. Their requests need signatures or presigned
        /// URLs like all others, except for what a policy allows to everyone.
        allowed_origins: Origins = Origins::default();
        /// Buckets whose objects anyone can read without keys, as in ["media"]: only GET and HEAD
        /// of objects. For a bucket with an origin, its `public_read` does the same. The policy of
        /// a bucket can allow more.
        public_read: BucketNames = BucketNames::default();
        /// Accept requests and presigned URLs with signature version 2, as boto3 presigns by
        /// default. It uses SHA-1, and its URLs may be valid for ever.
        signature_v2: bool = true;
        /// Entity tags: "md5" of the content, or "fast": random, which saves the CPU time of MD5,
        /// for clients that do not need it.
        etag: EtagKind = EtagKind::Md5;
    }

    /// Users, and what they may do: see docs/access.md.
    access: AccessSection {
        /// File with the key that seals the secrets of users in the pool: 64 hexadecimal digits, as
        /// `openssl rand -hex 32` prints them. STEADFAST_SEAL_KEY overrides it. Empty: the file
        /// `seal.key` in `data.dir`, made at the first start.
        seal_key_file: Option<PathBuf> = None;
        /// Users that are created at the start if they do not exist, as in [{ name = "app",
        /// grants = ["read:media"], access_key = "app", secret_key_file = "/run/secrets/app" }].
        /// `policy_file`: a policy in the language of AWS. `secret_key` and `secret_key_env` give
        /// the secret itself and an environment variable that holds it. A user that exists stays
        /// as it is, but gets the access key if it has none such.
        users: UserSpecs = UserSpecs::default();
        /// Maximum number of users and named policies.
        users_max: usize = 1000, in 0..=100_000;
    }

    /// The audit log: a line of JSON for each request to the S3 port.
    audit: AuditSection {
        /// The file, relative to `data.dir`. Empty: no audit log.
        file: Option<PathBuf> = None;
        /// Maximum number of lines that wait to be written; above it they are dropped and counted.
        lines_max: usize = 10_000, in 1..=10_000_000;
    }

    /// Events: an object was created or removed. They are sent to the channels and webhooks that
    /// the notifications of a bucket name (arn:steadfast:channel:::NAME,
    /// arn:steadfast:webhook:::NAME), and to channels that mirror a bucket (`mirror_bucket` of a
    /// namespace).
    events: EventsSection {
        /// Webhooks, as in [{ name = "app", url = "https://app.example.com/hook", authorization =
        /// "Bearer secret" }]. `secret`: signs the requests. `authorization_file`,
        /// `authorization_env`, `secret_file` and `secret_env` name a file or an environment
        /// variable with the value. Further keys: `headers = { "X-Name" = "value" }`;
        /// `server_ca_pem`, `cert_pem`, `key_pem`, `server_name` and `insecure_skip_verify` for
        /// TLS.
        webhooks: Webhooks = Webhooks::default();
        /// Maximum number of events that wait to be forwarded. Above it, a write that would add one
        /// waits for at most `store.write_wait`, then gets SlowDown (503).
        waiting: usize = 10_000, in 1..=10_000_000;
        /// Maximum number of events queued for each webhook; above it, the oldest are dropped.
        webhook_queue: usize = 100_000, in 1..=100_000_000;
        /// Time in which a webhook must answer. A request that fails is repeated.
        webhook_timeout: Duration = Duration::from_secs(10), in 1_000..=600_000_000;
        /// Maximum number of requests to a webhook at a time; requests for one object are sent one
        /// after another. 1: all in order.
        webhook_parallel: usize = 8, in 1..=256;
        /// Answers other than 2xx after which an event becomes a dead letter; 0: never. A request
        /// without an answer does not count.
        webhook_tries: usize = 20, in 0..=1_000_000;
        /// Time of failed posting after which an event becomes a dead letter; "0 s": never.
        webhook_give_up: Duration = Duration::from_secs(86_400), in 0..=31_536_000_000_000;
        /// Maximum number of dead letters for each webhook; above it, the oldest are dropped.
        webhook_dead_letters: usize = 10_000, in 1..=100_000_000;
    }

    /// The media edge: buckets with an origin, an S3 bucket or an HTTP server far away. An object
    /// that is asked for is fetched once and kept. Clients can only read these buckets. One client
    /// address has `limits.address_share` percent of `fills`, of `passed`, of `waiting` and of the
    /// connections that fetch what readers wait for.
    edge: EdgeSection {
        /// Maximum number of objects of a bucket being fetched at a time.
        fills: usize = 1024, in 1..=65_536;
        /// Maximum number of connections that fetch the objects of a bucket. A quarter fetches
        /// ahead, and the others fetch what readers wait for.
        origin_connections: usize = 32, in 4..=1024;
        /// Maximum number of answers of a bucket that are passed through at a time, because they
        /// cannot be stored. Each has a connection of its own.
        passed: usize = 256, in 4..=65_536;
        /// Maximum number of requests to a bucket that wait for the first bytes of their answer;
        /// further ones get SlowDown (503). It should be well below `limits.requests`.
        waiting: usize = 256, in 1..=1_048_576;
        /// Memory for segments on their way to the disk: at least two of the largest `segment`.
        memory: Size = Size::mib(256), in 131_072..=1_099_511_627_776;
        /// Memory for the times at which objects were last used, 8 bytes each. Objects that do not
        /// fit are evicted first.
        last_use_memory: Size = Size::mib(16), in 65_536..=17_179_869_184;
        /// Buckets with an origin, as in [{ bucket = "media", origin = "https://example.com/v" }].
        /// Each is created if it does not exist. An origin is http://HOST[:PORT][/PATH], https://
        /// or s3://BUCKET[/PREFIX]. Keys for HTTP: `headers = { Authorization = "Bearer secret" }`.
        /// Keys for S3: `endpoint = "https://s3.example.com"`, `region` ("us-east-1"),
        /// `access_key`, `secret_key`, `session_token`. Without an access key, requests are
        /// unsigned. `secret_key_file`, `secret_key_env`, `session_token_file` and
        /// `session_token_env` name a file or an environment variable with the value.
        /// STEADFAST_EDGE_MEDIA_SECRET_KEY overrides the secret key for the bucket "media".
        /// Further keys: `allow_private = true` allows an origin with a private address.
        /// `fill = "wanted"` fetches only the segments that readers want until half of the object
        /// is there; it is the default with `public_read`. "whole" fetches all. `segment` ("8 MiB")
        /// is the unit of fetching. `object_max` ("64 GiB") has at most 10,000 segments; larger
        /// objects are passed through. `space` ("2 TiB") bounds the bytes of the objects and of
        /// running fills; what was not used for longest is evicted. Without it, live data fills at
        /// most 85 % of the pool. `age` ("30 d") also evicts objects not used for that time.
        /// `fresh` ("origin") obeys Cache-Control and Expires; a time such as "1 h" counts where
        /// they are missing; "forever" is for objects that never change. `stale_if_error` ("24 h")
        /// serves old objects when the origin fails, `negative` ("10 s") remembers a 404.
        /// `timeout` ("30 s") is the time in which an origin must send its next bytes.
        /// `public_read = true` allows anyone to read the objects without keys.
        buckets: EdgeBuckets = EdgeBuckets::default();
    }

    /// The live port: channels for Centrifugo's client SDKs. The section also takes Centrifugo's
    /// options in their own nesting, as in [live.client.token] or [[live.channel.namespaces]].
    live: LiveSection {
        /// Address to listen on. Port 0: a free port, printed at the start. Empty: no live port.
        listen: Option<SocketAddr> = Some(local(8000));
        /// A Centrifugo configuration file (JSON, TOML or YAML) with Centrifugo's options, instead
        /// of tables in this section.
        config: Option<PathBuf> = None;
        /// Allows `client.insecure` and `http_api.insecure` on an address that other machines can
        /// reach. Both give full access to every client.
        insecure_anywhere: bool = false;
        /// Threads among which sessions are divided; 0: one for each core.
        partitions: usize = 0, in 0..=1024;
        /// Serves TLS on this port when `tls` is set. Set it to false behind a proxy that
        /// terminates TLS.
        tls: bool = true;
        /// Maximum number of connections from one address; 0: no limit. All connections through a
        /// proxy have the proxy's address.
        address_connections: usize = 0, in 0..=1_000_000;
        /// Maximum publications of a session a second; above it, the temporary error 111. 0: no
        /// limit.
        publish_rate: usize = 1000, in 0..=1_000_000;
        /// Free share of each disk, in percent, reserved for objects and for publications of the
        /// back end. Below it, publications of clients get the temporary error 100. 0: none.
        publish_reserve: usize = 10, in 0..=90;
        /// Maximum size of a message that is compressed (`websocket.compression`). Compressing it
        /// delays the other sessions of the same thread.
        compression_max: Size = Size::mib(1), in 0..=1_073_741_824;
        /// Maximum number of connect commands being processed.
        connects: usize = 512, in 1..=1_000_000;
        /// Maximum number of subscribe commands being processed.
        subscribes: usize = 512, in 1..=1_000_000;
        /// Maximum number of history reads at a time, including those for recoveries.
        history_reads: usize = 256, in 1..=1_000_000;
        /// Maximum number of requests of a proxy to its back end at a time.
        proxy_requests: usize = 256, in 1..=100_000;
        /// Maximum number of calls of the gRPC API (`grpc_api.enabled`) being processed.
        grpc_calls: usize = 256, in 1..=100_000;
        /// Maximum number of requests to the HTTP API being processed.
        api_requests: usize = 1024, in 1..=100_000;
        /// Memory for the bodies of requests to the HTTP API.
        api_bytes: Size = Size::mib(64), in 10_485_760..=1_099_511_627_776;
        /// Maximum size of the publications in one answer. A longer history ends there and
        /// continues with the next request; a recovery that needs more fails (`recovered: false`).
        history_max: Size = Size::mib(4), in 65_536..=1_073_741_824;
        /// Memory for long answers (histories, recoveries, presence, the API) until their clients
        /// have read them. It counts their publications; with the encoded answers and the buffers
        /// of connections, up to 2.3 times as much is in use. Above it, at once: the temporary
        /// error 111, or `recovered: false`.
        answers_memory: Size = Size::mib(256), in 16_777_216..=1_099_511_627_776;
        /// Maximum length of the queue of each of the limits above; beyond it, the temporary error
        /// 111 at once.
        waiting: usize = 20_000, in 0..=1_000_000;
        /// Maximum number of connections to the port of the gRPC API; further ones wait to
        /// be accepted.
        grpc_connections: usize = 1024, in 1..=1_000_000;
    }

    /// TLS for the S3 port and the live port: both files, in PEM, or neither.
    tls: TlsSection {
        /// Certificate chain, the server's certificate first.
        certificate: Option<PathBuf> = None;
        /// Private key (PKCS #8, PKCS #1 or SEC 1).
        key: Option<PathBuf> = None;
    }

    /// The admin port: health, metrics, status. Without a token, every client that reaches it can
    /// read them: do not expose it.
    admin: AdminSection {
        /// Address to listen on. Port 0: a free port, printed at the start.
        listen: SocketAddr = local(9001);
        /// Token that metrics and status require, as `Authorization: Bearer TOKEN`. Empty: none.
        /// Health needs no token.
        token: Secret = Secret::default();
        /// Host names by which clients may call the port, besides addresses and localhost. Others
        /// are refused, which protects against web pages (DNS rebinding). Empty: any name, if the
        /// port listens on more than this machine.
        hosts: Names = Names::default();
    }

    /// A cluster of nodes. Each channel has a home, which stores it; sessions may be at any node.
    cluster: ClusterSection {
        /// The name of this node. Empty: no cluster.
        name: String = String::new();
        /// All nodes, this one included, as in [{ name = "a", address = "10.0.0.1:8002" }]; as
        /// text, NAME=HOST:PORT separated by commas. `standby` of a home is the address of its
        /// standby.
        nodes: ClusterNodes = ClusterNodes::default();
        /// Names of the nodes that are homes of channels, the same on all nodes. Other nodes are
        /// fronts: they have no pool.
        homes: ClusterHomes = ClusterHomes::default();
        /// For one start, after a change of `homes` or of the name: takes a pool whose channels
        /// have another home now, or that was another home's. The history of such channels stays in
        /// this pool, and is not found. `serve --accept-moved-channels` has the same effect.
        accept_moved_channels: bool = false;
        /// Address to listen on for links. Empty: the port of this node's address, on all
        /// interfaces.
        listen: Option<SocketAddr> = None;
        /// The secret of the cluster, the same on all nodes: at least 16 characters.
        secret: Secret = Secret::default();
        /// A file with the secret, instead of `secret`.
        secret_file: Option<PathBuf> = None;
        /// TLS between nodes: the certificate, in PEM, the same on all nodes. Nodes trust exactly
        /// this certificate; its name and dates do not matter. Empty: links are not encrypted.
        certificate: Option<PathBuf> = None;
        /// The private key of the certificate, in PEM.
        key: Option<PathBuf> = None;
        /// Limit of the data that waits to be sent to a node. Above it the link is closed and
        /// opened again.
        outbox: Size = Size::mib(64), in 33_554_432..=17_179_869_184;
        /// Memory for the newest publications of channels of other homes: reconnecting clients are
        /// answered from it. Above it the oldest channels lose theirs.
        tails: Size = Size::mib(64), in 1_048_576..=17_179_869_184;
        /// How long a node may be without a link before its clients leave the presence of channels,
        /// and before commands on users leave it out.
        node_ttl: Duration = Duration::from_secs(10), in 4_000_000..=600_000_000;
        /// How long a front may be without a link to any home before it is not ready
        /// (`/health/ready`), so that balancers send clients to other nodes. 0: it stays ready.
        ready_without_homes: Duration = Duration::from_secs(10), in 0..=86_400_000_000;
    }

    /// Limits on clients.
    limits: LimitsSection {
        /// Maximum number of connections to the S3 port; further ones wait to be accepted.
        connections: usize = 4096, in 1..=1_000_000;
        /// Maximum number of S3 requests being processed.
        requests: usize = 1024, in 1..=1_000_000;
        /// Maximum number of waiting requests; further ones get SlowDown (503) at once.
        requests_waiting: usize = 4096, in 0..=1_000_000;
        /// Maximum time that a request waits before it gets SlowDown (503).
        request_wait: Duration = Duration::from_secs(5), in 0..=600_000_000;
        /// A request (S3, a client's command, the server API) that takes at least this long is
        /// logged with the time of each stage, and counted. The client's time to send a body and to
        /// read the answer does not count. "0 s": none.
        slow_request: Duration = Duration::from_secs(1), in 0..=86_400_000_000;
        /// Memory for XML request bodies (DeleteObjects, CompleteMultipartUpload). Each counts 8
        /// times its length and must arrive within `stall_timeout`. Above it: SlowDown (503) at
        /// once.
        xml_memory: Size = Size::mib(128), in 33_554_432..=1_099_511_627_776;
        /// Time in which a client must send a request's header; also the limit of an idle
        /// connection.
        header_timeout: Duration = Duration::from_secs(30), in 1_000..=86_400_000_000;
        /// Time after which a client that sends nothing of a body or reads nothing of an answer is
        /// cut off. Also the time by which it may lag behind `client_rate_min`.
        stall_timeout: Duration = Duration::from_secs(30), in 1_000..=86_400_000_000;
        /// Minimum bytes a second that a client must send of a body (S3) and read of an answer or
        /// of queued messages (S3 and live). "0 B": any progress within each `stall_timeout` is
        /// enough.
        client_rate_min: Size = Size::kib(4), in 0..=1_073_741_824;
        /// Maximum number of answers above 256 KiB being sent. They no longer count as requests
        /// being processed.
        answers: usize = 2048, in 1..=1_000_000;
        /// Share of `connections`, `requests` and `answers`, in percent, for one address (for IPv6:
        /// one network of 64 bits). Also its share of the live port's connections that have not
        /// sent `connect` yet, of `live.answers_memory`, and of the bounds of a bucket with an
        /// origin. Further connections are closed at once. Proxies in `trusted_proxies` may have
        /// all connections.
        address_share: usize = 25, in 1..=100;
        /// Proxies in front of the S3 port, as in ["10.0.0.0/8"]. Their X-Forwarded-For names the
        /// address whose share counts, and which policies see. Their X-Forwarded-Proto counts, too.
        trusted_proxies: Networks = Networks::default();
        /// File descriptors kept for the disks, the index, the admin port and commands.
        reserved_files: usize = 256, in 32..=1_000_000;
    }

    /// Log lines, written to standard error.
    output: OutputSection {
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
        /// Level of all of Steadfast's lines (error, warn, info, debug, trace), or
        /// `target=level,...`.
        level: String = "info".to_owned();
    }
}
