//! Values of placeholders that the user supplies: in a file, or in variables of the environment.
//!
//! A file has a line for each value, `email:1 = jane@example.org`, or `agent.yaml#3 email:1 = …` for one record. A value in quotes is a
//! string of JSON. Empty lines and those that begin with `#` have no effect. The variable of `email:1` is `VLLM_VCR_SECRET_EMAIL_1`.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::held::{kinds, placeholders};
use recording::{
    cassette::Cassette,
    redaction::{NoPlaceholder, Placeholder, RedactionRules},
};

/// Where the names of variables begin.
const VARIABLE: &str = "VLLM_VCR_SECRET_";

/// A line that cannot be used. It is not repeated: it may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {why}", path.display())]
pub struct SuppliedSecretsError {
    path: PathBuf,
    line: usize,
    why: String,
}

/// A record of a cassette, where a value is for that one only: the file's name and the record's id.
type OneRecord = Option<(String, u64)>;

/// Values of placeholders. They are secrets: none is shown by `{:?}`.
#[derive(Clone, Default)]
pub struct SuppliedSecrets {
    path: PathBuf,
    /// Each value of the file, with its line.
    of_file: HashMap<(OneRecord, Placeholder), (usize, Arc<str>)>,
    of_variables: HashMap<String, Arc<str>>,
}

impl fmt::Debug for SuppliedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuppliedSecrets({} + {})", self.of_file.len(), self.of_variables.len())
    }
}

impl SuppliedSecrets {
    /// Reads the text of a file; `path` is its name in errors.
    ///
    /// # Errors
    /// For the first line that cannot be used.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SuppliedSecretsError> {
        let mut of_file = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let line_of = at + 1;
            let wrong = |why: String| SuppliedSecretsError { path: path.to_owned(), line: line_of, why };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = entry(line).map_err(wrong)?;
            if let Some((earlier, _)) = of_file.insert(name, (line_of, value)) {
                return Err(wrong(format!("line {earlier} has a value of this placeholder too")));
            }
        }
        Ok(Self { path: path.to_owned(), of_file, of_variables: HashMap::new() })
    }

    /// The same, with the variables of an environment that are named after placeholders; others have no effect.
    #[must_use]
    pub fn with_variables(mut self, variables: impl Iterator<Item = (String, String)>) -> Self {
        let named = variables.filter(|(name, value)| name.starts_with(VARIABLE) && !value.is_empty());
        self.of_variables = named.map(|(name, value)| (name, value.into())).collect();
        self
    }

    /// The variable that would be named after the first placeholder of a kind: a variable that is redacted itself is one of a kind.
    #[must_use]
    pub fn variable_of(kind: &str) -> String {
        format!("{}1", prefix(kind))
    }

    /// The value of a placeholder of a record: the one for that record, else the one for any, else a variable's.
    pub(super) fn value(&self, cassette: &Path, record: u64, placeholder: &Placeholder) -> Option<Box<str>> {
        if self.of_file.is_empty() && self.of_variables.is_empty() {
            return None;
        }
        let here = self.of_file.get(&(Some((file_name(cassette), record)), placeholder.clone()));
        let any = here.or_else(|| self.of_file.get(&(None, placeholder.clone()))).map(|(_, value)| value);
        any.or_else(|| self.of_variables.get(&variable(placeholder))).map(|value| Box::from(&**value))
    }

    /// Warnings of the lines whose placeholders none of these cassettes has, or not in the record that the line names. Lines for
    /// records of other files are left out.
    #[must_use]
    pub fn unmatched(&self, cassettes: &[Cassette]) -> Vec<String> {
        if self.of_file.is_empty() {
            return Vec::new();
        }
        let mut known: BTreeSet<(OneRecord, Placeholder)> = BTreeSet::new();
        let name = |cassette: &Cassette| file_name(&cassette.path);
        for cassette in cassettes {
            for (record, placeholder) in placeholders(cassette) {
                known.insert((Some((name(cassette), record)), placeholder.clone()));
                known.insert((None, placeholder));
            }
        }
        let is_of_others = |named: &OneRecord| {
            named.as_ref().is_some_and(|(file, _)| !cassettes.iter().any(|cassette| name(cassette) == *file))
        };
        let unmatched = self.of_file.iter().filter(|(entry, _)| !known.contains(entry) && !is_of_others(&entry.0));
        let mut unmatched: Vec<(usize, bool)> =
            unmatched.map(|(entry, (line, _))| (*line, entry.0.is_some())).collect();
        unmatched.sort_unstable();
        let warning = |(line, is_named): (usize, bool)| {
            let which = if is_named { "that record does not have" } else { "no record has" };
            format!(
                "--secrets {}:{line}: {which} this placeholder, so that its value is put nowhere",
                self.path.display()
            )
        };
        unmatched.into_iter().map(warning).collect()
    }

    /// The rules, by which these values are secrets too, of the kinds that their placeholders have. Values that are too short to be
    /// looked for are left out.
    #[must_use]
    pub fn rules(&self, mut rules: RedactionRules, cassette: &Cassette) -> RedactionRules {
        let kinds = &kinds(cassette);
        let mut literals: BTreeSet<(Arc<str>, Arc<str>)> = BTreeSet::new();
        for ((_, placeholder), (_, value)) in &self.of_file {
            literals.insert((Arc::clone(&placeholder.kind), Arc::clone(value)));
        }
        for kind in kinds {
            let prefix = prefix(kind);
            let of_kind = self.of_variables.iter().filter(|(name, _)| {
                let number = name.strip_prefix(&prefix).unwrap_or_default();
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            });
            literals.extend(of_kind.map(|(_, value)| (Arc::clone(kind), Arc::clone(value))));
        }
        for (kind, value) in literals {
            rules = rules.clone().supplied(&kind, &value).unwrap_or(rules);
        }
        rules
    }
}

