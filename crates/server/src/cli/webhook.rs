//! `steadfast webhook`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Failure;
use crate::control::{Command, client};
use crate::disks::words::utc;

/// Arguments of `webhook`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast webhook list --data /var/lib/steadfast\n  \
steadfast webhook dead thumbnails --data /var/lib/steadfast\n  \
steadfast webhook retry thumbnails --data /var/lib/steadfast")]
pub struct WebhookArgs {
    #[command(subcommand)]
    command: WebhookCommand,
}

#[derive(Subcommand, Debug)]
enum WebhookCommand {
    /// Show the queues, including those of webhooks removed from the configuration.
    #[command(after_help = "Example:\n  steadfast webhook list --data /var/lib/steadfast")]
    List(WebhookServerArgs),
    /// Show the dead letters of a webhook: events that it did not accept.
    Dead(WebhookNameArgs),
    /// Dead-letter the events now failing.
    Skip(WebhookNameArgs),
    /// Remove the queued events of a webhook, or its dead letters.
    Purge(PurgeArgs),
    /// Put the dead letters of a webhook into its queue again.
    Retry(WebhookNameArgs),
}

#[derive(Args, Debug)]
struct WebhookServerArgs {
    /// Data directory of the running server
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA_DIR")]
    data: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast webhook dead thumbnails --data /var/lib/steadfast\n  \
steadfast webhook skip thumbnails --data /var/lib/steadfast\n  \
steadfast webhook retry thumbnails --data /var/lib/steadfast")]
struct WebhookNameArgs {
    /// Name of the webhook
    name: String,

    #[command(flatten)]
    server: WebhookServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast webhook purge thumbnails --dead --data /var/lib/steadfast")]
struct PurgeArgs {
    /// Name of the webhook
    name: String,

    /// Remove its dead letters instead of its queued events
    #[arg(long)]
    dead: bool,

    #[command(flatten)]
    server: WebhookServerArgs,
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn queues(listed: &Value) -> String {
    let mut out = String::new();
    for queue in listed.as_array().into_iter().flatten() {
        let name = queue["name"].as_str().unwrap_or("?");
        let gone = if queue["configured"] == Value::Bool(false) { "  NOT IN THE CONFIGURATION" } else { "" };
        let (waiting, dead) = (number(queue, "waiting"), number(queue, "dead_letters"));
        out.push_str(&format!("{name:<24} {waiting:>8} waiting  {dead:>8} dead letters{gone}\n"));
        if let Some(key) = queue["stuck"]["key"].as_str() {
            let (retrying, tries) = (number(queue, "retrying"), number(&queue["stuck"], "tries"));
            let why = queue["stuck"]["why"].as_str().unwrap_or_default();
            out.push_str(&format!("  {retrying} failing, the first: {key}, {tries} times: {why}\n"));
        }
    }
    if out.is_empty() { "There are no webhooks and no remaining events of any.\n".to_owned() } else { out }
}

fn letters(listed: &Value) -> String {
    let mut out = String::new();
    for letter in listed.as_array().into_iter().flatten() {
        let (event, why) = (&letter["event"], letter["why"].as_str().unwrap_or("?"));
        let [name, key] = ["EventName", "Key"].map(|field| event[field].as_str().unwrap_or("?"));
        out.push_str(&format!("{}  {name}  {key}: {why}\n", utc(number(letter, "died_ms"))));
    }
    if out.is_empty() { "There are no dead letters.\n".to_owned() } else { out }
}

/// Runs the command.
pub fn run(args: WebhookArgs) -> Result<(), Failure> {
    let (server, command) = match args.command {
        WebhookCommand::List(server) => (server, Command::WebhookList {}),
        WebhookCommand::Dead(args) => (args.server, Command::WebhookDead { name: args.name }),
        WebhookCommand::Skip(args) => (args.server, Command::WebhookSkip { name: args.name }),
        WebhookCommand::Purge(args) => (args.server, Command::WebhookPurge { name: args.name, dead: args.dead }),
        WebhookCommand::Retry(args) => (args.server, Command::WebhookRetry { name: args.name }),
    };
    let done = client::ask(&server.data, &command, |_| ())?;
    if server.json {
        print_line!("{}", serde_json::to_string_pretty(&done)?);
        return Ok(());
    }
    let text = match &command {
        Command::WebhookList {} => queues(&done),
        Command::WebhookDead { .. } => letters(&done),
        Command::WebhookSkip { .. } => format!("{} events are dead letters now\n", number(&done, "skipped")),
        Command::WebhookPurge { .. } => format!("{} events are removed\n", number(&done, "purged")),
        _ => format!("{} events are in the queue again\n", number(&done, "retried")),
    };
    put!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn queues_and_letters_are_shown() {
        let shown = queues(&json!([
            {"name": "app", "configured": true, "waiting": 7, "dead_letters": 1, "retrying": 2,
             "stuck": {"key": "b/k", "tries": 3, "why": "it answered 500"}},
            {"name": "old", "configured": false, "waiting": 0, "dead_letters": 4, "stuck": null},
        ]));
        assert!(shown.contains("2 failing, the first: b/k, 3 times: it answered 500"), "{shown}");
        assert!(shown.contains("old") && shown.contains("NOT IN THE CONFIGURATION"), "{shown}");
        assert!(queues(&json!([])).contains("no webhooks") && letters(&json!([])).contains("no dead letters"));
        let shown = letters(&json!([{"died_ms": 0, "why": "gone", "event": {"EventName": "e", "Key": "b/k"}}]));
        assert!(shown.contains("e  b/k: gone"), "{shown}");
    }
}
