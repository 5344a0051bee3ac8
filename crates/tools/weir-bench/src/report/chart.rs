//! Draws charts as SVG elements that take their colours from the surrounding document.
//!
//! `plots` chooses the data of the charts; the HTML report contains the legends.
//!
//! Invariants:
//! - the colours below stand for roles; the style sheet of a dark document replaces them;
//! - a chart over time has at most [`POINTS_MAX`] points, which include the highest and the lowest
//!   value of each group of consecutive points;
//! - a logarithmic axis omits values that are not positive.

use std::ops::Range;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::combinators::{IntoLogRange as _, LogCoord};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea as _};
use plotters::element::Circle;
use plotters::series::LineSeries;
use plotters::style::{Color as _, RGBColor, ShapeStyle};

use super::ReportError;

/// Maximum number of points in all lines of a chart together; the plot is 550 pixels wide.
pub(super) const POINTS_MAX: usize = 600;
/// Colours of lines, which readers can distinguish. If a chart has more lines than colours, several
/// lines have the same colour.
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x5E, 0xA8),
    RGBColor(0xC8, 0x50, 0x00),
    RGBColor(0x00, 0x7D, 0x5C),
    RGBColor(0xA8, 0x3E, 0x85),
    RGBColor(0x8A, 0x6A, 0x00),
    RGBColor(0x4B, 0x6C, 0x8F),
];
const GRID: RGBColor = RGBColor(0xDE, 0xDE, 0xDE);
const AXIS: RGBColor = RGBColor(0x8C, 0x8C, 0x8C);
const WIDTH: u32 = 640;
const HEIGHT: u32 = 230;

/// Chart: lines that share a pair of axes.
pub(super) struct Chart {
    /// Text of the chart for screen readers and for errors.
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

/// Spacing of the values on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Equal differences have equal lengths, and the axis includes zero.
    Linear,
    /// Equal ratios have equal lengths, and the axis ends at powers of this base.
    Logarithmic(u8),
}

/// One axis of a chart.
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) scale: Scale,
    /// Function that formats a value of the axis.
    pub(super) format: fn(f64) -> String,
}

/// One line of a chart. The index of the line among the lines of the chart decides its colour.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// True if each point has a marker.
    pub(super) marked: bool,
}

/// Draws a chart as an SVG element; `None` if the chart has no point to show.
pub(super) fn svg(chart: &Chart) -> Result<Option<String>, ReportError> {
    let shown = |point: &(f64, f64)| chart.x.shows(point.0) && chart.y.shows(point.1);
    let lines: Vec<Vec<(f64, f64)>> = chart
        .lines
        .iter()
        .map(|line| line.points.iter().copied().filter(shown).collect())
        .collect();
    let all = || lines.iter().flatten();
    let (Some(x), Some(y)) = (chart.x.range(all().map(|p| p.0)), chart.y.range(all().map(|p| p.1)))
    else {
        return Ok(None);
    };
    let mut text = String::new();
    let drawn = draw(&mut text, chart, &lines, (Coordinate::new(x), Coordinate::new(y)));
    drawn.map_err(|error| ReportError::Chart {
        title: chart.title.clone(),
        source: Box::new(error),
    })?;
    Ok(Some(compact(&text)))
}

type DrawError = DrawingAreaErrorKind<std::io::Error>;

fn draw(
    text: &mut String,
    chart: &Chart,
    lines: &[Vec<(f64, f64)>],
    (x, y): (Coordinate, Coordinate),
) -> Result<(), DrawError> {
    let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    let mut context = ChartBuilder::on(&area)
        .margin_top(8)
        .margin_right(26)
        .x_label_area_size(38)
        .y_label_area_size(66)
        .build_cartesian_2d(x, y)?;
    context
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 15))
        .x_labels(9)
        .y_labels(6)
        .x_label_formatter(&|value| (chart.x.format)(*value))
        .y_label_formatter(&|value| (chart.y.format)(*value))
        .x_desc(chart.x.label)
        .y_desc(chart.y.label)
        .draw()?;
    for (index, (line, points)) in chart.lines.iter().zip(lines).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = ShapeStyle { color: colour.to_rgba(), filled: false, stroke_width: 2 };
        context.draw_series(LineSeries::new(points.iter().copied(), style))?;
        // A line with only one point would be invisible, so mark this point.
        if line.marked || points.len() == 1 {
            let dots = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
            context.draw_series(dots)?;
        }
    }
    drop(context);
    area.present()
}

