//! `prove` before a proxy with seeded bugs, in process, and as a program.

mod program;
mod proxy;
mod seeded_bugs;
