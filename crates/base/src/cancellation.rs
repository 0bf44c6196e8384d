//! Cancellation of work that nobody waits for any more.
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

/// A flag that says that a piece of work is wanted no more. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

/// Cancels when it is dropped: held by a request's future, it says that its client has left.
#[derive(Debug, Default)]
pub struct CancelOnDrop(pub Cancellation);

/// The scope that is entered again when an inner one ends.
struct Outer(Option<Cancellation>);

impl Cancellation {
    /// That of the scope in which the thread works; one that nobody cancels outside of any.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Does work to which this cancellation applies, on this thread.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let _outer = Outer(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Says that the work is wanted no more.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Returns true if nobody waits for what this thread is doing.
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
