//! Shared answers to equal subscribe commands, for sessions that reconnect together.

use std::sync::Arc;

use crate::answer::{AnswerKey, SubscribeAnswer};

/// Shared answers that a channel keeps, in both encodings together.
const ANSWERS_MAX: usize = 4;

/// Lifetime of a shared answer, milliseconds. An expired publication is not delivered any longer
/// than that.
pub(super) const ANSWER_MS: u64 = 1000;

/// Recent answers of a channel for equal subscribe commands, each with its expiry, milliseconds.
#[derive(Default)]
pub(super) struct SharedAnswers(Vec<(u64, AnswerKey, Arc<SubscribeAnswer>)>);

impl SharedAnswers {
    /// A recent answer to an equal command.
    pub(super) fn find(&self, key: &AnswerKey, now_ms: u64) -> Option<Arc<SubscribeAnswer>> {
        let mut answers = self.0.iter();
        answers.find(|(until, known, _)| known == key && now_ms < *until).map(|(_, _, answer)| answer.clone())
    }

    /// Keeps an answer for equal commands.
    pub(super) fn keep(&mut self, key: AnswerKey, answer: Arc<SubscribeAnswer>, now_ms: u64) {
        self.0.retain(|(until, known, _)| now_ms < *until && *known != key);
        if self.0.len() == ANSWERS_MAX {
            self.0.remove(0);
        }
        self.0.push((now_ms + ANSWER_MS, key, answer));
    }

    /// Drops expired answers. Returns whether others are left.
    pub(super) fn expire(&mut self, now_ms: u64) -> bool {
        self.0.retain(|(until, ..)| now_ms < *until);
        !self.0.is_empty()
    }

    /// Drops all answers.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
