//! Clients of other servers: HTTP, TLS, AWS signatures.
//!
//! - `http_client` builds HTTP clients, over TLS for `https`, and exchanges requests with them.
//! - `connector` opens their connections, only to the `addresses` that are allowed.
//! - `remote` keeps objects in a bucket or a directory, with conditions on each write.
//! - `s3` makes requests to S3 endpoints, which `sign` signs.

mod addresses;
mod connector;
mod http_client;
mod remote;
mod s3;
mod sign;

pub use addresses::Addresses;
pub use connector::Connector;
pub use http_client::{
    ClientTls, GrpcClient, HttpClient, exchange, grpc_client_over, http_client, http_client_for, shown_url,
    tls_builder, with_causes, with_system_authorities,
};
pub use remote::{
    DirectoryStore, EntityTag, Fate, Fates, MemoryStore, ProbeFinding, ProbeVerdict, REMOTE_PAGE, RemoteCall,
    RemoteEntry, RemoteError, RemoteObject, RemotePlace, RemoteResult, RemoteStore, S3Place, S3Store, probe,
};
pub use s3::{S3Endpoint, S3Request};
pub use sign::{S3Credentials, Secret, encode, signed_headers};
