//! The portable driver: a bounded pool of threads, each with one request at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::ages::now;
use crate::request::{Counters, Driver, Flushed, Op, Request};

/// Maximum number of threads for bulk work: each needs a stack, and fewer saturate a device.
const BULK_THREADS_MAX: usize = 32;

#[derive(Default)]
struct WorkQueue {
    waiting: VecDeque<Request>,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    queue: Mutex<WorkQueue>,
    ready: Condvar,
}

impl Lane {
    fn push(&self, request: Request) {
        self.queue.lock().waiting.push_back(request);
        self.ready.notify_one();
    }

    /// Waits for the next request; `None` when closed and empty.
    fn pop(&self) -> Option<Request> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(request) = queue.waiting.pop_front() {
                return Some(request);
            }
            if queue.closed {
                return None;
            }
            self.ready.wait(&mut queue);
        }
    }

    fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_all();
    }
}

/// Threads that share a queue, each with one request at a time. Dropping them waits for the queued
/// requests.
pub(crate) struct Workers {
    lane: Arc<Lane>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(file: &Arc<File>, name: &str, count: usize) -> io::Result<Self> {
        let mut this = Self { lane: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let (lane, file) = (this.lane.clone(), file.clone());
            let work = move || {
                while let Some(request) = lane.pop() {
                    run(&file, request);
                }
            };
            // On an error, dropping `this` ends the threads started so far.
            this.threads.push(std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(work)?);
        }
        Ok(this)
    }

    pub(crate) fn push(&self, request: Request) {
        self.lane.push(request);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.lane.close();
        for thread in self.threads.drain(..) {
            join(thread);
        }
    }
}

/// The thread driver. Commits have separate threads, so that they never wait behind bulk work.
pub(crate) struct Threads {
    bulk: Workers,
    commit: Workers,
}

impl Threads {
    pub(crate) fn start(file: &Arc<File>, queue_depth: usize, commit_depth: usize) -> io::Result<Self> {
        let bulk = Workers::start(file, "disk-io", queue_depth.min(BULK_THREADS_MAX))?;
        Ok(Self { bulk, commit: Workers::start(file, "disk-commit", commit_depth)? })
    }
}

impl Driver for Threads {
    fn submit(&self, request: Request) {
        if request.op.commits() { &self.commit } else { &self.bulk }.push(request);
    }

    fn describe(&self) -> String {
        format!("{} threads", self.bulk.threads.len() + self.commit.threads.len())
    }
}

/// Joins a driver's thread, unless the caller is that thread. A thread may drop the last reference
/// to its own disk by waking a task for the last time.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        tracing::error!("a thread of the disk panicked");
    }
}

fn run(file: &File, request: Request) {
    let mut flushed = None;
    let result = if request.op.commits() {
        request.counters.may_flush().and_then(|()| transfer(file, &request)).and_then(|()| {
            flushed = Some(flush(file, &request.counters)?);
            Ok(())
        })
    } else {
        transfer(file, &request)
    };
    request.finish(result, flushed);
}

/// Transfers the bytes of a request, continuing where the kernel stopped short.
fn transfer(file: &File, request: &Request) -> io::Result<()> {
    let (memory, len) = request.op.memory();
    let reads = matches!(request.op, Op::Read { .. });
    let fd = file.as_raw_fd();
    let mut done = 0;
    while done < len {
        let at = (request.offset + done as u64) as libc::off64_t;
        // SAFETY: `memory..memory + len` belongs to the request, which lives until `finish`. Only
        // this call writes a read's range, and a write's range is only read.
        let got = unsafe {
            let from = memory.add(done);
            if reads {
                libc::pread64(fd, from.cast(), len - done, at)
            } else {
                libc::pwrite64(fd, from.cast_const().cast(), len - done, at)
            }
        };
        done += count(got as i64, reads)?.unwrap_or(0);
    }
    Ok(())
}

/// Interprets the result of a system call: the number of bytes moved, `None` to retry, or the
/// error.
fn count(got: i64, reads: bool) -> io::Result<Option<usize>> {
    match got {
        1.. => Ok(Some(got as usize)),
        0 if reads => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the device ended early")),
        0 => Err(io::Error::new(io::ErrorKind::WriteZero, "the device took no bytes")),
        _ => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) }
        }
    }
}

/// Runs `fdatasync` and returns its start and duration. Never retried: after an error the kernel
/// may have dropped the dirty pages.
fn flush(file: &File, counters: &Counters) -> io::Result<Flushed> {
    let begun = now();
    file.sync_data().inspect_err(|error| counters.latch(error))?;
    // Another flush may have failed meanwhile, and the kernel reports that error only once.
    counters.may_flush()?;
    Ok(Flushed { begun, took: begun.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{Semaphore, oneshot};

    #[test]
    fn no_flush_succeeds_after_one_that_failed() {
        let file = Arc::new(File::open("/dev/null").expect("a file that cannot be flushed"));
        let workers = Workers::start(&file, "test", 1).expect("a thread");
        let counters = Arc::<Counters>::default();
        let flush = || {
            let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("free");
            let (done, answer) = oneshot::channel();
            workers.push(Request::new(Op::Flush, 0, done, slot, counters.clone()));
            answer.blocking_recv().expect("an answer")
        };
        assert_eq!(flush().expect_err("not for this file").raw_os_error(), Some(libc::EINVAL));
        // From here on the system call would succeed.
        let good = File::open("/proc/self/exe").expect("a file");
        // SAFETY: this test owns both descriptors, and both are open.
        assert!(unsafe { libc::dup2(good.as_raw_fd(), file.as_raw_fd()) } >= 0);
        file.sync_data().expect("the system call");
        assert_eq!(flush().expect_err("refused").raw_os_error(), Some(libc::EINVAL));
        assert_eq!(counters.errors.load(std::sync::atomic::Ordering::Relaxed), 2);
    }
}
