//! Cancellation of work whose request has ended.
//!
//! Work that grows with a request runs on a thread of its own, which goes on when the request's future is dropped. The
//! future holds a [`CancelOnDrop`], the thread works within [`Cancellation::scope`], and loops that may be long look at
//! [`is_cancelled`], which reads one flag.
//!
//! Limits: a thread that such work starts is outside of the scope until it enters that of [`Cancellation::current`].
//!
//! See docs/decisions/0106-work-ends-with-its-client.md.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

thread_local! {
    static CURRENT: RefCell<Option<Cancellation>> = const { RefCell::new(None) };
}

/// Cancellation flag of a piece of work. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

/// Guard that cancels when it is dropped, as a request's future is when its client leaves.
#[derive(Debug, Default)]
pub struct CancelOnDrop(pub Cancellation);

/// The scope that is entered again when an inner one ends.
struct Outer(Option<Cancellation>);

impl Cancellation {
    /// Returns the cancellation of the scope in which the thread works; outside of any, one that is never cancelled.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Does work to which this cancellation applies, on this thread.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let _outer = Outer(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Cancels the work.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Returns true if the work of this thread was cancelled.
#[must_use]
pub fn is_cancelled() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|current| current.0.load(Relaxed)))
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::{panic, thread};

    use super::*;

    #[test]
    fn a_scope_ends_with_its_work_even_if_that_panics() {
        let (outer, inner) = (Cancellation::default(), Cancellation::default());
        inner.cancel();
        assert!(!is_cancelled());
        outer.scope(|| {
            assert!(!is_cancelled());
            assert!(inner.scope(is_cancelled));
            let panicked = panic::catch_unwind(|| inner.scope(|| panic::resume_unwind(Box::new("work panicked"))));
            assert!(panicked.is_err() && !is_cancelled(), "the outer scope is entered again");
        });
        assert!(!is_cancelled());
    }

    #[test]
    fn a_thread_of_the_work_enters_its_scope() {
        let until_dropped = CancelOnDrop::default();
        let shared = until_dropped.0.scope(Cancellation::current);
        drop(until_dropped);
        assert!(thread::spawn(move || !is_cancelled() && shared.scope(is_cancelled)).join().unwrap());
    }
}
