use proptest::prelude::*;

use super::*;

fn message(text: &str) -> String {
    parse(text).expect_err("a mistake").to_string()
}

#[test]
fn several_disks() {
    let paths = |paths: &[&str]| paths.iter().map(std::path::PathBuf::from).collect::<Vec<_>>();
    let config = parse("[data]\ndir = \"d\"\ndisks = [\"/dev/a\", \"b\"]\n").expect("valid");
    assert_eq!(config.disk_paths(), paths(&["/dev/a", "d/b"]));
    assert_eq!(parse(&config.to_toml()), Ok(config));
    let mut config = Config::default();
    config.set_text("data.disks", "/dev/a, /dev/b").expect("valid");
    assert_eq!(config.disk_paths(), paths(&["/dev/a", "/dev/b"]));
    assert!(message("[data]\npool = \"/dev/a\"\ndisks = [\"/dev/b\", \"/dev/c\"]").contains("set one of them"));
}

#[test]
fn nothing_configured_gives_the_defaults() {
    let config = parse("").expect("valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.s3.listen, "127.0.0.1:9000".parse().expect("an address"));
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
        "line 2, column 1: there is no setting `certificate` in [s3]: did you mean tls.certificate?"
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
fn lists_of_disks() {
    let paths = |paths: &[&str]| paths.iter().map(std::path::PathBuf::from).collect::<Vec<_>>();
    let text = "[data]\ndir = \"d\"\npool = \"/dev/x\"\n[superdisk]\nfast = [\"/dev/a\", \"b\"]\n";
    let config = parse(text).expect("valid");
    assert_eq!(config.pool_paths(), paths(&["/dev/x"]));
    assert_eq!(config.fast_paths(), paths(&["/dev/a", "d/b"]));
    assert_eq!(parse(&config.to_toml()), Ok(config));
    let config = parse("[data]\nstripe = [\"/dev/a\", \"/dev/b\"]\n[superdisk]\nfast = \"/dev/c\"\n").expect("valid");
    assert_eq!(config.pool_paths(), paths(&["/dev/a", "/dev/b"]));
    assert_eq!(config.fast_paths(), paths(&["/dev/c"]));
    let mut config = Config::default();
    config.set_text("superdisk.fast", "/dev/a, /dev/b").expect("valid");
    assert_eq!(config.fast_paths(), paths(&["/dev/a", "/dev/b"]));
    config.set_text("superdisk.fast", "").expect("valid");
    assert_eq!(config, Config::default());

    assert!(message("[superdisk]\nfast = [\"/dev/a\", 7]").contains("a list of paths"));
    assert!(message("[superdisk]\nfast = [\"/dev/a\", \"/dev/a\"]").contains("stands there twice"));
    assert!(message("[superdisk]\nfast = 7").contains("a list of paths"));
    assert!(message("[data]\npool = \"/dev/a\"\nstripe = [\"/dev/b\", \"/dev/c\"]").contains("set one of them"));
    assert!(message("[data]\nstripe = [\"/dev/b\"]").contains("use data.pool"));
    assert!(message("[data]\npool = \"/dev/a\"\n[superdisk]\nfast = [\"/dev/a\"]").contains("where the pool is"));
}

#[test]
fn the_environment_goes_over_the_file() {
    let mut config = parse("[s3]\nlisten = \"127.0.0.1:1\"\n[limits]\nconnections = 7").expect("valid");
    let env = [("STEADFAST_S3_LISTEN", "127.0.0.1:2"), ("STEADFAST_ACCESS_KEY", "x"), ("HOME", "/")];
    config.apply_env(env.map(|(k, v)| (k.to_owned(), v.to_owned()))).expect("valid");
    assert_eq!(config.s3.listen.port(), 2);
    assert_eq!(config.limits.connections, 7);

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
    let (_, reference) = text.split_once("```toml\n").expect("the reference");
    let (reference, _) = reference.split_once("```").expect("its end");
    assert_eq!(reference, Config::default().to_toml(), "paste the output of `steadfast serve --print-config`");
}
