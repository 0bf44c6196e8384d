//! The body of a response with faults in it.
//!
//! What comes is taken event by event; a body that is no stream of events is one event, which is gathered first. A fault at a place
//! happens as soon as that place is reached, between events or inside one; edits change the event itself. What has to leave in writes of
//! its own has a pause between its parts. A fault that ends the body drops the inner one, and with it the work for it.

mod error_events;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use net::{
    server::{BodyError, ConnectionEnd},
    wire::SseSplitter,
};
use tokio::time::{Instant, Sleep, sleep_until};

use self::error_events::error_events;
use crate::{
    active::{ActiveFault, BodyProgress, OnFault},
    edits::EventEdit,
    kind::{RefusalContext, StreamFault},
    piece::{BodyPiece, FaultedForm},
    set::ChosenFault,
    steps::{BodyPace, BodyStep, BodySteps, StepOutcome},
    wire::tokens_of,
};

/// Maximum size in bytes of a body without events that are gathered; faults do not concern what follows.
const MOST_GATHERED: usize = 64 << 20;

/// Maximum number of pieces that one event becomes, and most bytes of its copies: several faults that copy would make more than there is memory for.
const MOST_PIECES: usize = 10_000;
const MOST_COPIED: usize = 64 << 20;

/// Most pieces of one event that edits look at, those that others hold back or put together again among them: copies of what was put together
/// of copies would take time without an end, although little is sent. What is beyond it is left out.
const MOST_EDITED: usize = 100_000;

/// A body with faults in it.
pub struct FaultedBody<B> {
    /// `None` once it has ended, or a fault has ended it.
    inner: Option<B>,
    form: FaultedForm,
    splitter: SseSplitter,
    /// What has come of a body without events.
    gathered: Option<BytesMut>,
    faults: Vec<ActiveFault>,
    steps: BodySteps,
    seen: BodyProgress,
    /// Pieces of this event that edits have looked at.
    edited: usize,
    /// Bytes that are sent of events, as edits left them.
    sent: u64,
    start: Instant,
    has_begun: bool,
    /// A fault has ended it; what follows is not looked at.
    is_cut: bool,
    /// The earliest fault by time.
    timer: Option<Pin<Box<Sleep>>>,
    context: RefusalContext,
    on_fault: OnFault,
}

impl<B> FaultedBody<B> {
    /// Puts those faults into a body that happen in bodies. `is_stream` for a stream of events.
    pub fn new(
        inner: B,
        is_stream: bool,
        context: RefusalContext,
        chosen: Vec<ChosenFault>,
        on_fault: OnFault,
    ) -> Self {
        let form = if is_stream { FaultedForm::Events } else { FaultedForm::Whole };
        Self {
            inner: Some(inner),
            form,
            splitter: SseSplitter::default(),
            gathered: (!is_stream).then(BytesMut::new),
            faults: chosen.into_iter().filter_map(|chosen| ActiveFault::new(chosen, form)).collect(),
            steps: BodySteps::default(),
            seen: BodyProgress::default(),
            edited: 0,
            sent: 0,
            start: Instant::now(),
            has_begun: false,
            is_cut: false,
            timer: None,
            context,
            on_fault,
        }
    }

    /// Takes what the inner body has given.
    fn take(&mut self, data: Bytes) {
        match &mut self.gathered {
            Some(gathered) => {
                gathered.extend_from_slice(&data);
                if gathered.len() > MOST_GATHERED {
                    self.take_gathered();
                }
            }
            None if self.form == FaultedForm::Whole => self.steps.push(BodyStep::Send(data)),
            None => {
                self.splitter.push(data);
                while !self.is_cut
                    && let Some(event) = self.splitter.next_event()
                {
                    self.pass(event.raw);
                }
            }
        }
    }

    fn take_gathered(&mut self) {
        let Some(body) = self.gathered.take().filter(|body| !body.is_empty()) else { return };
        self.faults.iter_mut().for_each(|fault| fault.know_size(body.len()));
        self.pass(body.freeze());
    }

    /// Lets an event pass, with the faults that are due in it and after it.
    fn pass(&mut self, event: Bytes) {
        let (tokens, end) = (tokens_of(&event), self.seen.after(&event));
        let is_output = tokens > 0 || self.form == FaultedForm::Whole;
        if is_output && self.faults.iter().any(ActiveFault::repeats) {
            self.seen.output = event.clone();
        }
        let mut pieces = Vec::new();
        self.edited = 0;
        self.edit_from(0, BodyPiece::of(event), &mut pieces);
        for piece in pieces {
            self.send_piece(piece, end);
            if self.is_cut {
                return;
            }
        }
        self.seen.bytes = end;
        self.seen.events += 1;
        self.seen.tokens += tokens;
        self.happen();
    }

