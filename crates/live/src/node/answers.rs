//! Answers to subscribe commands that hold for others who ask the same: sessions that come back together.

use std::sync::Arc;

use super::Node;
use crate::answer::{Asked, SubscribeAnswer};

/// Answers to subscribe commands that a channel keeps for others who ask the same: sessions that come back together, in both encodings.
const ANSWERS_MAX: usize = 4;

/// How long they hold, milliseconds: a publication whose time is over is told no longer than that.
const ANSWER_MS: u64 = 1000;

impl Node {
    /// What somebody else was answered who asked the same just now.
    pub(crate) fn answer(&self, channel: &str, asked: &Asked) -> Option<Arc<SubscribeAnswer>> {
        let now_ms = self.now_ms();
        let part = self.part(&self.channels, channel).lock();
        let mut answers = part.get(channel)?.answers.iter();
        answers.find(|(until, known, _)| known == asked && now_ms < *until).map(|(_, _, answer)| answer.clone())
    }

    /// Keeps an answer for others.
    pub(crate) fn keep_answer(&self, channel: &str, asked: Asked, answer: &Arc<SubscribeAnswer>) {
        let now_ms = self.now_ms();
        let mut part = self.part(&self.channels, channel).lock();
        let Some((name, live)) = part.get_key_value(channel).map(|(name, _)| name.clone()).zip(part.get_mut(channel))
        else {
            return;
        };
        live.answers.retain(|(until, known, _)| now_ms < *until && *known != asked);
        if live.answers.len() == ANSWERS_MAX {
            live.answers.remove(0);
        }
        live.answers.push((now_ms + ANSWER_MS, asked, answer.clone()));
        drop(part);
        let mut answered = self.answered.lock();
        if answered.back().is_none_or(|(_, last)| *last != name) {
            answered.push_back((now_ms + ANSWER_MS, name));
        }
    }

    /// Lets go of answers whose time is over. To be called from time to time.
    pub(crate) fn forget_answers(&self) {
        let now_ms = self.now_ms();
        loop {
            let mut answered = self.answered.lock();
            if answered.front().is_none_or(|(until, _)| now_ms < *until) {
                return;
            }
            let Some((_, name)) = answered.pop_front() else { return };
            drop(answered);
            let mut part = self.part(&self.channels, &name).lock();
            let Some(live) = part.get_mut(&name) else { continue };
            live.answers.retain(|(until, ..)| now_ms < *until);
            if !live.answers.is_empty() {
                drop(part);
                self.answered.lock().push_back((now_ms + ANSWER_MS, name));
            }
        }
    }
}
