//! The body of a response with faults in it.
//!
//! What comes is taken event by event, or, where it is no stream of events, as it comes. Before each event it is looked whether a fault is
//! due; edits change the event itself. What has to leave in writes of its own has a pause between its parts.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use net::{
    server::BodyError,
    wire::{SseSplitter, encode_event, event_data},
};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use api::Endpoint;

use crate::{
    edits::EventEdit,
    fault::FaultPlace,
    kind::{FaultKind, RefusalFault, StreamFault},
    set::ChosenFault,
};

/// Called with a fault when it happens.
pub type OnFault = Arc<dyn Fn(&ChosenFault) + Send + Sync>;

/// A body with faults in it.
pub struct FaultedBody<B> {
    inner: B,
    /// `None` where the body is no stream of events.
    splitter: Option<SseSplitter>,
    faults: Vec<ActiveFault>,
    steps: VecDeque<BodyStep>,
    seen: BodyProgress,
    start: Instant,
    pause: Option<Pin<Box<Sleep>>>,
    /// The earliest fault by time.
    alarm: Option<Pin<Box<Sleep>>>,
    state: BodyState,
    endpoint: Endpoint,
    on_fault: OnFault,
}

/// What has passed.
#[derive(Debug, Default)]
struct BodyProgress {
    events: u64,
    tokens: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    Open,
    /// The inner body has ended.
    Ended,
    /// A fault has ended it; what follows is not looked at.
    Cut,
}

/// What a body does next.
#[derive(Debug)]
enum BodyStep {
    Send(Bytes),
    Pause(Duration),
    /// Nothing more, ever.
    Hang,
    End(BodyEnd),
}

#[derive(Debug, Clone, Copy)]
enum BodyEnd {
    Proper,
    Broken(&'static str),
}

/// A fault that has not happened yet, or goes on.
struct ActiveFault {
    chosen: ChosenFault,
    place: FaultPlace,
    fault: StreamFault,
    /// Events that it concerns still.
    left: u64,
    has_happened: bool,
    /// Events that wait for others.
    held: Vec<Bytes>,
}

impl ActiveFault {
    fn is_due(&self, seen: &BodyProgress, elapsed: Duration) -> bool {
        match self.place {
            FaultPlace::Event(count) => seen.events >= count,
            FaultPlace::Token(count) => seen.tokens >= count,
            FaultPlace::Byte(count) => seen.bytes >= count,
            FaultPlace::Time(time) => elapsed >= time,
        }
    }

    /// Returns true if it happens at one place, and not to events from there on.
    fn is_point(&self) -> bool {
        !matches!(self.fault, StreamFault::Edit { .. } | StreamFault::Drip { .. } | StreamFault::Jitter(_))
    }
}

impl<B> FaultedBody<B> {
    /// Puts those faults into a body that happen in bodies. `is_stream` says whether it is a stream of events.
    pub fn new(inner: B, is_stream: bool, endpoint: Endpoint, chosen: Vec<ChosenFault>, on_fault: OnFault) -> Self {
        let active = chosen.into_iter().filter_map(|chosen| {
            let FaultKind::Stream(fault) = chosen.fault.kind.clone() else { return None };
            let place = chosen.fault.place.or_else(|| chosen.fault.kind.own_place())?;
            let left = match fault {
                StreamFault::Edit { count: Some(count), .. } => count,
                _ => u64::MAX,
            };
            Some(ActiveFault { chosen, place, fault, left, has_happened: false, held: Vec::new() })
        });
        let faults: Vec<ActiveFault> = active.collect();
        let start = Instant::now();
        let times = faults.iter().filter_map(|fault| match fault.place {
            FaultPlace::Time(time) if fault.is_point() => Some(time),
            _ => None,
        });
        let alarm = times.min().map(|time| Box::pin(sleep_until(start + time)));
        Self {
            inner,
            splitter: is_stream.then(SseSplitter::default),
            faults,
            steps: VecDeque::new(),
            seen: BodyProgress::default(),
            start,
            pause: None,
            alarm,
            state: BodyState::Open,
            endpoint,
            on_fault,
        }
    }

    /// Takes what the inner body has given.
    fn take(&mut self, data: Bytes) {
        let Some(splitter) = &mut self.splitter else { return self.pass(data) };
        splitter.push(data);
        while let Some(event) = self.splitter.as_mut().and_then(SseSplitter::next_event) {
            if self.state != BodyState::Open {
                return;
            }
            self.pass(event.raw);
        }
    }

