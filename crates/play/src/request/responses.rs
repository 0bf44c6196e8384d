//! `/v1/responses`, and the paths of responses that are kept.
//!
//! Without a store nothing is kept: what needs one is refused, and every response is asked for in vain. A response in the
//! background is made whether or not a client waits for it; it is `queued` until it is over, as on the engine.

use std::{convert::identity, sync::Arc};

use axum::{
    extract::{Path, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, StatusCode};
use http_body::Frame;

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, JsonText, events, json, unix_seconds},
    request::{
        pipeline::{Arrival, Started, start},
        response_store::{EventLogWriter, ResponseStore, StoredResponses},
    },
};
use api::{
    ApiError, GenerationRequest, Query,
    responses::{
        ResponseEncoder, ResponseHead, ResponsesRequest, completed, events_from, no_store, not_found, queued_body,
    },
};
use net::{server::BodyError, wire::EventBuffer};

/// `GET /v1/responses/{response_id}`
pub(crate) async fn retrieve(
    State(state): HandlerState,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, ErrorResponse> {
    let from = events_from(&query)?;
    let kept = state.kept.as_ref().ok_or_else(|| not_found(&id))?;
    match from {
        None => Ok(json(StatusCode::OK, kept.body(&id)?, HeaderMap::new())),
        Some(from) => Ok(events(kept.events(&id, from)?.map(|event| Ok(Frame::data(event))), HeaderMap::new())),
    }
}

/// `POST /v1/responses/{response_id}/cancel`
pub(crate) async fn cancel(State(state): HandlerState, Path(id): Path<String>) -> Result<JsonText, ErrorResponse> {
    let kept = state.kept.as_ref().ok_or_else(|| not_found(&id))?;
    Ok(JsonText(kept.cancel(&id)?))
}

/// Answers a request for a response.
pub(crate) async fn answer(State(state): HandlerState, arrival: Arrival) -> Result<Response, ErrorResponse> {
    let (started, (request, messages)) = start(&state, arrival, read).await?;
    let head = head(&state, &started, &request);
    let kept = state.kept.as_ref().zip(messages);
    let kept = kept.map(|(kept, messages)| (kept, ResponseStore::new(kept, &head.id, messages)));
    let making = Making { started, request: Arc::new(request), head };
    let extra = making.started.headers.clone();
    let keeper = match kept {
        Some((kept, keeper)) if making.request.is_background() => return Ok(in_background(kept, keeper, making)?),
        kept => kept.map(|(_, keeper)| keeper),
    };
    if making.started.stream {
        return Ok(events(making.events(keeper).map_ok(Frame::data), extra));
    }
    Ok(json(StatusCode::OK, making.body(keeper.as_ref()).await?, extra))
}

/// A request for a response, and its conversation where it is stored.
type ReadResponsesRequest = (ResponsesRequest, Option<Vec<serde_json::Value>>);

/// Reads a request for a response, with the conversation that it continues.
pub(crate) fn read(state: &ServerState, body: &[u8]) -> Result<(GenerationRequest, ReadResponsesRequest), ApiError> {
    let request = ResponsesRequest::parse(body)?;
    state.check_model(request.model())?;
    let messages = request.messages(history(state, &request)?)?;
    let kept = state.kept.as_ref().filter(|_| request.is_stored()).map(|_| messages.clone());
    Ok((request.chat(messages)?, (request, kept)))
}

/// The conversation before a request.
/// Errors: a request that needs a response store on a server without one, and an earlier response that is not stored.
fn history(state: &ServerState, request: &ResponsesRequest) -> Result<Vec<serde_json::Value>, ApiError> {
    if state.kept.is_none() && request.is_background() {
        return Err(no_store());
    }
    request.check_previous()?;
    let Some(id) = request.previous() else { return Ok(Vec::new()) };
    state.kept.as_ref().ok_or_else(|| not_found(id))?.conversation(id)
}

/// A response that is about to be made.
struct Making {
    started: Started,
    request: Arc<ResponsesRequest>,
    head: ResponseHead,
}

impl Making {
    fn events(self, keeper: Option<ResponseStore>) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
        let mut encoder = ResponseEncoder::new(self.request, self.head);
        let mut opening = EventBuffer::default();
        encoder.open(&mut opening);
        let events = stream::iter(opening).map(Ok).chain(self.started.in_family(encoder).into_events(identity));
        events.inspect_ok(move |event| {
            if let Some((keeper, body)) = keeper.as_ref().and_then(|keeper| Some((keeper, completed(event)?))) {
                keeper.keep(body);
            }
        })
    }

    /// The whole response, which is kept.
    async fn body(self, keeper: Option<&ResponseStore>) -> Result<String, ApiError> {
        let body = self.started.in_family(ResponseEncoder::new(self.request, self.head)).into_body().await?.text;
        if let Some(keeper) = keeper {
            keeper.keep(body.clone());
        }
        Ok(body)
    }
}

/// Makes a response while its client goes on: answers at once, or with events that the client may leave.
fn in_background(kept: &StoredResponses, keeper: ResponseStore, making: Making) -> Result<Response, ApiError> {
    let extra = making.started.headers.clone();
    let id = making.head.id.clone();
    let queued = queued_body(&making.request, &making.head);
    let log = making.started.stream.then(EventLogWriter::default);
    keeper.queue(queued.clone(), log.as_ref());
    let answer = match &log {
        Some(_) => events(kept.events(&id, 0)?.map(|event| Ok(Frame::data(event))), extra),
        None => json(StatusCode::OK, queued, extra),
    };
    let task = tokio::spawn(async move {
        match log {
            Some(log) => {
                let mut events = std::pin::pin!(making.events(Some(keeper)));
                // What is kept of a stream that broke off is over without its end.
                while let Some(Ok(event)) = events.next().await {
                    log.write(event);
                }
                log.end();
            }
            // A failure leaves the response queued, as the engine's does.
            None => drop(making.body(Some(&keeper)).await),
        }
    });
    kept.made_by(&id, task.abort_handle());
    Ok(answer)
}

fn head(state: &ServerState, started: &Started, request: &ResponsesRequest) -> ResponseHead {
    ResponseHead {
        id: request.id().map_or_else(|| format!("resp_{}", state.fresh_id()), str::to_owned),
        created_at: unix_seconds(),
        model: state.model.first_name().to_owned(),
        temperature: state.model.sampling.temperature,
        top_p: state.model.sampling.top_p,
        max_output_tokens: started.max_tokens,
        cache: started.cached,
    }
}
