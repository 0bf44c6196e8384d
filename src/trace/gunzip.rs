//! Unpacks gzip data that is in memory, such as an asset compiled into the binary.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

use super::TraceError;

/// Unpacks gzip data; `name` stands for the file in messages.
///
/// # Errors
/// [`TraceError::Io`] where the data is damaged or cut.
pub fn gunzip(name: &str, packed: &[u8]) -> Result<Vec<u8>, TraceError> {
    let mut whole = Vec::with_capacity(packed.len().saturating_mul(4));
    MultiGzDecoder::new(packed).read_to_end(&mut whole).map_err(|source| TraceError::Io {
        path: name.into(),
        doing: "unpack",
        source,
    })?;
    Ok(whole)
}
