//! The server API over gRPC on its own port: Centrifugo's `CentrifugoApi`.

mod door;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/grpc.rs"]
pub(crate) mod fuzzing;
pub(crate) mod message;

pub use door::GrpcDoor;