    /// Sends a piece of an event that ends at this byte, with the faults that are due at a byte of it.
    fn send_piece(&mut self, mut piece: BodyPiece, end: u64) {
        if let Some(pause) = piece.pause {
            self.steps.pause(pause);
        }
        let inside = |seen: &BodyProgress, faults: &[ActiveFault], length: usize| {
            let at = faults.iter().filter_map(|fault| fault.point_inside(end, seen)).min()?;
            usize::try_from(at.saturating_sub(seen.bytes)).ok().filter(|offset| *offset < length)
        };
        while let Some(offset) = inside(&self.seen, &self.faults, piece.bytes.len()) {
            let first = piece.bytes.split_to(offset);
            self.seen.bytes = self.seen.after(&first);
            self.send(first, piece.pace);
            self.happen();
            if self.is_cut {
                return;
            }
        }
        self.seen.bytes = self.seen.after(&piece.bytes);
        self.send(piece.bytes, piece.pace);
        if piece.is_alone {
            self.steps.pause(Duration::ZERO);
        }
    }

    /// Lets the faults happen that are due.
    fn happen(&mut self) {
        let elapsed = self.start.elapsed();
        for place in 0..self.faults.len() {
            let Some(fault) = self.faults.get_mut(place).filter(|_| !self.is_cut) else { return };
            if !fault.has_happened && fault.is_point() && fault.is_due(&self.seen, elapsed) {
                fault.note(&self.on_fault);
                let kind = fault.fault.clone();
                self.release(|edit| matches!(edit, EventEdit::Merge(_)));
                self.carry_out(&kind);
            }
        }
    }

    fn carry_out(&mut self, fault: &StreamFault) {
        let is_whole = self.form == FaultedForm::Whole;
        match fault {
            StreamFault::Stall(Some(time)) => self.steps.pause(*time),
            StreamFault::Stall(None) => self.cut([BodyStep::Hang]),
            StreamFault::KeepAlive { count, every } => {
                let bytes = Bytes::from_static(if is_whole { b"\n" } else { b": keep-alive\n\n" });
                self.steps.push(BodyStep::Repeat { bytes, left: Some(*count), every: *every });
            }
            StreamFault::HugeLine(bytes) if is_whole => {
                self.steps.push(BodyStep::Filler { left: *bytes, is_blank: true });
            }
            StreamFault::HugeLine(bytes) => {
                self.steps.push(BodyStep::Send(Bytes::from_static(b": ")));
                self.steps.push(BodyStep::Filler { left: bytes.saturating_sub(2), is_blank: false });
                self.steps.push(BodyStep::Send(Bytes::from_static(b"\n\n")));
            }
            StreamFault::Repeat { times, every } => {
                let repeat = BodyStep::Repeat { bytes: self.seen.output.clone(), left: *times, every: *every };
                match times {
                    Some(_) => self.steps.push(repeat),
                    None => self.cut([repeat]),
                }
            }
            StreamFault::Break(end) => self.cut([broken(*end)]),
            StreamFault::Truncate => self.cut([BodyStep::End(None)]),
            StreamFault::Error(error) => {
                let error = error.error(&self.context);
                let events = error_events(&error, &self.context, self.form, self.seen.events);
                self.cut(events.into_iter().map(BodyStep::Send).chain([BodyStep::End(None)]));
            }
            StreamFault::Drip { .. }
            | StreamFault::SplitAt { .. }
            | StreamFault::Jitter(_)
            | StreamFault::Edit { .. } => {}
        }
    }

    fn cut(&mut self, steps: impl IntoIterator<Item = BodyStep>) {
        self.release(|_| true);
        self.is_cut = true;
        self.inner = None;
        steps.into_iter().for_each(|step| self.steps.push(step));
    }

