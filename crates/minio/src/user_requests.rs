//! Requests about users.

use serde::Deserialize;
use serde_json::{Value, json};
use steadfast_users::{KeyPair, Permissions, UserAction, UserSummary, Users};

use crate::call::AdminCall;
use crate::failure::Failure;

/// A request about users. The name of a user is the access key of its first key, as in MinIO.
pub(crate) struct UserRequests<'a> {
    pub(crate) users: &'a Users,
    pub(crate) call: &'a AdminCall,
}

/// The body of `add-user`. Source: `AddOrUpdateUserReq` of madmin-go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewUser {
    secret_key: Option<String>,
    /// Names of policies, with commas between.
    policy: Option<String>,
    status: Option<String>,
}

impl UserRequests<'_> {
    pub(crate) async fn add(&self) -> Result<(), Failure> {
        let name = self.call.parameter("accessKey");
        let new: NewUser = self.call.body()?;
        let disabled = is_disabled(&new.status.unwrap_or_default())?;
        let pair = KeyPair { access_key: name.clone(), secret_key: new.secret_key.unwrap_or_default() };
        pair.check().map_err(Failure::invalid)?;
        let permissions =
            Permissions { attached: policy_names(&new.policy.unwrap_or_default()), ..Permissions::default() };
        if disabled {
            // Before it has the key.
            self.users.declare(&name, permissions.clone(), None).await?;
            self.disable(name.clone(), true).await?;
        }
        self.users.declare(&name, permissions, Some(pair)).await?;
        match !disabled && self.users.get(&name)?.disabled {
            true => self.disable(name, false).await,
            false => Ok(()),
        }
    }

    pub(crate) async fn remove(&self) -> Result<(), Failure> {
        self.users.run(UserAction::Remove { name: self.call.parameter("accessKey") }).await?;
        Ok(())
    }

    pub(crate) async fn set_status(&self) -> Result<(), Failure> {
        let disabled = is_disabled(&self.call.parameter("status"))?;
        self.disable(self.call.parameter("accessKey"), disabled).await
    }

    async fn disable(&self, name: String, disabled: bool) -> Result<(), Failure> {
        self.users.run(UserAction::Disable { name, disabled }).await?;
        Ok(())
    }

    pub(crate) fn get(&self) -> Result<Vec<u8>, Failure> {
        let user = self.users.get(&self.call.parameter("accessKey"))?;
        Ok(shown(&user).to_string().into_bytes())
    }

    pub(crate) fn list(&self) -> Result<Vec<u8>, Failure> {
        let users: serde_json::Map<String, Value> =
            self.users.all()?.iter().map(|user| (user.name.clone(), shown(user))).collect();
        Ok(Value::Object(users).to_string().into_bytes())
    }
}

/// Names of policies in a list with commas.
pub(crate) fn policy_names(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_disabled(status: &str) -> Result<bool, Failure> {
    match status {
        "enabled" => Ok(false),
        "disabled" => Ok(true),
        other => Err(Failure::invalid(format!("the status {other:?} is neither enabled nor disabled"))),
    }
}

/// `UserInfo` of madmin-go.
fn shown(user: &UserSummary) -> Value {
    let status = if user.disabled { "disabled" } else { "enabled" };
    json!({ "policyName": user.attached.join(","), "status": status })
}
