//! The free blocks in the order in which they are handed out: a list linked through block ids.

#![allow(clippy::indexing_slicing)] // ids of blocks are those of the pool, which has made the list

use super::BlockId;

/// Doubly linked list of free blocks. The last link is the end of both directions.
#[derive(Debug)]
pub(super) struct FreeBlockQueue {
    links: Vec<FreeLink>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct FreeLink {
    previous: u32,
    next: u32,
}

impl FreeBlockQueue {
    /// A queue of all blocks from 0 to `blocks` - 1 in this order.
    pub(super) fn new(blocks: u32) -> Self {
        let before = |at: u32| at.checked_sub(1).unwrap_or(blocks);
        let after = |at| if at == blocks { 0 } else { at + 1 };
        let links = (0..=blocks).map(|at| FreeLink { previous: before(at), next: after(at) }).collect();
        Self { links, len: blocks as usize }
    }

    /// Number of free blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The place before the first block, for [`FreeBlockQueue::insert_after`].
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.links.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn pop_first(&mut self) -> Option<BlockId> {
        let first = self.links[self.end() as usize].next;
        (first != self.end()).then(|| {
            self.remove(first);
            first
        })
    }

    pub(super) fn remove(&mut self, block: BlockId) {
        let FreeLink { previous, next } = self.links[block as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.len -= 1;
    }

    /// Puts a block behind the last one.
    pub(super) fn append(&mut self, block: BlockId) {
        let end = self.end();
        self.insert_after(self.links[end as usize].previous, block);
    }

    /// Puts a block behind another one of the queue, or before all behind [`FreeBlockQueue::end`].
    pub(super) fn insert_after(&mut self, previous: u32, block: BlockId) {
        let next = self.links[previous as usize].next;
        self.links[block as usize] = FreeLink { previous, next };
        self.links[previous as usize].next = block;
        self.links[next as usize].previous = block;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(mut queue: FreeBlockQueue) -> Vec<BlockId> {
        std::iter::from_fn(|| queue.pop_first()).collect()
    }

    #[test]
    fn blocks_leave_in_order_and_come_back_at_either_end() {
        let mut queue = FreeBlockQueue::new(5);
        assert_eq!((queue.pop_first(), queue.pop_first()), (Some(0), Some(1)));
        queue.remove(3);
        queue.append(0);
        queue.insert_after(queue.end(), 3);
        queue.insert_after(3, 1);
        assert_eq!(queue.len(), 5);
        assert_eq!(drained(queue), [3, 1, 2, 4, 0]);
    }

    #[test]
    fn an_empty_queue_has_no_block() {
        let mut queue = FreeBlockQueue::new(1);
        assert_eq!((queue.pop_first(), queue.pop_first(), queue.len()), (Some(0), None, 0));
        queue.append(0);
        assert_eq!(drained(queue), [0]);
    }
}
