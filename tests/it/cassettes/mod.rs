//! Cassettes through the running program: recorded from a scripted engine, played to raw clients.

mod across_apis;
mod admin_listener;
mod begun_sessions;
mod binary_bodies;
mod calls_without_ids;
mod case_table;
mod cassette_per_test;
mod clients_that_leave;
mod compare_mode;
mod continuation;
mod convert;
mod damaged_files;
mod delivery;
mod drawn_cassettes;
mod drawn_secrets;
mod drift;
mod empty_recordings;
mod end_of_recording;
mod fixtures;
mod fixtures_guide;
mod fmt_validate_diff;
mod fork;
mod fresh_ids_and_retries;
mod hand_written_stay;
mod journal_and_clock;
mod large_values;
mod logprobs;
mod long_conversations;
mod match_command;
mod matching;
mod miss_messages;
mod misses;
mod modes;
mod named_elsewhere;
mod network_block;
mod odd_requests;
mod other_families;
mod planted_secrets;
mod put_back;
mod recorded_again;
mod redact_levels;
mod redaction;
mod replay;
mod retried_failures;
mod secrets_added_by_hand;
mod sent_again;
mod sessions;
mod sessions_only;
mod tags;
mod through_tap;
mod times_and_token_ids;
mod token_counts;
mod unended_sessions;
mod upstreams_by_name;

// What nearly every file here uses.
pub(crate) use crate::support::{
    CHAT,
    cassettes::{Shelf, agent, chat, record, said, streamed, tape},
    engine::engine,
    read,
    running::{Running, vcr},
};
