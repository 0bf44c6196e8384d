//! Tables of a page.

use std::fmt::Write;

use super::{
    figures::{Cell, Format},
    html::escaped,
};

/// A column: its title, and how its numbers are shown; `None` for texts.
pub(super) type Column = (&'static str, &'static str, Option<Format>);

/// A table: the first cell of a row is its heading.
#[derive(Debug)]
pub(super) struct Table {
    caption: String,
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
    is_sortable: bool,
}

impl Table {
    pub(super) fn new(caption: &str, head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let head = head.into_iter().map(Into::into).collect();
        Self { caption: caption.to_owned(), head, rows: Vec::new(), is_sortable: false }
    }

    /// The same table, whose rows a reader may sort.
    pub(super) fn sortable(self) -> Self {
        Self { is_sortable: true, ..self }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as HTML; without rows a note that there is nothing.
    pub(super) fn html(&self) -> String {
        let caption = escaped(&self.caption);
        if self.rows.is_empty() {
            return format!("<p class=\"nothing\">{caption}: none.</p>\n");
        }
        let mut html =
            format!("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table");
        html.push_str(if self.is_sortable { " class=\"sortable\">" } else { ">" });
        let _ = write!(html, "<caption>{caption}</caption>\n<thead><tr>");
        let has_numbers = |place| self.rows.iter().any(|row| row.get(place).is_some_and(|cell: &Cell| cell.is_number));
        let classes: Vec<&str> = (0..self.head.len()).map(|place| class(has_numbers(place))).collect();
        for (title, class) in self.head.iter().zip(&classes) {
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escaped(title));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (place, (Cell { html: cell, .. }, class)) in row.iter().zip(&classes).enumerate() {
                let _ = match place {
                    0 => write!(html, "<th scope=\"row\"{class}>{cell}</th>"),
                    _ => write!(html, "<td{class}>{cell}</td>"),
                };
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
        html
    }
}

fn class(is_number: bool) -> &'static str {
    if is_number { " class=\"number\"" } else { "" }
}