fn file_name(cassette: &Path) -> String {
    cassette.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a line: a name, `=` and a value.
fn entry(line: &str) -> Result<((OneRecord, Placeholder), Arc<str>), String> {
    let (name, value) =
        line.split_once('=').ok_or("this is no `PLACEHOLDER = VALUE`, such as `email:1 = jane@example.org`")?;
    let (name, value) = (name.trim(), value.trim());
    let (record, placeholder) = match name.rsplit_once(char::is_whitespace) {
        Some((record, placeholder)) => (Some(one_record(record.trim())?), placeholder),
        None => (None, name),
    };
    let placeholder = placeholder.parse().map_err(|error: NoPlaceholder| error.to_string())?;
    let value = match value.strip_prefix('"') {
        Some(_) => {
            serde_json::from_str(value).map_err(|_| "a value that begins with a quote has to be a string of JSON")?
        }
        None => value.to_owned(),
    };
    if value.is_empty() {
        return Err("there is no value after `=`".to_owned());
    }
    Ok(((record, placeholder), value.into()))
}

/// Reads `agent.yaml#3`.
fn one_record(text: &str) -> Result<(String, u64), String> {
    let record = text.rsplit_once('#').and_then(|(file, id)| Some((file.to_owned(), id.parse().ok()?)));
    record.ok_or_else(|| "before the placeholder a record can be named, as `agent.yaml#3 email:1 = …`".to_owned())
}

pub(super) fn variable(placeholder: &Placeholder) -> String {
    format!("{}{}", prefix(&placeholder.kind), placeholder.number)
}

fn prefix(kind: &str) -> String {
    let upper = kind.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("{VARIABLE}{}_", upper.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SuppliedSecrets, String> {
        SuppliedSecrets::parse(Path::new("values.txt"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_most_specific_value_counts() {
        let text = "# mine\n\nemail:1 = jane@example.org\nagent.yaml#3 [REDACTED:email:1]=\"bob\\n\"\n";
        let variables = [("VLLM_VCR_SECRET_X_API_KEY_2", "abcd=e"), ("VLLM_VCR_SECRET_EMAIL_1", "no"), ("HOME", "x")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let supplied = parse(text).unwrap().with_variables(variables.into_iter());
        let value = |record, name: &str| supplied.value(Path::new("a/agent.yaml"), record, &name.parse().unwrap());
        assert_eq!(value(3, "email:1").as_deref(), Some("bob\n"));
        assert_eq!(value(4, "email:1").as_deref(), Some("jane@example.org"));
        assert_eq!(value(4, "x-api-key:2").as_deref(), Some("abcd=e"));
        assert_eq!(value(4, "email:2"), None);
        assert_eq!(format!("{supplied:?}"), "SuppliedSecrets(2 + 2)");
    }

    #[test]
    fn a_bad_line_is_named_and_not_repeated() {
        for (text, line, why) in [
            ("email:1 = a\nhunter2secret", 2, "this is no `PLACEHOLDER = VALUE`"),
            ("hunter2secret = x", 1, "this is no placeholder"),
            ("\n\nagent.yaml email:1 = hunter2secret", 3, "a record can be named"),
            ("email:1 = \"hunter2secret", 1, "a string of JSON"),
            ("email:1 =", 1, "no value"),
            ("email:1 = hunter2secret\n[REDACTED:email:1] = x", 2, "line 1 has a value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("values.txt:{line}: ")) && error.contains(why), "{error}");
            assert!(!error.contains("hunter2secret"), "{error}");
        }
    }
}
