//! The nodes of a cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use steadfast_cluster::{NodeAddress, Roster};
use steadfast_live::LiveConfig;
use toml::de::DeValue;

use super::Config;
use super::error::nearest;
use super::kinds::read_list;
use super::setting::{Input, Setting, list};
use super::settings::ClusterSection;

/// All nodes: tables in a file. As text, NAME=HOST:PORT separated by commas, or the list of tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterNodes(pub Vec<NodeAddress>);

/// The names of the homes, in their order: a list in a file, separated by commas as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterHomes(pub Vec<String>);

const EXPECTED: &str = "a list of nodes such as [{ name = \"a\", address = \"10.0.0.1:8002\" }]";
const KEYS: [&str; 3] = ["name", "address", "standby"];

/// Minimum length of the secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// Length of the secret below which an operator is warned, in bytes: of characters that a person
/// chooses, fewer can be guessed.
const SECRET_BYTES_GOOD: usize = 32;

fn from_text(text: &str) -> Result<NodeAddress, String> {
    let (name, address) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected NAME=HOST:PORT"))?;
    Ok(NodeAddress { name: name.trim().to_owned(), address: address.trim().to_owned(), standby: None })
}

fn from_value(value: &DeValue<'_>) -> Result<NodeAddress, String> {
    let table = match value {
        DeValue::String(text) => return from_text(text),
        DeValue::Table(table) => table,
        _ => return Err(format!("expected {EXPECTED}")),
    };
    let mut node = NodeAddress { name: String::new(), address: String::new(), standby: None };
    for (key, value) in table {
        let field = match key.get_ref().as_ref() {
            "name" => &mut node.name,
            "address" => &mut node.address,
            "standby" => node.standby.get_or_insert_default(),
            other => {
                let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                let near = near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")));
                return Err(format!("a node has no `{other}`{near}"));
            }
        };
        *field = String::read(Input::Value(value.get_ref()))?;
    }
    Ok(node)
}

impl Setting for ClusterNodes {
    fn read(input: Input<'_>) -> Result<Self, String> {
        read_list(input, EXPECTED, from_text, from_value).map(Self)
    }

    fn to_toml(&self) -> String {
        let node = |NodeAddress { name, address, standby }: &NodeAddress| {
            let standby = standby.as_ref().map(|standby| format!(", standby = {}", standby.to_toml()));
            format!("{{ name = {}, address = {}{} }}", name.to_toml(), address.to_toml(), standby.unwrap_or_default())
        };
        format!("[{}]", self.0.iter().map(node).collect::<Vec<_>>().join(", "))
    }
}

impl Setting for ClusterHomes {
    fn read(input: Input<'_>) -> Result<Self, String> {
        list(&input, "a list of names of nodes such as [\"a\", \"b\"]").map(Self)
    }

    fn to_toml(&self) -> String {
        format!("[{}]", self.0.iter().map(Setting::to_toml).collect::<Vec<_>>().join(", "))
    }
}

impl Config {
    /// The nodes, with the homes of channels that mirror buckets; `None` without a cluster.
    ///
    /// # Errors
    /// The first mistake.
    pub(crate) fn roster(&self, live: &LiveConfig) -> Result<Option<Roster>, String> {
        let Some(mut roster) = self.cluster.roster()? else { return Ok(None) };
        for (begins, options) in live.all_options().filter(|(_, options)| !options.mirror_bucket.is_empty()) {
            let (bucket, home) = (&options.mirror_bucket, &options.mirror_home);
            if !home.is_empty() {
                roster
                    .pin(&format!("{begins}/"), home)
                    .map_err(|e| format!("live.channel: mirror_home of the bucket {bucket:?}: {e}"))?;
            } else if roster.homes().len() > 1 {
                return Err(format!(
                    "live.channel: set mirror_home beside mirror_bucket = {bucket:?}: the name of the home that has the bucket"
                ));
            }
        }
        Ok(Some(roster))
    }

    /// Whether the node has no pool: it is a front of a cluster and no home.
    ///
    /// # Errors
    /// The first mistake in the list of nodes.
    pub(crate) fn is_front(&self) -> Result<bool, String> {
        Ok(self.cluster.roster()?.is_some_and(|roster| !roster.is_home()))
    }

    /// Checks the settings that a node of a cluster needs, or must not have.
    ///
    /// # Errors
    /// The first mistake: a node has a live port, and a front has no pool.
    pub(super) fn check_node(&self) -> Result<(), String> {
        if !self.cluster.name.is_empty() && self.live.listen.is_none() {
            return Err(
                "live.listen: a node of a cluster needs the live port, which knows the members of its channels"
                    .to_owned(),
            );
        }
        if !self.is_front()? {
            return Ok(());
        }
        let data = &self.data;
        let named = [
            ("data.pool", data.pool.is_some()),
            ("data.disks", !data.disks.0.is_empty()),
            ("data.stripe", !data.stripe.0.is_empty()),
            ("superdisk.fast", !self.superdisk.fast.0.is_empty()),
            ("data.restored", data.restored),
            ("archive.standby", self.archive.standby),
            ("edge.buckets", !self.edge.buckets.0.is_empty()),
        ];
        match named.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(format!(
                "{name}: cluster.homes does not name this node, so it has no pool: remove this setting, or add the node to \
                 cluster.homes"
            )),
            None => Ok(()),
        }
    }
}

