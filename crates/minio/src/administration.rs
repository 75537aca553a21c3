//! Serves a request of the administration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use steadfast_flow::Env;
use steadfast_store::Store;
use steadfast_users::{Attachment, Users};
use tokio::sync::{Semaphore, oneshot};

use crate::call::{AdminCall, AdminReply};
use crate::failure::Failure;
use crate::key_requests::KeyRequests;
use crate::operation::AdminOperation as Operation;
use crate::payload;
use crate::policy_requests::PolicyRequests;
use crate::server_info::ServerInfo;
use crate::user_requests::UserRequests;

/// The administration of a server.
#[derive(Clone)]
pub struct Administration(Arc<Shared>);

struct Shared {
    users: Users,
    store: Store,
    env: Env,
    /// The runtime that derives keys.
    compute: Env,
    /// One key is derived at a time: each takes 64 MiB.
    deriving: Arc<Semaphore>,
    started: Duration,
}

impl fmt::Debug for Administration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Administration")
    }
}

impl Administration {
    /// The most bytes of a request's body. Source: MinIO.
    pub const BODY_BYTES_MAX: u64 = 256 << 10;

    /// The administration of these users, and of the state of this store. `compute` is the
    /// environment of a runtime whose threads serve no requests.
    pub fn new(users: Users, store: Store, env: Env, compute: Env) -> Self {
        let started = env.now();
        Self(Arc::new(Shared { users, store, env, compute, deriving: Arc::new(Semaphore::new(1)), started }))
    }

    /// Does what a request wants, and answers it.
    pub async fn answer(&self, mut call: AdminCall) -> AdminReply {
        match self.serve(&mut call).await {
            Ok((status, body)) => AdminReply { status, body },
            Err(failure) => AdminReply { status: failure.status, body: failure.body() },
        }
    }

    async fn serve(&self, call: &mut AdminCall) -> Result<(StatusCode, Vec<u8>), Failure> {
        let operation = call.operation;
        if operation.takes_encrypted() {
            let body = std::mem::take(&mut call.body);
            let decrypted = self.derive(&call.secret_key, move |secret| payload::decrypt(secret, &body)).await?;
            call.body = decrypted.map_err(Failure::bad_body)?.into();
        }
        let body = self.done(call).await?;
        let Some(body) = body else { return Ok((StatusCode::NO_CONTENT, Vec::new())) };
        if !operation.gives_encrypted() {
            return Ok((StatusCode::OK, body));
        }
        let encrypted = self.derive(&call.secret_key, move |secret| payload::encrypt(secret, &body)).await?;
        Ok((StatusCode::OK, encrypted.map_err(Failure::internal)?))
    }

    /// Does what a request wants. The result is the body of the answer; `None`: there is none.
    async fn done(&self, call: &AdminCall) -> Result<Option<Vec<u8>>, Failure> {
        let Shared { users, store, env, started, .. } = &*self.0;
        let (keys, policies) = (KeyRequests { users, env, call }, PolicyRequests { users, env, call });
        let user_requests = UserRequests { users, call };
        let answer = match call.operation {
            Operation::AddUser => user_requests.add().await.map(|()| Vec::new()),
            Operation::RemoveUser => user_requests.remove().await.map(|()| Vec::new()),
            Operation::ListUsers => user_requests.list(),
            Operation::GetUser => user_requests.get(),
            Operation::SetUserStatus => user_requests.set_status().await.map(|()| Vec::new()),
            Operation::AddKey => keys.add().await,
            Operation::UpdateKey => return keys.update().await.map(|()| None),
            Operation::GetKey => keys.get(),
            Operation::GetTemporaryKey => keys.get_temporary(),
            Operation::ListKeysOfUser => keys.list_of_user(),
            Operation::ListKeys => keys.list(),
            Operation::RemoveKey => return keys.remove().await.map(|()| None),
            Operation::SetPolicy => policies.set().await.map(|()| Vec::new()),
            Operation::ListPolicies => policies.list(),
            Operation::GetPolicy => policies.get(),
            Operation::RemovePolicy => policies.remove().await.map(|()| Vec::new()),
            Operation::AttachPolicies => policies.attach(Attachment::Add).await,
            Operation::DetachPolicies => policies.attach(Attachment::Remove).await,
            Operation::ReplacePolicies => policies.replace().await.map(|()| Vec::new()),
            Operation::ListPolicyUsers => policies.users(),
            Operation::GetInfo => ServerInfo { store, uptime: env.now().saturating_sub(*started) }.shown(&call.host),
        };
        answer.map(Some)
    }

    /// Runs the derivation of a key on another runtime, behind those that came before.
    async fn derive<T: Send + 'static>(
        &self,
        secret_key: &str,
        work: impl FnOnce(&str) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let one = self.0.deriving.clone().acquire_owned().await.map_err(|e| Failure::internal(e.to_string()))?;
        let (send, receive) = oneshot::channel();
        let secret_key = secret_key.to_owned();
        self.0.compute.spawn("key of a body", async move {
            // Also for a client that has left.
            let _one = one;
            let _ = send.send(work(&secret_key));
        });
        receive.await.map_err(|e| Failure::internal(e.to_string()))
    }
}
