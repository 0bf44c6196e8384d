//! A stream as another family's events, each when the original event is due.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};

use super::pipeline::Started;
use crate::api::{ApiError, Endpoint, Translate, answers::Answer};

/// The events of `original` in the words of `translator`.
pub(super) fn translated(
    original: impl Stream<Item = Bytes> + Send + 'static,
    mut translator: impl Translate + Send + 'static,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let translated = original.map(move |event| {
        let mut out = VecDeque::new();
        translator.translate(&event, &mut out);
        stream::iter(out)
    });
    translated.flatten()
}

/// The whole answer of a chat.
///
/// # Errors
/// 500 where the record ended in a failure of the engine.
pub(super) async fn chat(started: Started) -> Result<Answer, ApiError> {
    let chat = Answer::parse(Endpoint::Chat, &started.into_body().await?);
    chat.ok_or_else(|| ApiError::internal("Internal server error"))
}
