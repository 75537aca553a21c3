use proptest::prelude::*;

use super::*;

fn message(text: &str) -> String {
    parse(text).expect_err("a mistake").to_string()
}

fn paths(paths: &[&str]) -> Vec<std::path::PathBuf> {
    paths.iter().map(std::path::PathBuf::from).collect()
}

fn sets(config: &Config) -> Vec<(Vec<std::path::PathBuf>, Vec<std::path::PathBuf>)> {
    config.disk_sets().into_iter().map(|set| (set.durable, set.fast)).collect()
}

#[test]
fn several_disks() {
    let config = parse("[data]\ndir = \"d\"\ndisks = [\"/dev/a\", \"b\"]\n").expect("valid");
    assert_eq!(sets(&config), [(paths(&["/dev/a"]), vec![]), (paths(&["d/b"]), vec![])]);
    assert_eq!(parse(&config.to_toml()), Ok(config));
    let mut config = Config::default();
    config.set_text("data.disks", "/dev/a, /dev/b").expect("valid");
    assert_eq!(sets(&config), [(paths(&["/dev/a"]), vec![]), (paths(&["/dev/b"]), vec![])]);
    assert!(message("[data]\npool = \"/dev/a\"\ndisks = [\"/dev/b\", \"/dev/c\"]").contains("set one of them"));
}

#[test]
fn several_disks_with_fast_disks_beside_them() {
    let expected = [
        (paths(&["/dev/a"]), paths(&["/dev/x", "/dev/y"])),
        (paths(&["/dev/b"]), paths(&["/dev/z"])),
        (paths(&["/dev/c"]), vec![]),
    ];
    let text = "[data]\ndisks = [\n  { path = \"/dev/a\", fast = [\"/dev/x\", \"/dev/y\"] },\n  { path = \"/dev/b\", fast = \"/dev/z\" },\n  \"/dev/c\",\n]\n";
    let config = parse(text).expect("valid");
    assert_eq!(sets(&config), expected);
    assert_eq!(parse(&config.to_toml()), Ok(config));
    let tables = "[[data.disks]]\npath = \"/dev/a\"\nfast = [\"/dev/x\", \"/dev/y\"]\n[[data.disks]]\npath = \"/dev/b\"\nfast = \"/dev/z\"\n\
                  [[data.disks]]\npath = \"/dev/c\"\n";
    assert_eq!(sets(&parse(tables).expect("valid")), expected);
    let mut config = Config::default();
    config.set_text("data.disks", "/dev/a + /dev/x + /dev/y, /dev/b + /dev/z, /dev/c").expect("valid");
    assert_eq!(sets(&config), expected);

    assert!(message("[data]\ndisks = [{ path = \"/dev/a\", fats = \"/dev/b\" }]").contains("did you mean `fast`"));
    assert!(message("[data]\ndisks = [{ fast = \"/dev/b\" }]").contains("needs a `path`"));
    assert!(message("[data]\ndisks = [{ path = 7 }]").contains("a path in quotes"));
    assert!(message("[data]\ndisks = [7]").contains("a list of disks"));
    let twice = "[data]\ndisks = [{ path = \"/dev/a\", fast = \"/dev/x\" }, { path = \"/dev/b\", fast = \"/dev/x\" }]";
    assert!(message(twice).contains("/dev/x stands there twice"));
    assert!(
        message("[data]\ndir = \"d\"\ndisks = [\"d/a\", \"/dev/x\"]\n[superdisk]\nfast = \"/dev/b\"")
            .contains("beside the disk")
    );
}

