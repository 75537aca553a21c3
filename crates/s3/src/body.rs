//! Request bodies with a minimum rate, and response bodies that hold their permits until they end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use s3s::StdError;
use steadfast_flow::{BoxFuture, Ended, Env, Patience, SlowRequests, Stage, log_rarely};

use crate::audit::Audited;
use crate::context::{BodyFault, Observer, RequestContext, RequestRecord};
use crate::io::ConnectionState;

/// The body of a request: counts its bytes, and fails when too few arrive for too long. Time in
/// which the server does not read (backpressure) does not count. The first wait releases the
/// request's permit.
pub(crate) struct RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    /// `None`: it has been dropped.
    inner: Option<B>,
    context: Arc<RequestContext>,
    env: Env,
    patience: Patience,
    timer: Option<BoxFuture<'static, ()>>,
    waits: bool,
    /// The stage of the request when the wait began.
    waited_from: Option<Stage>,
    /// Whether the body has ended. A body without a length does not report its own end.
    ended: bool,
}

impl<B> Drop for RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    fn drop(&mut self) {
        if let Some(rest) = self.inner.take_if(|inner| !self.ended && !inner.is_end_stream()) {
            self.context.leave_unread(rest.map_err(Into::into).boxed_unsync());
        }
    }
}

impl<B> RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    pub(crate) fn new(inner: B, context: Arc<RequestContext>, env: Env, patience: Patience) -> Self {
        Self { inner: Some(inner), context, env, patience, timer: None, waits: false, waited_from: None, ended: false }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) {
            let bytes = match &frame {
                Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
                _ => 0,
            };
            if std::mem::take(&mut self.waits) {
                let now = self.env.now();
                self.patience.moved(now, 0);
                if let (Some(stages), Some(before)) = (&self.context.stages, self.waited_from) {
                    stages.enter_at(before, now);
                }
            }
            if bytes > 0 {
                let now = self.env.now();
                self.patience.moved(now, bytes);
                self.context.bytes_in.fetch_add(bytes, Relaxed);
            }
            return Poll::Ready(match frame {
                Some(Err(error)) => {
                    self.context.set_fault(BodyFault::Broken);
                    Some(Err(error.into()))
                }
                Some(Ok(frame)) => Some(Ok(frame)),
                None => {
                    self.ended = true;
                    None
                }
            });
        }
        loop {
            let now = self.env.now();
            let mut left = self.patience.waits(now);
            if let Some(due) = self.context.body_due() {
                left = left.min(due.saturating_sub(now));
            }
            if !std::mem::replace(&mut self.waits, true) {
                // From here on, the write budget and the minimum rate bound the request.
                self.context.release_place();
                self.waited_from = self.context.stages.as_ref().map(|stages| stages.enter_at(Stage::Receive, now));
            }
            if left.is_zero() {
                self.context.set_fault(BodyFault::Stalled);
                return Poll::Ready(Some(Err("the request body stalled".into())));
            }
            if self.timer.is_none() {
                self.timer = Some(self.env.sleep(left));
            }
            // The timer may belong to an earlier wait. Then it only causes another check.
            if let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
            }
            self.timer = None;
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

/// The resources that a request holds until its response has been sent.
pub(crate) struct Tail {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// `None`: there is no audit log.
    pub(crate) audited: Option<Audited>,
    pub(crate) slow: Arc<SlowRequests>,
    pub(crate) env: Env,
    pub(crate) started: Duration,
    pub(crate) status: u16,
    pub(crate) bytes_out: u64,
    pub(crate) complete: bool,
    pub(crate) state: Arc<ConnectionState>,
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.context.release_place();
        let now = self.env.now();
        self.state.connection.idle_at(now);
        let (operation, bytes_in) = (self.context.operation(), self.context.bytes_in.load(Relaxed));
        if let Some(stages) = &self.context.stages {
            stages.add_received(bytes_in);
            stages.set_outcome(u32::from(self.status));
            let user = self.context.caller.get().and_then(|caller| caller.identity.name());
            let bytes_out = Some(self.bytes_out);
            self.slow.end(stages, &Ended { id: &self.context.id, operation, user, bytes_out });
        }
        let record = RequestRecord {
            operation,
            status: self.status,
            bytes_in,
            bytes_out: self.bytes_out,
            duration: now.saturating_sub(self.started),
            complete: self.complete,
        };
        if let Some(observer) = &self.observer {
            observer.finished(&record);
        }
        if let Some(audited) = self.audited.take() {
            audited.end(&record);
        }
    }
}

/// The body of a response.
pub struct ResponseBody {
    inner: s3s::Body,
    tail: Tail,
}

impl ResponseBody {
    pub(crate) fn new(inner: s3s::Body, mut tail: Tail) -> Self {
        tail.complete = inner.is_end_stream();
        Self { inner, tail }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        let frame = match &this.tail.context.stages {
            // The layers below record their disk reads in the current stages.
            Some(stages) => stages.within(|| Pin::new(&mut this.inner).poll_frame(cx)),
            None => Pin::new(&mut this.inner).poll_frame(cx),
        };
        let frame = ready!(frame);
        match &frame {
            Some(Ok(frame)) => {
                self.tail.bytes_out += frame.data_ref().map_or(0, |d| d.len() as u64);
                // hyper does not poll again once the body has reached the announced length.
                self.tail.complete = self.inner.is_end_stream() || self.inner.size_hint().exact() == Some(0);
            }
            Some(Err(error)) => {
                log_rarely!(error, request = %self.tail.context.id, operation = self.tail.context.operation(), %error,
                    "the server broke a response off");
            }
            None => self.tail.complete = true,
        }
        if self.tail.complete {
            // The rest is in memory: the request only waits for its client.
            self.tail.context.release_place();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;

    #[tokio::test]
    async fn a_stalled_body_ends() {
        let context = Arc::new(RequestContext::new(1, None, Arc::default()));
        let pieces = futures::stream::iter([Ok::<_, StdError>(Frame::data(Bytes::from_static(b"abc")))]);
        let body = StreamBody::new(futures::StreamExt::chain(pieces, futures::stream::pending()));
        let patience = Patience::new(Duration::from_millis(50), 0);
        let mut body = RequestBody::new(body, context.clone(), Env::tokio(), patience);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().as_ref(), b"abc");
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(context.fault(), Some(BodyFault::Stalled));
        assert_eq!(context.bytes_in.load(Relaxed), 3);
    }
}
