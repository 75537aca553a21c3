//! What becomes of the options of Centrifugo that this server does not have.

/// An option, or a section with all of its options. `*.` stands for any section.
pub(super) struct Rule {
    pub(super) path: &'static str,
    /// The default as text, if it is not empty, `false` or 0.
    pub(super) default: &'static str,
    pub(super) effect: Effect,
}

/// The effect of an option that is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It has no meaning here. The text names the setting to use instead, if there is one.
    Ignored(&'static str),
    /// Without it the server would behave differently. The text says why, or what to do.
    Refused(&'static str),
}

const fn ignored(path: &'static str, default: &'static str, note: &'static str) -> Rule {
    Rule { path, default, effect: Effect::Ignored(note) }
}

const fn refused(path: &'static str, default: &'static str, why: &'static str) -> Rule {
    Rule { path, default, effect: Effect::Refused(why) }
}

const RULES: &[Rule] = &[
    ignored("log", "", "[output] sets the log"),
    ignored("admin", "", "there is no web interface: use `steadfast status` and the admin port"),
    ignored("prometheus", "", "metrics are at /metrics of the admin port"),
    ignored("opentelemetry", "", ""),
    ignored("graphite", "", ""),
    ignored("swagger", "", ""),
    ignored("debug", "", ""),
    ignored("usage_stats", "", "nothing is sent"),
    ignored("node", "", ""),
    ignored("shutdown", "", "server.stop_deadline sets it"),
    ignored("pid_file", "", ""),
    ignored("engine", "", "histories are on this server's disks, and [cluster] joins nodes"),
    ignored("broker", "", "histories are on this server's disks, and [cluster] joins nodes"),
    ignored("presence_manager", "", "presence is in memory, and [cluster] joins nodes"),
    ignored("controller", "", "[cluster] joins nodes"),
    ignored("map_broker", "", ""),
    ignored("shared_poll", "", ""),
    // These are for clients, which the ports are not.
    ignored("*.tls.server_ca_pem", "", ""),
    ignored("*.tls.insecure_skip_verify", "", ""),
    ignored("*.tls.server_name", "", ""),
    ignored("*.internal_tls.server_ca_pem", "", ""),
    ignored("*.internal_tls.insecure_skip_verify", "", ""),
    ignored("*.internal_tls.server_name", "", ""),
    ignored("health.enabled", "", "the port always has it"),
    ignored("grpc_api.reflection", "", ""),
    ignored("client.concurrency", "", "commands of a session run one after another"),
    ignored("client.presence_update_interval", "27s", "presence changes at once"),
    ignored("client.channel_position_check_delay", "40s", "positions are always exact"),
    ignored("client.channel_position_max_time_lag", "", "positions are always exact"),
    ignored("websocket.read_buffer_size", "", ""),
    ignored("websocket.write_buffer_size", "", ""),
    ignored("websocket.use_write_buffer_pool", "", ""),
    ignored("websocket.write_timeout", "1s", "limits.stall_timeout bounds slow clients"),
    ignored("websocket.decompressed_message_size_limit", "", "websocket.message_size_limit bounds it"),
    ignored("*.max_request_body_size", "65536", "websocket.message_size_limit bounds requests"),
    ignored("uni_websocket.read_buffer_size", "", ""),
    ignored("uni_websocket.write_buffer_size", "", ""),
    ignored("uni_websocket.use_write_buffer_pool", "", ""),
    ignored("uni_websocket.write_timeout", "1s", "limits.stall_timeout bounds slow clients"),
    ignored("uni_websocket.compression", "", "these sessions are not compressed"),
    ignored("uni_websocket.compression_min_size", "", ""),
    ignored("uni_websocket.compression_level", "1", ""),
    ignored("uni_websocket.message_size_limit", "65536", "websocket.message_size_limit bounds it"),
    ignored("uni_websocket.decompressed_message_size_limit", "", ""),
    ignored("*.subscribe_stream_proxy_name", "default", ""),
    ignored("*.tls.client_ca_pem", "", "it is for servers"),
    ignored("*.grpc.compression", "", ""),
    ignored("*.grpc_metadata", "", "no client connects over gRPC"),
    refused("http_server.tls_autocert", "", "set a certificate in http_server.tls"),
    refused("http_server.http3", "", "the port speaks HTTP/1.1"),
    refused("http_server.h2c_external", "", "the port speaks HTTP/1.1"),
    refused("client.connection_rate_limit", "", "live.connects and live.waiting bound connects"),
    refused("client.connect_code_to_unidirectional_disconnect", "", "not supported"),
    refused("channel.proxy.subscribe_stream", "", "subscription streams are not supported"),
    refused("*.subscribe_stream_proxy_enabled", "", "subscription streams are not supported"),
    refused("*.subscribe_stream_proxy_bidirectional", "", "subscription streams are not supported"),
    refused("channel.proxy.map_publish", "", "map subscriptions are not supported"),
    refused("channel.proxy.map_remove", "", "map subscriptions are not supported"),
    refused("*.map", "", "map subscriptions are not supported"),
    refused("*.map_clients_presence_channel_prefix", "", "map subscriptions are not supported"),
    refused("*.map_users_presence_channel_prefix", "", "map subscriptions are not supported"),
    refused("channel.proxy.shared_poll_refresh", "", "shared polling is not supported"),
    refused("*.shared_poll", "", "shared polling is not supported"),
    refused("*.subscription_type", "stream", "there are stream subscriptions only"),
    refused("consumers", "", "consumers are not supported: publish by the server API"),
    refused("uni_grpc", "", "sessions over gRPC are not supported"),
    refused("webtransport", "", "WebTransport is not supported"),
    refused("init", "", "not supported"),
    refused("uni_sse.connect_code_to_http_response", "", "not supported"),
    refused("uni_http_stream.connect_code_to_http_response", "", "not supported"),
    refused("uni_websocket.disable_closing_handshake", "", "not supported"),
    refused("uni_websocket.disable_disconnect_push", "", "not supported"),
    refused("uni_websocket.join_push_messages", "", "not supported"),
    refused("enable_unreleased_features", "", "not supported"),
];

impl Rule {
    /// The rule for an option, by its path without the names of list items.
    pub(super) fn of(path: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| match rule.path.strip_prefix('*') {
            Some(end) => path.ends_with(end),
            None => path == rule.path,
        })
    }

    /// The options and sections with a full path.
    pub(super) fn paths() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.path).filter(|path| !path.starts_with('*'))
    }

    /// The ends of paths in any section.
    pub(super) fn ends() -> impl Iterator<Item = &'static str> {
        RULES.iter().filter_map(|rule| rule.path.strip_prefix("*."))
    }
}