impl ClusterSection {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first mistake.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(roster) = self.roster()? else { return Ok(()) };
        if self.secret.0.is_empty() && self.secret_file.is_none() {
            return Err("cluster.secret: set the secret that all nodes share, or cluster.secret_file".to_owned());
        }
        if !self.secret.0.is_empty() {
            if self.secret_file.is_some() {
                return Err("give one of cluster.secret and cluster.secret_file".to_owned());
            }
            check_secret(&self.secret.0).map_err(|e| format!("cluster.secret: {e}"))?;
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err("TLS between nodes needs both cluster.certificate and cluster.key".to_owned());
        }
        self.listen_address(&roster).map(|_| ())
    }

    /// The nodes; `None` without a cluster.
    ///
    /// # Errors
    /// The first mistake.
    pub fn roster(&self) -> Result<Option<Roster>, String> {
        if self.name.is_empty() {
            return match self.nodes.0.is_empty() && self.homes.0.is_empty() {
                true => Ok(None),
                false => Err("cluster.name: set the name of this node".to_owned()),
            };
        }
        let roster = Roster::new(&self.name, self.nodes.0.clone(), &self.homes.0);
        roster.map(Some).map_err(|e| format!("cluster: {e}"))
    }

    /// The address to listen on.
    ///
    /// # Errors
    /// The port of this node's address is none to listen on.
    pub fn listen_address(&self, roster: &Roster) -> Result<SocketAddr, String> {
        if let Some(listen) = self.listen {
            return Ok(listen);
        }
        let address = roster.address(roster.own());
        let all = match address.starts_with('[') {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).filter(|port| *port != 0);
        let port = port.ok_or_else(|| format!("cluster.nodes: the address {address} of this node needs a port"))?;
        Ok((all, port).into())
    }

    /// The secret.
    ///
    /// # Errors
    /// The file cannot be read, or the secret is too short.
    pub fn read_secret(&self) -> Result<Vec<u8>, String> {
        let Some(file) = &self.secret_file else { return Ok(self.secret.0.clone().into_bytes()) };
        let shown = file.display();
        let text = std::fs::read_to_string(file).map_err(|e| format!("cluster.secret_file: {shown}: {e}"))?;
        check_secret(text.trim()).map_err(|e| format!("cluster.secret_file: {shown}: {e}"))?;
        Ok(text.trim().into())
    }

    /// The warning for a secret that could be guessed, if it is one.
    ///
    /// # Errors
    /// Those of [`ClusterSection::read_secret`].
    pub fn secret_warning(&self) -> Result<Option<String>, String> {
        let length = self.read_secret()?.len();
        Ok((length < SECRET_BYTES_GOOD).then(|| {
            format!(
                "cluster.secret: it has {length} characters, and so few can be guessed: use at least {SECRET_BYTES_GOOD}, \
                 as from `openssl rand -hex 32`"
            )
        }))
    }
}

