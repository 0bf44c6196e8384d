//! Reading an input on a thread of its own, some blocks ahead of its consumer.

use std::io::{self, BufRead, Cursor, Read};

use super::pipeline::Pipeline;

/// The bytes of an input, and its error after the bytes before it.
pub(super) struct Beside {
    blocks: Pipeline<io::Result<Vec<u8>>>,
    current: Cursor<Vec<u8>>,
}

impl Beside {
    /// Starts to read; a block is what `input` has at a time.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(super) fn new(input: impl BufRead + Send + 'static) -> io::Result<Self> {
        let blocks = Pipeline::start("trace-unpack", Blocks { input, over: false }, |block| block)?;
        Ok(Self { blocks, current: Cursor::default() })
    }
}

struct Blocks<R> {
    input: R,
    over: bool,
}

impl<R: BufRead> Iterator for Blocks<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        match self.input.fill_buf() {
            Ok([]) => None,
            Ok(bytes) => {
                let block = bytes.to_vec();
                self.input.consume(block.len());
                Some(Ok(block))
            }
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}

impl BufRead for Beside {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.fill_buf()?.is_empty()
            && let Some(block) = self.blocks.next()?
        {
            self.current = Cursor::new(block?);
        }
        self.current.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.current.consume(count);
    }
}

impl Read for Beside {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}
