//! What a request gets that is refused.

use http::StatusCode;
use serde_json::json;
use steadfast_store::StoreError;
use steadfast_users::UserError;

/// Why a request is refused, in MinIO's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// MinIO's name of the error.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Failure {
    /// What the caller sent cannot be done.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "XMinioAdminInvalidArgument", message: message.into() }
    }

    /// The body cannot be decrypted, or is not what the operation takes.
    pub(crate) fn bad_body(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "XMinioAdminConfigBadJSON", message: message.into() }
    }

    /// MinIO does this, and this server does not.
    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_IMPLEMENTED, code: "NotImplemented", message: message.into() }
    }

    /// A policy that is none, or that uses what this server lacks.
    pub(crate) fn malformed_policy(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "XMinioMalformedIAMPolicy", message: message.into() }
    }

    /// The change is in effect already.
    pub(crate) fn already_applied() -> Self {
        let message = "The specified policy change is already in effect.".to_owned();
        Self { status: StatusCode::BAD_REQUEST, code: "XMinioAdminPolicyChangeAlreadyApplied", message }
    }

    /// The access key is the name of a user, and so that of no service account.
    pub(crate) fn is_user(name: &str) -> Self {
        let message = format!("{name} is a user: `mc admin user remove` removes it");
        Self { status: StatusCode::NOT_FOUND, code: "XMinioInvalidIAMCredentials", message }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, code: "InternalError", message: message.into() }
    }

    /// The body of the answer.
    pub(crate) fn body(&self) -> Vec<u8> {
        json!({ "Code": self.code, "Message": self.message }).to_string().into_bytes()
    }
}

impl From<UserError> for Failure {
    fn from(error: UserError) -> Self {
        let message = error.to_string();
        match error {
            UserError::Refused(_) if message.starts_with("invalid policy") => Self::malformed_policy(message),
            UserError::Refused(_) => Self::invalid(message),
            UserError::NoSuchUser(_) => Self { status: StatusCode::NOT_FOUND, code: "XMinioAdminNoSuchUser", message },
            UserError::NoSuchKey(_) => {
                Self { status: StatusCode::NOT_FOUND, code: "XMinioInvalidIAMCredentials", message }
            }
            UserError::NoSuchPolicy(_) => {
                Self { status: StatusCode::NOT_FOUND, code: "XMinioAdminNoSuchPolicy", message }
            }
            UserError::PolicyInUse { .. } => {
                Self { status: StatusCode::BAD_REQUEST, code: "XMinioIAMPolicyInUse", message }
            }
            UserError::Store(StoreError::Unavailable { .. }) => {
                Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "ServiceUnavailable", message }
            }
            UserError::Store(_) => Self::internal(message),
        }
    }
}
