//! What a body with faults sends next.
//!
//! Floods, repetitions and pieces are made while they are sent, so that they take no memory.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use net::server::BodyError;
use tokio::time::{Sleep, sleep};

/// Bytes of a long line that are sent together.
const FILLER: [u8; 16 * 1024] = [b'x'; 16 * 1024];
/// The same of white space.
const BLANKS: [u8; 16 * 1024] = [b' '; 16 * 1024];

#[derive(Debug)]
pub(crate) enum BodyStep {
    Send(Bytes),
    /// In pieces of so many bytes, each in a write of its own and with a pause after it.
    Pieces(Bytes, BodyPace),
    /// Again and again, for ever where there is no number.
    Repeat {
        bytes: Bytes,
        left: Option<u64>,
        every: Duration,
    },
    /// So many bytes of no meaning.
    Filler {
        left: u64,
        is_blank: bool,
    },
    /// What was sent leaves first, however short the pause is.
    Pause(Duration),
    /// Nothing more, ever.
    Hang,
    /// The end, by an error where there is one.
    End(Option<BodyError>),
}

/// Size of pieces, and the time between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyPace {
    pub(crate) size: usize,
    pub(crate) every: Duration,
}

#[derive(Debug)]
pub(crate) enum StepOutcome {
    Frame(Bytes),
    End(Option<BodyError>),
}

/// Steps in their order.
#[derive(Debug, Default)]
pub(crate) struct BodySteps {
    queue: VecDeque<BodyStep>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl BodySteps {
    pub(crate) fn push(&mut self, step: BodyStep) {
        self.queue.push_back(step);
    }

    /// Adds a pause; several of them, as of two faults, are all kept.
    pub(crate) fn pause(&mut self, time: Duration) {
        self.push(BodyStep::Pause(time));
    }

    /// The next outcome; `None` once there is no step.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<StepOutcome>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let Some(step) = self.queue.pop_front() else { return Poll::Ready(None) };
            let frame = match step {
                BodyStep::Send(bytes) => bytes,
                BodyStep::Pieces(mut bytes, pace) => {
                    let piece = bytes.split_to(pace.size.clamp(1, bytes.len().max(1)).min(bytes.len()));
                    if !bytes.is_empty() {
                        self.queue.push_front(BodyStep::Pieces(bytes, pace));
                    }
                    self.queue.push_front(BodyStep::Pause(pace.every));
                    piece
                }
                BodyStep::Repeat { left: Some(0), .. } | BodyStep::Filler { left: 0, .. } => continue,
                BodyStep::Repeat { bytes, left, every } => {
                    let left = left.map(|left| left - 1);
                    self.queue.push_front(BodyStep::Repeat { bytes: bytes.clone(), left, every });
                    self.queue.push_front(BodyStep::Pause(every));
                    bytes
                }
                BodyStep::Filler { left, is_blank } => {
                    let whole: &'static [u8] = if is_blank { &BLANKS } else { &FILLER };
                    let part = whole.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(whole);
                    let left = left.saturating_sub(u64::try_from(part.len()).unwrap_or(left));
                    self.queue.push_front(BodyStep::Filler { left, is_blank });
                    Bytes::from_static(part)
                }
                BodyStep::Pause(time) if time.is_zero() => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                BodyStep::Pause(time) => {
                    self.pause = Some(Box::pin(sleep(time)));
                    continue;
                }
                BodyStep::Hang => {
                    self.queue.push_front(BodyStep::Hang);
                    return Poll::Pending;
                }
                BodyStep::End(error) => {
                    self.queue.push_front(BodyStep::End(None));
                    return Poll::Ready(Some(StepOutcome::End(error)));
                }
            };
            if !frame.is_empty() {
                return Poll::Ready(Some(StepOutcome::Frame(frame)));
            }
        }
    }
}
