//! Names of fields, headers and parameters under which secrets stand.
//!
//! A name is read as words (`clientSecret`, `X-Api-Key`, `DB_PASSWORD`): its last word decides, together with the one before. Limits:
//! `token` has many meanings in language models, so the words before it that are theirs (`eos_token`, `max_tokens`) make it none.

use std::sync::{Arc, LazyLock};

use super::percent::is_unseen;

/// The longest name of a kind in placeholders, in bytes.
const LONGEST_KIND: usize = 40;

/// Bytes at the end of a name that are read as words.
const LONGEST_END: usize = 64;

/// Last words that make a name a secret's, whatever stands before them.
const LAST: &str = "apikey authorization bearer cookie credential cvc cvv dsn jwt mnemonic passcode passphrase passwd password \
    passwort privatekey pwd secret secretkey";

/// Endings of names written as one word, in lower case without `-` and `_`.
const ENDS: &str = "accesskey accesstoken apikey apisecret authorization authtoken bearertoken clientsecret connectionstring \
    githubtoken hftoken idtoken password passphrase privatekey recoveryphrase refreshtoken secretkey securitytoken \
    seedphrase sessiontoken setcookie";

/// Parts of which every name of a secret has one, in lower case without `-` and `_`: few others have to be read as words.
const ROOTS: [&str; 15] = [
    "auth",
    "bearer",
    "connectionstring",
    "cookie",
    "credential",
    "cv",
    "dsn",
    "jwt",
    "key",
    "mnemonic",
    "pass",
    "phrase",
    "pwd",
    "secret",
    "token",
];

/// Words before `key` that make it a secret.
const BEFORE_KEY: &str = "access account anthropic api app application auth azure cohere consumer datadog dd deploy encryption gemini \
    google gpg groq hmac host license master mistral openai pgp pinecone private replicate role rsa secret \
    service shared signing ssh storage stripe subscription webhook";

/// Words before `tokens` that make them secrets.
const BEFORE_TOKENS: &str =
    "access api auth bearer bot deploy device github gitlab hf npm oauth personal refresh security session slack";

/// Words before `token` that make it none: those of language models, and of pages.
const BEFORE_NO_TOKEN: &str = "a accepted added additional assistant audio bad begin bos by cached chat class cls completion context \
    continuation current cursor decoder draft each encoder end eod eom eos eot fim first forced generated header \
    ignored image input last logit mask matched max middle min n new next num output pad page per placeholder \
    prefix previous progress prompt python reasoning rejected role sampled sep special start stop suffix sync system \
    target text the think thinking time tool top total unk unknown video vision vocab word";

/// Words before `pass` that make it a secret.
const BEFORE_PASS: &str =
    "account admin auth basic db email ftp http imap login mail mysql pg postgres proxy redis root smtp sql user";

/// Words after a secret's name that leave it one.
const AFTER: &str = "again base64 b64 confirm confirmation hash pem plain repeat value";

/// Names of parameters in queries and forms whose values are secrets where they are long enough.
const PARAMETERS: &str = "auth code hmac key otp pass session sessionid sid sig signature ticket";

/// A shorter value of such a parameter is none, in bytes.
const SHORTEST_PARAMETER: usize = 8;

/// The letters of each root: nearly all other names lack one of each root's.
static ROOT_LETTERS: LazyLock<[u32; ROOTS.len()]> = LazyLock::new(|| ROOTS.map(letters_of));

/// The letters of a name, in whatever case: a bit for each. Those beyond ASCII may become any in lower case.
fn letters_of(name: &str) -> u32 {
    name.bytes().fold(0, |letters, byte| match byte.to_ascii_lowercase() {
        letter @ b'a'..=b'z' => letters | 1 << (letter - b'a'),
        0x80.. => u32::MAX,
        _ => letters,
    })
}

/// Whether the letters of a root are in a name, in whatever order.
fn may_have_a_root(name: &str) -> bool {
    let letters = letters_of(name);
    ROOT_LETTERS.iter().any(|root| root & letters == *root)
}

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// Whether values under this name are secrets, by the built-in names.
pub(super) fn is_secret(name: &str) -> bool {
    if !may_have_a_root(name) {
        return false;
    }
    let even = normal(name);
    if !ROOTS.iter().any(|root| even.contains(root)) {
        return false;
    }
    if even == "token" || ENDS.split(' ').any(|end| even.ends_with(end)) || is_among(LAST, &even) {
        return true;
    }
    let words = words(name);
    let mut left = words.as_slice();
    while let [before @ .., last] = left
        && !before.is_empty()
        && (is_among(AFTER, last) || last.bytes().all(|byte| byte.is_ascii_digit()))
    {
        left = before;
    }
    let [before @ .., last] = left else { return false };
    let last = last.trim_end_matches(|c: char| c.is_ascii_digit());
    let before = before.last().map(String::as_str);
    let singular = last.strip_suffix('s').unwrap_or(last);
    match (singular, before) {
        ("token", Some(before)) if last == "token" => !is_among(BEFORE_NO_TOKEN, before),
        ("token", before) => last == "tokens" && before.is_some_and(|before| is_among(BEFORE_TOKENS, before)),
        ("key", Some(before)) => is_among(BEFORE_KEY, before),
        ("pas", Some(before)) => last == "pass" && is_among(BEFORE_PASS, before),
        (_, _) => is_among(LAST, singular) || is_among(LAST, last),
    }
}

