//! The server's own chat template, from a file or from the command line itself.

use std::path::Path;

use crate::{
    base::bounded_read,
    play::PlayError,
    text::prompt::{ChatTemplate, PromptError, Tokenizer},
};

/// Compiles the value of `--chat-template`: the file of that name, or else the template itself, which differs from the name
/// of a missing file by a brace or a line feed in it.
///
/// # Errors
/// A file that is not there or cannot be read, or a template that does not compile.
pub(in crate::play) fn load(given: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, PlayError> {
    let path = Path::new(given);
    let is_inline = given.contains(['{', '}', '\n']) && !path.is_file();
    let source = if is_inline {
        given.to_owned()
    } else {
        let unreadable = |source| PromptError::Unreadable { path: path.to_owned(), source };
        bounded_read::read_text(path).map_err(unreadable)?
    };
    Ok(tokenizer.other_chat_template(&source)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::play::Player;

    #[test]
    fn a_file_wins_over_its_name_and_a_missing_one_is_named() {
        let tokenizer = Player::builtin_tokenizer().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("{chat}.jinja");
        std::fs::write(&path, "{{ messages[0].content }}").unwrap();
        assert!(load(&path.display().to_string(), &tokenizer).is_ok());
        assert!(load("{{ messages[0].content }}", &tokenizer).is_ok());
        assert!(load("{% for", &tokenizer).unwrap_err().to_string().contains("does not compile"));
        assert!(load("no/such.jinja", &tokenizer).unwrap_err().to_string().contains("no/such.jinja"));
    }
}
