//! A web server whose requests get, put and delete keys.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin axum /dev/shm/pool 127.0.0.1:3000
//! curl -X PUT -d green http://127.0.0.1:3000/color; curl http://127.0.0.1:3000/color
//! ```
//!
//! It serves until Ctrl-C. Without an address, it sends itself these requests, and ends.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use swarm_kv::{ErrorKind, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Response<T> = Result<T, (StatusCode, String)>;

async fn get_key(State(store): State<Store>, Path(key): Path<String>) -> Response<Vec<u8>> {
    let value = store.get(key.as_bytes()).await.map_err(response)?;
    value.ok_or((StatusCode::NOT_FOUND, "there is no such key".to_owned()))
}

async fn put_key(
    State(store): State<Store>,
    Path(key): Path<String>,
    value: Bytes,
) -> Response<()> {
    store.put(key.as_bytes(), &value).await.map_err(response)
}

async fn delete_key(State(store): State<Store>, Path(key): Path<String>) -> Response<()> {
    store.delete(key.as_bytes()).await.map_err(response)
}

/// The status shows what the sender can do.
fn response(error: swarm_kv::Error) -> (StatusCode, String) {
    let status = match (error.kind(), error) {
        (ErrorKind::Retry | ErrorKind::Reopen, _) => StatusCode::SERVICE_UNAVAILABLE,
        (ErrorKind::MakeRoom, _) => StatusCode::INSUFFICIENT_STORAGE,
        (_, swarm_kv::Error::Key(_) | swarm_kv::Error::Value(_)) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let pool = args.next().ok_or("usage: axum POOL [ADDRESS]")?;
    let address = args.next();
    let router = Router::new()
        .route("/{key}", get(get_key).put(put_key).delete(delete_key))
        .with_state(Store::open(pool)?);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let bound = listener.local_addr()?;
    println!("listening on http://{bound}");
    let server = axum::serve(listener, router);
    if address.is_some() {
        return Ok(server.with_graceful_shutdown(interrupt()).await?);
    }
    tokio::select! {
        served = server => Ok(served?),
        asked = send_requests(bound) => asked,
    }
}

async fn interrupt() {
    // An error means that the signal cannot be waited for: stop serving rather than never stop.
    let _ = tokio::signal::ctrl_c().await;
}

async fn send_requests(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    for (method, body) in [("PUT", "green"), ("GET", ""), ("DELETE", ""), ("GET", "")] {
        let mut stream = TcpStream::connect(server).await?;
        let length = body.len();
        let head = format!(
            "{method} /color HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        let status = reply.lines().next().unwrap_or_default();
        let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        println!("{method} /color: {status} {body}");
    }
    Ok(())
}
