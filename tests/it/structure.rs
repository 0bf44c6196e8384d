//! Names and imports in the whole workspace: a type's name stands for one thing, and files of a crate do not import each other in
//! large circles.
//!
//! Limits: an import through a macro is not seen, nor is what a glob brings in; a name that a file re-exports counts as an import of
//! the file that defines it, so that `pub use` makes no circle.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use crate::support::tree;

/// Most files that may import each other in a circle.
const LARGEST_CIRCLE: usize = 5;

#[test]
fn a_type_name_means_one_thing() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in production_files() {
        for (line, name) in type_names(&production(&tree::read(&path))) {
            places.entry(name).or_default().push(format!("{}:{line}", path.display()));
        }
    }
    places.retain(|_, places| places.len() > 1);
    let found: Vec<String> = places.iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn circles_of_imports_are_small() {
    let circles = circles(&imports());
    let large = circles.iter().filter(|files| files.len() > LARGEST_CIRCLE);
    let found: Vec<String> =
        large.map(|files| format!("{} files import each other: {files:#?}", files.len())).collect();
    assert!(found.is_empty(), "circles of more than {LARGEST_CIRCLE} files:\n{}", found.join("\n"));
}

#[test]
fn names_of_types_are_found() {
    let source = "pub(crate) struct A;\nenum B<T> {}\n    pub trait C {\n    type Item;\ntype D = u8;\n// struct E;\nlet enumerated = 1;";
    let names: Vec<(usize, String)> =
        [(1, "A"), (2, "B"), (3, "C"), (5, "D")].map(|(at, name)| (at, name.to_owned())).into();
    assert_eq!(type_names(&production(source)), names);
    assert_eq!(
        type_names(&production("struct A;\n#[cfg(test)]\nmod tests {\n    struct B;\n}")),
        [(1, "A".to_owned())]
    );
}

#[test]
fn paths_of_imports_are_found() {
    let source = "use super::{a::{self, B}, c::D as E};\npub use crate::f::*;\npub(in crate::m) fn g() { h::i(\"crate::j\", crate::k::l) }";
    let found: Vec<(String, String)> =
        paths(source).into_iter().map(|found| (found.name, found.segments.join("::"))).collect();
    let expected = [
        ("a", "super::a"),
        ("B", "super::a::B"),
        ("E", "super::c::D"),
        ("*", "crate::f::*"),
        ("i", "h::i"),
        ("l", "crate::k::l"),
    ];
    assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
}

#[test]
fn a_circle_is_found() {
    let edge = |from: &str, to: &[&str]| (PathBuf::from(from), to.iter().map(PathBuf::from).collect());
    let imports = BTreeMap::from([edge("a", &["b", "d"]), edge("b", &["c"]), edge("c", &["a"]), edge("d", &[])]);
    assert_eq!(circles(&imports), [BTreeSet::from(["a", "b", "c"].map(PathBuf::from))]);
}

/// Files of the workspace without those that only tests have.
fn production_files() -> Vec<PathBuf> {
    let files: Vec<PathBuf> = ["src", "crates"].iter().flat_map(|folder| tree::files(folder, "rs")).collect();
    let tests: BTreeSet<PathBuf> = files.iter().flat_map(|path| test_modules(path)).collect();
    files.into_iter().filter(|path| !path.ancestors().any(|it| tests.contains(it))).collect()
}

/// Files and folders of the modules that a file has only in tests.
fn test_modules(path: &Path) -> Vec<PathBuf> {
    let folder = folder_of_children(path);
    let source = tree::read(path);
    let mut is_test = false;
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        let module = line.strip_suffix(';').and_then(|line| line.split("mod ").nth(1));
        if let Some(name) = module.filter(|_| is_test) {
            found.extend([folder.join(name), folder.join(format!("{name}.rs"))]);
        }
        is_test = line == "#[cfg(test)]" || is_test && line.starts_with("#[");
    }
    found
}

/// The text up to its tests, without comments and strings, line by line.
fn production(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    source.lines().map(|line| format!("{}\n", without_strings(line))).collect()
}

fn without_strings(line: &str) -> String {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').step_by(2).collect::<Vec<_>>().join("\"")
}

/// Lines, from 1, that define a type, and its name. An indented `type` is one of a trait.
fn type_names(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().skip_while(|word| word.starts_with("pub")).collect();
        let words = words
            .iter()
            .position(|word| word.ends_with(')'))
            .filter(|_| line.trim().starts_with("pub(in"))
            .map_or(words.as_slice(), |end| &words[end + 1..]);
        if let [keyword @ ("struct" | "enum" | "trait" | "union" | "type"), name, ..] = words {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_associated = *keyword == "type" && line.starts_with(' ');
            found.extend((name.starts_with(char::is_uppercase) && !is_associated).then_some((number + 1, name)));
        }
    }
    found
}

/// A path in a file: of a `use`, or in the code.
struct UsedPath {
    /// The name by which the file knows it.
    name: String,
    segments: Vec<String>,
    is_import: bool,
    is_public: bool,
}

