//! The port over a store in memory, with a gRPC client and with clients that do not use gRPC.

use hyper::client::conn::http2 as http2_client;
use steadfast_flow::Lease;
use steadfast_net::{GrpcClient, grpc_client_over};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::commands::tests::node_with;

/// A timeout longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

struct Served {
    node: Arc<Node>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// The number of connections that have ended.
    ended: watch::Receiver<usize>,
}

/// Starts a door with this header timeout.
async fn served(grpc_api: &str, header_timeout: Duration) -> Served {
    let channel = r#"{"without_namespace": {"history_size": 5, "history_ttl": "60s"}}"#;
    let node = node_with(&format!(r#"{{"grpc_api": {grpc_api}, "channel": {channel}}}"#)).await;
    let options = DoorOptions {
        not_ready: Arc::new(|| None),
        tls: None,
        lease: Lease::unlimited(&node.env),
        header_timeout,
        stall_timeout: LONG,
        client_bytes_s_min: 0,
        address_share: 100,
        is_proxy: Arc::new(|_| false),
    };
    let door = GrpcDoor { node: node.clone(), api: Arc::new(Api::new(node.clone())), options };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let ((stop, stopped), (done, ended)) = (watch::channel(false), watch::channel(0));
    let env = node.env.clone();
    node.env.spawn("port", async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let (door, mut stopped, done) = (door.clone(), stopped.clone(), done.clone());
            env.spawn("connection", async move {
                let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
                door.serve(socket, peer, stop).await;
                done.send_modify(|done| *done += 1);
            });
        }
    });
    Served { node, address, stop, ended }
}

impl Served {
    fn client(&self) -> Grpcs {
        let origin: http::Uri = format!("http://{}", self.address).parse().expect("valid");
        let client = grpc_client_over(&origin, None).expect("a client");
        Grpcs(tonic::client::Grpc::with_origin(client, origin))
    }
}

struct Grpcs(tonic::client::Grpc<GrpcClient<tonic::body::Body>>);

impl Grpcs {
    async fn call(&self, method: &str, message: &[u8], metadata: &[(&'static str, &str)]) -> Result<Vec<u8>, Status> {
        let mut request = tonic::Request::new(Bytes::copy_from_slice(message));
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, value.parse().expect("valid"));
        }
        let path = format!("{SERVICE}{method}").parse().expect("valid");
        let mut client = self.0.clone();
        client.ready().await.expect("ready");
        Ok(client.unary(request, path, Raw).await?.into_inner().to_vec())
    }
}

fn fields(fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(tag, value)| put_field(*tag, value, &mut out));
    out
}

const KEY: (&str, &str) = ("authorization", "apikey k");

