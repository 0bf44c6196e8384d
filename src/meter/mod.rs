//! What was seen of a stream: the one definition of each metric.

mod observe;

pub use observe::ChoiceMeter;
