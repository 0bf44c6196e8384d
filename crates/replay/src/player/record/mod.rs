//! Exchanges that went upstream become records, or are compared with recorded ones.

pub(in crate::player) mod assemble;
pub(in crate::player) mod cassette_sink;
pub(in crate::player) mod compare;
mod of_player;
pub(in crate::player) mod record_report;
pub(in crate::player) mod recorder;
pub(in crate::player) mod session_values;
