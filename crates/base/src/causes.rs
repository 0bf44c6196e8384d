//! Causes of an error.

use std::{error::Error, iter::successors};

/// An error and what caused it, the outermost first.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |cause| (*cause).source())
}
