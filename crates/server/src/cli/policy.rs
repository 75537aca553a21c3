//! `steadfast policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use steadfast_users::UserAction;

use super::Failure;
use super::key::UserServerArgs;

/// Arguments of `policy`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast policy set reports reports.json --data /var/lib/steadfast\n  \
steadfast user create ada --attach reports --data /var/lib/steadfast")]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand, Debug)]
enum PolicyCommand {
    /// Make a named policy, or change it for all users that have it.
    Set(SetPolicyArgs),
    /// List the named policies.
    List(UserServerArgs),
    /// Show a named policy.
    Show(PolicyNameArgs),
    /// Remove a named policy that no user has.
    Remove(PolicyNameArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast policy set reports reports.json --data /var/lib/steadfast")]
struct SetPolicyArgs {
    /// Name of the policy: 1 to 128 letters, digits or characters of +=.@_-
    name: String,

    /// File with a policy in the language of AWS
    #[arg(value_name = "FILE")]
    policy: PathBuf,

    #[command(flatten)]
    server: UserServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast policy show reports --data /var/lib/steadfast")]
struct PolicyNameArgs {
    /// Name of the policy
    name: String,

    #[command(flatten)]
    server: UserServerArgs,
}

fn list_text(policies: &Value) -> String {
    let names = policies.as_array().into_iter().flatten().filter_map(|policy| policy["name"].as_str());
    names.map(|name| format!("{name}\n")).collect()
}

/// Runs the command.
pub fn run(args: PolicyArgs) -> Result<(), Failure> {
    let (server, action) = match args.command {
        PolicyCommand::Set(args) => {
            let policy = std::fs::read_to_string(&args.policy)
                .map_err(|e| format!("{}: cannot be read: {e}", args.policy.display()))?;
            (args.server, UserAction::PolicySet { name: args.name, policy })
        }
        PolicyCommand::List(server) => (server, UserAction::PolicyList {}),
        PolicyCommand::Show(args) => (args.server, UserAction::PolicyShow { name: args.name }),
        PolicyCommand::Remove(args) => (args.server, UserAction::PolicyRemove { name: args.name }),
    };
    server.ask(action, |action, done| match action {
        UserAction::PolicyList {} => list_text(done),
        UserAction::PolicyRemove { name } => format!("The policy {name} is removed.\n"),
        UserAction::PolicySet { name, .. } => format!("The policy {name} is set.\n"),
        _ => format!("{:#}\n", done["policy"]),
    })
}
