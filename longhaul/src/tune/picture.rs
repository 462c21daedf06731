//! Findings as a picture: rates over block sizes, both in powers, in one SVG file that needs no other.

use std::fmt::Write as _;

use super::{Direction, Findings, Row};
use crate::size::Size;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Room for the scale on the left, and for titles above and block sizes below.
const LEFT: f64 = 90.0;
const ABOVE: f64 = 50.0;
const BELOW: f64 = 50.0;
const RIGHT: f64 = 20.0;

/// A line of a panel: its name, its look, and what it shows of a row.
type Line = (&'static str, &'static str, fn(&Row) -> f64);

const LINES: [Line; 4] = [
    ("one after the other", "stroke:#b5541c", |row| row.alone.measured),
    ("its model", "stroke:#b5541c;stroke-dasharray:5 4", |row| row.alone.predicted),
    ("through the pipeline", "stroke:#1c5fb5", |row| row.pipelined.measured),
    ("its model", "stroke:#1c5fb5;stroke-dasharray:5 4", |row| row.pipelined.predicted),
];

/// The picture of what was found of the volume called `title`.
#[must_use]
pub fn picture(title: &str, findings: &Findings) -> String {
    let panels = [("reads", Some(&findings.reads)), ("writes", findings.writes.as_ref())];
    let panels: Vec<_> =
        panels.iter().filter_map(|(name, found)| Some((name, (*found)?))).collect();
    let height = HEIGHT * panels.len() as f64 + ABOVE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let round_trip = findings.round_trip_us as f64 / 1e3;
    let title = format!("{title}, round trip {round_trip:.3} ms");
    text(&mut svg, 10.0, 20.0, "start", &title);
    for (index, (name, found)) in panels.into_iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", 20.0 + HEIGHT * index as f64);
        panel(&mut svg, name, found);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, name: &str, found: &Direction) {
    text(svg, LEFT, ABOVE - 24.0, "start", name);
    let axes = Axes::new(found);
    axes.draw(svg, found);
    for (index, (name, look, rate)) in LINES.into_iter().enumerate() {
        let points = found.rows.iter().enumerate().map(|(at, row)| axes.point(at, rate(row)));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let style = format!("fill:none;stroke-width:2;{look}");
        let _ = writeln!(svg, "<polyline style=\"{style}\" points=\"{points}\"/>");
        let x = LEFT + 70.0 + 135.0 * index as f64;
        let y = ABOVE - 28.0;
        let _ = writeln!(svg, "<path style=\"{style}\" d=\"M{x} {y}h20\"/>");
        text(svg, x + 24.0, y + 4.0, "start", name);
    }
}

/// Where rates and blocks lie.
struct Axes {
    columns: usize,
    /// Powers of ten of bytes per second, at the foot and at the top.
    least: f64,
    most: f64,
}

impl Axes {
    fn new(found: &Direction) -> Self {
        let rates =
            || found.rows.iter().flat_map(|row| LINES.map(|(_, _, rate)| rate(row).max(1.0)));
        let least = rates().fold(f64::INFINITY, f64::min).log10().floor();
        let most = rates().fold(1.0, f64::max).log10().ceil();
        Self { columns: found.rows.len(), least, most: most.max(least + 1.0) }
    }

    fn point(&self, column: usize, rate: f64) -> (f64, f64) {
        let steps = self.columns.saturating_sub(1).max(1) as f64;
        let share = (rate.max(1.0).log10() - self.least) / (self.most - self.least);
        let x = LEFT + (WIDTH - LEFT - RIGHT) * column as f64 / steps;
        (x, HEIGHT - BELOW - (HEIGHT - ABOVE - BELOW) * share)
    }

    fn draw(&self, svg: &mut String, found: &Direction) {
        let right = WIDTH - RIGHT;
        for power in self.least as i32..=self.most as i32 {
            let (_, y) = self.point(0, 10_f64.powi(power));
            let _ = writeln!(svg, "<path stroke=\"#ccc\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            text(svg, LEFT - 8.0, y + 4.0, "end", &scale(power));
        }
        for (column, row) in found.rows.iter().enumerate() {
            let (x, y) = self.point(column, 10_f64.powf(self.least));
            text(svg, x, y + 18.0, "middle", &Size(row.block).to_string());
        }
    }
}

/// A power of ten of bytes per second.
fn scale(power: i32) -> String {
    let (unit, power) = match power {
        9.. => ("GB/s", power - 9),
        6.. => ("MB/s", power - 6),
        3.. => ("kB/s", power - 3),
        _ => ("B/s", power),
    };
    format!("{} {unit}", 10_f64.powi(power))
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}
