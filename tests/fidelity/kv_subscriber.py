"""A subscriber of KV events: what a router makes of them. Needs pyzmq and msgspec, or the Python of an installed vLLM."""

import collections
import threading

import msgspec
import zmq


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


def structs(as_arrays):
    """The events of vLLM 0.32, as maps, or as the arrays of earlier versions."""

    class Event(msgspec.Struct, array_like=as_arrays, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple | None] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(Event):
        block_hashes: list[bytes | int]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(Event):
        pass

    class Batch(EventBatch):
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]

    return msgspec.msgpack.Decoder(Batch)


class Cache:
    """Cached blocks, exactly: blocks with the same content are counted."""

    def __init__(self):
        self.blocks, self.children = collections.Counter(), {}

    def take(self, event):
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.blocks.clear()
        elif kind == "BlockRemoved":
            for block in event.block_hashes:
                assert self.blocks[block] > 0, "a block is removed that was not stored"
                self.blocks[block] -= 1
        else:
            parent, size = event.parent_block_hash, event.block_size
            assert len(event.token_ids) == size * len(event.block_hashes) == size * len(event.extra_keys)
            for number, block in enumerate(event.block_hashes):
                self.blocks[block] += 1
                self.children[parent, tuple(event.token_ids[number * size:][:size])] = block
                parent = block

    def chain(self, tokens, size):
        """Hashes of the full blocks of some tokens, as far as they were ever stored."""
        chain, parent = [], None
        for at in range(0, len(tokens) - size + 1, size):
            parent = self.children.get((parent, tuple(tokens[at:at + size])))
            if parent is None:
                break
            chain.append(parent)
        return chain

    def cached(self, prompt, size):
        """Tokens of a prompt that the engine will find."""
        found = 0
        for block in self.chain(prompt[:-1], size):
            if self.blocks[block] <= 0:
                break
            found += size
        return found


class Subscriber:
    """Takes batches in the order of their numbers, on a thread of its own. Every `lose`-th message is thrown away; what is missing is
    requested again."""

    def __init__(self, endpoint, replay=None, as_arrays=False, lose=0):
        self.context, self.decoder, self.lose = zmq.Context.instance(), structs(as_arrays), lose
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)
        self.replay = replay
        self.cache, self.batches, self.topics = Cache(), [], set()
        self.lost = self.replayed = self.first = 0
        self.changed, self.is_over = threading.Condition(), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        received = 0
        while not self.is_over:
            if not self.socket.poll(100):
                continue
            topic, seq, payload = self.socket.recv_multipart()
            received += 1
            self.topics.add(topic.decode())
            if self.lose and received % self.lose == 0:
                self.lost += 1
                continue
            with self.changed:
                self.take(int.from_bytes(seq, "big"), payload)

    def take(self, seq, payload):
        if seq > self.next and self.replay:
            for number, missed in self.missed(self.next):
                if number == self.next:
                    self.replayed += 1
                    self.add(missed)
        if seq == self.next:
            self.add(payload)

    @property
    def next(self):
        """The number of the next batch; batches before the first one count as none."""
        return self.first + len(self.batches)

    def add(self, payload):
        batch = self.decoder.decode(payload)
        for event in batch.events:
            self.cache.take(event)
        self.batches.append(batch)
        self.changed.notify_all()

    def missed(self, first):
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replay)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            assert socket.poll(10_000), "the replay does not end"
            _, _topic, seq, payload = socket.recv_multipart()
            if int.from_bytes(seq, "big", signed=True) == -1:
                assert payload == b""
                socket.close()
                return found
            found.append((int.from_bytes(seq, "big"), payload))

    def wait(self, count, timeout=20):
        """Waits for so many batches. Where the last ones were lost, no later message shows it: then they are requested."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.batches) >= count, 0.2 if self.replay else timeout) and self.replay:
                for number, missed in self.missed(self.next):
                    self.take(number, missed)
            assert self.changed.wait_for(lambda: len(self.batches) >= count, timeout), f"{len(self.batches)} of {count} batches"

    def close(self):
        self.is_over = True
        self.thread.join()
        self.socket.close()
