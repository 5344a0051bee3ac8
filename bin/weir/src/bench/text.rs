//! Figures for tables on the terminal, with up to four significant digits.
//!
//! Not here: the tables themselves.

/// Formats a figure.
pub(super) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Converts microseconds to milliseconds.
pub(super) fn milliseconds(us: f64) -> String {
    format!("{:.3}", us / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_significant_digits() {
        let shown = [0.0, 0.01234, 1.234, 12.34, 123.4, 123_456.7].map(number);
        assert_eq!(shown, ["0", "0.0123", "1.23", "12.3", "123", "123457"]);
        assert_eq!(milliseconds(1234.5), "1.234");
    }
}
