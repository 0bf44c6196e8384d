//! A stream told in another family's events, each when the original event is due.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};

use crate::api::Translate;

/// The events of `original` in the words of `translator`.
pub(super) fn translated(
    original: impl Stream<Item = Bytes> + Send + 'static,
    mut translator: impl Translate + Send + 'static,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let told = original.map(move |event| {
        let mut out = VecDeque::new();
        translator.translate(&event, &mut out);
        stream::iter(out)
    });
    told.flatten()
}