    /// Lets an event pass, with the faults that are due before it and in it.
    fn pass(&mut self, mut event: Bytes) {
        let tokens = tokens_of(&event);
        self.happen_before();
        while self.state == BodyState::Open {
            let end = self.seen.bytes + u64::try_from(event.len()).unwrap_or(u64::MAX);
            let inside = self.faults.iter().filter(|fault| fault.is_point() && !fault.has_happened);
            let inside = inside.filter_map(|fault| match fault.place {
                FaultPlace::Byte(at) if at < end => Some(at),
                _ => None,
            });
            let Some(at) = inside.min() else { break };
            let first = event.split_to(usize::try_from(at.saturating_sub(self.seen.bytes)).unwrap_or_default());
            self.seen.bytes = at;
            self.send(first);
            self.happen_before();
        }
        if self.state == BodyState::Open {
            self.seen.bytes += u64::try_from(event.len()).unwrap_or_default();
            self.edit_from(0, event);
            self.seen.events += 1;
            self.seen.tokens += tokens;
        }
    }

    /// Lets the faults happen that are due at this point.
    fn happen_before(&mut self) {
        let elapsed = self.start.elapsed();
        for place in 0..self.faults.len() {
            let Some(fault) = self.faults.get_mut(place) else { return };
            if self.state != BodyState::Open
                || fault.has_happened
                || !fault.is_point()
                || !fault.is_due(&self.seen, elapsed)
            {
                continue;
            }
            fault.has_happened = true;
            (self.on_fault)(&fault.chosen);
            let kind = fault.fault.clone();
            self.happen(&kind);
        }
    }

    fn happen(&mut self, fault: &StreamFault) {
        let end = match fault {
            StreamFault::Stall(Some(time)) => return self.steps.push_back(BodyStep::Pause(*time)),
            StreamFault::KeepAlive { count, every } => {
                for _ in 0..*count {
                    self.steps
                        .extend([BodyStep::Send(Bytes::from_static(b": keep-alive\n\n")), BodyStep::Pause(*every)]);
                }
                return;
            }
            StreamFault::HugeLine(bytes) => {
                let mut line = BytesMut::from(&b": "[..]);
                line.resize(usize::try_from(*bytes).unwrap_or_default().max(2), b'x');
                line.extend_from_slice(b"\n\n");
                return self.steps.push_back(BodyStep::Send(line.freeze()));
            }
            StreamFault::Drip { .. } | StreamFault::Jitter(_) | StreamFault::Edit { .. } => return,
            StreamFault::Stall(None) => BodyStep::Hang,
            StreamFault::Reset => BodyStep::End(BodyEnd::Broken("a fault resets the connection")),
            StreamFault::Close | StreamFault::HalfClose => {
                BodyStep::End(BodyEnd::Broken("a fault closes the connection"))
            }
            StreamFault::Truncate => BodyStep::End(BodyEnd::Proper),
            StreamFault::Error(error) => {
                let events = error_events(error, self.endpoint);
                self.steps.extend(events.into_iter().map(BodyStep::Send));
                BodyStep::End(BodyEnd::Proper)
            }
        };
        self.state = BodyState::Cut;
        self.steps.push_back(end);
    }

    /// Changes an event by all edits from this one on, and sends what becomes of it.
    fn edit_from(&mut self, from: usize, event: Bytes) {
        let elapsed = self.start.elapsed();
        for place in from..self.faults.len() {
            let Some(fault) = self.faults.get_mut(place) else { break };
            let StreamFault::Edit { edit, .. } = fault.fault else { continue };
            let is_held = !fault.held.is_empty();
            if !is_held && (fault.left == 0 || !fault.is_due(&self.seen, elapsed) || !edit.concerns(&event)) {
                continue;
            }
            if !is_held {
                fault.left -= 1;
                if !fault.has_happened {
                    fault.has_happened = true;
                    (self.on_fault)(&fault.chosen);
                }
            }
            let parts = match edit {
                EventEdit::Merge(count) => {
                    fault.held.push(event);
                    if u64::try_from(fault.held.len()).unwrap_or(u64::MAX) < count {
                        return;
                    }
                    vec![std::mem::take(&mut fault.held).concat().into()]
                }
                EventEdit::Reorder if !is_held => return fault.held.push(event),
                EventEdit::Reorder => std::iter::once(event).chain(std::mem::take(&mut fault.held)).collect(),
                _ => edit.parts(event),
            };
            let pause = if let EventEdit::Split(_, pause) = edit { Some(pause) } else { None };
            for (number, part) in parts.into_iter().enumerate() {
                if let Some(pause) = pause.filter(|_| number > 0) {
                    self.steps.push_back(BodyStep::Pause(pause));
                }
                self.edit_from(place + 1, part);
            }
            return;
        }
        self.send(event);
    }