#[tokio::test]
async fn only_callers_with_the_key_may_call() {
    let served = served(r#"{"enabled": true, "key": "k"}"#, LONG).await;
    let client = served.client();
    let publish = fields(&[(1, b"c"), (2, &[0xff, 0])]);
    for wrong in [&[][..], &[("authorization", "apikey K")], &[("authorization", "k")], &[("x-api-key", "k")]] {
        let refused = client.call("Publish", &publish, wrong).await.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let first = client.call("Publish", &publish, &[KEY]).await.expect("published");
    let ten = [&fields(&[(1, b"c")])[..], &[0x10, 10]].concat();
    let history = client.call("History", &ten, &[KEY]).await.expect("read");
    assert!(first.starts_with(&[0x12]) && history.windows(4).any(|four| four == [0x12, 2, 0xff, 0]), "{history:?}");
    assert_eq!(client.call("Mystery", b"", &[KEY]).await.expect_err("unknown").code(), Code::Unimplemented);
    assert_eq!(client.call("Publish", b"\xff", &[KEY]).await.expect_err("spoilt").code(), Code::InvalidArgument);
    let error = client.call("BlockUser", b"", &[KEY]).await.expect("an answer");
    assert_eq!(error, fields(&[(1, &[&[8, 108][..], &fields(&[(2, b"not available")])].concat())]));
    let none = client.call("Presence", &fields(&[(1, b"c")]), &[KEY, (ERROR_MODE, "transport")]).await;
    let none = none.expect_err("no presence there");
    assert_eq!((none.code(), none.message()), (Code::InvalidArgument, "not available"));
    assert!(none.details().windows(4).any(|four| four == b"type"), "with the error in its details");
}

#[tokio::test]
async fn large_messages_and_excess_calls_are_refused() {
    let served = served(r#"{"enabled": true, "insecure": true, "max_receive_message_size": 100}"#, LONG).await;
    let client = served.client();
    let large = fields(&[(1, b"c"), (2, &[b'1'; 200])]);
    assert_eq!(client.call("Publish", &large, &[]).await.expect_err("large").code(), Code::ResourceExhausted);
    let fits = fields(&[(1, b"c"), (2, &[b'1'; 90])]);
    client.call("Publish", &fits, &[]).await.expect("published");
    let permit = served.node.admission.api.grpc_calls.enter(LONG).await.expect("the only permit");
    let mut waits = pin!(client.call("Info", b"", &[]));
    while served.node.admission.api.grpc_calls.status().waiting == 0 {
        let _ = futures::poll!(&mut waits);
        tokio::task::yield_now().await;
    }
    assert_eq!(client.call("Info", b"", &[]).await.expect_err("full").code(), Code::ResourceExhausted);
    drop(permit);
    waits.await.expect("the permit is free");
}

#[tokio::test]
async fn only_connections_with_an_authorized_call_are_kept() {
    let served = served(r#"{"enabled": true, "key": "k"}"#, Duration::from_millis(300)).await;
    // One client sends nothing, one opens HTTP/2 and never calls, and one has no key.
    let mut silent = TcpStream::connect(served.address).await.expect("connected");
    let mut idle = TcpStream::connect(served.address).await.expect("connected");
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let (stranger, client) = (served.client(), served.client());
    stranger.call("Info", b"", &[]).await.expect_err("refused");
    client.call("Info", b"", &[KEY]).await.expect("authorized");
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
    let _ = idle.read_to_end(&mut rest).await;
    let mut ended = served.ended.clone();
    ended.wait_for(|ended| *ended >= 3).await.expect("running");
    client.call("Info", b"", &[KEY]).await.expect("on the same connection");
    assert_eq!(*served.ended.borrow(), 3);
    served.stop.send(true).expect("running");
    ended.wait_for(|ended| *ended == 4).await.expect("it ends when the server does");
}

#[tokio::test]
async fn late_requests_and_other_content_types_are_refused() {
    let served = served(r#"{"enabled": true, "insecure": true}"#, Duration::from_millis(300)).await;
    let io = TokioIo::new(TcpStream::connect(served.address).await.expect("connected"));
    let tasks = Tasks(served.node.env.clone());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(tasks, io).await.expect("HTTP/2");
    served.node.env.spawn("client", async move { drop(connection.await) });
    let request = |kind: &'static str, body| {
        let uri = format!("http://{}{SERVICE}Info", served.address);
        Request::post(uri).header(header::CONTENT_TYPE, kind).body(body).expect("valid")
    };
    let never = http_body_util::combinators::BoxBody::new(http_body_util::StreamBody::new(futures::stream::pending::<
        Result<hyper::body::Frame<Bytes>, Infallible>,
    >()));
    let nothing = || http_body_util::combinators::BoxBody::new(http_body_util::Empty::<Bytes>::new());
    let late = sender.send_request(request("application/grpc", never)).await.expect("answered");
    assert_eq!(late.headers()["grpc-status"], "4");
    let other = sender.send_request(request("application/json", nothing())).await.expect("answered");
    assert_eq!(other.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn an_answer_holds_its_permit_until_the_client_has_read_it() {
    let served = served(r#"{"enabled": true, "insecure": true}"#, LONG).await;
    for _ in 0..3 {
        let publication = crate::protocol::message::Publication { data: vec![b'1'; 3000].into(), ..Default::default() };
        served.node.publisher.publish("c", publication, Default::default()).await.expect("published");
    }
    let io = TokioIo::new(TcpStream::connect(served.address).await.expect("connected"));
    let (mut sender, connection) = http2_client::Builder::new(Tasks(served.node.env.clone()))
        .initial_stream_window_size(100)
        .handshake(io)
        .await
        .expect("HTTP/2");
    served.node.env.spawn("client", async move { drop(connection.await) });
    let ten = [&fields(&[(1, b"c")])[..], &[0x10, 10]].concat();
    for method in ["History", "Batch"] {
        let message = if method == "Batch" { fields(&[(1, &fields(&[(11, &ten)]))]) } else { ten.clone() };
        let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let uri = format!("http://{}{SERVICE}{method}", served.address);
        let request = Request::post(uri).header(header::CONTENT_TYPE, "application/grpc");
        let request = request.body(Full::new(Bytes::from(framed))).expect("valid");
        let mut answer = sender.send_request(request).await.expect("answered").into_body();
        let first = answer.frame().await.expect("a piece").expect("sent").into_data().expect("data");
        assert!((1..=100).contains(&first.len()), "{method}: {}", first.len());
        assert!(served.node.admission.answers.status().used > 9000, "{method}: the rest waits for the client");
        let rest = answer.collect().await.expect("the rest").to_bytes();
        assert!(first.len() + rest.len() > 9000, "{method}");
        while served.node.admission.answers.status().used > 0 {
            tokio::task::yield_now().await;
        }
    }
}
