//! A program built without object storage: it has no client, and its error names how to get one.

use std::io::{self, Read};

use super::{ObjectUrl, Upload};

/// There is none.
#[derive(Debug)]
pub(super) enum AbsentClient {}

impl AbsentClient {
    pub(super) fn connect(_: &ObjectUrl) -> io::Result<Self> {
        let message = "this program was built without object storage; get it with `cargo install --path . --features \
                       object-storage` in a checkout, or use a file";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    pub(super) fn open(&self) -> io::Result<(u64, Box<dyn Read + Send>)> {
        match *self {}
    }

    pub(super) fn exists(&self) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn names(&self, _: &str) -> io::Result<Vec<String>> {
        match *self {}
    }

    pub(super) fn create(&self) -> io::Result<Box<dyn Upload>> {
        match *self {}
    }
}
