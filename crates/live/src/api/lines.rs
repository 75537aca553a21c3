//! The server API of Centrifugo before version 5, at `/api`: the body has commands as lines, with
//! the method in each. Some libraries of back ends still use it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::json::{CallError, command, written};
use super::result::{MethodResult, error_json};
use super::{Answer, Api, BATCH_MAX, Terms};
use crate::protocol::codes::{self, ClientError};

#[derive(Deserialize)]
struct LineCommand<'a> {
    #[serde(default)]
    id: u32,
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct LineReply<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<MethodResult<'a>>,
}

impl Api {
    /// Carries out the commands in sequence and returns their replies as lines.
    ///
    /// # Errors
    /// The body has no commands, or a malformed one; none is carried out then.
    pub(crate) async fn lines(&self, terms: &Terms, body: &[u8]) -> Result<Vec<u8>, CallError> {
        let read = serde_json::Deserializer::from_slice(body).into_iter::<LineCommand<'_>>().take(BATCH_MAX + 1);
        let read: Result<Vec<_>, _> = read.collect();
        let lines = read.map_err(|error| CallError::Malformed(error.to_string()))?;
        if lines.is_empty() {
            return Err(CallError::Malformed("no command".to_owned()));
        }
        if lines.len() > BATCH_MAX {
            return Err(codes::LIMIT_EXCEEDED.into());
        }
        let mut replies = Vec::with_capacity(lines.len());
        for LineCommand { id, method, params } in lines {
            let params = params.map_or("{}", RawValue::get);
            let command = command(&method.to_ascii_lowercase(), params.as_bytes());
            let answer: Answer = match command.map_err(ClientError::from) {
                Ok(command) => self.carry_out(command, terms).await,
                Err(error) => Err(error),
            };
            let reply = LineReply {
                id: (id > 0).then_some(id),
                error: answer.as_ref().err().map(error_json),
                result: answer.as_ref().ok().map(MethodResult),
            };
            replies.push(written(&reply)?);
        }
        Ok(replies.join(&b'\n'))
    }
}
