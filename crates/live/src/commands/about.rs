//! The summary of a command for the log of slow requests.

use crate::protocol::message::Command;

impl Command {
    /// The channel of the command, if it is about one.
    pub(crate) fn channel(&self) -> Option<&str> {
        let plain = [&self.unsubscribe, &self.presence, &self.presence_stats].into_iter().find_map(Option::as_ref);
        plain
            .map(|request| &*request.channel)
            .or_else(|| self.subscribe.as_ref().map(|request| &*request.channel))
            .or_else(|| self.publish.as_ref().map(|request| &*request.channel))
            .or_else(|| self.history.as_ref().map(|request| &*request.channel))
            .or_else(|| self.sub_refresh.as_ref().map(|request| &*request.channel))
    }
}

/// The name of the command, its channel (empty: none), and the bytes of its data.
pub(super) fn about(command: &Command) -> (&'static str, &str, usize) {
    if let Some(publish) = &command.publish {
        ("publish", &publish.channel, publish.data.len())
    } else if let Some(subscribe) = &command.subscribe {
        ("subscribe", &subscribe.channel, subscribe.data.len())
    } else if let Some(connect) = &command.connect {
        ("connect", "", connect.data.len())
    } else if let Some(rpc) = &command.rpc {
        ("rpc", "", rpc.data.len())
    } else if let Some(history) = &command.history {
        ("history", &history.channel, 0)
    } else if let Some(presence) = &command.presence {
        ("presence", &presence.channel, 0)
    } else if let Some(stats) = &command.presence_stats {
        ("presence_stats", &stats.channel, 0)
    } else if let Some(unsubscribe) = &command.unsubscribe {
        ("unsubscribe", &unsubscribe.channel, 0)
    } else if let Some(refresh) = &command.sub_refresh {
        ("sub_refresh", &refresh.channel, 0)
    } else if command.refresh.is_some() {
        ("refresh", "", 0)
    } else if let Some(send) = &command.send {
        ("send", "", send.data.len())
    } else {
        ("-", "", 0)
    }
}
