use super::*;

fn map(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).expect("JSON")
}

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<CentrifugoOptions, String> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    CentrifugoOptions::read(map(text), variables).map_err(|e| e.to_string())
}

fn read(text: &str) -> CentrifugoOptions {
    read_with(text, &[]).expect("valid")
}

#[test]
fn options_are_used_listed_or_refused() {
    let found = read(
        r#"{"log": {"level": "debug"}, "admin": {"enabled": false, "password": "p"}, "engine": {"type": "redis"},
            "prometheus": {"enabled": true}, "client": {"presence_update_interval": "27s", "concurrency": 8},
            "http_api": {"key": "k", "external": null}, "channel": {"namespaces": [{"name": "a", "map": {"mode": ""}}]},
            "websocket": {"write_timeout": "5s"}, "misspelt": {"a": 1}, "clients": true}"#,
    );
    assert_eq!(found.config.http_api.key, "k");
    assert_eq!(found.config.channel.namespaces[0].name, "a");
    let names: Vec<&str> = found.ignored.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(names, ["client.concurrency", "engine", "log", "prometheus", "websocket.write_timeout"]);
    assert_eq!(found.unknown, ["clients", "misspelt"]);
    assert!(!found.names_port);
    let refused = read_with(
        r#"{"http_api.disabled": true, "consumers": [{"name": "c"}], "uni_grpc": {"enabled": true},
            "channel": {"namespaces": [{"name": "a", "subscribe_stream_proxy_enabled": true, "shared_poll": {"mode": "x"}}]},
            "client": {"channel_limit": "many", "ping_interval": 5, "allowed_origins": {"a": 1}}}"#,
        &[],
    );
    let refused = refused.expect_err("options that would change the behaviour");
    for name in [
        "consumers: ",
        "http_api.disabled: write the section",
        "uni_grpc: ",
        "channel.namespaces.a.subscribe_stream_proxy_enabled: ",
        "channel.namespaces.a.shared_poll: ",
        "client.channel_limit: expected a number",
        "client.ping_interval: expected a duration",
        "client.allowed_origins: expected a list",
    ] {
        assert!(refused.contains(name), "{name} is not in {refused}");
    }
}

#[test]
fn values_have_the_types_that_centrifugo_takes() {
    let found = read(
        r#"{"Client": {"Insecure": "true", "channel_limit": "0x80", "allowed_origins": "https://a", "stale_close_delay": 0, "history_max_publication_limit": 0,
            "proxy": {"connect": {"enabled": "1", "endpoint": "http://127.0.0.1:1/", "http": {"static_headers": {"X-Key": 7}}}}},
            "http_server": {"port": "9000", "internal_port": 9001}, "http_api": {"insecure": 1, "key": 42}, "sse": {"enabled": "t"}}"#,
    );
    let config = &found.config;
    assert!(config.client.insecure && config.http_api.insecure && config.sse.enabled && found.names_port);
    assert_eq!(
        (config.client.channel_limit, config.client.allowed_origins.as_slice()),
        (128, &["https://a".to_owned()][..])
    );
    // An empty value is the default.
    assert_eq!(config.client.stale_close_delay, GoDuration::seconds(10));
    assert_eq!(config.client.history_max_publication_limit, 300);
    let empty = read(r#"{"channel": {"private_prefix": "", "max_length": 0}, "websocket": {"message_size_limit": 0}}"#);
    assert_eq!(empty.config, LiveConfig::default());
    assert_eq!((config.http_server.port, config.http_server.internal()), (9000, Ok(Some(("", 9001)))));
    assert_eq!(config.http_api.key, "42");
    assert_eq!(config.client.proxy.connect.http.static_headers["X-Key"], "7");
}

