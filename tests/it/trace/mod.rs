//! The trace codec, through its public face.

mod bad_lines;
mod inspect_convert;
mod inspect_fit;
mod inspect_simulate;
mod inspect_summary;
mod published_rules;
mod roundtrip;
mod schema;
mod several_files;
mod truncated_files;
