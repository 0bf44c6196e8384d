//! Grammars in EBNF's notation (`root ::= "a" | [0-9]+`, as llama.cpp writes them), rewritten in Lark's.
//!
//! Limits: no lookahead, no macros, no more than [`DEEPEST`] parentheses inside of one another.

use std::collections::{BTreeMap, BTreeSet};

use super::grammar::literal;
use text::python::repr;

/// Maximum depth of parentheses. Lark's reader stops earlier, with a message of its own.
const DEEPEST: usize = 64;

/// Error of a grammar, in the words of the engine's reader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EbnfError {
    #[error("{0} at {1}")]
    At(String, String),
    #[error("Rule '{0}' not found")]
    NoRule(String),
    #[error("No 'root' rule found")]
    NoRoot,
}

/// The same grammar in Lark's notation.
pub(super) fn lark(text: &str) -> Result<String, EbnfError> {
    let LarkRules { start, lines, .. } = rules(text, "r_")?;
    Ok(format!("start: {start}\n{}\n", lines.join("\n")))
}

/// A grammar's rules in Lark's notation.
#[derive(Debug)]
pub(super) struct LarkRules {
    /// The name of the first.
    pub(super) start: String,
    /// Each on a line of its own.
    pub(super) lines: Vec<String>,
    /// Whether an alternative outside of parentheses has nothing in it.
    pub(super) has_empty: bool,
}

/// The rules of a grammar, with names that begin so.
pub(super) fn rules(text: &str, prefix: &str) -> Result<LarkRules, EbnfError> {
    let mut reader =
        EbnfReader { prefix, text: text.chars().collect(), at: 0, depth: 0, used: BTreeSet::new(), has_empty: false };
    let mut rules: BTreeMap<String, String> = BTreeMap::new();
    reader.skip_space(true);
    while reader.peek().is_some() {
        let (name, body) = reader.rule()?;
        rules.insert(name, body);
        reader.skip_space(true);
    }
    if let Some(name) = reader.used.iter().find(|name| !rules.contains_key(*name)) {
        return Err(EbnfError::NoRule(name.clone()));
    }
    if !rules.contains_key("root") {
        return Err(EbnfError::NoRoot);
    }
    let lines = rules.iter().map(|(name, body)| format!("{}: {body}", lark_name(prefix, name))).collect();
    Ok(LarkRules { start: lark_name(prefix, "root"), lines, has_empty: reader.has_empty })
}

/// A name that Lark takes for a rule, whatever its letters.
fn lark_name(prefix: &str, name: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() { c.to_string() } else { format!("_{:x}_", u32::from(c)) }
    };
    format!("{prefix}{}", name.chars().map(letter).collect::<String>())
}

struct EbnfReader<'a> {
    /// Prefix of the names of rules.
    prefix: &'a str,
    text: Vec<char>,
    at: usize,
    /// Open parentheses.
    depth: usize,
    used: BTreeSet<String>,
    has_empty: bool,
}

