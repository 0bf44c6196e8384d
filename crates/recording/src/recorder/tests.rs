use std::sync::mpsc::{Receiver, channel};

use super::*;

/// A sink whose disk does not answer until it is allowed to.
struct Blocked {
    allowed: Receiver<()>,
    recorded: Vec<u32>,
}

impl Sink for Blocked {
    type Item = u32;
    type Ending = Vec<u32>;

    fn weight(item: &u32) -> usize {
        *item as usize
    }

    fn record(&mut self, item: u32) {
        // An error means that nothing blocks any more.
        let _ended = self.allowed.recv();
        self.recorded.push(item);
    }

    fn flush(&mut self) {}

    fn finish(self) -> Vec<u32> {
        self.recorded
    }
}

#[test]
fn submitting_never_waits_for_the_sink_and_what_does_not_fit_comes_back() {
    let (allow, allowed) = channel();
    let progress = Arc::new(RecorderProgress::new(Capacity { items: 3, bytes: 100, ..Capacity::default() }));
    let recorder = Recorder::start(Blocked { allowed, recorded: Vec::new() }, Arc::clone(&progress)).unwrap();
    recorder.submit(1).unwrap();
    while progress.queued() > 0 {
        thread::yield_now();
    }
    // The thread waits for its disk now.
    for item in [60, 40] {
        recorder.submit(item).unwrap();
    }
    assert_eq!(recorder.submit(1), Err(RefusedItem { item: 1, reason: RefusedReason::Bytes }));
    recorder.submit(0).unwrap();
    assert_eq!(recorder.submit(0), Err(RefusedItem { item: 0, reason: RefusedReason::Full }));
    recorder.drop_records(2, RefusedReason::Full);
    drop(allow);
    assert_eq!(recorder.finish(), Ok(Some(vec![1, 60, 40, 0])));
    assert_eq!((recorder.finish(), progress.queue_full.load(std::sync::atomic::Ordering::Relaxed)), (Ok(None), 2));
}

/// A sink that keeps what it is given.
#[derive(Default)]
struct Kept(Vec<u32>);

impl Sink for Kept {
    type Item = u32;
    type Ending = Vec<u32>;

    fn weight(_: &u32) -> usize {
        0
    }

    fn record(&mut self, item: u32) {
        self.0.push(item);
    }

    fn flush(&mut self) {}

    fn finish(self) -> Vec<u32> {
        self.0
    }
}

#[test]
fn everything_arrives_once_and_in_order_and_nothing_after_the_end() {
    let progress = RecorderProgress::new(Capacity { items: 1 << 20, ..Capacity::default() });
    let recorder = Recorder::start(Kept::default(), Arc::new(progress)).unwrap();
    (0..100_000).for_each(|item| recorder.submit(item).unwrap());
    assert!(recorder.finish().unwrap().unwrap().into_iter().eq(0..100_000));
    assert_eq!(recorder.submit(1), Err(RefusedItem { item: 1, reason: RefusedReason::Full }));
}
