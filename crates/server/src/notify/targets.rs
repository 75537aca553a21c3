//! Targets of events: channels and webhooks by resource name, and channels that mirror a bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use steadfast_live::{LiveConfig, Node};
use steadfast_s3::EventTargets;
use steadfast_store::Mirrored;

use crate::config::Config;

const CHANNEL: &str = "arn:steadfast:channel:::";
const WEBHOOK: &str = "arn:steadfast:webhook:::";

/// A target of events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// A channel of the live port.
    Channel(&'a str),
    /// A webhook of the configuration.
    Webhook(&'a str),
}

impl<'a> Target<'a> {
    /// Parses a resource name. MinIO's names of webhooks are accepted, so that bucket
    /// configurations for MinIO keep working.
    pub(super) fn parse(arn: &'a str) -> Option<Self> {
        if let Some(channel) = arn.strip_prefix(CHANNEL) {
            return Some(Self::Channel(channel));
        }
        if let Some(name) = arn.strip_prefix(WEBHOOK) {
            return Some(Self::Webhook(name));
        }
        let (_region, rest) = arn.strip_prefix("arn:minio:sqs:")?.split_once(':')?;
        rest.strip_suffix(":webhook").map(Self::Webhook)
    }
}

/// The targets that notifications of buckets may name.
pub(crate) struct Targets {
    node: Option<Arc<Node>>,
    webhooks: BTreeSet<String>,
}

impl Targets {
    /// The configured webhooks and the channels of the live port.
    pub(crate) fn new(config: &Config, node: Option<Arc<Node>>) -> Self {
        Self { node, webhooks: config.events.webhooks.0.iter().map(|hook| hook.name.clone()).collect() }
    }
}

impl EventTargets for Targets {
    fn check(&self, arn: &str) -> Result<(), String> {
        match Target::parse(arn) {
            Some(Target::Channel(channel)) => {
                let Some(node) = &self.node else {
                    return Err("the live port is off, so there are no channels: set live.listen".to_owned());
                };
                let namespace =
                    node.rules().namespace(channel).map_err(|e| format!("the channel {channel:?}: {}", e.message))?;
                if !namespace.has_history() {
                    return Err(format!(
                        "the channel {channel:?} keeps no history, so events would be lost: set history_size and history_ttl of its namespace"
                    ));
                }
                Ok(())
            }
            Some(Target::Webhook(name)) if self.webhooks.contains(name) => Ok(()),
            Some(Target::Webhook(name)) => {
                let known: Vec<&str> = self.webhooks.iter().map(String::as_str).collect();
                Err(format!(
                    "there is no webhook {name:?} in events.webhooks; there are: {}",
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                ))
            }
            None => Err(format!("expected {CHANNEL}NAME or {WEBHOOK}NAME")),
        }
    }
}

/// Namespaces whose channels mirror buckets.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    of: Vec<Mirror>,
    /// Maximum bytes of a channel name.
    name_max: usize,
}

#[derive(Debug)]
struct Mirror {
    /// Prefix of its channel names.
    begins: String,
    bucket: String,
    prefix: String,
    depth: usize,
}

impl Mirrors {
    /// The mirrors of buckets of the named node; without a cluster the name is empty.
    pub(crate) fn of(config: &LiveConfig, node: &str) -> Self {
        let is_here = |home: &str| node.is_empty() || home.is_empty() || home == node;
        let all = config.all_options().filter(|(_, options)| !options.mirror_bucket.is_empty());
        let of = all.filter(|(_, options)| is_here(&options.mirror_home)).map(|(begins, options)| Mirror {
            begins,
            bucket: options.mirror_bucket.clone(),
            prefix: options.mirror_prefix.clone(),
            depth: options.mirror_depth,
        });
        Self { of: of.collect(), name_max: config.channel.max_length }
    }

