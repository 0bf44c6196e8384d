//! KV events: whether messages come whose frames and fields are vLLM's.

use std::{pin::pin, time::Duration};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{ConformCheck, ConformClient, ConformError, client::described, shape::ShapeDifferences};
use crate::{
    base::lock::Lock,
    engine_core::{
        msgpack::MsgpackValue,
        zmtp::{SocketType, ZmtpConnection},
    },
};

/// Events and the fields that each has, in the order of their arrays.
const EVENTS: [(&str, &[&str]); 3] = [
    ("BlockStored", &["block_hashes", "parent_block_hash", "token_ids", "block_size"]),
    ("BlockRemoved", &["block_hashes"]),
    ("AllBlocksCleared", &[]),
];

/// Words of a prompt, which differ between completions so that each fills blocks of its own.
const WORDS: u64 = 400;

/// Maximum number of tokens of such a word: its bytes, with the space.
const TOKENS_OF_WORD: u64 = 10;

/// Time between completions while no message has come.
const PAUSE: Duration = Duration::from_millis(500);

/// Subscribes, has completions fill blocks, and checks the first message with events.
///
/// # Errors
/// A server that cannot be reached, and no socket.
pub async fn check_kv_events(
    client: &ConformClient,
    model: &str,
    endpoint: &str,
    within: Duration,
) -> Result<ConformCheck, ConformError> {
    let failed = |why: String| ConformError::KvEvents { endpoint: endpoint.to_owned(), why };
    let connected = timeout(within, ZmtpConnection::connect(endpoint, SocketType::Sub, b"")).await;
    let connected = connected.map_err(|_| failed("nobody listens there".to_owned()))?;
    let mut socket = connected.map_err(|error| failed(error.to_string()))?;
    // To all topics.
    socket.writer.send(&[b"\x01"]).await.map_err(|error| failed(error.to_string()))?;
    let (words, refused) = (words(client, model).await?, Lock::<Option<String>>::default());
    let ask = async {
        // A subscription takes a moment to arrive, and what is sent before it is lost.
        for number in 0_u64.. {
            sleep(PAUSE).await;
            let prompt: Vec<String> = (0..words).map(|word| format!("w{number}x{word}")).collect();
            let body = json!({"model": model, "prompt": prompt.join(" "), "max_tokens": 1});
            let answer = client.send("POST", "/v1/completions", Some(body.to_string())).await?;
            *refused.lock() = (answer.status != 200).then(|| described(&answer));
        }
        Ok::<(), ConformError>(())
    };
    let mut ask = pin!(ask);
    let message = timeout(within, async {
        tokio::select! {
            requested = &mut ask => Err(requested.err()),
            message = socket.reader.message() => Ok(message),
        }
    });
    let mut found = ShapeDifferences::default();
    match message.await {
        Err(_) => found.add("message", missing(within, refused.lock().take())),
        Ok(Err(Some(error))) => return Err(error),
        Ok(Err(None)) => {}
        Ok(Ok(Err(error))) => return Err(failed(error.to_string())),
        Ok(Ok(Ok(frames))) => check(&frames, &mut found),
    }
    Ok(ConformCheck::new("KV events", format!("SUB {endpoint}"), found))
}

/// So many words that the prompt is no longer than the model takes.
async fn words(client: &ConformClient, model: &str) -> Result<u64, ConformError> {
    let page: Value = serde_json::from_slice(&client.models().await?.body).unwrap_or_default();
    let mut listed = page.get("data").and_then(Value::as_array).into_iter().flatten();
    let of_model = listed.find(|listed| listed.get("id").and_then(Value::as_str) == Some(model));
    let longest = of_model.and_then(|model| model.get("max_model_len")?.as_u64());
    Ok(longest.map_or(WORDS, |longest| (longest / TOKENS_OF_WORD).clamp(1, WORDS)))
}

/// What is said where no message came, after a refusal of the last completion.
fn missing(within: Duration, refused: Option<String>) -> String {
    match refused {
        Some(refused) => format!("none came within {within:?}: the completions that should fill blocks get {refused}"),
        None => format!("none came within {within:?} of completions that fill blocks"),
    }
}

/// Three frames; the last one is an array of a time, events and a rank.
fn check(frames: &[Vec<u8>], found: &mut ShapeDifferences) {
    let [_topic, number, payload] = frames else {
        found.add("frames", format!("are {}; topic, number and payload were recorded", frames.len()));
        return;
    };
    if number.len() != 8 {
        found.add("frames[1]", format!("has {} bytes; a number of 8 was recorded", number.len()));
    }
    let batch = match MsgpackValue::read(payload) {
        Ok(batch) => batch,
        Err(error) => return found.add("frames[2]", format!("is no MessagePack: {error}")),
    };
    let Some([time, events, ..]) = batch.as_array() else {
        return found.add("frames[2]", "is no array of a time, events and a rank");
    };
    if time.as_f64().is_none() {
        found.add("frames[2][0]", "is no time");
    }
    match events.as_array() {
        None | Some([]) => found.add("frames[2][1]", "has no events"),
        Some(events) => events.iter().for_each(|event| check_event(event, found)),
    }
}

/// An event is a map with a type, or an array that begins with it.
fn check_event(event: &MsgpackValue, found: &mut ShapeDifferences) {
    let place = "frames[2][1][]";
    let named = event.get("type").or_else(|| event.as_array().and_then(<[_]>::first));
    let Some(name) = named.and_then(MsgpackValue::as_str) else { return found.add(place, "is no event with a type") };
    let Some((_, fields)) = EVENTS.iter().find(|(known, _)| *known == name) else {
        return found.add(place, format!("{name} is no event of vLLM"));
    };
    for (at, field) in fields.iter().enumerate() {
        let by_name = event.get(field).is_some();
        let by_place = event.as_array().is_some_and(|items| items.len() > at + 1);
        if !by_name && !by_place {
            found.add(place, format!("{name} has no {field}"));
        }
    }
}
