//! Why a channel cannot be used, in terms that a frame can carry.

use steadfast_flow::log_rarely;
use steadfast_log::LogError;
use steadfast_store::StoreError;

/// Why a request about a channel failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChannelError {
    /// A failure of the server, which its log describes.
    Internal = 1,
    /// A bound is exceeded: the request may be repeated later.
    Busy = 2,
    /// The name is too long, or the channel has a limit that is reached.
    LimitExceeded = 3,
    /// The publication is larger than a record of the log, or a frame, may be.
    TooLarge = 4,
    /// The disk is full.
    DiskFull = 5,
    /// The rest of the disk is reserved.
    DiskNearlyFull = 6,
    /// The disk does not answer.
    DiskHangs = 7,
    /// The server is stopping.
    Stopping = 8,
    /// There is no link to the home of the channel.
    HomeUnreachable = 9,
    /// The link was lost before the answer: the publication may be stored.
    OutcomeUnknown = 10,
    /// The pool was opened for reading: nothing is published.
    OpenedForReading = 11,
}

impl ChannelError {
    /// The error of a number in a frame; `None`: 0, no error.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        use ChannelError::*;
        let all = [
            Internal,
            Busy,
            LimitExceeded,
            TooLarge,
            DiskFull,
            DiskNearlyFull,
            DiskHangs,
            Stopping,
            HomeUnreachable,
            OutcomeUnknown,
            OpenedForReading,
        ];
        (number != 0).then(|| all.into_iter().find(|error| *error as u32 == number).unwrap_or(Internal))
    }
}

impl From<&StoreError> for ChannelError {
    fn from(e: &StoreError) -> Self {
        match e {
            StoreError::Busy(_) => Self::Busy,
            StoreError::TooLarge(_) => Self::LimitExceeded,
            StoreError::Log(LogError::TooLarge(_)) => Self::TooLarge,
            StoreError::Log(LogError::Full) => {
                tracing::debug!(error = %e, "the disk is full: a publication is refused");
                Self::DiskFull
            }
            StoreError::Log(LogError::OpenedForReading) => Self::OpenedForReading,
            StoreError::Log(LogError::Closed) => Self::Stopping,
            StoreError::Hangs => Self::DiskHangs,
            e => {
                log_rarely!(warn, error = %e, "the store cannot use a channel");
                Self::Internal
            }
        }
    }
}

impl From<StoreError> for ChannelError {
    fn from(e: StoreError) -> Self {
        Self::from(&e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_number_and_unknown_ones_are_internal() {
        for number in 1..=11 {
            assert_eq!(ChannelError::from_number(number).map(|error| error as u32), Some(number));
        }
        assert_eq!(ChannelError::from_number(0), None);
        assert_eq!(ChannelError::from_number(99), Some(ChannelError::Internal));
    }
}
