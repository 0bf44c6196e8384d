//! Made-up text that conforms to what a request asks of its answer: a JSON schema, a regular expression, choices, a
//! grammar, a structural tag.
//!
//! A [`Guide`] knows one vocabulary. It [checks](check) a [`Constraint`](api::Constraint) with the engine's words, and draws tokens: at
//! each place one of those that may stand there, evenly, but often enough one that closes what is open, so that an
//! answer ends by itself. Equal keys give equal tokens.
//!
//! Limits: JSON is drawn without needless white space, floats without exponents. Of free text between the tags of a
//! structural tag little is drawn. Where the grammar is one that the engine takes and this module cannot follow
//! ([`GuideError::Unsupported`]), there is no text to be had; nor where it is larger than 128 KiB, or takes too long.

mod bounds;
mod draw;
mod ebnf;
mod first_library;
mod grammar;
mod lexer;
mod patterns;
mod schema;
mod tag;
mod vocabulary;

pub use draw::{DrawLimits, Made, TextEnd};
pub use first_library::FirstLibrary;
pub use grammar::{GuideError, check};
pub use vocabulary::Guide;
