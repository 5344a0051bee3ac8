//! Elements of an SVG picture, and the colours of its light and dark themes.
//!
//! Not here: the layout of the pictures (architecture.rs, terminal.rs).
//!
//! Invariant: text is escaped, and no element refers to a resource outside the file.

/// Style sheet: colours follow the reader's light or dark theme.
const STYLE: &str = "\
    text { font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1c2733; } \
    .band { fill: #eef3f8; } .box { fill: #ffffff; stroke: #b8c4d0; } \
    .screen { fill: #0f1720; stroke: #3d4b59; } .arrow { fill: none; stroke: #5b6b7b; } \
    .small { font-size: 12px; fill: #5b6b7b; } .name { font-size: 14px; font-weight: 600; } \
    .layer { font-size: 13px; font-weight: 600; fill: #0b6bcb; } \
    .mono { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, monospace; font-size: 13px; \
    fill: #d7e3ee; white-space: pre; } .typed { fill: #7ee787; font-weight: 600; } \
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .band { fill: #1d2935; } \
    .box { fill: #16202b; stroke: #3d4b59; } .arrow { stroke: #9fb0c0; } \
    .small { fill: #9fb0c0; } .layer { fill: #6cb6ff; } .mono { fill: #d7e3ee; } \
    .typed { fill: #7ee787; } }";

/// A picture under construction.
pub(super) struct Svg {
    /// Elements of the picture, each on a line.
    elements: Vec<String>,
}

impl Svg {
    /// Creates an empty picture.
    pub(super) fn new() -> Self {
        Self { elements: Vec::new() }
    }

    /// Adds a rectangle with round corners. `class` is a class of the style sheet.
    pub(super) fn rectangle(&mut self, [x, y, width, height]: [u32; 4], class: &str) {
        self.elements.push(format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\" \
             class=\"{class}\"/>"
        ));
    }

    /// Adds a line of text that starts at a point.
    pub(super) fn text(&mut self, [x, y]: [u32; 2], class: &str, text: &str) {
        let text = escaped(text);
        self.elements.push(format!(
            "<text xml:space=\"preserve\" x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// Adds a vertical arrow with two heads.
    pub(super) fn arrow(&mut self, x: u32, from: u32, to: u32) {
        let (above, below) = (from + 5, to - 5);
        self.elements.push(format!(
            "<path d=\"M{x} {from} V{to} M{l} {above} L{x} {from} L{r} {above} \
             M{l} {below} L{x} {to} L{r} {below}\" class=\"arrow\"/>",
            l = x - 4,
            r = x + 4,
        ));
    }

    /// Returns the complete file. Screen readers read `title` out.
    pub(super) fn finish(self, [width, height]: [u32; 2], title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n\
             <style>{STYLE}</style>\n{}\n</svg>\n",
            escaped(title),
            self.elements.join("\n")
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::new();
        svg.text([1, 2], "name", "a < b & c");
        assert!(svg.finish([10, 10], "t").contains("a &lt; b &amp; c"));
    }
}
