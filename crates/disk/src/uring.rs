//! The fast driver: one thread that owns an io_uring and keeps many requests in flight.
//!
//! Callers push onto a bounded queue (they hold slots) and wake the thread through an eventfd that is itself read by the
//! ring, so the thread has one place to wait in. While it is busy, no wake-up is needed and a whole batch goes to the
//! kernel in one system call.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::request::{Driver, Op, Request, now};
use crate::threads::join;

/// The user data of the eventfd's read.
const WAKE: u64 = u64::MAX;
/// Set in the user data of a flush.
const FLUSH: u64 = 1 << 63;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    /// The thread found the queue empty and must be woken.
    asleep: bool,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // It can only fail when the counter is at its end, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The io_uring driver.
pub(crate) struct Uring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Uring {
    /// Starts the thread; an error when the kernel refuses a ring that can do what is needed.
    pub(crate) fn start(file: &Arc<File>, queue_depth: usize, commit_depth: usize) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { queue: Mutex::default(), wake });
        let (started, start) = sync_channel(1);
        let (file, theirs) = (file.clone(), shared.clone());
        let slots = queue_depth + commit_depth;
        let work = move || {
            // Made here: the ring knows that only this thread uses it.
            let ring = match ring(slots * 2 + 1) {
                Ok(ring) => ring,
                Err(error) => return drop(started.send(Err(error))),
            };
            if started.send(Ok(())).is_ok() {
                Loop { ring, file, shared: theirs, slots: Slots::new(slots), wake_bytes: Box::new(0) }.run();
            }
        };
        let thread = std::thread::Builder::new().name("disk-uring".into()).stack_size(256 << 10).spawn(work)?;
        let this = Self { shared, thread: Some(thread) };
        start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread of the ring ended")))?;
        Ok(this)
    }
}

impl Driver for Uring {
    fn submit(&self, request: Request) {
        let asleep = {
            let mut queue = self.shared.queue.lock();
            queue.waiting.push_back(request);
            std::mem::take(&mut queue.asleep)
        };
        if asleep {
            self.shared.wake();
        }
    }

    fn describe(&self) -> String {
        "io_uring".into()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
    }
}

