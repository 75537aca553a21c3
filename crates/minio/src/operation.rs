//! The one table of the requests that are served.

use http::Method;

/// What a request of the administration does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminOperation {
    /// `mc admin user add`: makes a user whose access key is its name, or gives its key another
    /// secret.
    AddUser,
    /// `mc admin user remove`.
    RemoveUser,
    /// `mc admin user list`.
    ListUsers,
    /// `mc admin user info`.
    GetUser,
    /// `mc admin user enable` and `disable`.
    SetUserStatus,
    /// `mc admin accesskey create`, `mc admin user svcacct add`: makes a further key.
    AddKey,
    /// `mc admin accesskey edit`, `enable` and `disable`.
    UpdateKey,
    /// `mc admin accesskey info`.
    GetKey,
    /// `mc admin accesskey info` of a key that is not found.
    GetTemporaryKey,
    /// `mc admin user svcacct list`: the keys of a user.
    ListKeysOfUser,
    /// `mc admin accesskey list`: the keys of several users.
    ListKeys,
    /// `mc admin accesskey remove`.
    RemoveKey,
    /// `mc admin policy create`.
    SetPolicy,
    /// `mc admin policy list`.
    ListPolicies,
    /// `mc admin policy info`.
    GetPolicy,
    /// `mc admin policy remove`.
    RemovePolicy,
    /// `mc admin policy attach`.
    AttachPolicies,
    /// `mc admin policy detach`.
    DetachPolicies,
    /// `mc admin policy set` of older releases: the policies of a user are these.
    ReplacePolicies,
    /// `mc admin policy entities`: which users have which policies.
    ListPolicyUsers,
    /// `mc admin info`.
    GetInfo,
}

use AdminOperation as Operation;

/// What the paths begin with.
const PREFIX: &str = "/minio/admin/v3/";

const OPERATIONS: [(Method, &str, Operation); 21] = [
    (Method::PUT, "add-user", Operation::AddUser),
    (Method::DELETE, "remove-user", Operation::RemoveUser),
    (Method::GET, "list-users", Operation::ListUsers),
    (Method::GET, "user-info", Operation::GetUser),
    (Method::PUT, "set-user-status", Operation::SetUserStatus),
    (Method::PUT, "add-service-account", Operation::AddKey),
    (Method::POST, "update-service-account", Operation::UpdateKey),
    (Method::GET, "info-service-account", Operation::GetKey),
    (Method::GET, "temporary-account-info", Operation::GetTemporaryKey),
    (Method::GET, "list-service-accounts", Operation::ListKeysOfUser),
    (Method::GET, "list-access-keys-bulk", Operation::ListKeys),
    (Method::DELETE, "delete-service-account", Operation::RemoveKey),
    (Method::PUT, "add-canned-policy", Operation::SetPolicy),
    (Method::GET, "list-canned-policies", Operation::ListPolicies),
    (Method::GET, "info-canned-policy", Operation::GetPolicy),
    (Method::DELETE, "remove-canned-policy", Operation::RemovePolicy),
    (Method::POST, "idp/builtin/policy/attach", Operation::AttachPolicies),
    (Method::POST, "idp/builtin/policy/detach", Operation::DetachPolicies),
    (Method::PUT, "set-user-or-group-policy", Operation::ReplacePolicies),
    (Method::GET, "idp/builtin/policy-entities", Operation::ListPolicyUsers),
    (Method::GET, "info", Operation::GetInfo),
];

impl AdminOperation {
    /// The operation of a request; `None`: it is not served.
    pub fn find(method: &Method, path: &str) -> Option<Self> {
        let name = path.strip_prefix(PREFIX)?;
        let found = OPERATIONS.iter().find(|(known, path, _)| known == method && *path == name);
        found.map(|(_, _, operation)| *operation)
    }

    /// Whether the body of the request is encrypted.
    pub(crate) fn takes_encrypted(self) -> bool {
        matches!(self, Self::AddUser | Self::AddKey | Self::UpdateKey | Self::AttachPolicies | Self::DetachPolicies)
    }

    /// Whether the body of the answer is encrypted.
    pub(crate) fn gives_encrypted(self) -> bool {
        matches!(
            self,
            Self::ListUsers
                | Self::AddKey
                | Self::GetKey
                | Self::ListKeysOfUser
                | Self::ListKeys
                | Self::AttachPolicies
                | Self::DetachPolicies
                | Self::ListPolicyUsers
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_found_by_its_method_and_path() {
        let find = |method: Method, path| AdminOperation::find(&method, path);
        assert_eq!(find(Method::PUT, "/minio/admin/v3/add-user"), Some(AdminOperation::AddUser));
        for (method, path) in [
            (Method::GET, "/minio/admin/v3/add-user"),
            (Method::PUT, "/minio/admin/v3/add-user/"),
            (Method::PUT, "/minio/admin/v2/add-user"),
            (Method::GET, "/minio/admin/v3/infos"),
            (Method::POST, "/minio/admin/v3/service"),
        ] {
            assert_eq!(find(method, path), None, "{path}");
        }
    }
}
