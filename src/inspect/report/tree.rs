//! The tree of shared prefixes as a picture: a row for each branching, a box for each prefix, as wide as the prompts that have it.

use std::fmt::Write;

use serde_json::Value;

use super::{
    figures::{Format, PageFigures},
    html::escaped,
};

const WIDTH: f64 = 960.0;
const ROW: f64 = 24.0;

/// Rows, at most.
const MOST_ROWS: usize = 12;

/// A box narrower than this is not drawn.
const NARROWEST: f64 = 1.5;

/// A box narrower than this has no text.
const TEXT: f64 = 90.0;

/// A prefix and its place in the picture.
struct Drawn {
    /// Free place within it, for those that continue it.
    next: f64,
    right: f64,
    row: usize,
}

/// The tree at a pointer; nothing where no prompts share a prefix.
pub(super) fn html(figures: &PageFigures, place: &str) -> String {
    let shared = figures.at(&format!("{place}/shared")).as_array().map_or(&[][..], Vec::as_slice);
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_f64).unwrap_or_default();
    let prompts = figures.at(&format!("{place}/prompts")).as_f64().unwrap_or_default();
    if shared.is_empty() || prompts < 1.0 {
        return String::new();
    }
    let mut drawn = vec![Drawn { next: 0.0, right: WIDTH, row: 0 }];
    let (mut boxes, mut rows) = (String::new(), 1);
    for prefix in shared {
        // The first place of the list is that of all prompts.
        let parent = prefix.get("parent").and_then(Value::as_u64).map_or(0, |parent| parent + 1);
        let width = number(prefix, "prompts") / prompts * WIDTH;
        let parent = usize::try_from(parent).ok().and_then(|parent| drawn.get_mut(parent));
        let Some(Drawn { next, right, row }) = parent else { break };
        let (x, row) = (*next, *row + 1);
        // A file whose hashes are no chains may have more prompts below a prefix than it has itself.
        let width = width.min(*right - x).max(0.0);
        *next += width;
        drawn.push(Drawn { next: x, right: x + width, row });
        if width >= NARROWEST && row <= MOST_ROWS {
            rows = rows.max(row);
            push_box(&mut boxes, prefix, (x, width, row));
        }
    }
    let all = format!("{} prompts", Format::Count.text(prompts));
    let title = "Shared prefixes: each box is a prefix, as wide as the share of prompts that have it; the boxes below continue it";
    let height = (rows + 1) as f64 * ROW;
    format!(
        "<figure class=\"tree\"><figcaption>{title}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}. The table below has the largest.\">\n\
         <g class=\"all\"><rect x=\"0\" y=\"0\" width=\"{WIDTH}\" height=\"{}\"/><text x=\"6\" y=\"16\">{all}</text></g>\n{boxes}</svg></figure>\n",
        ROW - 2.0
    )
}

fn push_box(boxes: &mut String, prefix: &Value, (x, width, row): (f64, f64, usize)) {
    let count = |name: &str| Format::Count.text(prefix.get(name).and_then(Value::as_f64).unwrap_or_default());
    let title = format!(
        "{} prompts share {} blocks, up to {}; {} reused",
        count("prompts"),
        count("length"),
        prefix.get("hash").and_then(Value::as_str).unwrap_or_default(),
        count("reused_blocks"),
    );
    let y = row as f64 * ROW;
    let shade = row % 4;
    let _ = write!(
        boxes,
        "<g class=\"shade{shade}\"><title>{}</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\"/>",
        escaped(&title),
        (width - 1.0).max(0.5),
        ROW - 2.0
    );
    if width >= TEXT {
        let _ = write!(
            boxes,
            "<text x=\"{:.1}\" y=\"{}\">{} × {} blocks</text>",
            x + 6.0,
            y + 16.0,
            count("prompts"),
            count("own_blocks")
        );
    }
    boxes.push_str("</g>\n");
}
