//! `sweep` before rails that hold, leak and damage, in process, and as a program.

mod program;
mod rail;
mod rails;
