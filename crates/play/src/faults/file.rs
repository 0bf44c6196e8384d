//! A file of faults: a YAML list of lines, or of fields.
//!
//! ```yaml
//! seed: 7
//! include: [more.yaml]
//! faults:
//! - 429:retry-after=2s where first=2
//! - {fault: reset, at: event 3, where: {model: m, rate: 0.1}}
//! ```

use std::path::{Path, PathBuf};

use ::faults::Fault;
use base::bounded_read;
use recording::yaml::{self, YamlError, YamlNode};

/// Maximum number of files that one file may include, with those that they include.
const MOST_FILES: usize = 100;

/// Maximum number of faults of one list that have a pattern of prompts, which take memory.
const MOST_PATTERNS: usize = 256;

/// Faults of a list and what it includes.
const MOST_FAULTS: usize = 10_000;

/// Faults in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct FaultLines {
    /// They.
    pub faults: Vec<Fault>,
    /// What decides about rates.
    pub seed: u64,
}

/// A file of faults that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {message}", at(*line))]
pub struct FaultFileError {
    /// The file, or what stands for it.
    pub file: String,
    /// Where, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Problem, and what to do.
    pub message: String,
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

impl FaultLines {
    /// Reads a file, and those that it includes.
    ///
    /// # Errors
    /// The first thing that is wrong, with its file and line.
    pub fn read(path: &Path) -> Result<Self, FaultFileError> {
        let mut lines = Self::default();
        FaultFileReading { lines: &mut lines, open: Vec::new(), files: 0 }.file(path, None)?;
        Ok(lines)
    }

    /// Reads the text of a file that includes none; `seed` holds where it names none.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line; `file` stands for its name.
    pub fn parse(text: &str, file: &str, seed: u64) -> Result<Self, FaultFileError> {
        let mut lines = Self { seed, ..Self::default() };
        FaultFileReading { lines: &mut lines, open: Vec::new(), files: 0 }.text(text, file, None)?;
        Ok(lines)
    }
}

/// Files on their way into one list.
struct FaultFileReading<'a> {
    lines: &'a mut FaultLines,
    /// Files that are being read, the outermost first.
    open: Vec<PathBuf>,
    files: usize,
}

