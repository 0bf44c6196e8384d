//! Streams of a server: the response to a request, and what belongs to no request.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    message::OutgoingMessage,
    post::{INTERNAL, Post, has_id},
};
use net::{server::media_type, upstream::UpstreamBody};
use replay::mcp::{MOST_BYTES, ReadLine};
use replay::mcp_traffic::EventData;

/// The pause before a stream is opened again, where the server names none.
const RETRY: Duration = Duration::from_secs(1);

/// Attempts to open a stream again that bring nothing, after which it is given up.
const ATTEMPTS: u32 = 5;

/// Longest pause that a server may ask for before a stream is opened again.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

impl Post {
    /// Passes the stream of a response on, and what follows of it in later streams, until the answer has come.
    pub(super) async fn stream(&self, outgoing: &OutgoingMessage, body: UpstreamBody) {
        let id = outgoing.id.as_deref().unwrap_or_default();
        let mut events = EventData::new(MOST_BYTES);
        let mut is_answered = self.events(body, &mut events, Some((id, outgoing))).await;
        let mut attempts = 0;
        while !is_answered && attempts < ATTEMPTS {
            let Some(after) = events.last_id().map(<[u8]>::to_vec) else { break };
            sleep(events.retry().unwrap_or(RETRY).min(LONGEST_RETRY)).await;
            attempts += 1;
            let Ok(response) = self.get(Some(&after)).await else { continue };
            if media_type(response.headers()) != "text/event-stream" || !response.status().is_success() {
                break;
            }
            events.restart();
            is_answered = self.events(response.into_body(), &mut events, Some((id, outgoing))).await;
            if events.last_id() != Some(after.as_slice()) {
                attempts = 0;
            }
        }
        if !is_answered {
            self.fail(id, INTERNAL, "the server ended its stream without an answer", StatusCode::OK).await;
        }
    }

    /// Passes on what belongs to no request, until the session ends. A server that offers no such stream is not asked again.
    pub(super) async fn listen(&self) {
        tokio::select! {
            () = self.listen_on() => {}
            () = self.until_closed() => {}
        }
    }

    async fn listen_on(&self) {
        let mut events = EventData::new(MOST_BYTES);
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            attempts += 1;
            let after = events.last_id().map(<[u8]>::to_vec);
            if let Ok(response) = self.get(after.as_deref()).await {
                if media_type(response.headers()) != "text/event-stream" || !response.status().is_success() {
                    return;
                }
                events.restart();
                let had = events.count();
                self.events(response.into_body(), &mut events, None).await;
                if events.count() > had {
                    attempts = 0;
                }
            }
            sleep(events.retry().unwrap_or(RETRY).min(LONGEST_RETRY)).await;
        }
    }

    /// Passes the messages of a stream on; returns whether one of them was the answer to the request.
    async fn events(
        &self,
        mut body: UpstreamBody,
        events: &mut EventData,
        awaited: Option<(&str, &OutgoingMessage)>,
    ) -> bool {
        let mut is_answered = false;
        while let Some(Ok(frame)) = body.frame().await {
            for read_line in events.push(frame.into_data().unwrap_or_default()) {
                let ReadLine::Line(message) = read_line else {
                    tracing::warn!("a message of the server is too large and is not passed on");
                    continue;
                };
                if let Some((id, outgoing)) = awaited.filter(|_| !is_answered) {
                    is_answered = self.is_answer(&message, id, outgoing);
                }
                self.pass(message).await;
            }
        }
        is_answered
    }

    fn is_answer(&self, message: &[u8], id: &str, outgoing: &OutgoingMessage) -> bool {
        let Ok(read) = serde_json::from_slice::<Value>(message) else { return false };
        let is_answer = read.get("method").is_none() && has_id(&read, id);
        if is_answer {
            self.learn(outgoing, Some(&read));
        }
        is_answer || read.is_array()
    }
}
