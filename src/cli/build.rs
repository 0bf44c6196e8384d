//! Which build of the program this is; the package's build script finds the commit.

/// Version of the package.
pub(in crate::cli) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of its sources: its hash, with `-dirty` if they had changes, or `unknown`.
pub(in crate::cli) const COMMIT: &str = env!("VLLM_VCR_COMMIT");

/// Both, for `--version`.
pub(in crate::cli) const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("VLLM_VCR_COMMIT"), ")");
