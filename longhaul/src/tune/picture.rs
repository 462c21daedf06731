//! Findings as a picture: rates over block sizes, in one SVG file that needs no other.

use super::{Direction, Findings, Row};
use crate::line_chart::{HEIGHT, Series, WIDTH, chart, text};
use crate::size::Size;

/// Room for the title.
const ABOVE: f64 = 40.0;

/// A line of a chart: its name, its colour, whether it is dashed, and what it shows of a row.
type Shown = (&'static str, usize, bool, fn(&Row) -> f64);

const LINES: [Shown; 4] = [
    ("one after the other", 2, false, |row| row.alone.measured),
    ("its model", 2, true, |row| row.alone.predicted),
    ("through the pipeline", 1, false, |row| row.pipelined.measured),
    ("its model", 1, true, |row| row.pipelined.predicted),
];

/// The picture of what was found of the volume called `title`.
#[must_use]
pub fn picture(title: &str, findings: &Findings) -> String {
    let charts = [("reads", Some(&findings.reads)), ("writes", findings.writes.as_ref())];
    let charts: Vec<_> =
        charts.iter().filter_map(|(name, found)| Some((*name, (*found)?))).collect();
    let height = HEIGHT * charts.len() as f64 + ABOVE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let round_trip = findings.round_trip_us as f64 / 1e3;
    let title = format!("{title}, round trip {round_trip:.3} ms");
    text(&mut svg, (10.0, 20.0), "font-family=\"sans-serif\" font-size=\"12\"", &title);
    for (index, (name, found)) in charts.into_iter().enumerate() {
        let down = ABOVE + HEIGHT * index as f64;
        svg.push_str(&format!("<g transform=\"translate(0 {down})\">\n"));
        svg.push_str(&rates(name, found));
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn rates(name: &str, found: &Direction) -> String {
    let labels: Vec<_> = found.rows.iter().map(|row| Size(row.block).to_string()).collect();
    let line = |(name, colour, dashed, rate): Shown| {
        let points = found.rows.iter().map(rate).enumerate().collect();
        Series { name: name.to_owned(), points, colour, dashed }
    };
    chart(name, &labels, &LINES.map(line))
}
