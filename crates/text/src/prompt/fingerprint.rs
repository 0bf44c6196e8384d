//! One hash that names a vocabulary: equal fingerprints mean that ids mean the same.
//!
//! Hashed are the model's type, its merges (BPE), every token in the order of its id, and the added tokens with their
//! flags. How the JSON was laid out, and the normaliser's and the pre-tokenizer's settings, are not part of it.

use tokenizers::Tokenizer;
use xxhash_rust::xxh3::Xxh3;

/// 16 hexadecimal digits over the vocabulary; `rules` is the hash of the model's type and merges.
pub(super) fn fingerprint(tokenizer: &Tokenizer, id_count: u32, rules: u64) -> String {
    let mut hash = Xxh3::new();
    hash.update(&rules.to_le_bytes());
    for id in 0..id_count {
        if let Some(token) = tokenizer.id_to_token(id) {
            hash.update(&id.to_le_bytes());
            hash.update(token.as_bytes());
            hash.update(&[0xff]);
        }
    }
    let mut added: Vec<_> = tokenizer.get_added_vocabulary().get_added_tokens_decoder().iter().collect();
    added.sort_by_key(|(id, _)| **id);
    for (id, token) in added {
        let flags = [token.special, token.normalized, token.lstrip, token.rstrip, token.single_word];
        hash.update(&id.to_le_bytes());
        hash.update(&flags.map(u8::from));
    }
    format!("{:016x}", hash.digest())
}
