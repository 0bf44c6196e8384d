//! A thread that sends: its sessions one after the other or each at its time, and their requests.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use base::causes::causes;
use futures_util::future::join_all;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use net::upstream::UpstreamErrorText;
use recording::{exchange::outcome_of, trace::Outcome};
use replay::timing::Pacer;
use tap::{Client, ClientBody};
use tokio::{
    sync::SetOnce,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::DrivenRun;
use crate::{
    history::{CollectedBytes, DrivenConversation},
    plan::Start,
    prompt::Place,
    workload::WorkloadRequest,
};

/// One thread that sends.
pub(super) struct Worker {
    pub(super) run: Arc<DrivenRun>,
    pub(super) client: Client,
    pub(super) pacer: Pacer,
}

/// Pause of a thread's check of its own punctuality.
const PROBE: Duration = Duration::from_millis(20);

impl Worker {
    /// Notes how late this thread wakes up, again and again. Requests alone would not show it where each waits for another.
    pub(super) async fn probe(self: Arc<Self>) {
        loop {
            let due = Instant::now() + PROBE;
            self.pacer.sleep_until(due).await;
            let late = Instant::now().saturating_duration_since(due);
            self.run.counts.lag.lock().record(late);
        }
    }

    /// Begins every nth session at its time.
    pub(super) async fn open_loop(self: Arc<Self>, number: usize, threads: usize) {
        let mut sending = JoinSet::new();
        for (place, session) in self.run.plan.sessions.iter().enumerate().skip(number).step_by(threads) {
            let begin = self.run.start + session.begin.unwrap_or_default();
            self.pacer.sleep_until(begin).await;
            while sending.try_join_next().is_some() {}
            sending.spawn(Arc::clone(&self).send_session(place, begin));
        }
        while sending.join_next().await.is_some() {}
    }

    /// Sends one session after the other, as long as there are any and the time of the run is not over.
    pub(super) async fn closed_loop(self: Arc<Self>) {
        self.pacer.sleep_until(self.run.start).await;
        loop {
            let number = self.run.counts.next_session.fetch_add(1, Relaxed);
            let is_over = self.run.until.is_some_and(|until| Instant::now() >= until);
            let Some(place) = self.run.plan.place(number).filter(|_| !is_over) else { return };
            Arc::clone(&self).send_session(place, Instant::now()).await;
        }
    }

    /// Sends the turns of a session, each when those that it waits for have ended.
    async fn send_session(self: Arc<Self>, place: usize, begin: Instant) {
        let Some(session) = self.run.plan.sessions.get(place) else { return };
        let ends: Vec<SetOnce<Instant>> = session.turns.iter().map(|_| SetOnce::new()).collect();
        let requests = session.turns.iter().filter_map(|turn| self.run.workload.requests.get(turn.request));
        let conversation = DrivenConversation::begin(self.run.history, requests.map(|request| &request.record));
        let turns = session.turns.iter().zip(&ends).enumerate().map(|(number, (turn, own))| {
            let (worker, ends, conversation) = (&self, &ends, conversation.as_ref());
            async move {
                let mut ended = begin;
                for end in turn.waits.iter().filter_map(|earlier| ends.get(*earlier)) {
                    ended = ended.max(*end.wait().await);
                }
                let due = match turn.start {
                    Start::Since(offset) => begin + offset,
                    Start::After(think) => ended + think,
                };
                let place = Place { index: turn.request, chain: place, turn: number };
                let _first = own.set(worker.send(place, due, conversation).await);
            }
        });
        join_all(turns).await;
        if let Some(counts) = conversation.map(DrivenConversation::counts) {
            self.run.counts.history.lock().add(counts);
        }
    }

    /// Sends one request when it is due and reads its response. Returns when that was over.
    async fn send<'a>(&'a self, place: Place, due: Instant, conversation: Option<&DrivenConversation<'a>>) -> Instant {
        let (run, index) = (&self.run, place.index);
        let outgoing = run.prompts.request_in(place, &run.workload, conversation);
        self.pacer.sleep_until(due).await;
        if let Some(intended) = run.intended.get(index) {
            let at = due.saturating_duration_since(run.start).as_nanos();
            intended.store(u64::try_from(at).unwrap_or(u64::MAX), Relaxed);
        }
        run.counts.sent.fetch_add(1, Relaxed);
        let request = run.workload.requests.get(index);
        let received = async {
            let response = self.client.send(place.chain % run.targets.len(), outgoing).await;
            let error = Some(response.status()).filter(|status| status.as_u16() >= 400);
            let unanswered = response.extensions().get::<UpstreamErrorText>().cloned();
            let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let is_stream = content_type.is_some_and(|kind| kind.starts_with("text/event-stream"));
            let body = response.into_body();
            let collected = self.read(body, request, conversation.is_some() || error.is_some()).await;
            match (error, unanswered) {
                (Some(StatusCode::GATEWAY_TIMEOUT), Some(why)) => {
                    run.add_error(Outcome::TimedOut.name(), why.0.as_bytes())
                }
                (Some(_), Some(why)) => run.add_error(Outcome::UpstreamFailed.name(), why.0.as_bytes()),
                (Some(status), None) => run.add_error(status.as_str(), &collected.whole().concat()),
                (None, _) => {}
            }
            if let (Some(conversation), Some(request)) = (conversation, request) {
                conversation.end(&request.record, collected.whole(), is_stream);
            }
        };
        match request.and_then(WorkloadRequest::left_unanswered) {
            // Who drops a response leaves it.
            Some(after) => drop(timeout(after, received).await),
            None => received.await,
        }
        Instant::now()
    }

    /// Reads a response to its end, to the token after which its client left, or until nothing but comments came for as long as a response may pause.
    /// Returns its bytes where they are kept.
    async fn read(&self, mut body: ClientBody, request: Option<&WorkloadRequest>, is_kept: bool) -> CollectedBytes {
        let (run, mut collected, mut silent) = (&self.run, CollectedBytes::default(), None);
        let leaves_after = request.and_then(WorkloadRequest::leaves_after);
        while let Some(frame) = body.frame().await {
            let bytes = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    let cause = causes(&error).last().filter(|cause| cause.to_string() != error.to_string());
                    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
                    run.add_error(outcome_of(&error).name(), format!("{error}{cause}").as_bytes());
                    break;
                }
            };
            if !is_comment(&bytes) {
                silent = None;
            } else if let (Some(idle), began) = (run.idle, *silent.get_or_insert_with(Instant::now))
                && began.elapsed() >= idle
            {
                body.time_out();
                run.add_error(Outcome::TimedOut.name(), format!("nothing but comments came for {idle:?}").as_bytes());
                break;
            }
            if is_kept {
                collected.add(bytes);
            }
            if leaves_after.is_some_and(|tokens| body.tokens() >= tokens) {
                if request.is_some_and(|request| !request.is_left()) {
                    let why = format!("left after {} tokens, far more than were asked for", body.tokens());
                    run.add_error(Outcome::Error.name(), why.as_bytes());
                }
                break;
            }
        }
        collected
    }
}

/// Returns true for bytes of a stream that are comments only, which say no more than that the connection is alive.
fn is_comment(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.all(|line| line.is_empty() || line.starts_with(b":"))
}