/// A ring with room for `entries` submissions, made the cheapest way that the kernel knows.
fn ring(entries: usize) -> io::Result<IoUring> {
    let entries = u32::try_from(entries.next_power_of_two()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let best = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    let ring = match best {
        // Before Linux 6.1.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(entries)?,
        other => other?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
    if needed.iter().all(|code| probe.is_supported(*code)) {
        Ok(ring)
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring lacks read, write or fsync"))
    }
}

/// A request with the kernel.
struct Slot {
    request: Request,
    /// Bytes moved so far.
    done: usize,
    /// Answers that the kernel still owes.
    owed: u8,
    /// What the write or read was last answered.
    moved: Option<i32>,
    /// What the flush was answered.
    flushed: Option<i32>,
    /// When there was nothing left to wait for but the flush.
    flush_from: Option<Instant>,
}

/// The requests with the kernel, by the number in their user data.
struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { slots: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    fn busy(&self) -> bool {
        self.free.len() < self.slots.len()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Only a panic leaves any. The kernel may still write into their memory, so it is lost rather than reused.
        self.slots.drain(..).for_each(std::mem::forget);
    }
}

struct Loop {
    ring: IoUring,
    file: Arc<File>,
    shared: Arc<Shared>,
    slots: Slots,
    /// Where the eventfd's counter is read to.
    wake_bytes: Box<u64>,
}

impl Loop {
    fn run(mut self) {
        self.arm_wake();
        let mut batch = VecDeque::new();
        loop {
            let closed = {
                let mut queue = self.shared.queue.lock();
                std::mem::swap(&mut queue.waiting, &mut batch);
                queue.asleep = batch.is_empty();
                queue.closed
            };
            for request in batch.drain(..) {
                self.begin(request);
            }
            if closed && !self.slots.busy() {
                return;
            }
            self.enter();
            self.complete();
        }
    }

    /// Gives what is prepared to the kernel and waits for at least one answer.
    fn enter(&mut self) {
        let Err(error) = self.ring.submit_and_wait(1) else { return };
        match error.raw_os_error() {
            // EBUSY, EAGAIN: answers must be taken first, or the kernel is short of memory for a moment.
            Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
            _ => {
                // The requests in flight cannot be abandoned: the kernel owns their memory.
                tracing::error!(%error, "io_uring_enter failed; trying again");
                #[allow(clippy::disallowed_methods, reason = "this thread has nothing else to do")]
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn complete(&mut self) {
        loop {
            let Some(answer) = self.ring.completion().next() else { return };
            match answer.user_data() {
                WAKE => self.arm_wake(),
                data => self.answered((data & !FLUSH) as usize, data & FLUSH != 0, answer.result()),
            }
        }
    }

    fn begin(&mut self, request: Request) {
        let Some(number) = self.slots.free.pop() else {
            // There are as many slots as permits, so this cannot be; an error is still better than a loss.
            return request.finish(Err(io::Error::other("no slot for the request")), None);
        };
        let flush_from = matches!(request.op, Op::Flush).then(now);
        let slot = Slot { request, done: 0, owed: 0, moved: None, flushed: None, flush_from };
        self.slots.slots[number] = Some(slot);
        self.prepare(number);
    }

    /// Queues what is left of a request: the bytes not moved yet, and the flush linked behind them.
    fn prepare(&mut self, number: usize) {
        let Some(slot) = self.slots.slots[number].as_mut() else { return };
        let fd = Fd(self.file.as_raw_fd());
        let (memory, len) = slot.request.op.memory();
        let (left, at) = ((len - slot.done) as u32, slot.request.offset + slot.done as u64);
        // SAFETY: `done <= len`.
        let memory = unsafe { memory.add(slot.done) };
        let data = number as u64;
        let entry = match &slot.request.op {
            Op::Read { .. } => Some(opcode::Read::new(fd, memory, left).offset(at).build()),
            Op::Write { .. } => Some(opcode::Write::new(fd, memory, left).offset(at).build()),
            Op::Flush => None,
        }
        // Nothing is left where only an interrupted flush is done again.
        .filter(|_| left > 0);
        let flush = slot
            .request
            .op
            .commits()
            .then(|| opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build().user_data(data | FLUSH));
        (slot.moved, slot.flushed) = (None, None);
        slot.owed = u8::from(entry.is_some()) + u8::from(flush.is_some());
        match (entry, flush) {
            (Some(entry), Some(flush)) => {
                self.push(&[entry.user_data(data).flags(squeue::Flags::IO_LINK), flush]);
            }
            (Some(entry), None) => self.push(&[entry.user_data(data)]),
            (None, Some(flush)) => self.push(&[flush]),
            (None, None) => {}
        }
    }

    fn arm_wake(&mut self) {
        let into: *mut u64 = &raw mut *self.wake_bytes;
        self.push(&[opcode::Read::new(Fd(self.shared.wake.as_raw_fd()), into.cast(), 8).build().user_data(WAKE)]);
    }

    /// Puts linked entries into the submission queue, together.
    fn push(&mut self, entries: &[squeue::Entry]) {
        // SAFETY: the memory belongs to a request in `slots`, or is `wake_bytes`; both stay where they are until the
        // kernel has answered. The file and the eventfd are open as long as the loop runs.
        while unsafe { self.ring.submission().push_multiple(entries) }.is_err() {
            // Never with a queue of two entries to a slot; but then the kernel takes what is there.
            if let Err(error) = self.ring.submit() {
                tracing::debug!(%error, "submission queue full");
            }
        }
    }

    fn answered(&mut self, number: usize, flush: bool, result: i32) {
        let Some(slot) = self.slots.slots.get_mut(number).and_then(Option::as_mut) else {
            tracing::error!(number, "an answer to no request");
            return;
        };
        if flush {
            slot.flushed = Some(result);
        } else {
            slot.moved = Some(result);
            if slot.request.op.commits() {
                slot.flush_from = Some(now());
            }
        }
        slot.owed -= 1;
        if slot.owed > 0 {
            return;
        }
        match outcome(slot) {
            None => self.prepare(number),
            Some(result) => {
                let Some(slot) = self.slots.slots[number].take() else { return };
                self.slots.free.push(number);
                let took = slot.flush_from.filter(|_| result.is_ok()).map(|at| at.elapsed());
                slot.request.finish(result, took);
            }
        }
    }
}

/// What the answers of a request mean, once all are there; `None` when some of it must be done (again).
fn outcome(slot: &mut Slot) -> Option<io::Result<()>> {
    let len = slot.request.op.memory().1;
    match slot.moved {
        None => {}
        Some(error) if error < 0 => match -error {
            // Nothing was moved, and the flush behind it was cancelled.
            libc::EINTR | libc::EAGAIN => return None,
            errno => return Some(Err(io::Error::from_raw_os_error(errno))),
        },
        Some(0) => {
            let reads = matches!(slot.request.op, Op::Read { .. });
            let kind = if reads { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
            return Some(Err(io::Error::new(kind, "the device ended early")));
        }
        Some(moved) => {
            slot.done += moved as usize;
            if slot.done < len {
                // Stopped short: the kernel has cancelled the flush; had it not, it would have come too early.
                return None;
            }
        }
    }
    match slot.flushed {
        None | Some(0..) => Some(Ok(())),
        // An interrupted flush has not happened, so it is not one that failed.
        Some(error) if -error == libc::EINTR => None,
        Some(error) => Some(Err(io::Error::from_raw_os_error(-error))),
    }
}