impl FaultFileReading<'_> {
    /// Reads a file; `from` is where it is included.
    fn file(&mut self, path: &Path, from: Option<(&str, usize)>) -> Result<(), FaultFileError> {
        let shown = path.display().to_string();
        let wrong = |message: String| {
            let (file, line) = from.unwrap_or((&shown, 0));
            FaultFileError { file: file.to_owned(), line, message }
        };
        let cannot = |error: std::io::Error| match from {
            Some(_) => wrong(format!("cannot read {shown}: {error}")),
            None => wrong(error.to_string()),
        };
        let known = path.canonicalize().map_err(cannot)?;
        if self.open.contains(&known) {
            return Err(wrong(format!("{shown} includes itself; take this include out")));
        }
        self.files += 1;
        if self.files > MOST_FILES {
            return Err(wrong(format!("more than {MOST_FILES} files are included")));
        }
        let text = bounded_read::read_text(path).map_err(cannot)?;
        self.open.push(known);
        self.text(&text, &shown, path.parent())?;
        self.open.pop();
        Ok(())
    }

    fn text(&mut self, text: &str, file: &str, folder: Option<&Path>) -> Result<(), FaultFileError> {
        let wrong = |line, message: String| FaultFileError { file: file.to_owned(), line, message };
        let root = yaml::parse(text).map_err(|YamlError { line, message }| wrong(line, message))?;
        let Some(entries) = root.entries() else { return self.list(&root, file) };
        for entry in entries {
            match entry.key.as_str() {
                "seed" => {
                    let seed = entry.value.number();
                    self.lines.seed = seed.ok_or_else(|| wrong(entry.line, "`seed` is a whole number".to_owned()))?;
                }
                "faults" => self.list(&entry.value, file)?,
                "include" => {
                    let one = entry.value.text().map(|_| std::slice::from_ref(&entry.value));
                    let names = one.or_else(|| entry.value.items());
                    let names =
                        names.ok_or_else(|| wrong(entry.line, "`include` is a file or a list of files".to_owned()))?;
                    for name in names {
                        let (Some(folder), Some(path)) = (folder, name.text()) else {
                            return Err(wrong(name.line, "only a file can include others, by their paths".to_owned()));
                        };
                        self.file(&folder.join(path), Some((file, name.line)))?;
                    }
                }
                other => {
                    return Err(wrong(
                        entry.line,
                        format!("`{other}` is not a field of a file of faults: use seed, include and faults"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &YamlNode, file: &str) -> Result<(), FaultFileError> {
        let wrong = |line, message: String| FaultFileError { file: file.to_owned(), line, message };
        let items = list
            .items()
            .ok_or_else(|| wrong(list.line, "a list of faults is needed, such as `- 429 where rate=0.1`".to_owned()))?;
        let has_pattern = |fault: &Fault| fault.selection.prompt.is_some();
        let mut patterns = self.lines.faults.iter().filter(|fault| has_pattern(fault)).count();
        for item in items {
            if self.lines.faults.len() >= MOST_FAULTS {
                return Err(wrong(item.line, format!("more than {MOST_FAULTS} faults: use wider conditions")));
            }
            let line = line_of(item).map_err(|(line, message)| wrong(line, message))?;
            let fault = line.parse::<Fault>().map_err(|error| wrong(item.line, error.to_string()))?;
            patterns += usize::from(has_pattern(&fault));
            self.lines.faults.push(fault);
            if patterns > MOST_PATTERNS {
                let message = format!("more than {MOST_PATTERNS} faults have a `prompt`: join patterns by `|`");
                return Err(wrong(item.line, message));
            }
        }
        Ok(())
    }
}

/// The line that an item of the list stands for.
fn line_of(item: &YamlNode) -> Result<String, (usize, String)> {
    let scalar = |node: &YamlNode| {
        let value = node.value();
        let text = node.text().map(str::to_owned);
        text.or_else(|| (value.is_number() || value.is_boolean()).then(|| value.to_string()))
            .ok_or_else(|| (node.line, "a text or a number is needed".to_owned()))
    };
    let Some(entries) = item.entries() else { return scalar(item) };
    let (mut fault, mut at, mut conditions) = (None, String::new(), String::new());
    for entry in entries {
        match entry.key.as_str() {
            "fault" => fault = Some(scalar(&entry.value)?),
            "at" => at = format!(" at {}", scalar(&entry.value)?),
            "where" => {
                let fields = entry.value.entries().filter(|fields| !fields.is_empty());
                let fields =
                    fields.ok_or_else(|| (entry.line, "`where` has conditions, such as {rate: 0.1}".to_owned()))?;
                conditions.push_str(" where");
                for field in fields {
                    let value = scalar(&field.value)?.replace('\\', "\\\\").replace('"', "\\\"");
                    conditions.push_str(&format!(" {}=\"{value}\"", field.key));
                }
            }
            other => return Err((entry.line, format!("`{other}` is not a field of a fault: use fault, at and where"))),
        }
    }
    let fault = fault.ok_or_else(|| (item.line, "the fault has no `fault`, its kind".to_owned()))?;
    Ok(format!("{fault}{at}{conditions}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_fields_are_the_same() {
        let text = "\
seed: 7
faults:
- 429:retry-after=2s where first=2
- {fault: reset, at: event 3, where: {model: a model, rate: 0.1, 'header:x-a': b}}
- 503
";
        let lines = FaultLines::parse(text, "f.yaml", 0).unwrap();
        let written: Vec<String> = lines.faults.iter().map(ToString::to_string).collect();
        let second = "reset at event 3 where rate=0.1 model=\"a model\" header:x-a=b";
        assert_eq!(
            (lines.seed, written),
            (7, vec!["429:retry-after=2s where first=2".into(), second.into(), "503".into()])
        );
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, line, part) in [
            ("faults:\n- 429\n- explode\n", 3, "`explode` is no kind"),
            ("speed: 2\n", 1, "`speed` is not a field of a file"),
            ("faults:\n- {fault: 429, when: now}\n", 2, "`when` is not a field of a fault"),
            ("faults: 429\n", 1, "a list of faults"),
            ("include: other.yaml\n", 1, "only a file can include"),
            ("faults:\n- {at: event 3}\n", 2, "no `fault`"),
        ] {
            let error = FaultLines::parse(text, "f.yaml", 0).unwrap_err();
            assert!(error.line == line && error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn includes_are_read_and_circles_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.yaml", "include: b.yaml\nfaults: [429]\n");
        write("b.yaml", "faults: [503]\n");
        let lines = FaultLines::read(&folder.path().join("a.yaml")).unwrap();
        assert_eq!(lines.faults.iter().map(ToString::to_string).collect::<Vec<_>>(), ["503", "429"]);
        write("b.yaml", "faults: [503]\ninclude: a.yaml\n");
        let error = FaultLines::read(&folder.path().join("a.yaml")).unwrap_err();
        assert!(
            error.line == 2 && error.file.ends_with("b.yaml") && error.message.contains("includes itself"),
            "{error}"
        );
        let error = FaultLines::read(&folder.path().join("none.yaml")).unwrap_err().to_string();
        assert!(error.contains("none.yaml: No such file"), "{error}");
    }
}
