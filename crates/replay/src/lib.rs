//! Replay: which record answers a request, when each of its events is due, and the account of what was served.

pub mod account;
pub mod delivery;
pub mod matching;
pub mod mcp;
pub mod mcp_traffic;
pub mod meter;
mod miss;
pub mod player;
pub mod steps;
pub mod timing;
pub mod values;