/// Every path of more than one segment.
fn paths(source: &str) -> Vec<UsedPath> {
    let tokens = tokens(source);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token == "use" {
            let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
            at = import(&tokens, at + 1, &[], is_public, &mut found);
        } else if is_name(token) && tokens.get(at + 1).is_some_and(|next| next == "::") {
            let mut segments = vec![token.clone()];
            at += 1;
            while tokens.get(at).is_some_and(|it| it == "::") && tokens.get(at + 1).is_some_and(|it| is_name(it)) {
                segments.push(tokens[at + 1].clone());
                at += 2;
            }
            let begin = at + 1 - 2 * segments.len();
            let is_visibility = begin >= 2 && tokens[begin - 2..begin] == ["(", "in"];
            let name = segments.last().cloned().unwrap_or_default();
            found.extend((!is_visibility).then_some(UsedPath { name, segments, is_import: false, is_public: false }));
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one tree of a `use`; returns the place behind it.
fn import(tokens: &[String], mut at: usize, before: &[String], is_public: bool, found: &mut Vec<UsedPath>) -> usize {
    let mut segments = before.to_vec();
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.as_str() {
            "::" => {}
            "{" => {
                while tokens.get(at).is_some_and(|it| it != "}") {
                    at = import(tokens, at, &segments, is_public, found);
                    at += usize::from(tokens.get(at).is_some_and(|it| it == ","));
                }
                return at + 1;
            }
            "as" => {
                let name = tokens[at].clone();
                found.push(UsedPath { name, segments, is_import: true, is_public });
                return at + 1;
            }
            name if is_name(name) || name == "*" => {
                if name != "self" || segments.is_empty() {
                    segments.push(name.to_owned());
                }
            }
            _ => {
                at -= 1;
                break;
            }
        }
    }
    let name = segments.last().cloned().unwrap_or_default();
    found.push(UsedPath { name, segments, is_import: true, is_public });
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_') && token != "as"
}

/// Names, `::`, and every other character by itself.
fn tokens(source: &str) -> Vec<String> {
    let source = production(source);
    let mut found: Vec<String> = Vec::new();
    let mut is_in_name = false;
    for c in source.chars() {
        let is_part = c.is_alphanumeric() || c == '_';
        match found.last_mut() {
            Some(last) if is_part && is_in_name => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ => found.extend((!c.is_whitespace()).then(|| c.to_string())),
        }
        is_in_name = is_part;
    }
    found
}

/// The files of the workspace by their modules: the crate's name, then the modules' names.
struct Modules {
    files: BTreeMap<Vec<String>, PathBuf>,
    paths: HashMap<Vec<String>, Vec<UsedPath>>,
}

impl Modules {
    fn of_workspace() -> Self {
        let files = production_files().into_iter().filter(|path| !path.ends_with("src/main.rs"));
        let files: BTreeMap<Vec<String>, PathBuf> = files.map(|path| (module_of(&path), path)).collect();
        let paths = files.iter().map(|(module, path)| (module.clone(), paths(&tree::read(path)))).collect();
        Self { files, paths }
    }

    /// The file that defines what a path within the crate names; `None` where that is in no file of it.
    fn file_of(&self, module: &[String], segments: &[String], depth: usize) -> Option<&PathBuf> {
        let (first, rest) = segments.split_first()?;
        let mut at = match first.as_str() {
            "crate" => module[..1].to_vec(),
            "self" => module.to_vec(),
            "super" => module[..module.len() - 1].to_vec(),
            child => [module, &[child.to_owned()]].concat(),
        };
        if !self.files.contains_key(&at) {
            return None;
        }
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                at.pop();
                continue;
            }
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.files.contains_key(&child) {
                at = child;
                continue;
            }
            let mut imports = self.paths[&at].iter().filter(|path| path.is_import);
            return match imports.find(|path| path.name == *name && depth > 0) {
                Some(import) => {
                    let segments = [import.segments.as_slice(), &rest[index + 1..]].concat();
                    self.file_of(&at, &segments, depth - 1)
                }
                None => self.files.get(&at),
            };
        }
        self.files.get(&at)
    }
}

/// The files that each file imports from; what it imports only to pass it on does not count.
fn imports() -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let modules = Modules::of_workspace();
    let mut found = BTreeMap::new();
    for (module, file) in &modules.files {
        let used = modules.paths[module].iter().filter(|path| !path.is_public);
        let from: BTreeSet<PathBuf> = used
            .filter_map(|path| modules.file_of(module, &path.segments, 9))
            .filter(|from| *from != file)
            .cloned()
            .collect();
        found.insert(file.clone(), from);
    }
    found
}

/// A file's module: `crates/net/src/wire/sse.rs` is `net`, `wire`, `sse`.
fn module_of(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names[0] == "crates" {
        names.remove(0);
        names.remove(1);
    }
    names.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
    names
}

/// The folder of the modules below a file.
fn folder_of_children(path: &Path) -> PathBuf {
    let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| path.ends_with(name));
    if is_root { path.parent().unwrap().to_owned() } else { path.with_extension("") }
}

/// Files that reach each other, in sets of more than one.
fn circles(imports: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        imports.keys().map(|file| (file, reach(imports, file))).collect();
    let circle_of = |file: &PathBuf| -> BTreeSet<PathBuf> {
        reached[file].iter().filter(|other| reached[*other].contains(file)).map(|other| (*other).clone()).collect()
    };
    let circles: BTreeSet<BTreeSet<PathBuf>> = imports.keys().map(circle_of).collect();
    circles.into_iter().filter(|files| files.len() > 1).collect()
}

/// The files that a file imports, directly or through others.
fn reach<'f>(imports: &'f BTreeMap<PathBuf, BTreeSet<PathBuf>>, file: &PathBuf) -> BTreeSet<&'f PathBuf> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<&PathBuf> = imports[file].iter().collect();
    while let Some(next) = pending.pop() {
        if found.insert(next) {
            pending.extend(&imports[next]);
        }
    }
    found
}