    /// The mirrored objects, for the store.
    pub(crate) fn mirrored(&self) -> Vec<Mirrored> {
        let mirrored = |mirror: &Mirror| Mirrored { bucket: mirror.bucket.clone(), prefix: mirror.prefix.clone() };
        self.of.iter().map(mirrored).collect()
    }

    /// The channels of an object: the channel of all objects, and one for each of its directories.
    /// A directory whose name is too long for a channel has none.
    pub(super) fn channels(&self, bucket: &str, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        for mirror in self.of.iter().filter(|mirror| mirror.bucket == bucket) {
            let Some(rest) = key.strip_prefix(&mirror.prefix) else { continue };
            let mut channel = format!("{}/", mirror.begins);
            found.push(channel.clone());
            let directories = rest.rsplit_once('/').map_or("", |(directories, _)| directories);
            for directory in directories.split('/').take(mirror.depth).take_while(|directory| !directory.is_empty()) {
                if !channel.ends_with('/') {
                    channel.push('/');
                }
                channel.push_str(directory);
                if channel.len() > self.name_max {
                    break;
                }
                found.push(channel.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_targets_are_read() {
        for (arn, target) in [
            ("arn:steadfast:channel:::files:all", Some(Target::Channel("files:all"))),
            ("arn:steadfast:webhook:::app", Some(Target::Webhook("app"))),
            ("arn:minio:sqs:us-east-1:app:webhook", Some(Target::Webhook("app"))),
            ("arn:minio:sqs::app:webhook", Some(Target::Webhook("app"))),
            ("arn:minio:sqs::app:kafka", None),
            ("arn:aws:sns:us-east-1:1:topic", None),
            ("", None),
        ] {
            assert_eq!(Target::parse(arn), target, "{arn}");
        }
    }

    #[test]
    fn a_webhook_must_be_in_the_configuration() {
        let config = crate::config::parse("[events]\nwebhooks = [\"app=http://h\"]").expect("valid");
        let targets = Targets::new(&config, None);
        targets.check("arn:steadfast:webhook:::app").expect("there");
        assert!(targets.check("arn:steadfast:webhook:::other").expect_err("not there").contains("app"));
        assert!(targets.check("arn:steadfast:channel:::c").expect_err("no live door").contains("live.listen"));
        assert!(targets.check("arn:aws:sqs:::x").expect_err("not ours").contains("arn:steadfast:channel:::NAME"));
    }

    fn mirrors(options: &str) -> Mirrors {
        let text =
            format!("[[live.channel.namespaces]]\nname = \"files\"\nhistory_size = 9\nhistory_ttl = \"1h\"\n{options}");
        Mirrors::of(&crate::config::parse(&text).expect("valid").channels, "a")
    }

    #[test]
    fn an_object_has_the_channels_of_its_directories() {
        let all = mirrors("mirror_bucket = \"b\"");
        assert_eq!(all.channels("b", "x/y/z"), ["files:/"]);
        assert!(all.channels("c", "x").is_empty());
        let rooms = mirrors("mirror_bucket = \"b\"\nmirror_prefix = \"rooms/\"\nmirror_depth = 2");
        assert_eq!(rooms.channels("b", "rooms/42/images/big/cat.png"), ["files:/", "files:/42", "files:/42/images"]);
        assert_eq!(rooms.channels("b", "rooms/readme"), ["files:/"]);
        assert_eq!(rooms.channels("b", "rooms//odd"), ["files:/"]);
        assert!(rooms.channels("b", "others/42/x").is_empty());
        let long = format!("rooms/{}/x", "d".repeat(300));
        assert_eq!(rooms.channels("b", &long), ["files:/"]);
        assert_eq!(rooms.mirrored(), [Mirrored { bucket: "b".into(), prefix: "rooms/".into() }]);
        assert!(mirrors("").mirrored().is_empty());
        assert_eq!(mirrors("mirror_bucket = \"b\"\nmirror_home = \"a\"").mirrored().len(), 1);
        assert!(mirrors("mirror_bucket = \"b\"\nmirror_home = \"other\"").mirrored().is_empty());
    }
}