impl Axis {
    fn shows(&self, value: f64) -> bool {
        // Omit larger values, which would overflow when the end of the axis is computed.
        value.abs() < 1e300 && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Range of an axis that includes all values. The range starts at zero, or at a power of the
    /// axis's base. `None` if there are no values.
    fn range(&self, values: impl Iterator<Item = f64>) -> Option<AxisRange> {
        let ends = |ends: Option<(f64, f64)>, value: f64| {
            Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        };
        let (low, high) = values.fold(None, ends)?;
        let ends = match self.scale {
            Scale::Linear => low.min(0.0)..if high > 0.0 { high * 1.05 } else { 1.0 },
            Scale::Logarithmic(base) => {
                let base = f64::from(base);
                let low = base.powf(low.log(base).floor());
                low..base.powf(high.log(base).ceil()).max(low * base)
            }
        };
        Some(AxisRange { ends, scale: self.scale })
    }
}

struct AxisRange {
    ends: Range<f64>,
    scale: Scale,
}

/// Axis with either spacing, so that all charts have the same Rust type.
enum Coordinate {
    Linear(RangedCoordf64),
    Logarithmic(LogCoord<f64>),
}

impl Coordinate {
    fn new(range: AxisRange) -> Self {
        match range.scale {
            Scale::Linear => Self::Linear(range.ends.into()),
            Scale::Logarithmic(base) => {
                Self::Logarithmic(range.ends.log_scale().base(f64::from(base)).into())
            }
        }
    }
}

impl Ranged for Coordinate {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(axis) => axis.map(value, limit),
            Self::Logarithmic(axis) => axis.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(axis) => axis.key_points(hint),
            Self::Logarithmic(axis) => axis.key_points(hint),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(axis) => axis.range(),
            Self::Logarithmic(axis) => axis.range(),
        }
    }
}

/// Removes the attributes that the style sheet of the report sets for all elements.
fn compact(svg: &str) -> String {
    let once = [
        " opacity=\"1\"",
        " stroke-width=\"1\"",
        " font-family=\"sans-serif\"",
        " font-size=\"12.096774193548388\"",
        " fill=\"#000000\"",
        " xmlns=\"http://www.w3.org/2000/svg\"",
    ];
    let short = once.iter().fold(svg.to_owned(), |text, again| text.replace(again, ""));
    short.lines().collect()
}

/// Thins one line of a chart with `lines` lines. If the line has too many points, keeps the lowest
/// and the highest point of each group of consecutive points, in order.
pub(super) fn thin(points: &[(f64, f64)], lines: usize) -> Vec<(f64, f64)> {
    let most = (POINTS_MAX / lines.max(1)).max(2);
    if points.len() <= most {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(most / 2);
    let ends = |stretch: &[(f64, f64)]| {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = stretch.iter().min_by(by_y).copied();
        let high = stretch.iter().max_by(by_y).copied();
        let mut ends: Vec<(f64, f64)> = low.into_iter().chain(high).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        ends
    };
    points.chunks(stretch).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear() -> Axis {
        Axis { label: "second", scale: Scale::Linear, format: |value| value.to_string() }
    }

    #[test]
    fn thinning_keeps_the_stall() {
        let mut points: Vec<(f64, f64)> = (0..7200).map(|i| (f64::from(i), 100.0)).collect();
        points[4321].1 = 0.0;
        points[17].1 = 900.0;
        let thinned = thin(&points, 2);
        assert!(thinned.len() <= POINTS_MAX / 2, "{}", thinned.len());
        assert!(thinned.contains(&(4321.0, 0.0)) && thinned.contains(&(17.0, 900.0)));
        assert!(thinned.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(thin(&points[..5], 1), points[..5]);
    }

    #[test]
    fn logarithmic_axis_omits_values_that_are_not_positive() {
        let line = Line { name: "a".to_owned(), points: vec![(0.0, 0.0)], marked: false };
        let chart = |line| Chart {
            title: "t".to_owned(),
            x: linear(),
            y: Axis { scale: Scale::Logarithmic(10), ..linear() },
            lines: vec![line],
        };
        assert!(svg(&chart(line)).unwrap().is_none());
        let points = vec![(0.0, 0.0), (1.0, 5.0), (2.0, 50.0)];
        let line = Line { name: "a".to_owned(), points, marked: true };
        let drawn = svg(&chart(line)).unwrap().expect("two points are left");
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.starts_with("<svg") && drawn.contains("viewBox"));
        assert_eq!(drawn.matches("#005EA8").count(), 3, "a line and two dots: {drawn}");
    }
}
