//! YAML for files that people edit: read with the place of every node, written so that equal values give equal lines.
//!
//! Reading follows the core schema of YAML 1.2: `yes` and `12:30` are text. Writing quotes what a reader of YAML 1.1 would
//! take for something else than text, so that such readers get the same strings.
//!
//! Limits: one document per file, no aliases, no tags but `!!str` and `!!binary`; keys are text. Numbers are what JSON numbers are here:
//! 64-bit integers and floats; longer integers are text, so that no digit is lost.

mod plain;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{YamlEntry, YamlError, YamlKind, YamlNode, parse};
pub use write::{Layout, write};
