//! One record of a [`Store`], read from its arenas.

use std::{sync::Arc, time::Duration};

use super::{
    Chunk, Logprobs, PromptLogprobs, Record, Response,
    packed::{ByRequest, LONG},
    record::is_error,
    store::{Store, StoredRecord},
};

/// One record of a [`Store`].
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    pub(super) store: &'a Store,
    pub(super) entry: &'a StoredRecord,
}

impl<'a> RecordRef<'a> {
    /// Returns the number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.entry.chunks.len()
    }

    /// Returns the output token ids; `None` if they were not recorded.
    #[must_use]
    pub fn ids(&self) -> Option<&'a [u32]> {
        self.entry.ids.clone().map(|ids| self.store.ids.get(ids).unwrap_or_default())
    }

    /// Returns true if its prompt held images, audio or video.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.entry.facts.has_media
    }

    /// Returns the chained hashes of the prompt's full blocks, after one of its media if those were hashed here;
    /// empty once [forgotten](Store::forget_chains).
    #[must_use]
    pub fn chain(&self) -> &'a [u64] {
        self.store.hashes.get(self.entry.chain.clone()).unwrap_or_default()
    }

    /// Returns the group that the choices of one request share.
    #[must_use]
    pub fn group(&self) -> Option<&'a str> {
        self.entry.facts.group.as_deref()
    }

    /// Returns the model name of the request.
    #[must_use]
    pub fn model(&self) -> Option<&'a str> {
        self.entry.model.as_deref()
    }

    /// Returns true for an endpoint that generates tokens, unlike embeddings.
    #[must_use]
    pub fn generates(&self) -> bool {
        self.entry.facts.generates
    }

    /// Returns true for a placeholder of a record whose line was invalid.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.entry.facts.is_lost
    }

    /// Returns true if its response was an error, or its stream ended in one.
    #[must_use]
    pub fn is_error(&self) -> bool {
        is_error(self.status(), self.outcome())
    }

    /// Returns the log probabilities of the output.
    #[must_use]
    pub fn logprobs(&self) -> Option<Logprobs> {
        serde_json::from_str(self.entry.logprobs.as_deref()?).ok()
    }

    /// Returns the log probabilities of the prompt.
    #[must_use]
    pub fn prompt_logprobs(&self) -> Option<PromptLogprobs> {
        serde_json::from_str(self.entry.prompt_logprobs.as_deref()?).ok()
    }

    /// The response as the client got it, where it was recorded.
    #[must_use]
    pub fn response(&self) -> Option<&'a Arc<Response>> {
        self.by_request()?.response.as_ref()
    }

    /// The path of the request, where the record may be found by its request.
    #[must_use]
    pub fn path(&self) -> Option<&'a str> {
        self.by_request()?.path.as_deref()
    }

    /// The canonical key of the request, likewise.
    #[must_use]
    pub fn request_key(&self) -> Option<&'a str> {
        self.by_request()?.request_key.as_deref()
    }

    /// Unpacks the record, without the fields that the store does not keep.
    #[must_use]
    pub fn record(&self) -> Record {
        Record {
            chunks: self.chunks(),
            block_hashes: self.chain().to_vec().into(),
            output_token_ids: self.ids().map(<[u32]>::to_vec),
            model: self.model().map(str::to_owned),
            logprobs: self.logprobs(),
            prompt_logprobs: self.prompt_logprobs(),
            ..self.entry.facts.record()
        }
    }

    fn by_request(&self) -> Option<&'a ByRequest> {
        self.entry.facts.by_request.as_deref()
    }

    fn chunks(&self) -> Vec<Chunk> {
        let chunks = self.entry.chunks.clone();
        let gaps = self.store.gaps.get(chunks.clone()).unwrap_or_default();
        let counts = self.entry.tokens.and_then(|start| self.store.tokens.get(start..)).unwrap_or_default();
        let counts = counts.iter().copied().chain(std::iter::repeat(1));
        let gap = |(at, nanos): (usize, &u32)| match *nanos {
            LONG => self.store.long_gap(at),
            nanos => Duration::from_nanos(nanos.into()),
        };
        chunks.zip(gaps).map(gap).zip(counts).map(|(gap, tokens)| Chunk { gap, tokens, step: None }).collect()
    }
}
