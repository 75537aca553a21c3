//! Whether a store is fit for an archive: what it does with conditions, races and names.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use serde::Serialize;
use steadfast_flow::Env;

use super::{EntityTag, RemoteError, RemoteResult, RemoteStore};

/// Clients that write at the same time.
const RACERS: usize = 12;
/// Races of each kind.
const RACES: usize = 6;
/// Attempts of a request without a clear answer.
const TRIES: u32 = 5;
/// Requests that are timed.
const TIMED: usize = 20;
/// Bytes of an object whose transfer is timed.
const LARGE_BYTES: usize = 8 << 20;
/// Most bytes of an object that is read whole.
const READ_BYTES_MAX: u64 = 16 << 20;

/// What a check has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeVerdict {
    /// As it must be.
    Good,
    /// No obstacle, but worth knowing.
    Noted,
    /// The store is unfit.
    Unfit,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeFinding {
    /// What was checked.
    pub what: &'static str,
    /// The verdict.
    pub verdict: ProbeVerdict,
    /// Details; empty if there is nothing to say.
    pub detail: String,
}

/// The checks of one run, under a name of its own.
struct Probe<'a> {
    store: &'a dyn RemoteStore,
    env: &'a Env,
    /// The first part of all names.
    root: String,
    made: Vec<String>,
    findings: Vec<ProbeFinding>,
}

/// Checks a store, and removes what it wrote.
///
/// # Errors
/// A request was refused, or had no clear answer several times; the text is for operators.
pub async fn probe(store: &dyn RemoteStore, env: &Env) -> Result<Vec<ProbeFinding>, String> {
    let root = format!("probe-{:016x}", env.random_u64());
    let mut probe = Probe { store, env, root, made: Vec::new(), findings: Vec::new() };
    let done = probe.run().await;
    let cleaned = probe.clean().await;
    let shown = |what: &str, e: &RemoteError| format!("{}: {what}: {e}", store.describe());
    done.map_err(|(what, e)| shown(what, &e))?;
    cleaned.map_err(|e| shown("delete", &e))?;
    Ok(probe.findings)
}

