//! Exchanges that went upstream become records, or are compared with recorded ones.

pub(crate) mod assemble;
pub(crate) mod cassette_sink;
pub(crate) mod compare;
mod of_player;
pub(crate) mod record_report;
pub(crate) mod recorder;
pub(crate) mod session_values;
