//! Memory that an exchange holds while its records wait to be written: the recorder's queue is bounded in these bytes.

use bytes::Bytes;

use super::{core_facts::CoreFacts, observed_exchange::ObservedExchange, refusal::Refusal, request::RequestFacts};

impl ObservedExchange {
    /// Returns the bytes that it holds.
    pub(super) fn weigh(&self) -> usize {
        let refusal = self.refusal.as_ref().map_or(0, Refusal::weight);
        let ids = self.prompt_ids.as_ref().map_or(0, Vec::capacity) * size_of::<u32>();
        let core = self.core.as_ref().map_or(0, |core| size_of::<CoreFacts>() + core.heap());
        size_of::<Self>() + core + self.facts.heap() + self.choices.weight() + refusal + ids + self.content_weight()
    }

    /// Returns the bytes of the request's body and of the copy of its response.
    fn content_weight(&self) -> usize {
        let copied = self.capture.as_ref().map_or(0, |capture| capture.size());
        let copied_request =
            self.capture.as_ref().and_then(|capture| capture.request()).map_or(0, |(_, body)| body.len());
        let kept = self.request.as_ref().map_or(0, |(_, body)| body.len());
        // All three are the same bytes.
        let request = self.body.as_ref().map_or(0, Bytes::len).max(kept).max(copied_request);
        copied.saturating_sub(copied_request) + request
    }

    /// Drops the request's body, so that its prompt is not hashed. False if there was none.
    pub(super) fn drop_body(&mut self) -> bool {
        self.body.take().is_some()
    }

    /// Drops the copies of the request and of its response; the record counts as one without its content.
    pub(super) fn drop_content(&mut self) {
        self.request = None;
        if let Some(capture) = &mut self.capture {
            capture.lose();
        }
    }
}

impl RequestFacts {
    /// Returns the bytes that they hold beside their own size.
    fn heap(&self) -> usize {
        // Every field is named, so that a new one has to be placed.
        let Self {
            model,
            client_id,
            path,
            prompt_ids,
            logprobs,
            media,
            endpoint: _,
            stream: _,
            wants_usage: _,
            prompts: _,
            choices_per_prompt: _,
            params: _,
            long_names: _,
            exceeds_ids: _,
            repeats_message: _,
        } = self;
        let names = [model, client_id, path].into_iter().flatten().map(String::capacity).sum::<usize>();
        let ids = prompt_ids.as_ref().map_or(0, Vec::capacity) + logprobs.named.capacity();
        let parts = media.iter().flat_map(|media| &media.parts);
        names + ids * size_of::<u32>() + parts.map(|part| part.capacity() + size_of::<String>()).sum::<usize>()
    }
}