#[test]
fn variables_are_over_the_file() {
    let file = r#"{"http_api": {"key": "of the file"}, "client": {"channel_limit": 5},
        "channel": {"namespaces": [{"name": "chat-room.a", "history_size": 5, "history_ttl": "60s"}]}}"#;
    let variables = [
        ("CENTRIFUGO_HTTP_API_KEY", "of the variable"),
        ("CENTRIFUGO_CLIENT_CHANNEL_LIMIT", ""),
        ("CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY", "secret"),
        ("CENTRIFUGO_CLIENT_ALLOWED_ORIGINS", "https://a https://b"),
        ("CENTRIFUGO_CLIENT_PING_INTERVAL", "40s"),
        ("CENTRIFUGO_HTTP_SERVER_PORT", "9000"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_ROOM_A_HISTORY_SIZE", "7"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_ROOM_A_PRESENCE", "true"),
        ("CENTRIFUGO_PROXIES", r#"[{"name": "own", "endpoint": "http://127.0.0.1:1/"}]"#),
        ("CENTRIFUGO_PROXIES_OWN_TIMEOUT", "3s"),
        ("CENTRIFUGO_CLIENT_PROXY_CONNECT_HTTP_STATIC_HEADERS", r#"{"X": "a${CENTRIFUGO_VAR_KEY}b${c}"}"#),
        ("CENTRIFUGO_VAR_KEY", "${CENTRIFUGO_VAR_KEY}"),
        ("CENTRIFUGO_ADMIN_PASSWORD", "p"),
        ("CENTRIFUGO_ENGINE_REDIS_ADDRESS", "redis:6379"),
        ("CENTRIFUGO_SERVICE_HOST", "10.0.0.1"),
        ("CENTRIFUGO_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("CENTRIFUGO_CLENT_INSECURE", "true"),
        ("OTHER", "x"),
    ];
    let found = read_with(file, &variables).expect("valid");
    let config = &found.config;
    assert_eq!((config.http_api.key.as_str(), config.client.channel_limit), ("of the variable", 5));
    assert_eq!(config.client.token.hmac_secret_key, "secret");
    assert_eq!(config.client.allowed_origins, ["https://a", "https://b"]);
    assert_eq!((config.client.ping_interval, config.http_server.port), (GoDuration::seconds(40), 9000));
    let options = &config.channel.namespaces[0].options;
    assert_eq!((options.history_size, options.presence, options.history_ttl), (7, true, GoDuration::seconds(60)));
    assert_eq!((config.proxies[0].name.as_deref(), config.proxies[0].timeout), (Some("own"), GoDuration::seconds(3)));
    assert_eq!(config.client.proxy.connect.http.static_headers["X"], "a${CENTRIFUGO_VAR_KEY}b${c}");
    assert_eq!(found.ignored.len(), 2, "{:?}", found.ignored);
    assert_eq!(found.unknown, ["CENTRIFUGO_CLENT_INSECURE"]);
    assert!(found.names_port);
    let without = read_with("{}", &[("CENTRIFUGO_CHANNEL_NAMESPACES", r#"[{"name": "a", "presence": true}]"#)]);
    assert!(without.expect("valid").config.channel.namespaces[0].options.presence);
    for (name, value, why) in [
        ("CENTRIFUGO_PROXIES", "[", "CENTRIFUGO_PROXIES: this is not JSON"),
        ("CENTRIFUGO_UNI_GRPC_ENABLED", "true", "uni_grpc: "),
        (
            "CENTRIFUGO_CHANNEL_WITHOUT_NAMESPACE_SUBSCRIBE_STREAM_PROXY_ENABLED",
            "true",
            "subscribe_stream_proxy_enabled: ",
        ),
        ("CENTRIFUGO_CHANNEL_WITHOUT_NAMESPACE_MAP_MODE", "x", "channel.without_namespace.map: "),
        ("CENTRIFUGO_CLIENT_INSECURE", "perhaps", "client.insecure: expected true or false"),
        (
            "CENTRIFUGO_CLIENT_PROXY_CONNECT_HTTP_STATIC_HEADERS",
            r#"{"X": "${CENTRIFUGO_VAR_NONE}"}"#,
            "CENTRIFUGO_VAR_NONE",
        ),
    ] {
        let error = read_with("{}", &[(name, value)]).expect_err(name);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn lists_are_json_or_names() {
    let file = r#"{"channel": {"namespaces": [{"name": "chat", "presence": true}]}}"#;
    let variables = [
        ("CENTRIFUGO_CHANNEL_NAMESPACES", "small-history  other.one"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_SMALL_HISTORY_HISTORY_SIZE", "7"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_SMALL_HISTORY_HISTORY_TTL", "60s"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_OTHER_ONE_PRESENCE", "true"),
        ("CENTRIFUGO_RPC_NAMESPACES", "calls"),
        ("CENTRIFUGO_RPC_NAMESPACES_CALLS_PROXY_ENABLED", "true"),
        ("CENTRIFUGO_RPC_NAMESPACES_CALLS_PROXY_NAME", "own"),
        ("CENTRIFUGO_PROXIES", "own"),
        ("CENTRIFUGO_PROXIES_OWN_ENDPOINT", "http://127.0.0.1:1/"),
    ];
    let found = read_with(file, &variables).expect("valid");
    let (config, unknown) = (found.config, found.unknown);
    assert!(unknown.is_empty(), "{unknown:?}");
    // As in Centrifugo, names are added to the list of the file.
    let namespaces: Vec<(&str, u64, bool)> = config
        .channel
        .namespaces
        .iter()
        .map(|n| (n.name.as_str(), n.options.history_size, n.options.presence))
        .collect();
    assert_eq!(namespaces, [("chat", 0, true), ("small-history", 7, false), ("other.one", 0, true)]);
    assert_eq!(
        (config.rpc.namespaces[0].name.as_str(), config.rpc.namespaces[0].proxy_name.as_str()),
        ("calls", "own")
    );
    assert_eq!(config.proxies[0].endpoint, "http://127.0.0.1:1/");
    for wrong in ["[{\"name\": \"a\"}", "[a b]", "{\"name\""] {
        let error = read_with("{}", &[("CENTRIFUGO_CHANNEL_NAMESPACES", wrong)]).expect_err(wrong);
        assert!(error.contains("CENTRIFUGO_CHANNEL_NAMESPACES: this is not JSON"), "{error}");
    }
}

#[test]
fn files_of_version_5_are_refused() {
    let error = read_with(r#"{"Token_HMAC_secret_key": "a", "namespaces": [], "admin": true, "misspelt": 1}"#, &[]);
    let error = error.expect_err("a file of version 5");
    assert!(error.contains("version 5 or older (it has namespaces, token_hmac_secret_key)"), "{error}");
    assert!(error.contains("migration_v6"), "{error}");
    // Other programs may use such a variable.
    let found = read_with("{}", &[("CENTRIFUGO_TOKEN_HMAC_SECRET_KEY", "a")]).expect("valid");
    let [line] = &found.unknown[..] else { unreachable!("{:?}", found.unknown) };
    assert!(line.starts_with("CENTRIFUGO_TOKEN_HMAC_SECRET_KEY (of Centrifugo version 5"), "{line}");
}

#[test]
fn names_of_variables_as_values_are_named() {
    let file = r#"{"client": {"token": {"hmac_secret_key": "${TOKEN_SECRET}"}, "allowed_origins": ["https://a", "$ORIGIN"],
            "proxy": {"connect": {"http": {"static_headers": {"X-Key": "${CENTRIFUGO_VAR_A}${KEY}"}}}}},
        "channel": {"private_prefix": "$p", "namespaces": [{"name": "chat", "channel_regex": "^[a-z]+$"}]},
        "proxies": [{"name": "own", "endpoint": "http://${HOST:-h}/"}], "http_api": {"key": "${KEY}"},
        "grpc_api": {"key": "${CENTRIFUGO_VAR_A}"}}"#;
    let variables = [("CENTRIFUGO_HTTP_API_KEY", "of the variable"), ("CENTRIFUGO_VAR_A", "a")];
    let found = read_with(file, &variables).expect("valid");
    let begins = |line: &String| line.split(" is taken").next().unwrap_or_default().to_owned();
    let lines: Vec<String> = found.literal.iter().map(begins).collect();
    assert_eq!(
        lines,
        [
            "client.allowed_origins: $ORIGIN",
            "client.proxy.connect.http.static_headers.X-Key: ${KEY}",
            "client.token.hmac_secret_key: ${TOKEN_SECRET}",
            "grpc_api.key: ${CENTRIFUGO_VAR_A}",
            "proxies.own.endpoint: ${HOST}",
        ]
    );
    assert!(found.literal[2].ends_with("CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY instead"), "{}", found.literal[2]);
    assert!(found.literal[4].ends_with("CENTRIFUGO_PROXIES_OWN_ENDPOINT instead"), "{}", found.literal[4]);
}

#[test]
fn secrets_from_files() {
    let folder = std::env::temp_dir().join(format!("steadfast-secrets-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("key");
    std::fs::write(&path, "the secret\r\n").expect("written");
    let shown = path.to_str().expect("text");
    let file = format!(
        r#"{{"http_api": {{"key_file": {shown:?}}}, "client": {{"token": {{"hmac_secret_key_file": {shown:?}}}}},
            "proxies": [{{"name": "own", "endpoint": "grpc://127.0.0.1:1", "grpc": {{"credentials_key": "a", "credentials_value_file": {shown:?}}}}}]}}"#
    );
    let found = read(&file).config;
    assert_eq!(
        (found.http_api.key.as_str(), found.client.token.hmac_secret_key.as_str()),
        ("the secret", "the secret")
    );
    assert_eq!(found.proxies[0].grpc.credentials_value, "the secret");
    let variables = [("CENTRIFUGO_GRPC_API_KEY_FILE", shown), ("CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY_FILE", "")];
    assert_eq!(read_with("{}", &variables).expect("valid").config.grpc_api.key, "the secret");
    let both = format!(r#"{{"http_api": {{"key": "k", "key_file": {shown:?}}}}}"#);
    assert!(read_with(&both, &[]).expect_err("two").contains("keep one of them"));
    let missing = read_with(r#"{"client": {"token": {"hmac_secret_key_file": "/none"}}}"#, &[]).expect_err("no file");
    assert!(missing.contains("client.token.hmac_secret_key_file: \"/none\": "), "{missing}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn every_rule_concerns_an_option_that_the_server_lacks() {
    let template = Value::Object(template());
    for path in Rule::paths() {
        let pointer = format!("/{}", path.replace('.', "/"));
        assert!(template.pointer(&pointer).is_none(), "{path} is an option of the server");
    }
}
