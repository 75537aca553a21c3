//! `steadfast user`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use steadfast_users::{Permissions, UserAction};

use super::Failure;
use super::key::{KeyOptions, UserServerArgs, key_lines, new_key_text};

/// Arguments of `user`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  steadfast user create uploader --grant write:media/incoming/* --data /var/lib/steadfast\n  \
steadfast user list --data /var/lib/steadfast"
)]
pub struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Subcommand, Debug)]
enum UserCommand {
    /// Create a user with its first key. The secret is printed now and never again.
    Create(CreateUserArgs),
    /// List the users.
    List(UserServerArgs),
    /// Show a user, its permissions and its keys.
    Show(UserNameArgs),
    /// Set what a user may do, in place of what it could.
    Permit(PermitArgs),
    /// Disable all keys of a user.
    Disable(UserNameArgs),
    /// Let the keys of a disabled user work again.
    Enable(UserNameArgs),
    /// Remove a user and its keys.
    Remove(UserNameArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast user show uploader --data /var/lib/steadfast")]
struct UserNameArgs {
    /// Name of the user
    name: String,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
struct PermissionOptions {
    /// Permission: list, read, write, delete, acl, read-write or full, then :BUCKET or
    /// :BUCKET/KEYS, perhaps with *; may be repeated
    #[arg(long = "grant", value_name = "GRANT")]
    grants: Vec<String>,

    /// File with a policy in the language of AWS
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Name of a policy that users share; may be repeated
    #[arg(long = "attach", value_name = "POLICY")]
    attached: Vec<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  steadfast user create uploader --grant write:media/incoming/* --data /var/lib/steadfast\n  \
steadfast user create reports --policy reports.json --expires 90d --data /var/lib/steadfast"
)]
struct CreateUserArgs {
    /// Name of the user: 1 to 64 letters, digits or characters of +=,.@_-
    name: String,

    #[command(flatten)]
    permissions: PermissionOptions,

    /// Create no key
    #[arg(long, conflicts_with_all = ["access_key", "secret_key_file", "expires"])]
    no_key: bool,

    #[command(flatten)]
    key: KeyOptions,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast user permit uploader --grant read-write:media --data /var/lib/steadfast")]
struct PermitArgs {
    /// Name of the user
    name: String,

    #[command(flatten)]
    permissions: PermissionOptions,

    #[command(flatten)]
    server: UserServerArgs,
}

impl PermissionOptions {
    fn read(self) -> Result<Permissions, Failure> {
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
        };
        Ok(Permissions { grants: self.grants, policy: self.policy.map(read).transpose()?, attached: self.attached })
    }
}

fn permissions_text(user: &Value) -> String {
    let grants = user["grants"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let policy = (!user["policy"].is_null()).then_some("a policy");
    let attached = user["attached"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let all: Vec<&str> = grants.chain(attached).chain(policy).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

fn line(user: &Value) -> String {
    let name = user["name"].as_str().unwrap_or("?");
    let keys = match user["keys"].as_array().map_or(0, Vec::len) {
        1 => "1 key".to_owned(),
        count => format!("{count} keys"),
    };
    let disabled = if user["disabled"] == Value::Bool(true) { "  DISABLED" } else { "" };
    format!("{name:<24} {keys:>8}  may: {}{disabled}\n", permissions_text(user))
}

fn list_text(users: &Value) -> String {
    let lines: String = users.as_array().into_iter().flatten().map(line).collect();
    if lines.is_empty() { "There are no users.\n".to_owned() } else { lines }
}

fn show_text(user: &Value) -> String {
    let policy = match &user["policy"] {
        Value::Null => String::new(),
        policy => format!("{policy:#}\n"),
    };
    let id = user["canonical_id"].as_str().map_or_else(String::new, |id| format!("canonical id {id}\n"));
    format!("{}{}{id}{policy}", line(user), key_lines(&user["keys"]))
}

/// Runs the command.
pub fn run(args: UserArgs) -> Result<(), Failure> {
    let (server, action) = match args.command {
        UserCommand::Create(args) => {
            let permissions = args.permissions.read()?;
            let key = if args.no_key { None } else { Some(args.key.read()?) };
            (args.server, UserAction::Create { name: args.name, permissions, key })
        }
        UserCommand::List(server) => (server, UserAction::List {}),
        UserCommand::Show(args) => (args.server, UserAction::Show { name: args.name }),
        UserCommand::Permit(args) => {
            (args.server, UserAction::Permit { name: args.name, permissions: args.permissions.read()? })
        }
        UserCommand::Disable(args) => (args.server, UserAction::Disable { name: args.name, disabled: true }),
        UserCommand::Enable(args) => (args.server, UserAction::Disable { name: args.name, disabled: false }),
        UserCommand::Remove(args) => (args.server, UserAction::Remove { name: args.name }),
    };
    server.ask(action, |action, done| match action {
        UserAction::Create { .. } if done["key"].is_null() => line(&done["user"]),
        UserAction::Create { .. } => format!("{}{}", line(&done["user"]), new_key_text(&done["key"])),
        UserAction::List {} => list_text(done),
        UserAction::Remove { name } => format!("The user {name} and its keys are removed.\n"),
        _ => show_text(done),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn users_are_shown() {
        let user = json!({
            "name": "ada", "disabled": true, "canonical_id": "749b", "grants": ["read:a"], "attached": ["readonly"], "policy": {"Version": "2012-10-17"},
            "keys": [{"access_key": "SFX", "user": "ada", "state": "active", "created_ms": 0, "expires_ms": null}],
        });
        let shown = list_text(&json!([user]));
        assert!(shown.contains("ada") && shown.contains("1 key  may: read:a, readonly, a policy  DISABLED"), "{shown}");
        assert!(show_text(&user).contains("SFX") && show_text(&user).contains("2012-10-17"));
        assert!(show_text(&user).contains("\ncanonical id 749b\n"), "as access control lists name it");
        assert_eq!(list_text(&json!([])), "There are no users.\n");
        assert_eq!(permissions_text(&json!({"grants": [], "policy": null})), "nothing");
    }
}
