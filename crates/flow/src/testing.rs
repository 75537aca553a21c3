//! A clock that only the test advances, and futures that a test polls by hand.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::noop_waker;
use parking_lot::Mutex;

use crate::{BoxFuture, Env, Runtime};

#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<Mutex<Duration>>);

impl Clock {
    pub(crate) fn env(&self) -> Env {
        Env::new(self.clone())
    }

    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        let end = self.now() + duration;
        Box::pin(std::future::poll_fn(move |_| if clock.now() >= end { Poll::Ready(()) } else { Poll::Pending }))
    }

    fn spawn(&self, _name: &'static str, _task: BoxFuture<'static, ()>) {
        unreachable!("bounds start no tasks");
    }

    fn blocking(&self, _work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        unreachable!("bounds do not block");
    }

    fn random_u64(&self) -> u64 {
        unreachable!("bounds need no randomness");
    }
}

/// A future that a test polls by hand.
pub(crate) struct Held<T>(Pin<Box<dyn Future<Output = T>>>);

impl<T> Held<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self(Box::pin(future))
    }

    pub(crate) fn poll(&mut self) -> Option<T> {
        match self.0.as_mut().poll(&mut Context::from_waker(&noop_waker())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}
