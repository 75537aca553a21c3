//! Options of Centrifugo v5 and older, whose files are flat: no section holds them.

use serde_json::{Map, Value};

/// Where Centrifugo describes the change, and has a converter.
pub(super) const MIGRATION: &str = "https://centrifugal.dev/docs/getting-started/migration_v6";

/// The options at the top of a file, without those that version 6 has there too.
const OPTIONS: &str = "
    address allow_anonymous_connect_without_token allow_history_for_anonymous allow_history_for_client
    allow_history_for_subscriber allow_positioning allow_presence_for_anonymous allow_presence_for_client
    allow_presence_for_subscriber allow_publish_for_anonymous allow_publish_for_client allow_publish_for_subscriber
    allow_recovery allow_subscribe_for_anonymous allow_subscribe_for_client allow_user_limited_channels
    allowed_delta_types allowed_origins api_disable api_error_mode api_external api_handler_prefix api_insecure api_key
    channel_max_length channel_namespace_boundary channel_private_prefix channel_regex channel_user_boundary
    channel_user_separator connect_proxy_name delta_publish disallow_anonymous_connection_tokens force_positioning
    force_push_join_leave force_recovery force_recovery_mode global_history_meta_ttl global_presence_ttl gomaxprocs
    granular_proxy_mode history_meta_ttl history_size history_ttl http3 internal_address internal_port join_leave name
    namespaces node_info_metrics_aggregate_interval ping_interval pong_timeout port presence publish_proxy_name
    refresh_proxy_name rpc_namespace_boundary rpc_namespaces rpc_proxy_name separate_subscription_token_config sockjs
    sockjs_handler_prefix sockjs_url sub_refresh_proxy_name subscribe_proxy_name subscribe_stream_proxy_name
    user_personal_channel_namespace user_personal_single_connection user_subscribe_to_personal

    admin_external admin_handler_prefix admin_insecure admin_password admin_secret admin_web_path
    admin_web_proxy_address client_channel_limit client_channel_position_check_delay client_concurrency
    client_connection_limit client_connection_rate_limit client_expired_close_delay client_expired_sub_close_delay
    client_history_max_publication_limit client_insecure client_insecure_skip_token_signature_verify
    client_presence_update_interval client_queue_max_size client_recovery_max_publication_limit
    client_stale_close_delay client_user_connection_limit client_user_id_http_header emulation_handler_prefix
    emulation_max_request_body_size graphite_host graphite_interval graphite_port graphite_prefix graphite_tags
    health_handler_prefix http_stream_handler_prefix http_stream_max_request_body_size log_file log_level
    nats_dial_timeout nats_prefix nats_url nats_write_timeout opentelemetry_api prometheus_handler_prefix
    shutdown_termination_delay shutdown_timeout sse_handler_prefix sse_max_request_body_size swagger_handler_prefix
    tarantool_address tarantool_mode tarantool_password tarantool_user uni_http_stream_handler_prefix
    uni_http_stream_max_request_body_size uni_sse_handler_prefix uni_sse_max_request_body_size usage_stats_disable
    webtransport_handler_prefix

    grpc_api_address grpc_api_error_mode grpc_api_key grpc_api_port grpc_api_reflection grpc_api_tls_disable
    uni_grpc_address uni_grpc_max_receive_message_size uni_grpc_port uni_grpc_tls_disable

    proxy_binary_encoding proxy_connect_endpoint proxy_connect_timeout proxy_grpc_cert_file proxy_grpc_compression
    proxy_grpc_credentials_key proxy_grpc_credentials_value proxy_grpc_metadata proxy_http_headers
    proxy_include_connection_meta proxy_publish proxy_publish_endpoint proxy_publish_timeout proxy_refresh_endpoint
    proxy_refresh_timeout proxy_rpc_endpoint proxy_rpc_timeout proxy_static_http_headers proxy_sub_refresh
    proxy_sub_refresh_endpoint proxy_sub_refresh_timeout proxy_subscribe proxy_subscribe_endpoint
    proxy_subscribe_stream proxy_subscribe_stream_endpoint proxy_subscribe_stream_timeout proxy_subscribe_timeout

    redis_address redis_client_name redis_cluster_address redis_connect_timeout redis_db redis_force_resp2
    redis_io_timeout redis_password redis_prefix redis_sentinel_address redis_sentinel_client_name
    redis_sentinel_master_name redis_sentinel_password redis_sentinel_user redis_use_lists redis_user

    tls_autocert tls_autocert_cache_dir tls_autocert_email tls_autocert_host_whitelist tls_autocert_http
    tls_autocert_http_addr tls_autocert_server_name tls_external

    websocket_compression websocket_compression_level websocket_compression_min_size websocket_disable
    websocket_handler_prefix websocket_message_size_limit websocket_read_buffer_size websocket_use_write_buffer_pool
    websocket_write_buffer_size websocket_write_timeout uni_websocket_compression uni_websocket_compression_level
    uni_websocket_compression_min_size uni_websocket_handler_prefix uni_websocket_message_size_limit
    uni_websocket_read_buffer_size uni_websocket_use_write_buffer_pool uni_websocket_write_buffer_size
    uni_websocket_write_timeout
";

/// The sections of tokens, and their options.
const TOKENS: [&str; 2] = ["token_", "subscription_token_"];
const TOKEN_OPTIONS: &str = "audience audience_regex ecdsa_public_key hmac_secret_key issuer issuer_regex
    jwks_public_endpoint rsa_public_key user_id_claim";

/// The sections of TLS, and their options.
const TLS: [&str; 5] = ["tls", "grpc_api_tls", "uni_grpc_tls", "redis_tls", "redis_sentinel_tls"];
const TLS_OPTIONS: &str = "cert cert_pem client_ca client_ca_pem insecure_skip_verify key key_pem root_ca root_ca_pem
    server_name";

/// Whether only version 5 and older have this option at the top.
pub(super) fn has(name: &str) -> bool {
    let is_in = |options: &str, name: &str| options.split_whitespace().any(|option| option == name);
    let of_token = |section: &str| name.strip_prefix(section).is_some_and(|name| is_in(TOKEN_OPTIONS, name));
    let of_tls = |section: &str| match name.strip_prefix(section) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('_').is_some_and(|name| is_in(TLS_OPTIONS, name)),
        None => false,
    };
    is_in(OPTIONS, name) || TOKENS.iter().any(|section| of_token(section)) || TLS.iter().any(|section| of_tls(section))
}

/// Refuses a file of version 5 or older: this server would start without its keys and namespaces.
pub(super) fn refuse(options: &Map<String, Value>) -> Result<(), String> {
    let found: Vec<&str> = options.keys().map(String::as_str).filter(|name| has(name)).collect();
    if found.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this is a configuration file of Centrifugo version 5 or older (it has {}): convert it to version 6 with the converter at {MIGRATION}",
        found.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_version_5_are_known_and_those_of_version_6_are_not_among_them() {
        for name in ["token_hmac_secret_key", "subscription_token_issuer", "tls", "redis_tls_key_pem", "api_key"] {
            assert!(has(name), "{name}");
        }
        for name in ["client", "token", "tls_", "misspelt", "token_hmac_secret", ""] {
            assert!(!has(name), "{name}");
        }
        let sections: Vec<String> = super::super::template().into_iter().map(|(name, _)| name).collect();
        let others = super::super::rules::Rule::paths().map(str::to_owned);
        for name in sections.into_iter().chain(others) {
            assert!(!has(&name), "{name}");
        }
    }
}
