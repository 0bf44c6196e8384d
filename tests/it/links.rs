//! Every link in the docs and the README leads somewhere, and the book's table of contents lists every page.

use std::path::{Path, PathBuf};

use crate::support::tree;

#[test]
fn every_link_resolves() {
    let mut pages = tree::files("docs/src", "md");
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from));
    pages.extend(tree::files("docs/decisions", "md"));
    pages.extend(["docs/src/llms.txt", "packages/skill/SKILL.md", "packages/action/README.md"].map(PathBuf::from));
    pages.extend(Some(PathBuf::from("traces/README.md")).filter(|page| tree::root().join(page).exists()));
    let broken: Vec<String> = pages.iter().flat_map(|page| broken_links(page, &tree::read(page))).collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut listed: Vec<PathBuf> =
        links(&tree::read("docs/src/SUMMARY.md")).into_iter().map(|link| Path::new("docs/src").join(link)).collect();
    listed.push("docs/src/SUMMARY.md".into());
    listed.sort();
    assert_eq!(listed, tree::files("docs/src", "md"));
}

fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let local = links(text).into_iter().filter(|link| !link.starts_with("http"));
    let broken = local.filter(|link| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        let exists = tree::root().join(&target).exists();
        !exists || !(anchor.is_empty() || anchors(&tree::read(&target)).contains(&anchor.to_owned()))
    });
    broken.map(|link| format!("{}: {link} leads nowhere", page.display())).collect()
}

/// The targets of `[text](target)`, those in code left out.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

fn prose(text: &str) -> String {
    let outside_fences = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    outside_fences.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// The anchors that headings make.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn the_checker_sees_broken_links() {
    let page = Path::new("README.md");
    assert_eq!(broken_links(page, "[a](nowhere.md) [b](#no-such) `[c](x)`\n```\n[d](y)\n```\n").len(), 2);
    assert_eq!(broken_links(page, "# A title!\n[a](Cargo.toml) [b](https://example.org) [c](#a-title)").len(), 1);
}
