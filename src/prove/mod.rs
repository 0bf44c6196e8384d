//! `prove`: a gateway between a server with ground truth and a client, and whether what leaves it is what entered.
//!
//! [`BehindServer`] and [`StreamClient`] are the two sides; they know nothing of what is proven.

mod behind;
mod client;
mod events;

pub use self::{
    behind::{BehindError, BehindServer},
    client::{ReceivedEnd, ReceivedStream, StreamClient, StreamRead},
    events::{ReadEvents, StreamEvent},
};
