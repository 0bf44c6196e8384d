//! A chat stream told in another family's events, each when the chat event is due.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};

use crate::openai::{ChatEvent, Translate};

/// The events of `chat` in the words of `translator`.
pub(super) fn translated(
    chat: impl Stream<Item = Bytes> + Send + 'static,
    mut translator: impl Translate + Send + 'static,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let told = chat.map(move |event| {
        let mut out = VecDeque::new();
        translator.translate(&ChatEvent::read(&event), &mut out);
        stream::iter(out)
    });
    told.flatten()
}
