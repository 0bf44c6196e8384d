//! A stand-in where there is no tokenizer: ids and how many there are, and `<id>` for the text of each.
//!
//! Text is read the same way: `<17>` is id 17, and every four bytes of anything else are an id that their hash chooses. So
//! counts are of the usual size, equal prompts have equal ids, and prompts that share a beginning share most of its ids.

use tokenizers::decoders::fuse::Fuse;
use xxhash_rust::xxh3::xxh3_64;

use super::{ChatTemplate, PromptError, Tokenizer, fast_load::LoadedTokenizer};

/// The name that chooses it, which is also its fingerprint.
pub(super) const NAME: &str = "none";

/// Ids that made-up text is drawn from, at most.
pub(super) const MOST_ORDINARY: u32 = 1 << 17;

/// Bytes of text that make one id.
const BYTES_PER_ID: usize = 4;

/// Each message with its role; then the role of the answer.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

impl Tokenizer {
    /// No tokenizer: made-up ids are below `ids`, and any id is taken.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub fn ids_only(ids: u32) -> Result<Self, PromptError> {
        let template = ChatTemplate::new(CHAT_TEMPLATE, serde_json::Map::new())?;
        Ok(Self::without_tables(NAME, ids, template))
    }

    /// Returns true if there is no tokenizer, so that text is `<id>` for each id.
    #[must_use]
    pub fn is_ids_only(&self) -> bool {
        self.inner().is_ids_only
    }
}

/// Tables without tokens, whose decoder puts pieces together as they are.
pub(super) fn tables() -> LoadedTokenizer {
    let mut loaded = LoadedTokenizer::none();
    loaded.tokenizer.with_decoder(Some(Fuse::default()));
    loaded.longest = piece(u32::MAX).len();
    loaded
}

pub(super) fn piece(id: u32) -> String {
    format!("<{id}>")
}

pub(super) fn id_of(piece: &str) -> Option<u32> {
    let digits = piece.strip_prefix('<')?.strip_suffix('>')?;
    let is_written_so = digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.parse().ok().filter(|_| is_written_so)
}

/// The ids of a text; those that its hash chooses are below `ids`.
pub(super) fn encode(text: &str, ids: u32) -> Vec<u32> {
    let mut found = Vec::with_capacity(text.len() / BYTES_PER_ID + 1);
    let mut rest = text;
    while let Some((start, end, id)) = first_piece(rest) {
        put_hashed(rest.get(..start).unwrap_or_default(), ids, &mut found);
        found.push(id);
        rest = rest.get(end..).unwrap_or_default();
    }
    put_hashed(rest, ids, &mut found);
    found
}

/// Finds the first piece of an id: its start, its end and its id.
fn first_piece(text: &str) -> Option<(usize, usize, u32)> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find('<')?;
        // No piece is longer.
        let window = text.as_bytes().get(start..)?.iter().take(12).position(|byte| *byte == b'>');
        let end = window.map(|length| start + length + 1);
        if let Some((end, id)) = end.and_then(|end| Some((end, id_of(text.get(start..end)?)?))) {
            return Some((start, end, id));
        }
        from = start + 1;
    }
}

fn put_hashed(text: &str, ids: u32, out: &mut Vec<u32>) {
    let hashed = |bytes: &[u8]| u32::try_from(xxh3_64(bytes) % u64::from(ids.max(1))).unwrap_or(0);
    out.extend(text.as_bytes().chunks(BYTES_PER_ID).map(hashed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{SkipSpecial, SpecialTokens};

    fn tokenizer() -> Tokenizer {
        Tokenizer::ids_only(1000).unwrap()
    }

    #[test]
    fn ids_are_decoded_and_encoded_as_pieces() {
        let tokenizer = tokenizer();
        let ids = [0, 17, 999, u32::MAX, 5];
        let text = tokenizer.decode(&ids, SkipSpecial::Skip).unwrap();
        assert_eq!(text, "<0><17><999><4294967295><5>");
        assert_eq!(tokenizer.encode(&text, SpecialTokens::Add).unwrap(), ids);
        let mut detokenizer = tokenizer.detokenizer(&[1, 2], SkipSpecial::Skip);
        let pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id).unwrap()).collect();
        assert_eq!(pieces.concat(), text);
        let mut onto = String::new();
        detokenizer.push_onto(7, &mut onto).unwrap();
        assert_eq!((onto.as_str(), tokenizer.token_text(7, &[])), ("<7>", "<7>".to_owned()));
        let mut window = tokenizer.window_after(&[1], SkipSpecial::Keep);
        assert_eq!(window.push(&tokenizer, 8, SkipSpecial::Keep).unwrap(), "<8>");
    }

    #[test]
    fn any_text_has_ids_of_the_usual_number() {
        let tokenizer = tokenizer();
        let ids = |text: &str| tokenizer.encode(text, SpecialTokens::Skip).unwrap();
        assert_eq!(ids("").len(), 0);
        assert_eq!(ids("abcdefgh<7>ij").len(), 4);
        assert_eq!(ids("abcdefgh<7>ij")[2], 7);
        assert_eq!(ids("abcdefgh"), ids("abcdefghi")[..2]);
        assert_ne!(ids("abcd"), ids("dcba"));
        assert!(ids("<01><x><<é>>").iter().all(|id| *id < 1000));
        assert!(ids(&"<".repeat(100_000)).len() == 25_000);
    }

    #[test]
    fn it_draws_from_the_ids_that_it_was_given_and_takes_any() {
        let tokenizer = tokenizer();
        assert_eq!((tokenizer.ordinary_ids().len(), tokenizer.model_vocabulary()), (1000, u32::MAX));
        assert_eq!((tokenizer.token_str(5).as_deref(), tokenizer.token_id("<5>")), (Some("<5>"), Some(5)));
        assert_eq!((tokenizer.name(), tokenizer.fingerprint(), tokenizer.eos_ids().len()), ("none", "none", 0));
        assert_eq!(Tokenizer::ids_only(u32::MAX).unwrap().ordinary_ids().len(), MOST_ORDINARY as usize);
    }
}