impl EbnfReader<'_> {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn fail<T>(&self, what: &str) -> Result<T, EbnfError> {
        let line = 1 + self.text.iter().take(self.at).filter(|c| **c == '\n').count();
        let part = |from: usize, to: usize| -> String {
            self.text.get(from..to.min(self.text.len())).unwrap_or_default().iter().collect()
        };
        let (before, after) = (part(self.at.saturating_sub(20), self.at), part(self.at, self.at + 20));
        Err(EbnfError::At(what.to_owned(), format!("line {line}, {} ^ {}", repr(&before), repr(&after))))
    }

    /// Skips white space and comments; line ends too, or only within parentheses, where no rule ends.
    fn skip_space(&mut self, crosses_lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if crosses_lines || self.depth > 0 => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\r' && c != '\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<String, EbnfError> {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        if start == self.at {
            self.fail("Expected name")
        } else {
            Ok(self.text.get(start..self.at).unwrap_or_default().iter().collect())
        }
    }

    fn rule(&mut self) -> Result<(String, String), EbnfError> {
        let name = self.name()?;
        self.skip_space(false);
        if self.text.get(self.at..self.at + 3) != Some(&[':', ':', '=']) {
            return self.fail("Expected ::=");
        }
        self.at += 3;
        self.skip_space(true);
        let body = self.alternatives()?;
        Ok((name, body))
    }

    fn alternatives(&mut self) -> Result<String, EbnfError> {
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(self.sequence()?);
            self.skip_space(false);
            if !self.eat('|') {
                return Ok(alternatives.join(" | "));
            }
            self.skip_space(true);
        }
    }

    fn sequence(&mut self) -> Result<String, EbnfError> {
        let mut parts = Vec::new();
        while let Some(c) = self.peek() {
            let part = match c {
                '"' => self.text_literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    "/./".to_owned()
                }
                '(' => {
                    self.at += 1;
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        return self.fail("Too many nested parentheses");
                    }
                    self.skip_space(true);
                    let inner = self.alternatives()?;
                    self.depth -= 1;
                    if !self.eat(')') {
                        return self.fail("Expected ')'");
                    }
                    format!("({inner})")
                }
                c if is_word(c) => {
                    let name = self.name()?;
                    let written = lark_name(self.prefix, &name);
                    self.used.insert(name);
                    written
                }
                _ => break,
            };
            self.skip_space(false);
            parts.push(format!("{part}{}", self.repetition()?));
            self.skip_space(false);
        }
        self.has_empty |= parts.is_empty() && self.depth == 0;
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    fn repetition(&mut self) -> Result<String, EbnfError> {
        match self.peek() {
            Some(sign @ ('*' | '+' | '?')) => {
                self.at += 1;
                Ok(sign.to_string())
            }
            Some('{') => {
                let start = self.at;
                while self.peek().is_some_and(|c| c != '}') {
                    self.at += 1;
                }
                if !self.eat('}') {
                    return self.fail("Expected '}'");
                }
                Ok(self.text.get(start..self.at).unwrap_or_default().iter().filter(|c| !c.is_whitespace()).collect())
            }
            _ => Ok(String::new()),
        }
    }

    fn text_literal(&mut self) -> Result<String, EbnfError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return self.fail("Unexpected end of input"),
                Some('"') => {
                    self.at += 1;
                    return Ok(literal(&text));
                }
                Some('\\') => text.push(self.escape()?),
                Some(c) => {
                    self.at += 1;
                    text.push(c);
                }
            }
        }
    }

    /// A set of characters, as a regular expression.
    fn class(&mut self) -> Result<String, EbnfError> {
        self.at += 1;
        let mut out = if self.eat('^') { "/[^".to_owned() } else { "/[".to_owned() };
        loop {
            match self.peek() {
                None => return self.fail("Unexpected end of input"),
                Some(']') => {
                    self.at += 1;
                    out.push_str("]/");
                    return Ok(out);
                }
                Some('\\') => {
                    let c = self.escape()?;
                    out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
                }
                Some('-') => {
                    self.at += 1;
                    out.push_str(if self.peek() == Some(']') || out.ends_with(['[', '^']) { "\\-" } else { "-" });
                }
                Some(c) => {
                    self.at += 1;
                    let is_plain = c.is_alphanumeric() || c == ' ';
                    out.push_str(&if is_plain { c.to_string() } else { format!("\\u{{{:x}}}", u32::from(c)) });
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, EbnfError> {
        self.at += 1;
        let Some(c) = self.peek() else { return self.fail("Incomplete escape sequence") };
        self.at += 1;
        let digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c if c.is_ascii_punctuation() => return Ok(c),
            c => {
                self.at -= 1;
                return self.fail(&format!("Invalid escape sequence \\{c}"));
            }
        };
        let hex: String = self.text.iter().skip(self.at).take(digits).collect();
        let read = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32).filter(|_| hex.len() == digits);
        match read {
            Some(read) => {
                self.at += digits;
                Ok(read)
            }
            None => self.fail(&format!("Invalid \\{c} escape sequence: \\{c}{hex}")),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_errors_have_the_engines_words() {
        for (text, message) in [
            ("nonsense", "Expected ::= at line 1, 'nonsense' ^ ''"),
            ("root ::= foo", "Rule 'foo' not found"),
            (r#"root ::= "a"#, r#"Unexpected end of input at line 1, 'root ::= "a' ^ ''"#),
            (r#"root ::= ("a""#, r#"Expected ')' at line 1, 'root ::= ("a"' ^ ''"#),
            (r#"root ::= "a" }"#, r#"Expected name at line 1, 'root ::= "a" ' ^ '}'"#),
            (r#"a: "x""#, r#"Expected ::= at line 1, 'a' ^ ': "x"'"#),
        ] {
            assert_eq!(lark(text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