type Failed = (&'static str, RemoteError);

impl Probe<'_> {
    fn name(&mut self, name: &str) -> String {
        let name = format!("{}/{name}", self.root);
        self.made.push(name.clone());
        name
    }

    fn found(&mut self, what: &'static str, wrong: Option<String>) {
        let verdict = if wrong.is_some() { ProbeVerdict::Unfit } else { ProbeVerdict::Good };
        self.findings.push(ProbeFinding { what, verdict, detail: wrong.unwrap_or_default() });
    }

    fn note(&mut self, what: &'static str, verdict: ProbeVerdict, detail: String) {
        self.findings.push(ProbeFinding { what, verdict, detail });
    }

    /// Repeats a request that had no clear answer.
    async fn patiently<T, F: Future<Output = RemoteResult<T>>>(&self, ask: impl Fn() -> F) -> RemoteResult<T> {
        for tries in 1..TRIES {
            match ask().await {
                Err(RemoteError::Unknown(_) | RemoteError::Slow(_)) => {
                    self.env.sleep(Duration::from_millis(50 << tries)).await;
                }
                done => return done,
            }
        }
        ask().await
    }

    async fn read(&self, name: &str) -> Result<(Bytes, Option<EntityTag>), Failed> {
        let read = self.patiently(|| self.store.read(name, None, READ_BYTES_MAX)).await;
        read.map(|object| (object.body, object.tag)).map_err(|e| ("read", e))
    }

    async fn run(&mut self) -> Result<(), Failed> {
        let tag = self.create().await?;
        self.replace(tag).await?;
        self.race_creates().await?;
        self.race_replaces().await?;
        self.list().await?;
        self.delete().await?;
        self.time().await
    }

    /// Creating, and that an object is created once.
    async fn create(&mut self) -> Result<EntityTag, Failed> {
        let name = self.name("create");
        let (first, second) = (Bytes::from_static(b"the first content"), Bytes::from_static(b"another"));
        let created = self.patiently(|| self.store.create(&name, vec![first.clone()])).await;
        let created = match created {
            // An attempt without a clear answer had succeeded.
            Err(RemoteError::Exists) => self.read(&name).await?.1.ok_or_else(|| RemoteError::Refused("no tag".into())),
            other => other,
        };
        let tag = created.map_err(|e| ("create an object", e))?;
        let again = self.patiently(|| self.store.create(&name, vec![second.clone()])).await;
        let wrong = match again {
            Err(RemoteError::Exists) => None,
            Ok(_) => Some("If-None-Match: * is ignored: an object that exists was created again".to_owned()),
            Err(e) => return Err(("create an object that exists", e)),
        };
        self.found("create only what does not exist", wrong);
        let (body, read_tag) = self.read(&name).await?;
        self.found("read what was written", (body != first).then(|| "other bytes came back".to_owned()));
        self.found(
            "one entity tag in all answers",
            (read_tag.as_ref() != Some(&tag)).then(|| {
                let read = read_tag.as_ref().map_or("none", |read| &read.0);
                format!("a PUT answered {}, a GET {read}", tag.0)
            }),
        );
        let part = self.patiently(|| self.store.read(&name, Some(4..9), READ_BYTES_MAX)).await;
        let part = part.map_err(|e| ("read a range", e))?;
        let wrong = part.body != first.slice(4..9) || part.size != first.len() as u64;
        self.found("read a range", wrong.then(|| format!("{} bytes of {} came", part.body.len(), part.size)));
        let missing = format!("{}/missing", self.root);
        match self.patiently(|| self.store.read(&missing, None, READ_BYTES_MAX)).await {
            Err(RemoteError::Missing) => self.found("say that an object does not exist", None),
            Err(e) => return Err(("read an object that does not exist (may the keys list the bucket?)", e)),
            Ok(_) => self.found("say that an object does not exist", Some("it was read".to_owned())),
        }
        Ok(tag)
    }

    /// Replacing, with the right entity tag, an old one, and one of nothing.
    async fn replace(&mut self, old: EntityTag) -> Result<(), Failed> {
        let name = format!("{}/create", self.root);
        let (second, third) = (Bytes::from_static(b"the second content"), Bytes::from_static(b"the third"));
        match self.patiently(|| self.store.replace(&name, second.clone(), &old)).await {
            Ok(_) => {}
            Err(RemoteError::Changed | RemoteError::Unknown(_)) => {
                if self.read(&name).await?.0 != second {
                    self.found(
                        "replace with If-Match",
                        Some(format!("the entity tag {} of its own answer is refused", old.0)),
                    );
                    return Ok(());
                }
            }
            Err(e) => return Err(("replace an object with If-Match", e)),
        }
        self.found("replace with If-Match", None);
        let wrong = match self.patiently(|| self.store.replace(&name, third.clone(), &old)).await {
            Err(RemoteError::Changed) => None,
            Ok(_) => Some("If-Match is ignored: an object with another entity tag was replaced".to_owned()),
            Err(e) => return Err(("replace an object with an old entity tag", e)),
        };
        self.found("refuse an old entity tag", wrong);
        let absent = self.name("absent");
        let wrong = match self.patiently(|| self.store.replace(&absent, third.clone(), &old)).await {
            Err(RemoteError::Changed) => None,
            Ok(_) => Some("If-Match is ignored: an object that does not exist was created".to_owned()),
            Err(e) => return Err(("replace an object that does not exist", e)),
        };
        self.found("refuse to replace what does not exist", wrong);
        Ok(())
    }

    /// Checks the answers of a race: one may win, and its bytes are there. `there` is what was read
    /// afterwards, if anything.
    fn judge(
        &mut self,
        race: usize,
        answers: Vec<RemoteResult<EntityTag>>,
        there: Option<&[u8]>,
    ) -> Result<Option<String>, Failed> {
        let mut won = Vec::new();
        let mut unclear = Vec::new();
        for (number, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(_) => won.push(number),
                Err(RemoteError::Exists | RemoteError::Changed) => {}
                Err(RemoteError::Unknown(_) | RemoteError::Slow(_)) => unclear.push(number),
                Err(e) => return Err(("write at the same time as others", e)),
            }
        }
        let is_of = |number: &usize| there == Some(&racer_body(race, *number)[..]);
        Ok(match &won[..] {
            // None of them may have happened, or one whose answer was lost.
            [] if !unclear.is_empty() => None,
            [] => Some("all of several writers were refused".to_owned()),
            [one] if is_of(one) => None,
            [_] => Some("the bytes of a writer that was refused are there".to_owned()),
            _ => Some(format!("{} of {RACERS} writers at the same time got the answer of success", won.len())),
        })
    }

    async fn race_creates(&mut self) -> Result<(), Failed> {
        let mut wrong = None;
        for race in 0..RACES {
            let name = self.name(&format!("race-{race}"));
            let answers = join_all((0..RACERS).map(|n| self.store.create(&name, vec![racer_body(race, n)]))).await;
            let there = match self.read(&name).await {
                Err((_, RemoteError::Missing)) => None,
                read => Some(read?.0),
            };
            wrong = wrong.or(self.judge(race, answers, there.as_deref())?);
        }
        self.found("one of many creates wins", wrong);
        Ok(())
    }

    async fn race_replaces(&mut self) -> Result<(), Failed> {
        let mut wrong = None;
        let name = self.name("races");
        let created = self.patiently(|| self.store.create(&name, vec![Bytes::from_static(b"begin")])).await;
        created.map(drop).or_else(|e| if e == RemoteError::Exists { Ok(()) } else { Err(("create an object", e)) })?;
        for race in 0..RACES {
            let Some(over) = self.read(&name).await?.1 else {
                wrong = wrong.or(Some("a GET gives no entity tag".to_owned()));
                break;
            };
            // Equal bytes may have equal tags, so each race has its own.
            let answers = join_all((0..RACERS).map(|n| self.store.replace(&name, racer_body(race, n), &over))).await;
            let there = self.read(&name).await?.0;
            wrong = wrong.or(self.judge(race, answers, Some(&there))?);
        }
        self.found("one of many replacements wins", wrong);
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Failed> {
        let mut found: Vec<String> = Vec::new();
        loop {
            let after = found.last().cloned().unwrap_or_default();
            let page = self.patiently(|| self.store.list(&self.root, &after)).await.map_err(|e| ("list", e))?;
            if page.is_empty() {
                break;
            }
            found.extend(page.into_iter().map(|entry| entry.name));
        }
        let is_sorted = found.is_sorted_by(|a, b| a < b);
        self.found("list in order", (!is_sorted).then(|| format!("{found:?}")));
        let absent = format!("{}/absent", self.root);
        let lacks = self.made.iter().filter(|name| **name != absent && !found.contains(name)).count();
        if lacks > 0 {
            let detail =
                format!("{lacks} of {} objects are missing for now; the archive does not rely on it", self.made.len());
            self.note("list what was written", ProbeVerdict::Noted, detail);
        }
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Failed> {
        let gone = format!("{}/create", self.root);
        let names = [gone.clone(), format!("{}/missing", self.root)];
        self.patiently(|| self.store.delete(&names)).await.map_err(|e| ("delete objects", e))?;
        let wrong = match self.patiently(|| self.store.read(&gone, None, READ_BYTES_MAX)).await {
            Err(RemoteError::Missing) => None,
            Ok(_) => Some("a deleted object is still there".to_owned()),
            Err(e) => return Err(("read a deleted object", e)),
        };
        self.found("delete", wrong);
        Ok(())
    }

    async fn time(&mut self) -> Result<(), Failed> {
        for (what, bytes, count) in [
            ("time of a PUT of 4 KiB", 4 << 10, TIMED),
            ("time of a PUT of 64 KiB", 64 << 10, TIMED),
            ("time of a PUT of 8 MiB", LARGE_BYTES, 3),
        ] {
            let body = Bytes::from(vec![0x5f; bytes]);
            let mut took = Vec::with_capacity(count);
            for n in 0..count {
                let name = self.name(&format!("timed-{bytes}-{n}"));
                let begun = self.env.now();
                match self.store.create(&name, vec![body.clone()]).await {
                    Ok(_) => took.push(self.env.now().saturating_sub(begun)),
                    Err(RemoteError::Unknown(_) | RemoteError::Slow(_)) => {}
                    Err(e) => return Err(("create an object", e)),
                }
            }
            took.sort_unstable();
            let Some((median, most)) = took.get(took.len() / 2).zip(took.last()) else { continue };
            let rate = bytes as f64 / median.as_secs_f64().max(1e-6) / 1e6;
            let detail = format!("median {median:.1?}, at most {most:.1?}, {rate:.1} MB/s");
            self.note(what, ProbeVerdict::Noted, detail);
        }
        Ok(())
    }

    async fn clean(&mut self) -> RemoteResult<()> {
        for names in std::mem::take(&mut self.made).chunks(100) {
            self.patiently(|| self.store.delete(names)).await?;
        }
        Ok(())
    }
}

fn racer_body(race: usize, number: usize) -> Bytes {
    Bytes::from(format!("the content of writer {number} in race {race}"))
}
