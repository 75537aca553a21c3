//! Requests about named policies.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use steadfast_flow::Env;
use steadfast_users::{Attachment, NamedPolicy, Users};

use crate::call::AdminCall;
use crate::failure::Failure;
use crate::key_requests::timestamp;
use crate::user_requests::policy_names;

/// A request about named policies.
pub(crate) struct PolicyRequests<'a> {
    pub(crate) users: &'a Users,
    pub(crate) env: &'a Env,
    pub(crate) call: &'a AdminCall,
}

/// The body of `attach` and `detach`. Source: `PolicyAssociationReq` of madmin-go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Association {
    policies: Vec<String>,
    user: Option<String>,
    group: Option<String>,
}

impl PolicyRequests<'_> {
    pub(crate) async fn set(&self) -> Result<(), Failure> {
        let policy =
            String::from_utf8(self.call.body.to_vec()).map_err(|e| Failure::malformed_policy(e.to_string()))?;
        self.users.policies().set(&self.call.parameter("name"), policy).await?;
        Ok(())
    }

    pub(crate) async fn remove(&self) -> Result<(), Failure> {
        Ok(self.users.policies().remove(&self.call.parameter("name")).await?)
    }

    pub(crate) fn list(&self) -> Result<Vec<u8>, Failure> {
        let mut policies = Map::new();
        for (name, policy) in self.users.policies().all()? {
            policies.insert(name, document(&policy)?);
        }
        Ok(Value::Object(policies).to_string().into_bytes())
    }

    pub(crate) fn get(&self) -> Result<Vec<u8>, Failure> {
        let name = self.call.parameter("name");
        let policy = self.users.policies().get(&name)?;
        if self.call.parameter("v") != "2" {
            return Ok(policy.policy.into_bytes());
        }
        let mut shown = json!({ "PolicyName": name, "Policy": document(&policy)? });
        if policy.created_ms > 0 {
            shown["CreateDate"] = json!(timestamp(policy.created_ms));
            shown["UpdateDate"] = json!(timestamp(policy.changed_ms));
        }
        Ok(shown.to_string().into_bytes())
    }

    /// Gives a user policies, or takes them from it.
    pub(crate) async fn attach(&self, how: Attachment) -> Result<Vec<u8>, Failure> {
        let Association { policies, user, group } = self.call.body()?;
        let user = of_user(user.unwrap_or_default(), group.is_some_and(|group| !group.is_empty()))?;
        let changed = self.users.attach(&user, &policies, how).await?;
        if changed.is_empty() {
            return Err(Failure::already_applied());
        }
        let field = if how == Attachment::Remove { "policiesDetached" } else { "policiesAttached" };
        Ok(json!({ field: changed, "updatedAt": timestamp(self.env.wall_ms()) }).to_string().into_bytes())
    }

    /// The named policies of a user are these.
    pub(crate) async fn replace(&self) -> Result<(), Failure> {
        let group = self.call.parameter("isGroup") == "true";
        let user = of_user(self.call.parameter("userOrGroup"), group)?;
        let names = policy_names(&self.call.parameter("policyName"));
        self.users.attach(&user, &names, Attachment::Replace).await?;
        Ok(())
    }

    /// Which users have which policies. Without names in the query: all.
    pub(crate) fn users(&self) -> Result<Vec<u8>, Failure> {
        let names = |name| self.call.parameters(name).collect::<Vec<String>>();
        let (of_users, of_policies) = (names("user"), names("policy"));
        let any = of_users.is_empty() && of_policies.is_empty() && names("group").is_empty();
        let users = self.users.all()?;
        let by_user: Vec<Value> = users
            .iter()
            .filter(|user| if any { !user.attached.is_empty() } else { of_users.contains(&user.name) })
            .map(|user| json!({ "user": user.name, "policies": user.attached }))
            .collect();
        let all = self.users.policies().all()?;
        let by_policy = all.iter().filter_map(|(policy, _)| {
            let having = users.iter().filter(|user| user.attached.contains(policy));
            let having: Vec<&str> = having.map(|user| &*user.name).collect();
            let wanted = if any { !having.is_empty() } else { of_policies.contains(policy) };
            wanted.then(|| json!({ "policy": policy, "users": having, "groups": [] }))
        });
        let shown = json!({
            "timestamp": timestamp(self.env.wall_ms()),
            "userMappings": by_user,
            "policyMappings": by_policy.collect::<Vec<Value>>(),
        });
        Ok(shown.to_string().into_bytes())
    }
}

/// The user of a request that may also be of a group.
fn of_user(user: String, group: bool) -> Result<String, Failure> {
    match group {
        true => Err(Failure::not_implemented("There are no groups: attach the policy to each user.")),
        false => Ok(user),
    }
}

fn document(policy: &NamedPolicy) -> Result<Value, Failure> {
    serde_json::from_str(&policy.policy).map_err(|e| Failure::internal(e.to_string()))
}