fn check_secret(secret: &str) -> Result<(), String> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(format!("it has {} characters: use at least {SECRET_BYTES_MIN}", secret.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const GOOD: &str = "[cluster]\nname = \"a\"\nsecret = \"0123456789abcdef\"\nhomes = [\"a\"]\n\
                        nodes = [{ name = \"a\", address = \"10.0.0.1:8002\", standby = \"10.0.1.1:8002\" }, \"b=node-b:8002\"]\n";

    #[test]
    fn nodes_are_read_and_written() {
        let config = parse(GOOD).expect("valid");
        assert_eq!(config.cluster.nodes.0[0].standby.as_deref(), Some("10.0.1.1:8002"));
        assert_eq!(
            (config.cluster.nodes.0[1].address.as_str(), &config.cluster.nodes.0[1].standby),
            ("node-b:8002", &None)
        );
        let printed = config.to_toml().replace("secret = \"(not shown)\"", "secret = \"0123456789abcdef\"");
        assert_eq!(parse(&printed).expect("valid").cluster, config.cluster);
        let roster = config.cluster.roster().expect("valid").expect("a cluster");
        let listen = config.cluster.listen_address(&roster).expect("a port");
        assert_eq!(listen.to_string(), "0.0.0.0:8002");
        let listen_of = |text: &str| {
            let config = parse(text).expect("valid").cluster;
            config.listen_address(&config.roster().expect("valid").expect("a cluster")).expect("a port").to_string()
        };
        assert_eq!(listen_of(&GOOD.replace("10.0.0.1:", "[fd00::1]:")), "[::]:8002");
        assert_eq!(listen_of(&format!("{GOOD}listen = \"10.0.0.1:9\"\n")), "10.0.0.1:9");
        assert!(parse("").expect("valid").cluster.roster().expect("valid").is_none());
    }

    #[test]
    fn the_example_in_the_documentation_is_valid() {
        let text = include_str!("../../../../docs/operations.md");
        let (_, section) = text.split_once("\n## Nodes\n").expect("the section");
        let example = section.split("```").nth(1).and_then(|text| text.strip_prefix("toml\n")).expect("the example");
        let roster = parse(example).expect("valid").cluster.roster().expect("valid").expect("a cluster");
        assert_eq!(roster.homes(), ["a", "b"]);
    }

    #[test]
    fn names_keep_their_case() {
        let text = GOOD.replace("\"a\"", "\"Node-A\"");
        assert_eq!(parse(&text).expect("valid").cluster.homes.0, ["Node-A"]);
    }

    #[test]
    fn the_secret_may_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text =
            GOOD.replace("secret = \"0123456789abcdef\"", &format!("secret_file = \"{}\"", file.path().display()));
        let config = parse(&text).expect("valid").cluster;
        assert!(config.read_secret().expect_err("empty").contains("at least 16"));
        std::fs::write(file.path(), "fedcba9876543210\n").expect("written");
        assert_eq!(config.read_secret().expect("read"), b"fedcba9876543210");
        assert!(config.secret_warning().expect("read").is_some_and(|warning| warning.contains("16 characters")));
        std::fs::write(file.path(), "fedcba9876543210".repeat(2)).expect("written");
        assert_eq!(config.secret_warning(), Ok(None));
        file.close().expect("removed");
        assert!(config.read_secret().expect_err("missing").contains("cluster.secret_file"));
    }

    #[test]
    fn channels_that_mirror_a_bucket_have_a_named_home() {
        let two = GOOD.replace("homes = [\"a\"]", "homes = [\"a\", \"b\"]");
        let mirror =
            "[live.channel.without_namespace]\nhistory_size = 1\nhistory_ttl = \"1h\"\nmirror_bucket = \"media\"\n";
        let roster = |nodes: &str, home: &str| {
            let config = parse(&format!("{nodes}{mirror}{home}")).expect("valid");
            config.roster(&config.channels).map(|roster| roster.expect("a cluster"))
        };
        let roster_of = |home| roster(&two, &format!("mirror_home = \"{home}\""));
        for home in ["a", "b"] {
            let roster = roster_of(home).expect("valid");
            assert_eq!([roster.name(roster.home("/")), roster.name(roster.home("/x"))], [home, home]);
        }
        assert!(roster_of("c").expect_err("no home").contains("is not among the homes"));
        assert!(roster(&two, "").expect_err("which home").contains("set mirror_home"));
        assert!(roster(GOOD, "").is_ok());
    }

    #[test]
    fn a_front_has_no_pool() {
        let front = GOOD.replace("name = \"a\"\nsecret", "name = \"b\"\nsecret");
        assert!(parse(&front).expect("valid").is_front().expect("valid"));
        assert!(!parse(GOOD).expect("valid").is_front().expect("valid"));
        assert!(!parse("").expect("valid").is_front().expect("valid"));
        let error = parse(&format!("{front}[live]\nlisten = \"\"\n")).expect_err("no live port").to_string();
        assert!(error.contains("live.listen"), "{error}");
        for setting in ["[data]\npool = \"p\"", "[data]\nrestored = true", "[superdisk]\nfast = [\"f\"]"] {
            let error = parse(&format!("{front}{setting}\n")).expect_err(setting).to_string();
            assert!(error.contains("has no pool"), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            (GOOD.replace("name = \"a\"\n", ""), "cluster.name"),
            (GOOD.replace("0123456789abcdef", "short"), "at least 16"),
            (GOOD.replace("secret = \"0123456789abcdef\"\n", ""), "cluster.secret"),
            (GOOD.replace("homes = [\"a\"]", "homes = [\"c\"]"), "\"c\" is not among the nodes"),
            (GOOD.replace("address =", "adress ="), "did you mean `address`?"),
            (GOOD.replace("name = \"a\"\nsecret", "name = \"c\"\nsecret"), "\"c\", is not among the nodes"),
            (GOOD.replace("homes = [\"a\"]", ""), "at least one home"),
            (GOOD.replace("b=node-b:8002", "b"), "NAME=HOST:PORT"),
            (GOOD.replace("b=node-b:8002", "a=node-b:8002"), "two nodes of the name"),
            (GOOD.replace("10.0.0.1:8002", "10.0.0.1"), "HOST:PORT"),
            (GOOD.replace("10.0.0.1:8002", "10.0.0.1:0"), "needs a port"),
            (GOOD.replace("10.0.1.1:8002", "10.0.1.1"), "HOST:PORT"),
            (GOOD.replace("10.0.1.1:8002", "10.0.0.1:8002"), "its standby needs an address of its own"),
            (GOOD.replace("homes = [\"a\"]", "homes = [\"b\"]"), "only a home has a standby"),
            ("[cluster]\nhomes = [\"a\"]\n".to_owned(), "cluster.name"),
            (format!("{GOOD}outbox = \"1 KiB\"\n"), "outbox"),
            (format!("{GOOD}certificate = \"c.pem\"\n"), "needs both"),
            (format!("{GOOD}secret_file = \"s\"\n"), "give one of"),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