    fn edit_from(&mut self, from: usize, piece: BodyPiece, out: &mut Vec<BodyPiece>) {
        let elapsed = self.start.elapsed();
        self.edited += 1;
        for place in from..self.faults.len() {
            let Some(fault) = self.faults.get_mut(place) else { break };
            let StreamFault::Edit { edit, .. } = fault.fault else { continue };
            let is_held = !fault.held.is_empty();
            if !is_held {
                if !fault.takes_event(edit, &piece.bytes, self.form, &self.seen, elapsed) {
                    continue;
                }
                fault.left -= 1;
                fault.note(&self.on_fault);
            }
            let parts = match edit {
                EventEdit::Merge(count) => {
                    fault.held_bytes = fault.held_bytes.saturating_add(piece.bytes.len());
                    fault.held.push(piece.bytes);
                    let is_full = fault.held_bytes >= MOST_COPIED;
                    if !is_full && u64::try_from(fault.held.len()).unwrap_or(u64::MAX) < count {
                        return;
                    }
                    vec![BodyPiece::alone(fault.take_held().concat().into())]
                }
                EventEdit::Reorder if !is_held => return fault.held.push(piece.bytes),
                EventEdit::Reorder => {
                    std::iter::once(piece.bytes).chain(fault.take_held()).map(BodyPiece::of).collect()
                }
                EventEdit::Duplicate(times) => {
                    let most = (MOST_COPIED / piece.bytes.len().max(1)).clamp(1, MOST_PIECES);
                    let copies = usize::try_from(times).unwrap_or(most).saturating_add(1).min(most);
                    vec![piece; copies]
                }
                _ => edit.parts(piece, fault.offset_in_event(&self.seen)),
            };
            for part in parts {
                if out.len() >= MOST_PIECES || self.edited >= MOST_EDITED {
                    break;
                }
                self.edit_from(place + 1, part, out);
            }
            return;
        }
        out.push(piece);
    }

    /// Sends bytes, at the pace that they and faults have.
    fn send(&mut self, mut bytes: Bytes, own: Option<BodyPace>) {
        let elapsed = self.start.elapsed();
        let mut pace = own;
        let is_empty = bytes.is_empty();
        for fault in self.faults.iter_mut().filter(|fault| !is_empty && fault.is_due(&self.seen, elapsed)) {
            match fault.fault {
                StreamFault::Jitter(most) => {
                    let share = fault.chosen.draw(self.seen.events) % 1024;
                    self.steps.pause(most * u32::try_from(share).unwrap_or_default() / 1024);
                }
                StreamFault::SplitAt { ref places, every } => {
                    for place in places {
                        let within = usize::try_from(place.saturating_sub(self.sent)).unwrap_or(usize::MAX);
                        if within > 0 && within < bytes.len() {
                            self.steps.push(BodyStep::Send(bytes.split_to(within)));
                            self.steps.pause(every);
                            self.sent = *place;
                        }
                    }
                }
                StreamFault::Drip { bytes, every } => {
                    pace = Some(BodyPace { size: usize::try_from(bytes).unwrap_or(usize::MAX), every });
                }
                _ => continue,
            }
            fault.note(&self.on_fault);
        }
        self.sent += u64::try_from(bytes.len()).unwrap_or_default();
        self.steps.push(match pace {
            Some(pace) => BodyStep::Pieces(bytes, pace),
            None => BodyStep::Send(bytes),
        });
    }

    /// Sends what waits for events that do not come.
    fn release(&mut self, of: impl Fn(EventEdit) -> bool) {
        let end = self.seen.bytes;
        for place in 0..self.faults.len() {
            let fault = self.faults.get_mut(place);
            let fault = fault.filter(|fault| matches!(fault.fault, StreamFault::Edit { edit, .. } if of(edit)));
            let held = fault.map(ActiveFault::take_held).unwrap_or_default();
            let mut pieces = Vec::new();
            self.edited = 0;
            if !held.is_empty() {
                self.edit_from(place + 1, BodyPiece::of(held.concat().into()), &mut pieces);
            }
            pieces.into_iter().for_each(|piece| self.send_piece(piece, end));
        }
    }

    /// Ends it as the inner body did.
    fn finish(&mut self, error: Option<BodyError>) {
        self.inner = None;
        self.take_gathered();
        if self.is_cut {
            return;
        }
        self.release(|_| true);
        let rest = self.splitter.take_rest();
        if !rest.is_empty() {
            self.send(rest, None);
        }
        self.steps.push(BodyStep::End(error));
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.timer.is_none() {
            let times = self.faults.iter().filter_map(ActiveFault::time_to_come).min();
            self.timer = times.map(|time| Box::pin(sleep_until(self.start + time)));
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        self.timer = None;
        Poll::Ready(())
    }
}

fn broken(end: ConnectionEnd) -> BodyStep {
    BodyStep::End(Some(BodyError::Broken(end)))
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
            match ready!(this.steps.poll(context)) {
                Some(StepOutcome::Frame(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(StepOutcome::End(error)) => return Poll::Ready(error.map(Err)),
                None => {}
            }
            if !this.has_begun {
                this.has_begun = true;
                this.happen();
                continue;
            }
            if this.poll_timer(context).is_ready() {
                this.happen();
                continue;
            }
            let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
            match ready!(Pin::new(inner).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        this.take(data);
                    }
                }
                Some(Err(error)) => this.finish(Some(BodyError::broken(error))),
                None => this.finish(None),
            }
        }
    }
}

#[cfg(test)]
mod tests;
