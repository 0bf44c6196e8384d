//! Images, audio and video of a conversation: what they are called, and hashes by which equal ones are known.
//!
//! The hashes are of the content as the client sent it: the data, or the URL. An engine hashes what it decoded, which cannot
//! be done here, so its hashes and these never agree; these begin with [`OWN`]. Limits: a chat's messages only; an image at
//! another URL, or packed another way, is another image.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::BlockHasher;

/// Prefix of hashes that were made here.
const OWN: &str = "vcr:";

/// Kinds of content parts that a text model has no use for, in vLLM's order, each with the medium that it is.
pub(super) const MEDIA: [(&str, Option<&str>); 10] = [
    ("input_image", Some("image")),
    ("image_url", Some("image")),
    ("image_embeds", Some("image")),
    ("audio_embeds", Some("audio")),
    ("video_embeds", Some("video")),
    ("prompt_embeds", None),
    ("image_pil", Some("image")),
    ("audio_url", Some("audio")),
    ("input_audio", Some("audio")),
    ("video_url", Some("video")),
];

/// Texts in a message's JSON that has media, for a search without parsing.
const MARKS: [&str; 4] = ["_url\"", "\"input_audio\"", "\"input_image\"", "_embeds\""];

/// The media of one conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaHashes {
    /// One for each part, in order.
    pub parts: Vec<String>,
    /// The whole conversation, with these in the places of the media.
    pub whole: u64,
}

impl MediaHashes {
    /// Returns the hash before the block hashes of a prompt with this media, for matching.
    #[must_use]
    pub fn first_block(&self) -> u64 {
        list_hash(&self.parts)
    }
}

/// The hash that stands before the block hashes of a record with these `mm_hashes`; `None` where they were not made here.
#[must_use]
pub fn media_block(mm_hashes: &[String]) -> Option<u64> {
    let is_own = !mm_hashes.is_empty() && mm_hashes.iter().all(|hash| hash.starts_with(OWN));
    is_own.then(|| list_hash(mm_hashes))
}

fn list_hash(parts: &[String]) -> u64 {
    xxh3_64(parts.join("\n").as_bytes())
}

/// Returns true if messages, as JSON text, may hold media.
#[must_use]
pub fn may_hold_media(messages: &str) -> bool {
    MARKS.iter().any(|mark| messages.contains(mark))
}

/// `image`, `audio` or `video`, for a kind of content part that is one.
pub(super) fn medium(kind: &str) -> Option<&'static str> {
    MEDIA.iter().find(|(known, _)| *known == kind)?.1
}

impl BlockHasher {
    /// Hashes the media of a chat's messages, with the key where there is one; `None` where they hold none, or the key is
    /// missing.
    #[must_use]
    pub fn hash_media(&self, messages: &[Value]) -> Option<MediaHashes> {
        let mut parts = Vec::new();
        let hashed: Vec<Value> = messages.iter().map(|message| self.without_media(message, &mut parts)).collect();
        if parts.is_empty() {
            return None;
        }
        let text = Value::Array(hashed).to_string();
        let whole = self.hash_bytes(b"media-prompt", text.as_bytes())?;
        Some(MediaHashes { parts: parts.into_iter().collect::<Option<_>>()?, whole })
    }

    /// A message with hashes in the places of its media, which are added to `parts`.
    fn without_media(&self, message: &Value, parts: &mut Vec<Option<String>>) -> Value {
        let Value::Object(fields) = message else { return message.clone() };
        let mut without = |content: &Value| match content {
            Value::Array(list) => list
                .iter()
                .map(|part| match media_of(part) {
                    Some((medium, content)) => {
                        let hash = self.media_hash(medium, &content);
                        let shown = json!({"type": medium, "hash": hash});
                        parts.push(hash);
                        shown
                    }
                    None => part.clone(),
                })
                .collect(),
            other => other.clone(),
        };
        let field = |(name, value): (&String, &Value)| {
            (name.clone(), if name == "content" { without(value) } else { value.clone() })
        };
        fields.iter().map(field).collect::<Map<_, _>>().into()
    }

    fn media_hash(&self, medium: &str, content: &str) -> Option<String> {
        if self.is_keyed() {
            let hash = self.hash_bytes(medium.as_bytes(), content.as_bytes())?;
            return Some(format!("{OWN}{hash:016x}"));
        }
        Some(format!("{OWN}{:032x}", xxh3_128(content.as_bytes())))
    }
}

/// Returns the kind and the content of a content part; `None` for text.
fn media_of(part: &Value) -> Option<(&'static str, Cow<'_, str>)> {
    let fields = part.as_object()?;
    let kind = fields.get("type")?.as_str()?;
    let medium = medium(kind)?;
    let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let value = given(kind).or_else(|| given("image_url")).or_else(|| given("uuid"));
    let inner = value.and_then(|value| value.get("url").or_else(|| value.get("data"))).or(value);
    Some((
        medium,
        inner.map_or(Cow::Borrowed(""), |inner| inner.as_str().map_or_else(|| inner.to_string().into(), Cow::Borrowed)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{BlockHashAlgorithm, HashKey};

    fn image(url: &str, question: &str) -> Vec<Value> {
        let parts = json!([{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]);
        vec![json!({"role": "user", "content": parts})]
    }

    #[test]
    fn equal_media_have_equal_hashes_whatever_is_asked_about_them() {
        let hasher = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 16);
        let hashes = |url, question| hasher.hash_media(&image(url, question)).unwrap();
        let (one, again, other) = (hashes("data:a", "What?"), hashes("data:a", "Why?"), hashes("data:b", "What?"));
        assert_eq!((&one.parts, one.first_block()), (&again.parts, again.first_block()));
        assert_ne!(one.whole, again.whole);
        assert_ne!((&one.parts, one.whole), (&other.parts, other.whole));
        assert_eq!(media_block(&one.parts), Some(one.first_block()));
        assert_eq!(media_block(&["0f1e2d".to_owned()]), None);
        assert_eq!(hasher.hash_media(&[json!({"role": "user", "content": "x"})]), None);
    }

    #[test]
    fn keyed_hashes_of_media_need_the_key() {
        let messages = image("data:a", "What?");
        let keyed = |key: &[u8]| BlockHasher::keyed(HashKey::new(key), 16).hash_media(&messages).unwrap();
        assert_eq!(keyed(b"a"), keyed(b"a"));
        assert_ne!(keyed(b"a").parts, keyed(b"b").parts);
        assert_eq!(BlockHasher::new(BlockHashAlgorithm::SipHash24, 16).hash_media(&messages), None);
    }

    #[test]
    fn every_way_of_sending_media_is_seen() {
        for (part, medium, content) in [
            (json!({"type": "image_url", "image_url": "u"}), "image", "u"),
            (json!({"type": "input_image", "image_url": "u"}), "image", "u"),
            (json!({"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}}), "audio", "d"),
            (json!({"type": "video_url", "video_url": {"url": "u"}}), "video", "u"),
            (json!({"type": "image_url", "image_url": null, "uuid": "i"}), "image", "i"),
            (json!({"type": "image_embeds", "image_embeds": {"a": 1}}), "image", "{\"a\":1}"),
        ] {
            assert_eq!(media_of(&part), Some((medium, content.into())), "{part}");
            assert!(may_hold_media(&part.to_string()), "{part}");
        }
        assert!(!may_hold_media(r#"[{"role":"user","content":"an image"}]"#));
    }
}
