//! A process: all its tasks end at once when it is killed, and do nothing while it is paused.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env, Runtime};

use crate::executor::Executor;

/// A task of a process; `None` while it runs, and after its end.
#[derive(Default)]
struct TaskSlot {
    future: Option<BoxFuture<'static, ()>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Tasks {
    dead: bool,
    paused: bool,
    next: u64,
    slots: BTreeMap<u64, Arc<Mutex<TaskSlot>>>,
}

/// The tasks of a process between its start and a kill. Clones share it.
#[derive(Clone)]
pub(crate) struct MachineProcess {
    executor: Executor,
    tasks: Arc<Mutex<Tasks>>,
}

struct ProcessTask {
    tasks: Arc<Mutex<Tasks>>,
    number: u64,
    slot: Arc<Mutex<TaskSlot>>,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.tasks.lock().paused {
            self.slot.lock().waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let Some(mut future) = self.slot.lock().future.take() else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() && !self.tasks.lock().dead {
            let mut slot = self.slot.lock();
            (slot.future, slot.waker) = (Some(future), Some(context.waker().clone()));
            return Poll::Pending;
        }
        self.tasks.lock().slots.remove(&self.number);
        Poll::Ready(())
    }
}

impl MachineProcess {
    pub(crate) fn new(executor: Executor) -> Self {
        Self { executor, tasks: Arc::default() }
    }

    pub(crate) fn env(&self) -> Env {
        Env::new(self.clone())
    }

    /// Stops the process, as SIGSTOP does, or lets it continue. What its tasks waited for may have
    /// happened meanwhile.
    pub(crate) fn pause(&self, paused: bool) {
        let slots: Vec<_> = {
            let mut tasks = self.tasks.lock();
            tasks.paused = paused;
            tasks.slots.values().cloned().collect()
        };
        for slot in slots.into_iter().filter(|_| !paused) {
            let waker = slot.lock().waker.clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Ends all tasks, and refuses new ones.
    pub(crate) fn kill(&self) {
        let slots = {
            let mut tasks = self.tasks.lock();
            tasks.dead = true;
            std::mem::take(&mut tasks.slots)
        };
        for slot in slots.into_values() {
            // Dropped without a lock: the destructors may wake and spawn.
            let TaskSlot { future, waker } = std::mem::take(&mut *slot.lock());
            drop(future);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Runtime for MachineProcess {
    fn now(&self) -> Duration {
        self.executor.now()
    }

    fn wall_ms(&self) -> u64 {
        self.executor.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let mut tasks = self.tasks.lock();
        if tasks.dead {
            drop(tasks);
            drop(task);
            return;
        }
        let number = tasks.next;
        tasks.next += 1;
        let slot = Arc::new(Mutex::new(TaskSlot { future: Some(task), waker: None }));
        tasks.slots.insert(number, slot.clone());
        drop(tasks);
        self.executor.spawn(name, Box::pin(ProcessTask { tasks: self.tasks.clone(), number, slot }));
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let tasks = self.tasks.clone();
        self.executor.blocking(Box::new(move || {
            let dead = tasks.lock().dead;
            if !dead {
                work();
            }
        }))
    }

    fn random_u64(&self) -> u64 {
        self.executor.random_u64()
    }
}