    /// Sends bytes, at the pace that faults give them.
    fn send(&mut self, mut bytes: Bytes) {
        let elapsed = self.start.elapsed();
        for fault in &mut self.faults {
            if fault.is_point() || !fault.is_due(&self.seen, elapsed) {
                continue;
            }
            match fault.fault {
                StreamFault::Jitter(most) => {
                    let share = fault.chosen.draw(self.seen.events) % 1024;
                    self.steps.push_back(BodyStep::Pause(most * u32::try_from(share).unwrap_or_default() / 1024));
                }
                StreamFault::Drip { bytes: size, every } => {
                    let size = usize::try_from(size).unwrap_or(usize::MAX);
                    while bytes.len() > size {
                        self.steps.extend([BodyStep::Send(bytes.split_to(size)), BodyStep::Pause(every)]);
                    }
                }
                _ => continue,
            }
            if !fault.has_happened {
                fault.has_happened = true;
                (self.on_fault)(&fault.chosen);
            }
        }
        if !bytes.is_empty() {
            self.steps.push_back(BodyStep::Send(bytes));
        }
    }

    /// Sends what waits for events that do not come.
    fn finish(&mut self) {
        self.state = BodyState::Ended;
        for place in 0..self.faults.len() {
            let held = self.faults.get_mut(place).map(|fault| std::mem::take(&mut fault.held)).unwrap_or_default();
            if !held.is_empty() {
                self.edit_from(place + 1, held.concat().into());
            }
        }
        let rest = self.splitter.as_mut().map(SseSplitter::take_rest).unwrap_or_default();
        self.send(rest);
        self.steps.push_back(BodyStep::End(BodyEnd::Proper));
    }
}

/// Tokens that an event carries.
#[must_use]
pub fn tokens_of(event: &[u8]) -> u64 {
    let Some(value) = event_data(event).and_then(|data| serde_json::from_slice::<Value>(&data).ok()) else { return 0 };
    let Some(choices) = value.get("choices").and_then(Value::as_array) else {
        // Events of messages and responses carry output as deltas.
        let delta = value.get("delta").map(|delta| {
            delta
                .as_str()
                .or_else(|| ["text", "thinking", "partial_json"].iter().find_map(|name| delta.get(name)?.as_str()))
        });
        return u64::from(delta.flatten().is_some_and(|text| !text.is_empty()));
    };
    let of_choice = |choice: &Value| {
        if let Some(ids) = choice.get("token_ids").and_then(Value::as_array) {
            return u64::try_from(ids.len()).unwrap_or_default();
        }
        let is_output = |value: &Value| value.as_str().map_or_else(|| value.is_array(), |text| !text.is_empty());
        let delta = choice.get("delta").unwrap_or(choice);
        let has = ["content", "reasoning", "reasoning_content", "tool_calls", "text"];
        u64::from(has.iter().any(|name| delta.get(name).is_some_and(is_output)))
    };
    choices.iter().map(of_choice).sum()
}

/// An error as events, and what follows it.
fn error_events(error: &RefusalFault, endpoint: Endpoint) -> Vec<Bytes> {
    let refused = error.error();
    if endpoint == Endpoint::Messages {
        let data = serde_json::json!({"type": "error", "error": {"type": refused.kind, "message": refused.message}});
        return vec![encode_event(Some("error"), &data.to_string())];
    }
    vec![encode_event(None, &refused.body()), encode_event(None, "[DONE]")]
}

impl<B> Body for FaultedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            match this.steps.pop_front() {
                Some(BodyStep::Send(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(BodyStep::Pause(time)) => {
                    this.pause = Some(Box::pin(sleep(time)));
                    continue;
                }
                Some(BodyStep::Hang) => {
                    this.steps.push_front(BodyStep::Hang);
                    return Poll::Pending;
                }
                Some(BodyStep::End(BodyEnd::Proper)) => {
                    this.steps.push_front(BodyStep::End(BodyEnd::Proper));
                    return Poll::Ready(None);
                }
                Some(BodyStep::End(BodyEnd::Broken(why))) => {
                    this.steps.push_front(BodyStep::End(BodyEnd::Proper));
                    return Poll::Ready(Some(Err(BodyError::Aborted(why))));
                }
                None => {}
            }
            if let Some(alarm) = &mut this.alarm
                && alarm.as_mut().poll(context).is_ready()
            {
                this.happen_before();
                let elapsed = this.start.elapsed();
                let later = this.faults.iter().filter_map(|fault| match fault.place {
                    FaultPlace::Time(time) if fault.is_point() && time > elapsed => Some(time),
                    _ => None,
                });
                this.alarm = later.min().map(|time| Box::pin(sleep_until(this.start + time)));
                continue;
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        this.take(data);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::broken(error)))),
                None => this.finish(),
            }
        }
    }
}