#[test]
fn nothing_configured_gives_the_defaults() {
    let config = parse("").expect("valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.s3_listen(), "127.0.0.1:9000".parse().ok());
}

#[test]
fn the_dump_reads_back() {
    let mut config = Config::default();
    config.set_text("data.pool", "/dev/sdx").expect("valid");
    config.set_text("data.extent_size", "64 MiB").expect("valid");
    config.set_text("limits.stall_timeout", "1500 ms").expect("valid");
    assert_eq!(parse(&config.to_toml()), Ok(config));
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    assert_eq!(
        message("[s3]\nlisen = \"1.2.3.4:5\"\n"),
        "line 2, column 1: there is no setting `lisen` in [s3]: did you mean `listen`?"
    );
    assert_eq!(
        message("\n[adnim]\nlisten = \"1.2.3.4:5\"\n"),
        "line 2, column 2: there is no section [adnim]: did you mean [admin]?"
    );
    assert_eq!(message("etag = \"md5\"\n"), "line 1, column 1: `etag` stands outside a section: did you mean s3.etag?");
    assert_eq!(
        message("[s3]\ncertificate = \"c\"\n"),
        "line 2, column 1: there is no setting `certificate` in [s3]: did you mean tls.certificate or cluster.certificate?"
    );
}

#[test]
fn wrong_values_are_reported_with_their_place() {
    assert_eq!(
        message("[limits]\nconnections = \"many\"\n"),
        "line 2, column 15: limits.connections: expected a whole number, found a string"
    );
    assert_eq!(
        message("[limits]\n  connections = 0\n"),
        "line 2, column 17: limits.connections: 0 is out of range: use 1 to 1000000"
    );
    assert!(
        message("[data]\nio = \"fast\"").contains("expected one of \"auto\", \"uring\", \"threads\", found \"fast\"")
    );
    assert!(message("[limits]\nheader_timeout = 30").contains("expected a time such as"));
    assert!(message("[data\n").starts_with("line 1, column "));
    assert!(message("[output]\nlevel = \"loud\"").contains("output.level"));
}

#[test]
fn contradictions_are_refused() {
    assert!(message("[tls]\nkey = \"k.pem\"").contains("tls.certificate"));
    assert!(message("[admin]\nlisten = \"127.0.0.1:9000\"").contains("another port"));
    assert!(message("[data]\nextent_size = \"3 MiB\"").contains("power of two"));
}

#[test]
fn origins_of_pages() {
    let config =
        parse("[s3]\nallowed_origins = [\"https://app.example.com\", \"http://localhost:3000\"]").expect("valid");
    assert_eq!(config.s3.allowed_origins.0, ["https://app.example.com", "http://localhost:3000"]);
    assert_eq!(parse(&config.to_toml()), Ok(config));
    for all in ["[s3]\nallowed_origins = \"*\"", "[s3]\nallowed_origins = [\"*\"]"] {
        assert_eq!(parse(all).expect("valid").s3.allowed_origins.0, ["*"]);
    }
    for wrong in ["app.example.com", "https://app.example.com/", "https://*.example.com", "https://"] {
        assert!(message(&format!("[s3]\nallowed_origins = [\"{wrong}\"]")).contains("is not an origin"), "{wrong}");
    }
    assert!(message("[s3]\nallowed_origins = [7]").contains("a list of origins"));
}

#[test]
fn public_buckets() {
    let config = parse("[s3]\npublic_read = [\"media\", \"films\"]").expect("valid");
    assert!(config.s3.public_read.0.iter().eq(["films", "media"]));
    assert_eq!(parse(&config.to_toml()), Ok(config));
    assert!(message("[s3]\npublic_read = [\"*\"]").contains("not a name for a bucket"));
    assert!(message("[s3]\npublic_read = true").contains("a list of buckets"));
    let (_, section) = include_str!("../../../../docs/s3.md").split_once("### Public buckets").expect("the section");
    let example = section.split("```").nth(1).and_then(|text| text.strip_prefix("toml\n")).expect("the example");
    let config = parse(example).expect("valid");
    assert!(config.s3.public_read.0.contains("photos") && config.edge.public_read().eq(["films"]));
}

#[test]
fn options_of_the_live_door_stand_in_one_place() {
    let mut config = parse("[live.http_api]\nkey = \"k\"").expect("valid");
    assert_eq!(config.live_options().expect("tables").http_api.key, "k");
    config.set_text("live.config", "nowhere.json").expect("valid");
    assert!(config.live_options().expect_err("two places").to_string().contains("keep one of them"));
    let config = parse("[live]\nconfig = \"nowhere.json\"").expect("valid");
    assert!(config.live_options().expect_err("no file").to_string().contains("cannot be read"));
    assert!(message("[live.http_api]\nkay = \"k\"").contains("no such options: http_api.kay"));
    assert!(message("[live.client]\nchannel_limit = \"many\"").contains("client.channel_limit: expected a number"));
    assert!(message("[live.uni_grpc]\nenabled = true").contains("uni_grpc: "));
}

#[test]
fn the_live_port_is_that_of_http_server_if_it_is_named() {
    let listen = |text: &str| {
        let mut config = parse(text).expect("valid");
        config.adopt_http_server().expect("valid");
        config.live.listen.map(|address| address.to_string()).unwrap_or_default()
    };
    assert_eq!(listen(""), "127.0.0.1:8000");
    assert_eq!(listen("[live.http_api]\nkey = \"k\""), "127.0.0.1:8000");
    let named = "[live.http_server]\naddress = \"127.0.0.1\"\nport = 8100";
    assert_eq!(listen(named), "127.0.0.1:8100");
    assert_eq!(listen(&format!("[live]\nlisten = \"127.0.0.1:8200\"\n{named}")), "127.0.0.1:8200");
    assert_eq!(listen(&format!("[live]\nlisten = \"\"\n{named}")), "");
}

#[test]
fn lists_of_disks() {
    let text = "[data]\ndir = \"d\"\npool = \"/dev/x\"\n[superdisk]\nfast = [\"/dev/a\", \"b\"]\n";
    let config = parse(text).expect("valid");
    assert_eq!(sets(&config), [(paths(&["/dev/x"]), paths(&["/dev/a", "d/b"]))]);
    assert_eq!(parse(&config.to_toml()), Ok(config));
    let config = parse("[data]\nstripe = [\"/dev/a\", \"/dev/b\"]\n[superdisk]\nfast = \"/dev/c\"\n").expect("valid");
    assert_eq!(sets(&config), [(paths(&["/dev/a", "/dev/b"]), paths(&["/dev/c"]))]);
    let mut config = Config::default();
    config.set_text("superdisk.fast", "/dev/a, /dev/b").expect("valid");
    assert_eq!(config.disk_sets()[0].fast, paths(&["/dev/a", "/dev/b"]));
    config.set_text("superdisk.fast", "").expect("valid");
    assert_eq!(config, Config::default());

    assert!(message("[superdisk]\nfast = [\"/dev/a\", 7]").contains("a list of paths"));
    assert!(message("[superdisk]\nfast = [\"/dev/a\", \"/dev/a\"]").contains("stands there twice"));
    let many =
        |count| format!("[superdisk]\nfast = {:?}", (0..count).map(|n| format!("/dev/f{n}")).collect::<Vec<_>>());
    assert!(message(&many(33)).contains("at most 32 fast disks"));
    assert!(parse(&many(32)).is_ok());
    assert!(message("[superdisk]\nfast = 7").contains("a list of paths"));
    assert!(message("[data]\npool = \"/dev/a\"\nstripe = [\"/dev/b\", \"/dev/c\"]").contains("set one of them"));
    assert!(message("[data]\nstripe = [\"/dev/b\"]").contains("use data.pool"));
    assert!(message("[data]\npool = \"/dev/a\"\n[superdisk]\nfast = [\"/dev/a\"]").contains("different disks"));
}

#[test]
fn the_environment_goes_over_the_file() {
    let mut config = parse("[s3]\nlisten = \"127.0.0.1:1\"\n[limits]\nconnections = 7").expect("valid");
    let env = [("STEADFAST_S3_LISTEN", "127.0.0.1:2"), ("STEADFAST_ACCESS_KEY", "x"), ("HOME", "/")];
    config.apply_env(env.map(|(k, v)| (k.to_owned(), v.to_owned()))).expect("valid");
    assert_eq!(config.s3.listen.map(|address| address.port()), Some(2));
    assert_eq!(config.limits.connections, 7);

    for (variable, value) in [
        ("STEADFAST_SERVICE_HOST", "10.0.0.1"),
        ("STEADFAST_SERVICE_PORT", "9000"),
        ("STEADFAST_SERVICE_PORT_S3", "9000"),
        ("STEADFAST_PORT", "tcp://10.0.0.1:9000"),
        ("STEADFAST_PORT_9000_TCP", "tcp://10.0.0.1:9000"),
        ("STEADFAST_PORT_9000_TCP_PROTO", "tcp"),
        ("STEADFAST_PORT_9000_TCP_PORT", "9000"),
        ("STEADFAST_PORT_9000_TCP_ADDR", "10.0.0.1"),
        ("STEADFAST_S3_SERVICE_HOST", "10.0.0.1"),
        ("STEADFAST_S3_PORT", "tcp://10.0.0.1:9000"),
        ("STEADFAST_S3_PORT_53_UDP_ADDR", "10.0.0.1"),
    ] {
        assert!(config.apply_env([(variable.to_owned(), value.to_owned())]).is_ok(), "a service's {variable}");
    }
    for variable in ["STEADFAST_S3_PORT", "STEADFAST_PORT", "STEADFAST_PORT_S3_LISTEN", "STEADFAST_PORT_1_TCP_X"] {
        assert!(config.apply_env([(variable.to_owned(), "9000".to_owned())]).is_err(), "{variable}");
    }
    let error = config.apply_env([("STEADFAST_S3_LISTN".to_owned(), "x".to_owned())]).expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "environment variable STEADFAST_S3_LISTN: there is no such setting: did you mean STEADFAST_S3_LISTEN?"
    );
}

