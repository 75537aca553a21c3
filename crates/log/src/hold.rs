//! Holds committed records back until a copy of the log that is kept elsewhere has them.

use std::time::Duration;

use tokio::sync::watch;

use crate::Lsn;

/// Nothing is held back.
const NOTHING: Lsn = Lsn::MAX;

/// Up to where records may be applied, and so be seen and answered.
#[derive(Debug)]
pub struct Hold {
    released: watch::Sender<Released>,
    /// Since when the applier waits.
    waiting: watch::Sender<Option<Duration>>,
    /// Whether the copy is so far behind that chunks wait.
    pressed: watch::Sender<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Released {
    up_to: Lsn,
    /// Nothing is released any more.
    ended: bool,
}

impl Default for Hold {
    fn default() -> Self {
        let released = watch::Sender::new(Released { up_to: NOTHING, ended: false });
        Self { released, waiting: watch::Sender::new(None), pressed: watch::Sender::new(false) }
    }
}

impl Hold {
    /// Holds back what comes after the record `last`. Does nothing if records are held back.
    pub(crate) fn begin(&self, last: Lsn) {
        assert!(last < NOTHING, "LSNs never reach the end of their range");
        self.released.send_if_modified(|released| {
            let begins = released.up_to == NOTHING;
            if begins {
                released.up_to = last;
            }
            begins
        });
    }

    /// Releases records up to this one, if any are held back.
    pub fn release(&self, up_to: Lsn) {
        self.released.send_if_modified(|released| {
            let more = released.up_to != NOTHING && released.up_to < up_to;
            if more {
                released.up_to = up_to;
            }
            more
        });
    }

    /// Holds no records back any more.
    pub fn cancel(&self) {
        self.release(NOTHING);
        self.press(false);
    }

    /// Whether records are held back.
    pub(crate) fn is_on(&self) -> bool {
        self.released.borrow().up_to != NOTHING
    }

    /// Nothing that is held back is released any more, so that tasks which wait for it can end.
    pub fn end(&self) {
        self.released.send_modify(|released| released.ended = true);
        self.press(false);
    }

    /// Lets new chunks wait as long as the copy is far behind.
    pub fn press(&self, pressed: bool) {
        self.pressed.send_if_modified(|known| std::mem::replace(known, pressed) != pressed);
    }

    /// Waits until the copy is not far behind.
    pub async fn unpressed(&self) {
        if *self.pressed.borrow() {
            // The sender is in `self`, so it still exists.
            let _ = self.pressed.subscribe().wait_for(|pressed| !pressed).await;
        }
    }

    /// Waits until a record may be applied; `false` if it never may. `now` is the time now.
    pub(crate) async fn pass(&self, lsn: Lsn, now: impl Fn() -> Duration) -> bool {
        if self.released.borrow().up_to >= lsn {
            return true;
        }
        self.waiting.send_replace(Some(now()));
        let mut released = self.released.subscribe();
        let passed = released.wait_for(|released| released.up_to >= lsn || released.ended).await;
        let passed = passed.is_ok_and(|released| released.up_to >= lsn);
        self.waiting.send_replace(None);
        passed
    }

    /// Since when a record has been held back, by the log's clock; `None` if none is.
    pub fn waiting_since(&self) -> Option<Duration> {
        *self.waiting.borrow()
    }

    /// Waits until a record is held back: all before it were applied.
    pub(crate) async fn waits(&self) {
        // The sender is in `self`, so it still exists.
        let _ = self.waiting.subscribe().wait_for(Option::is_some).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_record_passes_when_it_is_released_and_not_before() {
        let hold = Hold::default();
        let pass = |lsn| hold.pass(lsn, || Duration::ZERO).now_or_never();
        hold.release(3);
        assert_eq!(pass(1_000_000), Some(true), "nothing is held back");
        hold.begin(7);
        hold.begin(9);
        assert!(hold.is_on());
        assert_eq!((pass(7), pass(8)), (Some(true), None));
        hold.release(8);
        hold.release(2);
        assert_eq!((pass(8), pass(9)), (Some(true), None));
        hold.end();
        assert_eq!((pass(8), pass(9)), (Some(true), Some(false)));
        hold.cancel();
        assert_eq!(pass(1_000_000), Some(true));
        assert!(!hold.is_on());
    }

    #[test]
    fn a_hold_shows_since_when_a_record_waits() {
        let hold = Hold::default();
        hold.begin(0);
        let mut passing = Box::pin(hold.pass(1, || Duration::from_secs(5)));
        assert_eq!((hold.waiting_since(), passing.as_mut().now_or_never()), (None, None));
        assert_eq!(hold.waiting_since(), Some(Duration::from_secs(5)));
        assert!(hold.waits().now_or_never().is_some());
        hold.release(1);
        assert_eq!((passing.as_mut().now_or_never(), hold.waiting_since()), (Some(true), None));
        assert!(hold.waits().now_or_never().is_none());
    }

    #[test]
    fn chunks_wait_until_the_copy_is_no_longer_far_behind() {
        let hold = Hold::default();
        hold.press(true);
        let mut waiting = Box::pin(hold.unpressed());
        assert!(waiting.as_mut().now_or_never().is_none());
        hold.press(false);
        assert!(waiting.now_or_never().is_some() && hold.unpressed().now_or_never().is_some());
        hold.press(true);
        hold.end();
        assert!(hold.unpressed().now_or_never().is_some(), "nothing waits for ever");
    }
}
