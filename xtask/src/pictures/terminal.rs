//! Draws a recording of a terminal as a picture.
//!
//! Not here: the recorded commands (demo.rs).
//!
//! Invariant: every character of the recording is in the picture.

use super::svg::Svg;

/// A line of a recording.
pub(super) enum Line {
    /// A command that the user types.
    Typed(String),
    /// A line that a program prints.
    Printed(String),
}

const WIDTH: u32 = 980;
const LINE_HEIGHT: u32 = 18;
const MARGIN: u32 = 16;

/// Number of columns of the terminal; longer lines are wrapped.
pub(super) const COLUMNS: usize = 118;

/// Draws the picture of a recording.
pub(super) fn draw(lines: &[Line]) -> String {
    let mut svg = Svg::new();
    let wrapped: Vec<(&str, String)> = lines.iter().flat_map(rows).collect();
    let height = 2 * MARGIN + 28 + wrapped.len() as u32 * LINE_HEIGHT;
    svg.rectangle([0, 0, WIDTH, height], "screen");
    for (index, (class, text)) in wrapped.iter().enumerate() {
        let y = MARGIN + 20 + index as u32 * LINE_HEIGHT;
        svg.text([MARGIN, y], &format!("mono {class}"), text);
    }
    svg.finish([WIDTH, height], "A terminal: Weir serves a mirrored volume and clients use it")
}

/// Returns the style-sheet class and the text of each row of the terminal that a line fills.
fn rows(line: &Line) -> Vec<(&'static str, String)> {
    let (class, text) = match line {
        Line::Typed(text) => ("typed", format!("$ {text}")),
        Line::Printed(text) => ("", text.clone()),
    };
    let mut rows = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > COLUMNS {
        // Break the line at the last space that fits; a longer word is cut.
        let space = rest[..COLUMNS].iter().rposition(|&c| c == ' ').filter(|&at| at > COLUMNS / 2);
        let tail = rest.split_off(space.map_or(COLUMNS, |at| at + 1));
        rows.push((class, rest.into_iter().collect()));
        rest = std::iter::repeat_n(' ', 4).chain(tail).collect();
    }
    rows.push((class, rest.into_iter().collect()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped() {
        let line = Line::Printed("x".repeat(COLUMNS + 1));
        let lengths: Vec<usize> = rows(&line).iter().map(|(_, row)| row.len()).collect();
        assert_eq!(lengths, [COLUMNS, 5]);
        let words = format!("{} {}", "x".repeat(COLUMNS - 10), "y".repeat(20));
        let found: Vec<String> =
            rows(&Line::Printed(words)).into_iter().map(|(_, row)| row).collect();
        assert_eq!(found[1], format!("    {}", "y".repeat(20)));
        assert!(draw(&[Line::Typed("weir list".into())]).contains("$ weir list"));
    }
}