#[test]
fn environment_names_are_unambiguous() {
    let mut names: Vec<String> = Config::default().shown().iter().map(|s| format!("{}_{}", s.section, s.key)).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn nothing_like_a_configuration_makes_it_panic(
        lines in prop::collection::vec(
            ("[\\[\\]\"'=# \n]{0,3}", "(s3|data|limits|listen|io|pool_size|header_timeout|tls|x)", "( = |\\.|]|\n)", "[\\[{\"'0-9a-zA-Z+_.: -]{0,12}"),
            0..12,
        )
    ) {
        let text: String = lines.into_iter().map(|(a, b, c, d)| format!("{a}{b}{c}{d}\n")).collect();
        let _ = parse(&text);
    }

    #[test]
    fn no_value_makes_it_panic(which in 0usize..64, value in any::<String>()) {
        let mut config = Config::default();
        let all = config.shown();
        let shown = &all[which % all.len()];
        let _ = config.set_text(&format!("{}.{}", shown.section, shown.key), &value);
    }
}

#[test]
fn the_reference_in_the_documentation_is_this_configuration() {
    let text = include_str!("../../../../docs/operations.md");
    let (_, section) = text.split_once("\n## Configuration\n").expect("the section");
    let (_, reference) = section.split_once("```toml\n").expect("the reference");
    let (reference, _) = reference.split_once("```").expect("its end");
    assert_eq!(reference, Config::default().to_toml(), "paste the output of `steadfast serve --print-config`");
}
