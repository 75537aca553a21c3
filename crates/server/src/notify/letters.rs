//! Dead letters: events that a webhook did not accept, kept in an internal channel until the
//! operator retries or purges them. Also the operator's commands on queues, including those of
//! webhooks that are no longer configured.

use serde_json::{Value, json};
use steadfast_live::protocol::message::Publication;
use steadfast_live::{from_stored, to_stored};
use steadfast_log::{Durability, Priority};
use steadfast_store::{ChannelHandle, FOR_EVER_MS, HistoryQuery, NewPublication, Position, StoreError};

use super::message::Id;
use super::webhook::{QUEUES, WebhookQueues, queue};

/// Prefix of the names of dead-letter channels.
const DEAD: &str = "\0webhook-dead/";

/// Letters of a page, and the maximum number that is listed.
const PAGE: usize = 256;

/// The tag of a dead letter with its reason.
const WHY: &str = "why";

/// The name of a webhook's dead-letter channel.
pub(super) fn dead(name: &str) -> String {
    format!("{DEAD}{name}")
}

/// An event on its way to a webhook.
#[derive(Clone)]
pub(super) struct Letter {
    /// Its identity, the same in every request.
    pub(super) id: String,
    /// The publication in the queue.
    pub(super) publication: Publication,
}

/// An event as a dead letter; `max` is the size of the history.
pub(super) fn buried(letter: &Letter, why: &str, max: u64) -> NewPublication {
    let mut publication = letter.publication.clone();
    publication.tags.insert(WHY.to_owned(), why.chars().take(1000).collect());
    new(&publication, max)
}

fn new(publication: &Publication, max: u64) -> NewPublication {
    NewPublication {
        body: to_stored(publication),
        history_size: max,
        history_ttl_ms: FOR_EVER_MS,
        durability: Durability::Sync,
        priority: Priority::Delete,
        key: None,
    }
}

/// The number of publications in an internal channel.
pub(super) async fn count(channel: &ChannelHandle) -> Result<u64, StoreError> {
    let page = channel.history(HistoryQuery { since: None, limit: 1, reverse: false }).await?;
    Ok(page.publications.first().map_or(0, |first| (page.position.offset + 1).saturating_sub(first.offset)))
}

impl WebhookQueues {
    fn failed(name: &str, error: &StoreError) -> String {
        format!("webhook {name}: {error}")
    }

    /// The channels of the queue and of the dead letters, if the webhook exists or ever existed.
    fn channels(&self, name: &str) -> Result<(ChannelHandle, ChannelHandle), String> {
        let known = self.queue(name).is_some() || self.names()?.iter().any(|known| known == name);
        if !known {
            return Err(format!("there is no webhook {name:?}: `steadfast webhook list` shows them"));
        }
        let open = |channel: String| self.store.channel(&channel).map_err(|e| Self::failed(name, &e));
        Ok((open(queue(name))?, open(dead(name))?))
    }

