//! The tap between scripted engines and raw clients.

mod bounds;
mod damaged_bytes;
mod echoed_prompts;
mod engine_core;
mod forwarding;
mod full_disk_and_permissions;
mod logprobs;
mod other_engines;
mod outcomes;
mod random_faults;
mod recorded_content;
mod rotation_and_disk_errors;
mod several_choices;
mod signals_and_exit_codes;
mod soak;
mod tls_http2_and_unix_socket;
mod trace_header;
mod unchanged_bytes;
mod unusual_requests;
mod upstreams_and_sampling;
