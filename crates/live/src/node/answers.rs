//! Shared answers to equal subscribe commands, for sessions that reconnect together.

use std::sync::Arc;

use super::Node;
use crate::answer::{AnswerKey, SubscribeAnswer};

/// Shared answers that a channel keeps, in both encodings together.
const ANSWERS_MAX: usize = 4;

/// Lifetime of a shared answer, milliseconds. An expired publication is not delivered any longer
/// than that.
const ANSWER_MS: u64 = 1000;

impl Node {
    /// A recent answer to an equal command.
    pub(crate) fn answer(&self, channel: &str, key: &AnswerKey) -> Option<Arc<SubscribeAnswer>> {
        let now_ms = self.now_ms();
        let part = self.channels.part(channel).lock();
        let mut answers = part.get(channel)?.answers.iter();
        answers.find(|(until, known, _)| known == key && now_ms < *until).map(|(_, _, answer)| answer.clone())
    }

    /// Keeps an answer for equal commands.
    pub(crate) fn keep_answer(&self, channel: &str, key: AnswerKey, answer: &Arc<SubscribeAnswer>) {
        let now_ms = self.now_ms();
        let mut part = self.channels.part(channel).lock();
        let Some((name, live)) = part.get_key_value(channel).map(|(name, _)| name.clone()).zip(part.get_mut(channel))
        else {
            return;
        };
        live.answers.retain(|(until, known, _)| now_ms < *until && *known != key);
        if live.answers.len() == ANSWERS_MAX {
            live.answers.remove(0);
        }
        live.answers.push((now_ms + ANSWER_MS, key, answer.clone()));
        drop(part);
        let mut answered = self.answered.lock();
        if answered.back().is_none_or(|(_, last)| *last != name) {
            answered.push_back((now_ms + ANSWER_MS, name));
        }
    }

    /// Drops expired answers. The clock calls it.
    pub(crate) fn forget_answers(&self) {
        let now_ms = self.now_ms();
        loop {
            let mut answered = self.answered.lock();
            if answered.front().is_none_or(|(until, _)| now_ms < *until) {
                return;
            }
            let Some((_, name)) = answered.pop_front() else { return };
            drop(answered);
            let mut part = self.channels.part(&name).lock();
            let Some(live) = part.get_mut(&name) else { continue };
            live.answers.retain(|(until, ..)| now_ms < *until);
            if !live.answers.is_empty() {
                drop(part);
                self.answered.lock().push_back((now_ms + ANSWER_MS, name));
            }
        }
    }
}