/// Whether a parameter of a query or a form is a secret by its name and its length.
pub(super) fn is_secret_parameter(name: &str, value: &str) -> bool {
    let last = words(name).pop().unwrap_or_default();
    value.len() >= SHORTEST_PARAMETER && is_among(PARAMETERS, &last)
}

/// Whether a name counts only for the value right under it: a `token` is often an object of other things.
pub(super) fn is_bare(name: &str) -> bool {
    normal(name) == "token"
}

/// Log probabilities name tokens `token`, usage counts them under many names, and schemas name the fields that need others.
pub(super) fn exempts(name: &str) -> bool {
    matches!(
        name,
        "logprobs"
            | "top_logprobs"
            | "prompt_logprobs"
            | "completion_probabilities"
            | "top_probs"
            | "probs"
            | "usage"
            | "dependentRequired"
    )
}

/// A name as the kind of what stands under it: in lower case without `-` and `_`, the end of a long one.
pub(super) fn kind(name: &str) -> Arc<str> {
    capped(&normal(name).chars().filter(is_of_name).collect::<String>())
}

/// A header's or parameter's name as the kind of its value.
pub(super) fn kind_of_header(name: &str) -> Arc<str> {
    capped(&name.to_ascii_lowercase().chars().filter(|c| !matches!(c, '[' | ']' | ':')).collect::<String>())
}

fn capped(kind: &str) -> Arc<str> {
    let from = (kind.len().saturating_sub(LONGEST_KIND)..kind.len()).find(|at| kind.is_char_boundary(*at));
    Arc::from(kind.get(from.unwrap_or_default()..).unwrap_or_default())
}

/// A name in lower case without `-`, `_`, spaces and what is not seen.
pub(super) fn normal(name: &str) -> String {
    name.chars().filter(|c| !(matches!(c, '-' | '_' | ' ') || is_unseen(*c))).flat_map(char::to_lowercase).collect()
}

/// Whether a character can stand in a kind.
pub(super) fn is_of_name(c: &char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// The last words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    // Of a long name the end is enough.
    let from = (name.len().saturating_sub(LONGEST_END)..name.len()).find(|at| name.is_char_boundary(*at));
    let mut words = vec![String::new()];
    let mut chars =
        name.get(from.unwrap_or_default()..).unwrap_or_default().chars().filter(|c| !is_unseen(*c)).peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let is_start = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_ascii_digit()
                || (before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase())));
        if is_start || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_found_however_they_are_spelled() {
        let names = "Authorization proxy-authorization x-api-key X-Api-Key API_KEY apiKeys openaiApiKey OPENAIAPIKEY \
            db_password passwords user_pass newPassword password2 password_confirmation password_hash token \
            github_token GITHUB_TOKEN slackBotToken access_tokens refreshToken csrf-token secret secrets \
            signing_secret clientSecret client_secret_value webhook-secret dsn SENTRY_DSN cvv cvv2 card_cvc \
            set-cookie cookies aws_secret_access_key private_key privateKeyPem ssh_keys signingKey encryption_key \
            Ocp-Apim-Subscription-Key service_role_key connectionString id_token credentials jwt \
            x-amz-security-token passphrase seed_phrase userPwd";
        for name in names.split(' ') {
            assert!(is_secret(name), "{name}");
        }
    }

    #[test]
    fn every_name_of_a_secret_has_a_root() {
        for name in LAST.split(' ').chain(ENDS.split(' ')) {
            assert!(ROOTS.iter().any(|root| name.contains(root)), "{name}");
        }
    }

    #[test]
    fn names_with_the_letters_of_a_root_are_read() {
        for name in ROOTS.into_iter().chain(["X-YEK", "pa_ss", "to\u{212a}en"]) {
            assert!(may_have_a_root(name), "{name}");
        }
        for name in "messages role content model stream temperature tool_calls arguments type id".split(' ') {
            assert!(!may_have_a_root(name), "{name}");
        }
        assert!(is_secret("to\u{212a}en"), "its letters are those of `token` in lower case");
        assert!(is_secret("pass\u{200b}word") && is_secret("db_pass\u{2060}word_2") && !is_secret("\u{200b}content"));
    }

    #[test]
    fn names_of_tokens_and_schemas_are_none() {
        let names = "content max_tokens maxTokens max_completion_tokens tokens token_ids stop_token_ids prompt_tokens \
            cached_tokens total_tokens tokenizer tokenize token_type eos_token bos_token_id pad_token \
            additional_special_tokens next_token time_to_first_token time_per_output_token next_page_token \
            pageToken tokens_per_second key keys primary_key prompt_cache_key foreign_key idempotency_key \
            public_key secretary secretariat compass pass passed bypass pin password_length password_hint \
            private_key_id author session_id signature cookbook description bytes_per_token image_token";
        for name in names.split(' ') {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn the_kind_of_a_long_name_is_bounded() {
        let name = "é".repeat(1000) + "_password";
        assert!(is_secret(&name));
        assert_eq!(&*kind(&name), "password");
        assert_eq!(kind(&("x".repeat(1000) + "_password")).len(), LONGEST_KIND);
        assert_eq!(&*kind_of_header("X-Api-Key"), "x-api-key");
    }

    #[test]
    fn parameters_are_secrets_where_they_are_long() {
        assert!(is_secret_parameter("key", "abcdefgh") && is_secret_parameter("X-Amz-Signature", "0123456789"));
        assert!(!is_secret_parameter("key", "abc") && !is_secret_parameter("q", "abcdefgh"));
    }
}
