//! `/invocations`: a body of any family that the server has, recognised by what fits.

use super::{Api, ApiError, GenerationRequest, json};

/// Reads a body as a chat request, else as a completion.
///
/// # Errors
/// A broken rule of the first family whose schema was not what failed, or that no family fits.
pub fn invocation(body: &[u8]) -> Result<GenerationRequest, ApiError> {
    let map = json::object(body)?;
    for api in [Api::Chat, Api::Completions] {
        match GenerationRequest::of(api, &map) {
            Err(misfit) if misfit.is_of_framework() => {}
            read => return read,
        }
    }
    Err(ApiError::bad_request(
        "Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', 'CompletionRequest']",
    ))
}
