//! Writes of bodies with faults in them.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use super::FaultedBody;
use crate::{FaultRequest, FaultSet, RefusalContext};
use api::Endpoint;

/// The writes that become of four events of eight bytes each, and whether the body ends properly.
async fn writes(lines: &[&str]) -> (Vec<String>, bool) {
    let set = FaultSet::new(lines.iter().map(|line| line.parse().unwrap()).collect(), 0);
    let request =
        FaultRequest { path: "/v1/completions", headers: &HeaderMap::new(), body: b"", session: None, replica: 0 };
    let events: Vec<_> =
        (1..=4).map(|number| Ok::<_, Infallible>(Frame::data(format!("data:{number}\n\n").into()))).collect();
    let inner = StreamBody::new(futures(events));
    let endpoint = Endpoint::Completions;
    let context = RefusalContext { endpoint, max_model_len: 1, names: Arc::default(), model: String::new() };
    let mut body = FaultedBody::new(inner, true, context, set.choose(&request), Arc::new(|_| {}));
    let mut written = Vec::new();
    loop {
        match body.frame().await {
            None => return (written, true),
            Some(Err(_)) => return (written, false),
            Some(Ok(frame)) => written.push(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()),
        }
    }
}

fn futures(
    events: Vec<Result<Frame<Bytes>, Infallible>>,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Unpin {
    futures_util::stream::iter(events)
}

#[tokio::test]
async fn writes_end_at_the_named_bytes() {
    let (written, ends) = writes(&["merge:1000", "split-at:9,3,30"]).await;
    assert_eq!(written, ["dat", "a:1\n\nd", "ata:2\n\ndata:3\n\ndata:4", "\n\n"]);
    assert!(ends);
    let (written, _) = writes(&["split-at:3,8,11"]).await;
    assert_eq!(written, ["dat", "a:1\n\n", "dat", "a:2\n\n", "data:3\n\n", "data:4\n\n"]);
    let (written, _) = writes(&["crlf", "split-at:8"]).await;
    assert_eq!(written[..2], ["data:1\r\n", "\r\n"], "bytes are counted as they are sent");
}

#[tokio::test]
async fn what_is_merged_leaves_before_a_fault_at_a_place() {
    let (written, ends) = writes(&["merge:1000", "reset at event 2"]).await;
    assert_eq!((written.as_slice(), ends), (["data:1\n\ndata:2\n\n".to_owned()].as_slice(), false));
    let (written, _) = writes(&["merge:1000", "huge-line:3 at event 3"]).await;
    assert_eq!(written, ["data:1\n\ndata:2\n\ndata:3\n\n", ": ", "x", "\n\n", "data:4\n\n"]);
}