    /// The names of configured webhooks, and of those with stored events.
    fn names(&self) -> Result<Vec<String>, String> {
        let mut names: Vec<String> = self.all.keys().cloned().collect();
        for begin in [QUEUES, DEAD] {
            let found = self.store.channels().internal(begin).map_err(|e| format!("the queues of webhooks: {e}"))?;
            names.extend(found.into_iter().filter_map(|name| name.strip_prefix(begin).map(str::to_owned)));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// All webhooks, including removed ones with stored events.
    ///
    /// # Errors
    /// The read error, as a message.
    pub(crate) async fn list(&self) -> Result<Value, String> {
        let status = serde_json::to_value(self.status()).map_err(|e| e.to_string())?;
        let mut all = Vec::new();
        for name in self.names()? {
            let (events, letters) = self.channels(&name)?;
            let running = status.as_array().into_iter().flatten().find(|status| status["name"] == name);
            let running = running.cloned().unwrap_or_default();
            let waiting = match running["waiting"].as_u64() {
                Some(waiting) => waiting,
                None => count(&events).await.map_err(|e| Self::failed(&name, &e))?,
            };
            let dead = count(&letters).await.map_err(|e| Self::failed(&name, &e))?;
            let configured = self.queue(&name).is_some();
            if configured || waiting + dead > 0 {
                all.push(json!({
                    "name": name, "configured": configured, "waiting": waiting, "dead_letters": dead,
                    "retrying": running["retrying"], "failing": running["failing"], "stuck": running["stuck"],
                }));
            }
        }
        Ok(Value::Array(all))
    }

    /// The dead letters of a webhook, oldest first.
    ///
    /// # Errors
    /// As [`WebhookQueues::list`].
    pub(crate) async fn dead_letters(&self, name: &str) -> Result<Value, String> {
        let (_, letters) = self.channels(name)?;
        let query = HistoryQuery { since: None, limit: PAGE, reverse: false };
        let page = letters.history(query).await.map_err(|e| Self::failed(name, &e))?;
        let shown = page.publications.iter().filter_map(|stored| {
            let letter = from_stored(stored).ok()?;
            let event: Value = serde_json::from_slice(&letter.data).ok()?;
            let id = Id::of(&letter).map(|id| id.to_string());
            Some(json!({"id": id, "died_ms": stored.time_ms, "why": letter.tags.get(WHY), "event": event}))
        });
        Ok(shown.collect())
    }

    /// Dead-letters the failing events of a webhook; returns their number.
    ///
    /// # Errors
    /// As [`WebhookQueues::list`].
    pub(crate) fn skip(&self, name: &str) -> Result<Value, String> {
        let queue = self.queue(name).ok_or_else(|| format!("there is no webhook {name:?} in events.webhooks"))?;
        Ok(json!({"skipped": queue.skip()}))
    }

    /// Removes the queued events of a webhook, or its dead letters; returns their number.
    ///
    /// # Errors
    /// As [`WebhookQueues::list`].
    pub(crate) async fn purge(&self, name: &str, of_the_dead: bool) -> Result<Value, String> {
        let (events, letters) = self.channels(name)?;
        let purged = match (of_the_dead, self.queue(name)) {
            (false, Some(queue)) => queue.give_up_all().await,
            (false, None) => clear(&events).await,
            (true, _) => clear(&letters).await,
        };
        Ok(json!({"purged": purged.map_err(|e| Self::failed(name, &e))?}))
    }

    /// Puts the dead letters of a webhook into its queue again; returns their number.
    ///
    /// # Errors
    /// As [`WebhookQueues::list`].
    pub(crate) async fn retry(&self, name: &str) -> Result<Value, String> {
        let queue = self.queue(name).ok_or_else(|| format!("there is no webhook {name:?} in events.webhooks"))?;
        let failed = |error: StoreError| Self::failed(name, &error);
        let (events, dead) = (queue.channel.get().map_err(failed)?, queue.dead.get().map_err(failed)?);
        let last = dead.position().map_err(failed)?.offset;
        let (mut since, mut retried): (Option<Position>, u64) = (None, 0);
        loop {
            let query = HistoryQuery { since, limit: PAGE, reverse: false };
            let page = dead.history(query).await.map_err(failed)?;
            // Skip events that became dead letters again meanwhile.
            let letters: Vec<_> = page.publications.iter().take_while(|letter| letter.offset <= last).collect();
            let Some(newest) = letters.last() else { return Ok(json!({"retried": retried})) };
            let mut answers = Vec::new();
            for stored in &letters {
                let Ok(mut letter) = from_stored(stored) else { continue };
                letter.tags.remove(WHY);
                answers.push(events.submit(new(&letter, queue.max)).await.map_err(failed)?.committed());
            }
            for answer in futures::future::join_all(answers).await {
                answer.map_err(failed)?;
                retried += 1;
            }
            // They are durable in the queue: a crash before the trim duplicates them.
            dead.trim(newest.offset).await.map_err(failed)?;
            queue.arrived.notify_one();
            since = Some(Position { epoch: page.position.epoch, offset: newest.offset });
        }
    }
}

async fn clear(channel: &ChannelHandle) -> Result<u64, StoreError> {
    let held = count(channel).await?;
    if held > 0 {
        channel.trim(channel.position()?.offset).await?;
    }
    Ok(held)
}
