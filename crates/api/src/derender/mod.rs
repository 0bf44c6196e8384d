//! `/derender`: answers of `/inference/v1/generate` as the chat or completion answers that they come to.
//!
//! A request holds a whole token answer, or one chunk of a stream with the state that the client carries from chunk to
//! chunk. Here are its schema, its bounds and the shapes of answers; tokens become text elsewhere.
//!
//! Limits: a chunk of a completion has a bound too, which the engine's has not; numbers beyond 64 bits are cut there.

mod answer;
mod bounds;
mod read;
mod request;
mod schema;

pub use self::{
    answer::{
        DerenderHead, TokenLogprob, chat_choice, chat_chunk_choice, chat_derendered, chat_tokens, chunk,
        completion_choice, completion_chunk_choice, completion_derendered, completion_tokens, delta,
    },
    bounds::{Bounds, check_chunk, check_whole},
    read::{ScoredToken, StreamState, TokenAnswer, TokenAnswerChoice},
    request::{DerenderChunk, DerenderRequest, DerenderWhole},
};
