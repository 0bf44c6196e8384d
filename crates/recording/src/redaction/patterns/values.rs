//! What else has to be so of values than the expression that finds them.

use super::MatchedText;
use crate::redaction::names;

/// Whether it is no word of a language.
pub(super) fn is_encoded(found: &MatchedText<'_>) -> bool {
    found.text.contains(|c: char| c.is_ascii_uppercase())
        && found.text.contains(|c: char| c.is_ascii_digit() || c == '=')
}

/// Whether it has digits, which names of places and things seldom have.
pub(super) fn has_digits(found: &MatchedText<'_>) -> bool {
    found.text.bytes().filter(u8::is_ascii_digit).count() >= 4
}

/// Whether it has letters of both cases and digits.
pub(super) fn is_mixed(found: &MatchedText<'_>) -> bool {
    is_encoded(found) && found.text.contains(|c: char| c.is_ascii_lowercase())
}

/// Whether a value after a secret's name is more than a word, a variable or a mask.
pub(super) fn is_credible(found: &MatchedText<'_>) -> bool {
    let has = |is: fn(char) -> bool| found.text.contains(is);
    let is_mixed = has(|c| c.is_ascii_digit()) && has(|c| c.is_alphabetic());
    let is_odd = has(|c| "!@#^&*+~".contains(c)) && has(char::is_alphanumeric);
    found.text.len() >= 6 && !found.text.starts_with(['$', '<', '%', '{', '*', '(']) && (is_mixed || is_odd)
}

/// Whether a value after a secret's name is no code that reads one (`$API_KEY`, `os.environ[…]`, `getpass()`, `self.password`), and no
/// `<name>` to fill in.
pub(super) fn is_no_code(found: &MatchedText<'_>) -> bool {
    if let Some(variable) = found.text.strip_prefix('$') {
        let name = variable.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(variable);
        let is_constant = name.contains('_') && !name.contains(|c: char| c.is_ascii_lowercase());
        return !(is_identifier(name) && (is_constant || names::is_secret(name)));
    }
    if let Some(name) = found.text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
        return name.contains(|c: char| !(c.is_ascii_alphabetic() || matches!(c, '-' | '_')));
    }
    let path = found.text.split(['(', ')', ':']).next().unwrap_or_default();
    let rest = found.text.get(path.len()..).unwrap_or_default();
    let is_end = |rest: &str| rest.bytes().all(|byte| matches!(byte, b')' | b']' | b':'));
    let is_called =
        rest.strip_prefix("()").is_some_and(is_end) || (rest == "(" && found.after.starts_with(['"', '\'']));
    let is_field = path.contains('.');
    let is_read = is_field
        && is_end(rest)
        && (found.after.starts_with('[') || path.rsplit('.').next().is_some_and(names::is_secret));
    let is_code = is_read || (is_called && (is_field || !path.contains(|c: char| c.is_ascii_digit())));
    !(is_code && path.split('.').all(is_identifier))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether it has many letters and digits in a row with several of each, as names of models, versions and times do not.
pub(super) fn is_random(found: &MatchedText<'_>) -> bool {
    found.text.split(|c: char| !c.is_ascii_alphanumeric()).any(|run| {
        let digits = run.bytes().filter(u8::is_ascii_digit).count();
        run.len() >= 16 && digits >= 3 && run.len() - digits >= 3
    })
}

/// Whether what stands between a user and a host in a URL is more than a port with a path.
pub(super) fn is_no_port(found: &MatchedText<'_>) -> bool {
    let (before, _) = found.text.split_once('/').unwrap_or((found.text, ""));
    !before.bytes().all(|byte| byte.is_ascii_digit())
}
