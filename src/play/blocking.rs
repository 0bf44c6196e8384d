//! Work that grows with a request, kept off the threads that serve connections.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::Semaphore;

use crate::api::ApiError;

/// Work of up to this weight (bytes of a body, tokens to make up) is done where the request is; heavier work goes to a
/// thread of its own.
pub(super) const INLINE_BYTES: usize = 16 * 1024;

/// KiB of heavy work that are in hand at once: tokenizing takes some seventy bytes of memory for one of text.
const HEAVY_KIB: u32 = 16 * 1024;

/// The shares of [`HEAVY_KIB`]; work heavier than all of them has them alone.
static HEAVY: Semaphore = Semaphore::const_new(HEAVY_KIB as usize);

/// Runs work that grows with what was asked for without holding up other requests. Heavy work waits for its share of
/// the memory, and is not begun for a client that left meanwhile.
///
/// # Errors
/// Those of the work, and 500 where it panicked.
pub(super) async fn off_the_loop<T: Send + 'static>(
    weight: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let panicked = || Err(ApiError::internal("Internal server error"));
    if weight <= INLINE_BYTES {
        return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
    }
    let share = u32::try_from(weight / 1024).unwrap_or(u32::MAX).clamp(1, HEAVY_KIB);
    let Ok(share) = HEAVY.acquire_many(share).await else { return panicked() };
    let done = tokio::task::spawn_blocking(move || {
        let _share = share;
        work()
    });
    done.await.unwrap_or_else(|_| panicked())
}
