//! The transports of sessions.

/// The transport of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A WebSocket.
    WebSocket,
    /// HTTP streaming of lines; commands in separate requests.
    HttpStream,
    /// Server-sent events; commands in separate requests.
    Sse,
    /// A WebSocket on which the client sends only its connect request.
    UniWebSocket,
    /// HTTP streaming of lines, without commands.
    UniHttpStream,
    /// Server-sent events, without commands.
    UniSse,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 6] =
        [Self::WebSocket, Self::HttpStream, Self::Sse, Self::UniWebSocket, Self::UniHttpStream, Self::UniSse];

    /// Whether the client sends no commands.
    pub const fn is_unidirectional(self) -> bool {
        matches!(self, Self::UniWebSocket | Self::UniHttpStream | Self::UniSse)
    }

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::HttpStream => "http_stream",
            Self::Sse => "sse",
            Self::UniWebSocket => "uni_websocket",
            Self::UniHttpStream => "uni_http_stream",
            Self::UniSse => "uni_sse",
        }
    }
}
