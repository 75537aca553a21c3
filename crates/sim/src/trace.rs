//! The events of a run: a hash over all, and the last ones as text.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::rng::mix;

#[derive(Debug, Clone)]
struct Event {
    at_ns: u64,
    what: &'static str,
    name: &'static str,
    numbers: [u64; 3],
    text: Option<Box<str>>,
}

struct TraceState {
    hash: u64,
    count: u64,
    tail: VecDeque<Event>,
    keep: usize,
    texts: bool,
    print: bool,
}

/// The trace of one run. Clones share it.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<TraceState>>);

impl Trace {
    /// Keeps the last `keep` events. With `print`, writes each to standard error as it happens.
    /// Without either, it only hashes.
    pub fn new(keep: usize, print: bool) -> Self {
        Self(Arc::new(Mutex::new(TraceState {
            hash: 0,
            count: 0,
            tail: VecDeque::with_capacity(keep),
            keep,
            texts: keep > 0 || print,
            print,
        })))
    }

    /// Records an event. `what`, `name` and the numbers enter the hash.
    pub fn note(&self, at_ns: u64, what: &'static str, name: &'static str, numbers: [u64; 3]) {
        self.push(Event { at_ns, what, name, numbers, text: None });
    }

    /// As [`Trace::note`], with a text that is built only if it is kept or printed. The text does
    /// not enter the hash.
    pub fn note_with_text(&self, at_ns: u64, what: &'static str, numbers: [u64; 3], text: impl FnOnce() -> String) {
        let wanted = self.0.lock().texts;
        let text = wanted.then(|| text().into_boxed_str());
        self.push(Event { at_ns, what, name: "", numbers, text });
    }

    fn push(&self, event: Event) {
        let mut inner = self.0.lock();
        let mut hash = inner.hash ^ event.at_ns;
        for byte in event.what.bytes().chain(event.name.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        for number in event.numbers {
            hash = mix(hash ^ number);
        }
        inner.hash = hash;
        inner.count += 1;
        if inner.print {
            let line = show(&event);
            #[allow(clippy::print_stderr, reason = "asked for: --trace")]
            {
                eprintln!("{line}");
            }
        }
        if inner.keep > 0 {
            if inner.tail.len() == inner.keep {
                inner.tail.pop_front();
            }
            inner.tail.push_back(event);
        }
    }

    /// A hash over all events so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// Number of events.
    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// The last events, a line each.
    pub fn tail(&self) -> Vec<String> {
        self.0.lock().tail.iter().map(show).collect()
    }
}

fn show(event: &Event) -> String {
    let mut line = format!("{:>12.6} {:<10} {}", event.at_ns as f64 / 1e9, event.what, event.name);
    match &event.text {
        Some(text) => line.push_str(text),
        None => {
            for number in event.numbers {
                let _ = write!(line, " {number}");
            }
        }
    }
    line
}
