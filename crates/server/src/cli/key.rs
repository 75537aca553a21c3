//! `steadfast key`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use steadfast_users::{NewKey, UserAction};

use super::Failure;
use crate::config::parse_duration;
use crate::control::{Command, client};
use crate::disks::words::utc;

/// Arguments of `key`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast key create uploader --data /var/lib/steadfast\n  \
steadfast key rotate SFEXAMPLE --overlap 24h --data /var/lib/steadfast")]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand, Debug)]
enum KeyCommand {
    /// Create a further key of a user. The secret is printed now and never again.
    Create(CreateKeyArgs),
    /// List the keys of all users, or of one.
    List(ListKeysArgs),
    /// Disable a key.
    Disable(KeyNameArgs),
    /// Let a disabled key work again.
    Enable(KeyNameArgs),
    /// Create a key in place of another, which works on for a while.
    Rotate(RotateKeyArgs),
    /// Remove a key.
    Remove(KeyNameArgs),
}

/// The running server that a command on users is for.
#[derive(Args, Debug)]
pub struct UserServerArgs {
    /// Data directory of the running server
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA_DIR")]
    data: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl UserServerArgs {
    /// Does `action` and prints its result, for people as `text` writes it.
    ///
    /// # Errors
    /// The failure of the action.
    pub fn ask(&self, action: UserAction, text: impl FnOnce(&UserAction, &Value) -> String) -> Result<(), Failure> {
        let command = Command::User { action };
        let done = client::ask(&self.data, &command, |_| ())?;
        let Command::User { action } = command else { unreachable!("it was made above") };
        if self.json {
            print_line!("{}", serde_json::to_string_pretty(&done)?);
        } else {
            put!("{}", text(&action, &done));
        }
        Ok(())
    }
}

/// A key to be made.
#[derive(Args, Debug)]
pub struct KeyOptions {
    /// Take this access key instead of a new one
    #[arg(long, value_name = "KEY", requires = "secret_key_file")]
    access_key: Option<String>,

    /// Take the secret key of this file instead of a new one; -: of standard input
    #[arg(long, value_name = "FILE")]
    secret_key_file: Option<PathBuf>,

    /// Time after which the key stops to work, such as 90d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
}

impl KeyOptions {
    /// Reads them, with the file of the secret.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(self) -> Result<NewKey, Failure> {
        let secret_key = self.secret_key_file.as_deref().map(read_secret).transpose()?;
        Ok(NewKey { access_key: self.access_key, secret_key, lifetime_ms: self.expires.map(milliseconds) })
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn read_secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    read.map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast key create uploader --expires 90d --data /var/lib/steadfast")]
struct CreateKeyArgs {
    /// Name of the user
    user: String,

    #[command(flatten)]
    key: KeyOptions,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast key list uploader --data /var/lib/steadfast")]
struct ListKeysArgs {
    /// Name of the user [default: all users]
    user: Option<String>,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast key disable SFEXAMPLE --data /var/lib/steadfast")]
struct KeyNameArgs {
    /// The access key
    access_key: String,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast key rotate SFEXAMPLE --overlap 24h --data /var/lib/steadfast")]
struct RotateKeyArgs {
    /// The access key to replace
    access_key: String,

    /// Time for which both keys work; 0s: the old one stops now
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    overlap: Duration,

    /// Time after which the new key stops to work, such as 90d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,

    #[command(flatten)]
    server: UserServerArgs,
}

/// The lines of keys.
pub fn key_lines(keys: &Value) -> String {
    keys.as_array().into_iter().flatten().map(key_line).collect()
}

fn key_line(key: &Value) -> String {
    let [access_key, user, state] = ["access_key", "user", "state"].map(|field| key[field].as_str().unwrap_or("?"));
    let created = utc(key["created_ms"].as_u64().unwrap_or_default());
    let expires = key["expires_ms"].as_u64().map_or_else(String::new, |ms| format!("  until {}", utc(ms)));
    format!("  {access_key:<20}  {user:<24} {state:<8}  of {created}{expires}\n")
}

/// A new key, with its secret.
pub fn new_key_text(key: &Value) -> String {
    let [access_key, secret_key] = ["access_key", "secret_key"].map(|field| key[field].as_str().unwrap_or("?"));
    let until = |ms: u64| format!("The key works until {}.\n", utc(ms));
    let expires = key["expires_ms"].as_u64().map_or_else(String::new, until);
    let old = key["old"]["expires_ms"].as_u64().map_or_else(String::new, |ms| {
        format!("The key {} works until {}.\n", key["old"]["access_key"].as_str().unwrap_or("?"), utc(ms))
    });
    format!("access key {access_key}\nsecret key {secret_key}\n{expires}{old}The secret key is not shown again.\n")
}

fn listed(users: &Value) -> String {
    let users = users.as_array().map_or_else(|| std::slice::from_ref(users), Vec::as_slice);
    let lines: String = users.iter().map(|user| key_lines(&user["keys"])).collect();
    if lines.is_empty() { "There are no keys.\n".to_owned() } else { lines }
}

/// Runs the command.
pub fn run(args: KeyArgs) -> Result<(), Failure> {
    let (server, action) = match args.command {
        KeyCommand::Create(args) => (args.server, UserAction::KeyCreate { user: args.user, key: args.key.read()? }),
        KeyCommand::List(ListKeysArgs { user: None, server }) => (server, UserAction::List {}),
        KeyCommand::List(ListKeysArgs { user: Some(name), server }) => (server, UserAction::Show { name }),
        KeyCommand::Disable(args) => {
            (args.server, UserAction::KeyDisable { access_key: args.access_key, disabled: true })
        }
        KeyCommand::Enable(args) => {
            (args.server, UserAction::KeyDisable { access_key: args.access_key, disabled: false })
        }
        KeyCommand::Rotate(args) => {
            let key = NewKey { lifetime_ms: args.expires.map(milliseconds), ..NewKey::default() };
            let overlap_ms = milliseconds(args.overlap);
            (args.server, UserAction::KeyRotate { access_key: args.access_key, overlap_ms, key })
        }
        KeyCommand::Remove(args) => (args.server, UserAction::KeyRemove { access_key: args.access_key }),
    };
    server.ask(action, |action, done| match action {
        UserAction::KeyCreate { .. } | UserAction::KeyRotate { .. } => new_key_text(done),
        UserAction::KeyDisable { .. } => key_line(done),
        UserAction::KeyRemove { access_key } => format!("The key {access_key} is removed.\n"),
        _ => listed(done),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_shown() {
        let key =
            json!({"access_key": "SFX", "user": "ada", "state": "active", "created_ms": 0, "expires_ms": 86_400_000});
        let shown = listed(&json!([{"keys": [key.clone()]}, {"keys": [key]}]));
        assert!(shown.lines().count() == 2 && shown.contains("until 1970-01-02"), "{shown}");
        assert_eq!(listed(&json!({"keys": []})), "There are no keys.\n");
        let made = json!({"access_key": "SFY", "secret_key": "hush", "old": {"access_key": "SFX", "expires_ms": 0}});
        let shown = new_key_text(&made);
        assert!(shown.contains("SFY") && shown.contains("hush") && shown.contains("SFX works until"), "{shown}");
    }
}
